//! Connections to a server: dialled, kept, watched and replaced.
//!
//! | file | responsibility |
//! |---|---|
//! | `server` | the address, the credentials and the certificates of a server |
//! | `dial`, `listen` | open connections for commands and for subscriptions |
//! | `opening` | the server that a connection is opened to, and whether it is the primary |
//! | `pools` | the pool of the current server |
//! | `address` | whether an address leads to the right server, and the order of dials while it may not |
//! | `link` | one multiplexed connection |
//! | `handle`, `state`, `connecting` | the current link for commands, and its replacement |
//! | `replied` | what follows a reply |
//! | `spread`, `granting` | whether the address is several servers, and what that means for grants |
//! | `unanswered` | what follows a command without a reply |
//! | `request` | a command, its undo and its reply |
//! | `network` | the settings that all connections share |
//! | `call_span` | the span of one call of a script |
//! | `outage`, `backoff` | logs of outages, pauses between attempts |
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
mod connecting;
mod dial;
mod granting;
mod handle;
mod link;
mod listen;
mod network;
mod opening;
mod outage;
mod pools;
mod replied;
mod request;
mod server;
mod spread;
mod state;
mod unanswered;

pub(crate) use address::Visit;
pub(crate) use backoff::backoff;
pub(crate) use call_span::CallSpan;
pub(crate) use dial::{Connector, Origin, without_timeout};
pub(crate) use handle::Connection;
pub(crate) use link::{Link, ROLE};
pub(crate) use listen::{Messages, listen};
pub(crate) use network::{Network, within};
pub(crate) use outage::Outage;
pub(crate) use request::{Called, Reply, Request, Resend, Undo, after};
#[cfg(feature = "redis-tls")]
pub(crate) use server::Certificates;
pub use server::Credentials;
pub(crate) use server::{AddressMap, Locate, Provider, Target, Targets, Transport};
pub(crate) use spread::Spread;
