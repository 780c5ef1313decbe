//! Connects to one host under the name of another.

use std::io;
use std::net::SocketAddr;

use futures_util::FutureExt as _;
use redis::RedisFuture;
use redis::io::AsyncDNSResolver;
use tokio::net::lookup_host;

/// Resolves the host of a server instead of the name in its certificate.
pub(super) struct Resolver(pub(super) String);

impl AsyncDNSResolver for Resolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _server_name: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        async move {
            let addresses: Vec<_> = lookup_host((self.0.as_str(), port)).await?.collect();
            // redis-rs panics without an address.
            if addresses.is_empty() {
                return Err(io::Error::other("host has no address").into());
            }
            Ok(Box::new(addresses.into_iter()) as Box<_>)
        }
        .boxed()
    }
}
