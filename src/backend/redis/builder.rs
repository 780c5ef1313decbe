//! The settings of a Redis backend.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::RedisBackend;
use super::connect::{Connector, pool};
use super::names::Names;
use super::notify::Notifier;
use super::self_test::self_test;
use super::shard::Shard;
use super::target::Target;
use crate::{ConfigError, ConnectError};
use deadpool_redis::Pool;

const MAX_CONNECTIONS: usize = 256;
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// How long sent bytes may stay unacknowledged, at least: less is an ordinary hiccup.
const MIN_USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds a [`RedisBackend`]; from [`RedisBackend::builder`] or [`RedisBackend::from_pool`].
///
/// Nothing is checked and nothing is opened before [`connect`](Self::connect).
#[must_use = "does nothing until `connect` is called"]
pub struct RedisBackendBuilder {
    source: Source,
    notify: Option<String>,
    prefix: String,
    connections: NonZeroUsize,
    connect_timeout: Duration,
    response_timeout: Duration,
}

enum Source {
    Url(String),
    Pool(Pool),
}

impl RedisBackendBuilder {
    pub(super) fn from_url(url: String) -> Self {
        Self::new(Source::Url(url))
    }

    pub(super) fn from_pool(pool: Pool) -> Self {
        Self::new(Source::Pool(pool))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            notify: None,
            prefix: "lock:".to_owned(),
            connections: NonZeroUsize::MIN,
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_millis(500),
        }
    }

    /// What every name in Redis starts with. Default: `lock:`. `""` shares names with Java
    /// services, whose `getLock("a")` is the key `a`.
    ///
    /// At most 256 bytes, without braces and control characters.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Over how many connections commands go. Default: 1; at most 256.
    ///
    /// One carries tens of thousands of locks per second. More help where TLS or a slow core on
    /// this side is the limit.
    pub fn connections(mut self, connections: NonZeroUsize) -> Self {
        self.connections = connections;
        self
    }

    /// How long a connection may take to open, log-in included. Default: 2 s; 1 ms to 10 min.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long one command may take. Default: 500 ms; 1 ms to 10 min.
    ///
    /// After it the outcome is unknown, and what the command may have acquired is given back on
    /// the same connection.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Where to subscribe to releases. Default: the URL of the backend.
    ///
    /// A backend [from a pool](RedisBackend::from_pool) has no URL. Without this setting it
    /// subscribes to nothing: its waiters try at intervals of up to half a second, and it hands
    /// a lock on to other processes whenever it is asked to.
    pub fn notify(mut self, url: impl Into<String>) -> Self {
        self.notify = Some(url.into());
        self
    }

    /// Opens the connections and tries out every script on a key of its own.
    ///
    /// # Errors
    ///
    /// - [`ConnectError::Config`]: a setting is out of its bounds, or a URL cannot be used.
    /// - [`ConnectError::Unreachable`]: nobody answered within the connect timeout, or a command
    ///   of the trial within the response timeout.
    /// - [`ConnectError::Refused`]: the password is wrong, or the ACL lacks a permission.
    ///
    /// A server that is reachable and cannot take locks at the moment (memory full, still loading)
    /// is none of these: see [`RedisBackend::warnings`].
    ///
    /// # Cancel safety
    ///
    /// Connections that were opened are closed. A key of the trial may stay for a second.
    pub async fn connect(self) -> Result<RedisBackend, ConnectError> {
        for (field, timeout) in [
            ("connect_timeout", self.connect_timeout),
            ("response_timeout", self.response_timeout),
        ] {
            if !(MIN_TIMEOUT..=MAX_TIMEOUT).contains(&timeout) {
                let problem =
                    format!("{timeout:?} is not within {MIN_TIMEOUT:?} to {MAX_TIMEOUT:?}");
                return Err(ConfigError::new(field, problem).into());
            }
        }
        let connections = self.connections.get();
        if connections > MAX_CONNECTIONS {
            let problem = format!("more than {MAX_CONNECTIONS}");
            return Err(ConfigError::new("connections", problem).into());
        }
        let names = Names::new(self.prefix)?;

        let user_timeout = self.connect_timeout.max(MIN_USER_TIMEOUT);
        let notify = match &self.notify {
            Some(url) => Some(Target::parse("notify", url, user_timeout)?),
            None => None,
        };
        let (pool, address, notify) = match self.source {
            Source::Url(url) => {
                let target = Target::parse("url", &url, user_timeout)?;
                let pool = pool(&target, connections, self.connect_timeout)?;
                let address = target.address.clone();
                (pool, address, Some(notify.unwrap_or(target)))
            }
            Source::Pool(pool) => (pool, "the given pool".to_owned(), notify),
        };
        let connector = Arc::new(Connector::new(
            pool,
            address,
            self.connect_timeout,
            self.response_timeout,
        ));
        let notifier = Notifier::new(Arc::clone(&connector), notify);
        let shards: Vec<_> = (0..connections)
            .map(|_| Arc::new(Shard::new(Arc::clone(&connector))))
            .collect();

        let warnings = self_test(&shards, &names, &notifier, &connector).await?;
        Ok(RedisBackend::new(
            names, shards, notifier, connector, warnings,
        ))
    }
}

impl fmt::Debug for RedisBackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs and pools hold passwords.
        f.debug_struct("RedisBackendBuilder")
            .field("prefix", &self.prefix)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}
