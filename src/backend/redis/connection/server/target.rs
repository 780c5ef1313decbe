//! A server, and how to connect and log in to it.

use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisConnectionInfo,
};

use super::credentials::Provider;
#[cfg(feature = "redis-tls")]
use super::resolver::Resolver;
use crate::backend::BackendError;

/// redis-rs blocks senders beyond this many unsent commands. Its default of 50 is less than one
/// busy process has in flight.
const UNSENT_COMMANDS: usize = 4_096;

/// Returns the host and the port to connect to, for those that a server reports.
type AddressMap = Arc<dyn Fn(&str, u16) -> (String, u16) + Send + Sync>;

/// One server and the credentials for it. It contains the password, so it has no `Debug`.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) info: ConnectionInfo,
    /// Host and port, or the path of the socket.
    pub(crate) address: String,
    /// `None` if the login in `info` is that of every connection.
    pub(crate) credentials: Option<Provider>,
    address_map: Option<AddressMap>,
    /// The name that certificates must contain. Defaults to the host.
    #[cfg(feature = "redis-tls")]
    server_name: Option<String>,
}

/// The settings of every connection, whatever its URL. It contains a private key, so it has no
/// `Debug`.
#[derive(Default)]
pub(crate) struct Transport {
    /// How long sent bytes may remain unacknowledged.
    pub(crate) user_timeout: Duration,
    pub(crate) credentials: Option<Provider>,
    pub(crate) address_map: Option<AddressMap>,
    #[cfg(feature = "redis-tls")]
    pub(crate) certificates: super::Certificates,
}

impl Target {
    pub(crate) fn new(info: ConnectionInfo, transport: &Transport) -> Self {
        Self {
            address: address_of(info.addr()),
            info: info.set_tcp_settings(tcp_settings(transport.user_timeout)),
            credentials: transport.credentials.clone(),
            address_map: transport.address_map.clone(),
            #[cfg(feature = "redis-tls")]
            server_name: transport.certificates.server_name.clone(),
        }
    }

    /// Returns another server with the same login and the same kind of connection. A server reported its
    /// address.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let (host, port) = match &self.address_map {
            Some(map) => map(host, port),
            None => (host.to_owned(), port),
        };
        let mut addr = self.info.addr().clone();
        match &mut addr {
            ConnectionAddr::TcpTls {
                host: named,
                port: at,
                ..
            } => (*named, *at) = (host, port),
            other => *other = ConnectionAddr::Tcp(host, port),
        }
        Self {
            address: address_of(&addr),
            info: self.info.clone().set_addr(addr),
            ..self.clone()
        }
    }

    /// Returns the server at the address of a redirection from the server at `asked`.
    pub(crate) fn redirected(&self, redirection: &str, asked: &str) -> Option<Self> {
        let (host, port) = redirection.rsplit_once(':')?;
        // A missing or unknown host means another port of the node that replied.
        let host = match host {
            "" | "?" => asked.rsplit_once(':')?.0,
            host => host,
        };
        Some(self.at(host.trim_matches(['[', ']']), port.parse().ok()?))
    }

    /// Returns the same server with another login, which is that of every connection.
    pub(crate) fn with(&self, login: RedisConnectionInfo) -> Self {
        Self {
            info: self.info.clone().set_redis_settings(login),
            credentials: None,
            ..self.clone()
        }
    }

    /// Returns the same server with the login of one connection. The caller sets the time limit.
    pub(crate) async fn with_login(&self) -> Result<Self, BackendError> {
        let mut target = self.clone();
        if let Some(provider) = &self.credentials {
            let settings = self.info.redis_settings().clone();
            let settings = provider.ask().await?.apply(settings);
            target.info = target.info.set_redis_settings(settings);
        }
        Ok(target)
    }

    /// Returns the settings of a connection, without timeouts, which the callers have.
    pub(crate) fn settings(self) -> (ConnectionInfo, AsyncConnectionConfig) {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(UNSENT_COMMANDS);
        #[cfg(feature = "redis-tls")]
        let mut addr = self.info.addr().clone();
        #[cfg(feature = "redis-tls")]
        if let Some(name) = self.server_name
            && let ConnectionAddr::TcpTls { host, .. } = &mut addr
        {
            // redis-rs verifies the certificate against the host that it resolves.
            let config = config.set_dns_resolver(Resolver(std::mem::replace(host, name)));
            return (self.info.set_addr(addr), config);
        }
        (self.info, config)
    }

    /// Returns `true` if both are the same server with the same login.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.info.redis_settings(), other.info.redis_settings());
        self.address == other.address
            && mine.username() == theirs.username()
            && mine.password() == theirs.password()
    }

    /// Returns `true` unless the URL demands RESP2. Then the server may not have RESP3, and subscriptions need
    /// it.
    pub(crate) fn has_messages(&self) -> bool {
        self.info.redis_settings().protocol() == ProtocolVersion::RESP3
    }

    /// Returns the same server for a subscription: only RESP3 has messages between replies.
    pub(crate) fn for_messages(self) -> Self {
        Self {
            info: newest(self.info),
            ..self
        }
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
