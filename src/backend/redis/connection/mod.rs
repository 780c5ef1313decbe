//! Connections to one server: opened, kept, watched and replaced.

mod backoff;
mod checkout;
mod dial;
mod handle;
mod link;
mod outage;
mod recovery;
mod server;

pub(crate) use backoff::backoff;
pub(crate) use checkout::Checkout;
pub(crate) use dial::{Connector, Messages, Network, Origin, listen, within, without_timeout};
pub(crate) use handle::{Connection, Unanswered};
pub(crate) use link::Link;
pub(crate) use outage::Outage;
pub(crate) use recovery::Recovery;
#[cfg(feature = "redis-tls")]
pub(crate) use server::{Certificates, is_disagreement};
pub(crate) use server::{Target, Targets, Transport};
