//! Opens connections, from a URL or a pool of the program.

use std::error::Error as _;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::{ClientWrapper, Object, Pool, PoolError};
use futures_util::stream::{Stream, StreamExt as _, poll_fn};
#[cfg(feature = "postgres-tls")]
use rustls::RootCertStore;
#[cfg(feature = "postgres-tls")]
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, Error, NoTls};

use super::error::{Cause, of_connect};
use crate::ConfigError;
use crate::backend::{BackendError, BackendErrorKind};
use crate::jitter::up_to;
use crate::task::{Background, timeout};

/// The timeout for opening a connection to one host, unless the URL contains another one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(feature = "postgres-tls")]
const CA: &str = "ca_certificate";

/// Where connections come from.
#[derive(Clone)]
pub(super) enum Source {
    Url(Box<Server>),
    Pool(Pool),
}

/// A server, and how to connect to it.
#[derive(Clone)]
pub(super) struct Server {
    /// The settings for each host, in the order of the URL.
    configs: Vec<Config>,
    /// The host that accepted the last connection.
    last: Arc<AtomicUsize>,
    #[cfg(feature = "postgres-tls")]
    tls: Option<tokio_postgres_rustls::MakeRustlsConnect>,
}

/// An open connection, which closes when it is dropped.
pub(super) enum Connected {
    Own(Client),
    /// Taken out of its pool, which has room for another one.
    Pooled(ClientWrapper),
}

impl Deref for Connected {
    type Target = Client;

    fn deref(&self) -> &Client {
        match self {
            Self::Own(client) => client,
            Self::Pooled(client) => client,
        }
    }
}

/// The messages of a connection. Their stream also moves its bytes.
type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, Error>> + Send>>;

impl Server {
    /// Parses a URL. Errors contain no part of it.
    pub(super) fn parse(field: &'static str, url: &str) -> Result<Self, ConfigError> {
        let invalid = |problem: &str| ConfigError::new(field, problem);
        let config: Result<Config, _> = url.parse();
        let mut config = config.map_err(|error| {
            let cause = error.source().map(ToString::to_string);
            // Other causes can contain a part of the URL.
            let of_value = cause.filter(|it| it.starts_with("invalid value for option"));
            let or = "not a URL of PostgreSQL, or one with an unknown parameter";
            invalid(of_value.as_deref().unwrap_or(or))
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(invalid("no host"));
        }
        // The host would be shown with the end of a password.
        let has_at = |it: &Host| matches!(it, Host::Tcp(name) if name.contains('@'));
        if config.get_hosts().iter().any(has_at) {
            return Err(invalid("a host with `@`: in a password, write it as `%40`"));
        }
        if config.get_application_name().is_none() {
            config.application_name("tower-lock");
        }
        if config.get_connect_timeout().is_none_or(Duration::is_zero) {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        let uses_tls = config.get_ssl_mode() == SslMode::Require;
        if !uses_tls {
            config.ssl_mode(SslMode::Disable);
        }
        #[cfg(not(feature = "postgres-tls"))]
        if uses_tls {
            return Err(invalid(
                "`sslmode=require` needs the feature `postgres-tls`",
            ));
        }
        let configs = each_host(&config).ok_or_else(|| invalid("hosts and ports do not match"))?;
        Ok(Self {
            configs,
            last: Arc::default(),
            #[cfg(feature = "postgres-tls")]
            tls: uses_tls.then(|| tls(public_authorities())),
        })
    }

    /// Replaces the authorities. Without TLS, no connection would use them, but their caller relies on them.
    #[cfg(feature = "postgres-tls")]
    pub(super) fn trust(&mut self, roots: &RootCertStore) -> Result<(), ConfigError> {
        let without = || ConfigError::new(CA, "a URL lacks `sslmode=require`");
        *self.tls.as_mut().ok_or_else(without)? = tls(roots.clone());
        Ok(())
    }

    /// Returns the timeout of a dial, which tries all hosts.
    pub(super) fn connect_limit(&self) -> Duration {
        self.configs.iter().map(host_limit).sum()
    }

    /// Returns the hosts and ports, or the paths of the sockets.
    pub(super) fn address(&self) -> String {
        let each: Vec<_> = self.configs.iter().map(address).collect();
        each.join(",")
    }

    /// Connects to the first host that accepts. One that hangs takes no time of the next.
    async fn connect(&self) -> Result<(Client, Messages), BackendError> {
        let mut order: Vec<_> = self.configs.iter().enumerate().collect();
        let config = &self.configs[0];
        if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            order.sort_by_cached_key(|_| up_to(CONNECT_TIMEOUT));
        } else if config.get_target_session_attrs() == TargetSessionAttrs::ReadWrite {
            // There is one primary. A former one may hang for a while.
            order.rotate_left(self.last.load(Ordering::Relaxed));
        }
        let mut outcome = Err(unavailable(Cause::NoConnection));
        for (index, config) in order {
            outcome = match timeout(host_limit(config), self.connect_to(config)).await {
                Ok(connected) => connected.map_err(of_connect),
                Err(_) => Err(unavailable(Cause::NoConnection)),
            };
            if outcome.is_ok() {
                self.last.store(index, Ordering::Relaxed);
                break;
            }
        }
        outcome
    }

    async fn connect_to(&self, config: &Config) -> Result<(Client, Messages), Error> {
        #[cfg(feature = "postgres-tls")]
        if let Some(tls) = &self.tls {
            let (client, mut connection) = config.connect(tls.clone()).await?;
            let messages = poll_fn(move |cx| connection.poll_message(cx));
            return Ok((client, Box::pin(messages)));
        }
        let (client, mut connection) = config.connect(NoTls).await?;
        let messages = poll_fn(move |cx| connection.poll_message(cx));
        Ok((client, Box::pin(messages)))
    }

    /// Opens a connection, which a task drives.
    async fn open(&self) -> Result<Client, BackendError> {
        Ok(self.listen().await?.0)
    }

    /// Opens a connection, and returns the texts of its notifications. They end with the connection.
    pub(super) async fn listen(&self) -> Result<(Client, UnboundedReceiver<String>), BackendError> {
        let (client, mut messages) = self.connect().await?;
        let (texts, received) = unbounded_channel();
        Background.spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(it) = message {
                    // The receiver may be dropped.
                    drop(texts.send(it.payload().to_owned()));
                }
            }
        });
        Ok((client, received))
    }
}

