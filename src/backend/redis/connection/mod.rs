//! Connections to a server: dialled, kept, watched and replaced.
//!
//! | file or room | responsibility |
//! |---|---|
//! | `server` | the address, the credentials and the certificates of a server |
//! | `address` | whether an address leads to the right server, and the order of dials while it may not |
//! | `link` | one multiplexed connection |
//! | `request`, `call_span` | a command, its undo and its reply; the span of one call of a script |
//! | `client_context` | the settings that all connections share |
//! | `one_task` | a task of which one runs at a time |
//! | `backoff` | pauses between attempts |
//! | `dial` | opens connections |
//! | `handle` | the current link for commands, and its replacement |
//!
//! A room names only what is above it in this table.
//!
//! Connections are dialled and driven by tasks on [one thread](crate::task::Background), or in a
//! multi-thread runtime, so no runtime of the program can hold up the callers of another. Callers wait for a
//! dial, and none can cancel it.
//!
//! A command without a reply may still take effect. Its undo follows on the same link, so that it
//! cannot overtake the command.

mod address;
mod backoff;
mod call_span;
mod client_context;
mod dial;
mod handle;
mod link;
mod one_task;
mod request;
mod server;

pub(crate) use address::Visit;
pub(crate) use backoff::backoff;
pub(crate) use call_span::CallSpan;
pub(crate) use client_context::{ClientContext, in_background, within};
pub(crate) use dial::{Connector, Messages, Origin, Spread, listen, without_timeout};
pub(crate) use handle::Connection;
pub(crate) use link::{Link, ROLE};
pub(crate) use one_task::{OneTask, Running};
pub(crate) use request::{Called, Progress, Request, Resend, Undo};
pub use server::Credentials;
pub(crate) use server::{Locate, Provider, Target, Targets, Transport};
