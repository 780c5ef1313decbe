//! The settings of a Redis backend.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use deadpool_redis::Pool;
use redis::RedisConnectionInfo;

use super::RedisBackend;
use super::self_test::self_test;
use crate::backend::redis::command::Publish;
#[cfg(feature = "redis-tls")]
use crate::backend::redis::connection::Certificates;
use crate::backend::redis::topology::MinReplicas;
use crate::error::with_causes;
use crate::{ConfigError, ConnectError};

const MAX_CONNECTIONS: usize = 256;
const MAX_REPLICAS: usize = 256;
/// As long as a lease may be.
const MAX_QUARANTINE: Duration = Duration::from_secs(366 * 24 * 60 * 60);
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Builds a [`RedisBackend`]; from [`RedisBackend::builder`] or [`RedisBackend::from_pool`].
///
/// Nothing is checked and nothing is opened before [`connect`](Self::connect).
#[must_use = "does nothing until `connect` is called"]
pub struct RedisBackendBuilder {
    pub(crate) source: Source,
    pub(crate) notify: Option<String>,
    pub(crate) prefix: String,
    pub(crate) connections: NonZeroUsize,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) publish: Publish,
    pub(crate) sentinel_auth: Option<RedisConnectionInfo>,
    #[cfg(feature = "redis-tls")]
    pub(crate) certificates: Certificates,
    pub(crate) min_replicas: Option<MinReplicas>,
    pub(crate) quarantine: Option<Duration>,
    pub(crate) redisson_tokens: bool,
}

pub(crate) enum Source {
    Url(String),
    Pool(Pool),
}

impl RedisBackendBuilder {
    pub(crate) fn from_url(url: String) -> Self {
        Self::new(Source::Url(url))
    }