/// Returns one configuration for each host, or `None` if their number is not that of the addresses or ports.
fn each_host(config: &Config) -> Option<Vec<Config>> {
    let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let (count, ports) = (hosts.len().max(addresses.len()), config.get_ports());
    let fits = |n: usize, least: usize| n <= least || n == count;
    if !fits(hosts.len(), 0) || !fits(addresses.len(), 0) || !fits(ports.len(), 1) {
        return None;
    }
    let one = |index| {
        let mut one = without_hosts(config);
        match hosts.get(index) {
            Some(Host::Tcp(host)) => drop(one.host(host)),
            #[cfg(unix)]
            Some(Host::Unix(path)) => drop(one.host_path(path)),
            None => {}
        }
        if let Some(address) = addresses.get(index) {
            one.hostaddr(*address);
        }
        if let Some(port) = ports.get(index).or(ports.first()) {
            one.port(*port);
        }
        one
    };
    Some((0..count).map(one).collect())
}

/// The type cannot remove hosts, so this copies all other settings.
fn without_hosts(config: &Config) -> Config {
    let mut copy = Config::new();
    config.get_user().map(|it| copy.user(it));
    config.get_password().map(|it| copy.password(it));
    config.get_dbname().map(|it| copy.dbname(it));
    config.get_options().map(|it| copy.options(it));
    config
        .get_application_name()
        .map(|it| copy.application_name(it));
    config
        .get_connect_timeout()
        .map(|it| copy.connect_timeout(*it));
    config
        .get_tcp_user_timeout()
        .map(|it| copy.tcp_user_timeout(*it));
    config
        .get_keepalives_interval()
        .map(|it| copy.keepalives_interval(it));
    config
        .get_keepalives_retries()
        .map(|it| copy.keepalives_retries(it));
    copy.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .target_session_attrs(config.get_target_session_attrs())
        .load_balance_hosts(config.get_load_balance_hosts());
    copy
}

