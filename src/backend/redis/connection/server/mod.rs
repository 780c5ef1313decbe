//! The address, credentials and certificates of a server.

mod credentials;
mod locate;
#[cfg(feature = "redis-tls")]
mod resolver;
mod target;
#[cfg(feature = "redis-tls")]
mod tls;
mod url;

pub use credentials::Credentials;
pub(crate) use credentials::Provider;
pub(crate) use locate::Locate;
pub(crate) use target::{AddressMap, Target, Transport};
#[cfg(feature = "redis-tls")]
pub(crate) use tls::Certificates;
pub(crate) use url::Targets;