    pub(crate) fn from_pool(pool: Pool) -> Self {
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
            publish: Publish::default(),
            sentinel_auth: None,
            #[cfg(feature = "redis-tls")]
            certificates: Certificates::default(),
            min_replicas: None,
            quarantine: None,
            redisson_tokens: false,
        }
    }

    /// What every name in Redis starts with. Default: `lock:`. `""` shares names with Java
    /// services, whose `getLock("a")` is the key `a`: see [sharing locks with Redisson](crate::guide::redisson).
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

    /// Where to subscribe to releases. Default: the URL of the backend. Not for a cluster.
    ///
    /// A backend [from a pool](RedisBackend::from_pool) has no URL. Without this setting it
    /// subscribes to nothing: its waiters try at intervals of up to half a second, and it hands
    /// a lock on to other processes whenever it is asked to.
    pub fn notify(mut self, url: impl Into<String>) -> Self {
        self.notify = Some(url.into());
        self
    }

    /// By which commands releases are told and heard. Default: [`Publish::Auto`]. With older clients of
    /// Redisson in a cluster: see [sharing locks with Redisson](crate::guide::redisson).
    pub fn publish(mut self, publish: Publish) -> Self {
        self.publish = publish;
        self
    }

    /// How to log in at the sentinels. Default: not at all. The user and the password in the URL are
    /// those of the primary.
    ///
    /// An empty user is the default user of the server.
    pub fn sentinel_auth(mut self, user: impl AsRef<str>, password: impl AsRef<str>) -> Self {
        let login = RedisConnectionInfo::default().set_password(password);
        self.sentinel_auth = Some(match user.as_ref() {
            "" => login,
            user => login.set_username(user),
        });
        self
    }

    /// Whom to trust with `rediss://`: the certificates of one or more authorities, as PEM. Default:
    /// the public ones that Mozilla trusts, which these replace.
    ///
    /// For commands, subscriptions, sentinels and all nodes of a cluster. The name or the IP address
    /// in the URL, and of the nodes that a sentinel or a cluster names, must be in the certificate
    /// of the server.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_lock::RedisBackend;
    ///
    /// let backend = RedisBackend::builder("rediss://locks.internal:6380")
    ///     .ca_certificate(std::fs::read("ca.pem")?)
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.ca = Some(pem.into());
        self
    }

    /// What to show to a server that asks for it: a certificate, with those between it and the
    /// authority behind it, and its private key, both as PEM. Default: nothing.
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client = Some((certificate_pem.into(), key_pem.into()));
        self
    }

    /// How many replicas have to acknowledge a grant before it counts, and how long they have for
    /// that. Default: none; 1 to 256 replicas, 1 ms to 10 min. In a cluster: replicas of the node
    /// that has the key.
    ///
    /// A grant that too few acknowledge in time is given back, and the caller gets *unavailable*.
    /// Further tries at that server are then refused at once, for 50 ms at first and up to 400 ms.
    /// Renewals are not waited for.
    ///
    /// A failover to a replica that acknowledged keeps the lock. It may elect another one, which does
    /// not know of it, unless all replicas are asked for: `WAIT` is no consensus, and what was
    /// acknowledged is in the memory of the replicas, on no disk. So this makes a lock that is lost
    /// unlikely, not impossible; the fencing token is for what is left.
    ///
    /// Each acquire takes a connection out of the pool for itself, up to 32 at a time and node, which
    /// costs a `PING` besides the round trip to the replicas; up to 32 stay open. Renewals and
    /// releases go over the shared connections as always. A [pool](RedisBackend::from_pool) of your
    /// own should have room for the 32 besides the shared ones; with less, fewer acquire at a time.
    ///
    /// Connecting fails where too few replicas acknowledge. It takes more
    /// [permissions](RedisBackend#permissions). As a node of a [`Quorum`](crate::Quorum) its votes do
    /// not wait for replicas: there the other nodes are what a lost vote is made up by.
    pub fn min_replicas(mut self, replicas: NonZeroUsize, timeout: Duration) -> Self {
        let replicas = replicas.get();
        self.min_replicas = Some(MinReplicas { replicas, timeout });
        self
    }

    /// After Redis came back without its data, grants no lock for so long. Default: off; 1 ms to 366
    /// days.
    ///
    /// Whoever held a lock before does not know at once that it is gone. `max_lease` is the longest
    /// time that it may think so: the longest lease that any process takes there, which is the
    /// manager's watchdog timeout or a longer fixed lease. Callers get *unavailable* meanwhile.
    ///
    /// The loss is noticed by the fencing counter, which is missing then: so the very first start
    /// looks the same, and so does `FLUSHALL`. [`RedisBackend::warnings`] tells of a quarantine that
    /// is in force when the backend connects.
    ///
    /// All processes that share the server have to set it, to the same time. One that does not grants
    /// locks all the same, and writes a new counter, which hides the loss from the others. A Java
    /// service that shares the names knows nothing of it.
    ///
    /// In a cluster each slot has a counter. Connecting looks at all 16 384 of them, and creates
    /// those that are missing, about 5 MB in all. After a loss those of its node have their
    /// quarantine together.
    pub fn quarantine(mut self, max_lease: Duration) -> Self {
        self.quarantine = Some(max_lease);
        self
    }

    /// Draws fencing tokens from the counters of Redisson's `getFencedLock`, so that a Java service and
    /// this one number their grants of a lock in one row. Default: off.
    ///
    /// Give it the [`prefix`](Self::prefix) `""`, as for all names that are shared with Java. Redisson
    /// keeps a counter for each lock, `redisson_lock_token:{name}`, for ever; it begins anew where it is
    /// lost, and tokens with it. Each hand-off in this process asks Redis for its token, eight at a
    /// time while nobody else waits. With several keys each has tokens of its own: use
    /// [`fencing_token_for`](crate::Held::fencing_token_for). Set it in all processes that share a
    /// name, or in none, and not where a storage remembers tokens of before: these begin at 1.
    ///
    /// It takes the keys `~redisson_lock_token:*` besides the
    /// [permissions](RedisBackend#permissions). Not together with a [`quarantine`](Self::quarantine);
    /// without effect on the votes of a [`Quorum`](crate::Quorum).
    pub fn redisson_fencing_tokens(mut self) -> Self {
        self.redisson_tokens = true;
        self
    }

    /// Opens the connections and tries out every script on a key of its own.
    ///
    /// # Errors
    ///
    /// - [`ConnectError::Config`]: a setting is out of its bounds, a URL cannot be used, or a server
    ///   has not the replicas that [`min_replicas`](Self::min_replicas) asks for.
    /// - [`ConnectError::Unreachable`]: nobody answered within the connect timeout, or a command
    ///   of the trial within the response timeout.
    /// - [`ConnectError::Refused`]: the password is wrong, the ACL lacks a permission, or one side
    ///   does not trust the certificate of the other.
    ///
    /// A server that is reachable and cannot take locks at the moment (memory full, still loading)
    /// is none of these: see [`RedisBackend::warnings`].
    ///
    /// # Cancel safety
    ///
    /// Connections that were opened are closed. A key of the trial may stay for a second.
    pub async fn connect(self) -> Result<RedisBackend, ConnectError> {
        let mut inner = self.assemble().await?;
        inner.warnings = self_test(&inner).await?;
        Ok(RedisBackend::new(inner))
    }

    /// The same, but a server that cannot be reached is a [warning](RedisBackend::warnings), and is
    /// sought from then on: for a node of a [`Quorum`](crate::Quorum), which starts without a
    /// minority, or for a program that starts before its Redis. Nothing is tried out there; what
    /// would have been refused is told by the first lock.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), [`ConnectError::Unreachable`] only for a cluster of which
    /// no node answers.
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_lazy(self) -> Result<RedisBackend, ConnectError> {
        let mut inner = self.assemble().await?;
        inner.warnings = match self_test(&inner).await {
            Err(error @ ConnectError::Unreachable { .. }) => vec![with_causes(&error)],
            tested => tested?,
        };
        Ok(RedisBackend::new(inner))
    }
}

impl RedisBackendBuilder {
    /// What can be told from a setting alone.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let for_replicas = self.min_replicas.map(|it| it.timeout);
        for (field, time, max) in [
            ("connect_timeout", Some(self.connect_timeout), MAX_TIMEOUT),
            ("response_timeout", Some(self.response_timeout), MAX_TIMEOUT),
            ("min_replicas", for_replicas, MAX_TIMEOUT),
            ("quarantine", self.quarantine, MAX_QUARANTINE),
        ] {
            if let Some(time) = time
                && !(MIN_TIMEOUT..=max).contains(&time)
            {
                let problem = format!("{time:?} is not within {MIN_TIMEOUT:?} to {max:?}");
                return Err(ConfigError::new(field, problem));
            }
        }
        if self.connections.get() > MAX_CONNECTIONS {
            let problem = format!("more than {MAX_CONNECTIONS}");
            return Err(ConfigError::new("connections", problem));
        }
        if self.redisson_tokens && self.quarantine.is_some() {
            let problem = "it is the crate's own counter that shows a loss of data, and this one is Redisson's";
            return Err(ConfigError::new("redisson_fencing_tokens", problem));
        }
        if self
            .min_replicas
            .is_some_and(|it| it.replicas > MAX_REPLICAS)
        {
            let problem = format!("more than {MAX_REPLICAS}");
            return Err(ConfigError::new("min_replicas", problem));
        }
        Ok(())
    }
}

impl fmt::Debug for RedisBackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs and pools hold passwords, and certificates come with a private key.
        f.debug_struct("RedisBackendBuilder")
            .field("prefix", &self.prefix)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}
