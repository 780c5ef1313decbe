//! The address, credentials and certificates of a server.

mod locate;
mod target;
#[cfg(feature = "redis-tls")]
mod tls;
mod url;

pub(crate) use locate::Locate;
pub(crate) use target::{Target, Transport};
#[cfg(feature = "redis-tls")]
pub(crate) use tls::Certificates;
pub(crate) use url::Targets;
