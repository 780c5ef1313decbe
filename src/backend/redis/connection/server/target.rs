//! A server, and how to connect and log in to it.

use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, ProtocolVersion};

/// One server and the credentials for it. It contains the password, so it has no `Debug`.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) info: ConnectionInfo,
    /// Host and port, or the path of the socket.
    pub(crate) address: String,
}

/// The settings of every connection, whatever its URL. It contains a private key, so it has no
/// `Debug`.
#[derive(Default)]
pub(crate) struct Transport {
    /// How long sent bytes may remain unacknowledged.
    pub(crate) user_timeout: Duration,
    #[cfg(feature = "redis-tls")]
    pub(crate) certificates: super::Certificates,
}

impl Target {
    pub(crate) fn new(info: ConnectionInfo, user_timeout: Duration) -> Self {
        Self {
            address: address_of(info.addr()),
            info: info.set_tcp_settings(tcp_settings(user_timeout)),
        }
    }

    /// Returns another server with the same login and the same kind of connection.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self {
            address: address_of(&addr),
            info: self.info.clone().set_addr(addr),
        }
    }

    /// Returns `true` unless the URL demands RESP2. Then the server may not have RESP3, and subscriptions need
    /// it.
    pub(crate) fn has_messages(&self) -> bool {
        self.info.redis_settings().protocol() == ProtocolVersion::RESP3
    }

    /// Returns the same server for a subscription: only RESP3 has messages between replies.
    pub(crate) fn for_messages(&self) -> ConnectionInfo {
        newest(self.info.clone())
    }
}

/// Returns the same server in RESP3, which announces the end of a connection.
pub(super) fn newest(info: ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone();
    info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3))
}

fn address_of(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            if host.contains(':') {
                format!("[{host}]:{port}")
            } else {
                format!("{host}:{port}")
            }
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        // The enum is `non_exhaustive`, and a URL yields only the cases above.
        _ => "the server".to_owned(),
    }
}

/// The configuration of deadpool-redis drops these settings, so the pool's manager is built from
/// `ConnectionInfo`.
fn tcp_settings(user_timeout: Duration) -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5));
    let settings = TcpSettings::default()
        // A command is one small packet, which must not wait for a second one.
        .set_nodelay(true)
        .set_keepalive(keepalive)
        // A close resets the connection. Otherwise an acquire in the send buffer of an abandoned
        // connection could be delivered long after its replacement released the key.
        .set_linger_time(Duration::ZERO);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(user_timeout);
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    let _unused = user_timeout;
    settings
}
