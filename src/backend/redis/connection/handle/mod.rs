//! The connection that commands use: its current link, and the replacement of a link that fails.
//!
//! | file | responsibility |
//! |---|---|
//! | `connection` | sends a command over the current link |
//! | `link_state`, `connecting` | the current link, and its replacement |
//! | `granting` | what several servers behind one address mean for grants |
//! | `replied` | what follows a reply |
//! | `unanswered` | what follows a command without a reply |

mod connecting;
mod connection;
mod granting;
mod link_state;
mod replied;
mod unanswered;

pub(crate) use connection::Connection;
