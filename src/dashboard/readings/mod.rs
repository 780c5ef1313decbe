//! What the page shows, read once per second.
//!
//! | file | responsibility |
//! |---|---|
//! | `figures` | what the manager has counted, and the rates that follow from it |
//! | `backend` | the servers, and their recent incidents |
//! | `history` | the past of the plots |
//! | `recorder` | the readings of each second and of each minute |
//! | `frame` | the data of one second, as JSON |
//! | `publisher` | one reader for the history and for all open pages |

mod backend;
mod figures;
mod frame;
mod history;
mod publisher;
mod recorder;

pub(super) use frame::{held_by, millis, owner, row};
pub(super) use history::Range;
pub(super) use publisher::{LONGEST_STREAM, Latest, Publisher, Subscription};
