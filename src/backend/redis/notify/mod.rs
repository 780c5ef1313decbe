//! Who hears of releases: one subscription connection for all watched keys of a server.
//!
//! | what | where |
//! |---|---|
//! | the channels that are watched, and by whom | `topics` |
//! | the handle, and where it listens | `notifier` |
//! | the task that owns the connection | `task` |
//! | by which commands: plain or sharded | `pub_sub` |

mod notifier;
mod pub_sub;
mod task;
mod topics;

pub(crate) use notifier::{Endpoint, Notifier};
pub(crate) use pub_sub::PubSub;
