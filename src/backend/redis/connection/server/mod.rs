//! The address, credentials and certificates of a server.
//!
//! | file | responsibility |
//! |---|---|
//! | `url` | the servers that a URL names |
//! | `target` | one server, and how to connect and log in to it |
//! | `locate` | the server to connect to now, which a failover changes |
//! | `credentials` | logins that the program provides for each connection |
//! | `tls`, `resolver` | certificates, and the host name that they are verified for |

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
pub(crate) use target::{Target, Transport};
#[cfg(feature = "redis-tls")]
use tls::Certificates;
pub(crate) use url::Targets;
