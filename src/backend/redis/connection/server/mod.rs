//! The address, credentials and certificates of a server.

mod target;
#[cfg(feature = "redis-tls")]
mod tls;

pub(crate) use target::{Target, Targets, Transport};
#[cfg(feature = "redis-tls")]
pub(crate) use tls::{Certificates, is_disagreement};