fn host_limit(config: &Config) -> Duration {
    config
        .get_connect_timeout()
        .copied()
        .unwrap_or(CONNECT_TIMEOUT)
}

fn address(config: &Config) -> String {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    match config.get_hosts().first() {
        Some(Host::Tcp(host)) => format!("{host}:{port}"),
        #[cfg(unix)]
        Some(Host::Unix(path)) => format!("{}:{port}", path.display()),
        None => (config.get_hostaddrs().first()).map_or(String::new(), |it| format!("{it}:{port}")),
    }
}

#[cfg(feature = "postgres-tls")]
fn public_authorities() -> RootCertStore {
    RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    }
}

/// Parses the certificates of authorities. Errors contain no part of them.
#[cfg(feature = "postgres-tls")]
pub(super) fn authorities(pem: &[u8]) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let added = certificate.ok().and_then(|it| roots.add(it).ok());
        added.ok_or_else(|| ConfigError::new(CA, "not the certificate of an authority"))?;
    }
    match roots.is_empty() {
        true => Err(ConfigError::new(CA, "not PEM with a certificate")),
        false => Ok(roots),
    }
}

/// Returns the settings of TLS: the certificate of the server must be from one of the authorities.
#[cfg(feature = "postgres-tls")]
fn tls(roots: RootCertStore) -> tokio_postgres_rustls::MakeRustlsConnect {
    // The program may have selected no provider.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("BUG: the provider supports them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tokio_postgres_rustls::MakeRustlsConnect::new(config)
}

impl Source {
    /// Replaces the authorities. The program itself connects those of a pool.
    #[cfg(feature = "postgres-tls")]
    pub(super) fn trust(&mut self, roots: &RootCertStore) -> Result<(), ConfigError> {
        match self {
            Self::Url(server) => server.trust(roots),
            Self::Pool(_) => Err(ConfigError::new(CA, "connections are from a pool")),
        }
    }

    pub(super) fn address(&self) -> String {
        match self {
            Self::Url(server) => server.address(),
            Self::Pool(_) => "the pool".to_owned(),
        }
    }

    /// Opens a connection, driven by the thread of the crate.
    pub(super) async fn open(&self) -> Result<Connected, BackendError> {
        let source = self.clone();
        let limit = match self {
            Self::Url(server) => server.connect_limit(),
            Self::Pool(_) => CONNECT_TIMEOUT,
        };
        in_background(limit, async move {
            match source {
                Self::Url(server) => server.open().await.map(Connected::Own),
                Self::Pool(pool) => loop {
                    match pool.get().await {
                        // One that was idle runs in the runtime that opened it, which may block or end.
                        Ok(idle) if Object::metrics(&idle).recycled.is_some() => {
                            drop(Object::take(idle));
                        }
                        Ok(client) => return Ok(Connected::Pooled(Object::take(client))),
                        Err(PoolError::Backend(error)) => return Err(of_connect(error)),
                        Err(error) => return Err(unavailable(Cause::Pool(error))),
                    }
                },
            }
        })
        .await
    }

    /// Cancels the command of a connection, if the server can be reached. One of a pool that uses TLS only cannot be cancelled.
    pub(super) async fn cancel(&self, token: CancelToken) {
        #[cfg(feature = "postgres-tls")]
        if let Self::Url(server) = self
            && let Some(tls) = &server.tls
        {
            return drop(timeout(CONNECT_TIMEOUT, token.cancel_query(tls.clone())).await);
        }
        drop(timeout(CONNECT_TIMEOUT, token.cancel_query(NoTls)).await);
    }
}

/// Runs a dial on the thread of the crate, so that no runtime of the program has to drive the connection.
pub(super) async fn in_background<T: Send + 'static>(
    limit: Duration,
    dial: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> Result<T, BackendError> {
    let dial = Background.run(timeout(limit, dial));
    match dial.await {
        Some(Ok(opened)) => opened,
        Some(Err(_)) => Err(unavailable(Cause::NoConnection)),
        None => Err(unavailable(Cause::NoThread)),
    }
}

pub(super) fn unavailable(cause: Cause) -> BackendError {
    BackendError::refused(BackendErrorKind::Unavailable, cause)
}
