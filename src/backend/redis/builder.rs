//! The settings of a Redis backend.

mod bounds;
mod prefix;
mod reach;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use deadpool_redis::Pool;
use futures_util::FutureExt as _;

use super::RedisBackend;
use super::command::{AcquireBatch, Calls, Names, Scripts, millis};
use super::connection::{ClientContext, Transport};
use super::inner::Inner;
use super::notify::{Publish, Recovery};
use super::self_test::{self_test, self_test_later};
use super::topology::{MinReplicas, NodeSettings, Open, Route, ServerSource, Servers, open};
use crate::mutex::Mutex;
use crate::task::Background;
use crate::{ConfigError, ConnectError};

/// The default watchdog timeout of a manager.
const USUAL_LEASE: Duration = Duration::from_secs(30);
/// The least time for which sent bytes may remain unacknowledged. Shorter pauses are normal.
const MIN_USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds a [`RedisBackend`].
///
/// [`RedisBackend::builder`] and [`RedisBackend::from_pool`] create it. [`connect`](Self::connect) checks the
/// settings and opens the connections.
#[must_use = "does nothing until `connect` is called"]
pub struct RedisBackendBuilder {
    servers: Servers,
    prefix: Option<String>,
    /// The prefix in the URL, which the setting replaces.
    url_prefix: Result<Option<String>, ConfigError>,
    connections: NonZeroUsize,
    connect_timeout: Duration,
    response_timeout: Duration,
    min_replicas: Option<MinReplicas>,
    quarantine: Option<Duration>,
    redisson_tokens: bool,
}

impl RedisBackendBuilder {
    pub(crate) fn from_url(url: String) -> Self {
        let (url, url_prefix) = prefix::split(&url);
        Self {
            url_prefix,
            ..Self::new(ServerSource::Url(url))
        }
    }

    pub(crate) fn from_pool(pool: Pool) -> Self {
        Self::new(ServerSource::Pool(pool))
    }

    fn new(source: ServerSource) -> Self {
        Self {
            servers: Servers {
                source,
                notify: None,
                sentinel_auth: None,
                publish: Publish::default(),
                transport: Transport::default(),
            },
            prefix: None,
            url_prefix: Ok(None),
            connections: NonZeroUsize::MIN,
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_millis(500),
            min_replicas: None,
            quarantine: None,
            redisson_tokens: false,
        }
    }

    /// Sets the prefix of all names in Redis. Defaults to that of the URL, `?prefix=orders:`, or to `lock:`.
    ///
    /// `""` shares names with Java services, whose `getLock("a")` is the key `a`: see
    /// [sharing locks with Redisson](crate::guide::redisson). A prefix has at most 256 bytes, without braces and
    /// control characters.
    ///
    /// Each prefix has its own fencing counter. All processes that share a lock must use the same prefix. The key
    /// `k` under `lock:` and the key `lock:k` under `""` exclude each other, but their
    /// [tokens](crate::guide::one_server#fencing-tokens) may repeat or decrease from one to the other.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets the number of connections for commands. Defaults to 1, at most 256.
    ///
    /// One carries tens of thousands of locks per second. More help if TLS or a slow core of this machine is
    /// the limit. While a server hangs, each may be open twice: its replacement is opened before it is closed.
    pub fn connections(mut self, connections: NonZeroUsize) -> Self {
        self.connections = connections;
        self
    }

    /// Sets the timeout for opening one connection. Defaults to 2 s, from 1 ms to 10 min.
    ///
    /// It covers the look-up of the host name, TCP, TLS, the [credentials](Self::credentials) and the authentication,
    /// and behind sentinels the question for the primary. If a name takes longer to look up, no connection opens. To a
    /// distant server, a connection takes two or three round trips, and one or two more with TLS.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the timeout of one command. Defaults to 500 ms, from 1 ms to 10 min.
    ///
    /// After it, the result is unknown. A lock that the command may have acquired is released over the same
    /// connection.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Sets the URL of the server to subscribe at for releases. Defaults to the URL of the backend. Not for a
    /// cluster.
    ///
    /// A backend [from a pool](RedisBackend::from_pool) has no URL, and with `?protocol=2` in the URL its server may
    /// have no messages. Without this setting, such a backend has no subscription: its waiters poll, as
    /// [the order](crate::guide::order) describes, and its leases are released to other processes at each hand-off
    /// that asks for them. With a replica of the server, its waiters poll as well.
    pub fn notify(mut self, url: impl Into<String>) -> Self {
        self.servers.notify = Some(url.into());
        self
    }

    /// Sets the commands that publish releases and subscribe to them. Defaults to [`Publish::Auto`].
    ///
    /// For older clients of Redisson in a cluster, see [sharing locks with Redisson](crate::guide::redisson).
    pub fn publish(mut self, publish: Publish) -> Self {
        self.servers.publish = publish;
        self
    }

    /// Sets how many replicas must acknowledge a grant, and within which time. Defaults to none, from 1 to 256
    /// replicas and from 1 ms to 10 min. In a cluster, the replicas are those of the key's node.
    ///
    /// If too few replicas acknowledge a grant in time, it is released, and the caller receives
    /// *unavailable*. The next attempts at that server are rejected at once, for 50 ms at first and at most
    /// 400 ms. Renewals do not wait for replicas.
    ///
    /// If the failover elects a replica that acknowledged, the lock survives. If it elects another replica, the
    /// lock is lost, unless all replicas must acknowledge: `WAIT` is no consensus. An acknowledged grant is in the
    /// memory of the replicas, not on disk. This setting makes a lost lock unlikely. The fencing token protects
    /// against the rest.
    ///
    /// Each acquire takes a connection of its own from the pool, up to 32 at a time per node, which costs a `PING`
    /// besides the round trip to the replicas. Up to 32 connections stay open. Renewals and releases use the shared
    /// connections. A [pool](RedisBackend::from_pool) of the program should have room for the 32 besides the shared
    /// ones. With less room, fewer acquires are concurrent.
    ///
    /// [`connect`](Self::connect) fails if too few replicas acknowledge. The setting requires more
    /// [permissions](RedisBackend#permissions). The votes of a node of a [`Quorum`](crate::Quorum) do not wait for
    /// replicas: the other nodes make up for a lost vote.
    pub fn min_replicas(mut self, replicas: NonZeroUsize, timeout: Duration) -> Self {
        let replicas = replicas.get();
        self.min_replicas = Some(MinReplicas { replicas, timeout });
        self
    }

    /// Sets how long no lock is granted after Redis restarted or lost its data. Defaults to off, from 1 ms to
    /// 366 days.
    ///
    /// A holder does not notice the loss of its lock at once. `max_lease` is the longest time for which it may rely
    /// on the lock: the longest lease of any process, which is the manager's watchdog timeout or a longer fixed
    /// lease. Callers receive *unavailable* during this time.
    ///
    /// Two signs begin a quarantine:
    ///
    /// - The server process started within `max_lease`. It may have loaded a snapshot without the last grants.
    ///   Hence a restart that kept all data pauses grants as well. A server reports its uptime in full seconds, so
    ///   this pause is up to 2 s longer than `max_lease`.
    /// - The fencing counter is missing, as at the first start and after `FLUSHALL`.
    ///
    /// A failover to a replica begins no quarantine if the replica has a counter: its process is older.
    /// [`min_replicas`](Self::min_replicas) makes the loss of a lock in a failover unlikely. While a slot of a
    /// cluster is moving, the uptime counts at the node that has the slot's counter.
    ///
    /// Holders keep, renew and release their locks in a quarantine. [`RedisBackend::warnings`] reports a quarantine
    /// that is in force when the backend connects. Each attempt reads the uptime from `INFO server`, which takes
    /// the server about 10 µs. The setting requires more [permissions](RedisBackend#permissions).
    ///
    /// All processes that share the server must set the same time. A process without the setting grants locks, and
    /// creates a counter, which hides the loss from the others. So does a Java service that shares the names.
    ///
    /// In a cluster, each slot has a counter. [`connect`](Self::connect) checks all 16,384 of them and creates the
    /// missing ones, about 5 MB in total. After a loss, the slots of a node have their quarantine together.
    pub fn quarantine(mut self, max_lease: Duration) -> Self {
        self.quarantine = Some(max_lease);
        self
    }

    /// Takes fencing tokens from the counters of Redisson's `getFencedLock`, so that the tokens of a Java service and
    /// of this process increase together. Defaults to off.
    ///
    /// Set the [`prefix`](Self::prefix) to `""`, as for all names that are shared with Java. Redisson keeps one
    /// counter per lock, `redisson_lock_token:{name}`, without a TTL. If the counter is lost, the tokens restart
    /// at 1. Each hand-off in this process takes its token from Redis, eight at a time while no other process
    /// waits. With several keys, each has tokens of its own: use
    /// [`fencing_token_for`](crate::Held::fencing_token_for). Set it in all processes that share a name, or in none,
    /// and not if a storage remembers earlier tokens.
    ///
    /// It requires the keys `~redisson_lock_token:*` besides the [permissions](RedisBackend#permissions). It excludes a
    /// [`quarantine`](Self::quarantine), and does not affect the votes of a [`Quorum`](crate::Quorum).
    pub fn redisson_fencing_tokens(mut self) -> Self {
        self.redisson_tokens = true;
        self
    }

    /// Opens the connections and tries the scripts of acquires, renewals and releases on a key of its own.
    ///
    /// This takes at most eight round trips to one server, and fewer if the server has the scripts. TLS, sentinels, a
    /// cluster, a [quarantine](Self::quarantine) and [`min_replicas`](Self::min_replicas) take more.
    ///
    /// Two permissions show only at the first command that needs them: those for the nodes of a
    /// [`Quorum`](crate::Quorum), and `+hgetall` for [`inspect`](crate::LockManager::inspect) and
    /// [`force_release`](crate::LockManager::force_release).
    ///
    /// # Errors
    ///
    /// - [`ConnectError::Config`]: a setting is out of its bounds, a URL is invalid, or too few replicas
    ///   acknowledge for [`min_replicas`](Self::min_replicas). Or the caller is not in a Tokio runtime with timers.
    /// - [`ConnectError::Unreachable`]: no connection opened within the [connect timeout](Self::connect_timeout), or no
    ///   reply to a command arrived within the [response timeout](Self::response_timeout).
    /// - [`ConnectError::Refused`]: the password is wrong, the ACL lacks a permission, client and server do not trust
    ///   each other's certificates, the server [lacks](crate::guide::redis#servers-and-proxies) what the scripts need, or a
    ///   proxy [spreads keys over several servers](crate::guide::cluster#one-endpoint-for-several-servers).
    ///
    /// A server that cannot grant locks at the moment (memory full, still loading) is a
    /// [warning](RedisBackend::warnings).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the opened connections are closed. A key of the trial may remain for 1 s.
    pub async fn connect(self) -> Result<RedisBackend, ConnectError> {
        let inner = self.assemble(false).await?;
        drop(inner.warnings.set(self_test(&inner).await?));
        let inner = Arc::new(inner);
        Ok(RedisBackend { inner })
    }

    /// Returns at once, and connects in the background. What [`connect`](Self::connect) would reject is a
    /// [warning](RedisBackend::warnings) later, which the feature `tracing` logs. The first lock reports it too.
    ///
    /// This suits a node of a [`Quorum`](crate::Quorum), which starts without a minority, or a program that
    /// starts before its Redis.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError::Config`] as [`connect`](Self::connect), and for a cluster, which is asked for its nodes
    /// first: its `connect` requires one node.
    pub fn connect_lazy(self) -> Result<RedisBackend, ConnectError> {
        let Some(inner) = self.assemble(true).now_or_never() else {
            unreachable!("BUG: only a cluster is asked for its nodes");
        };
        let inner = Arc::new(inner?);
        let tested = Arc::clone(&inner);
        Background.spawn(async move { self_test_later(&tested).await });
        Ok(RedisBackend { inner })
    }

    /// Creates the parts of the backend. Only a cluster opens connections, to ask for its nodes. If `at_once`, it is
    /// rejected.
    async fn assemble(mut self, at_once: bool) -> Result<Inner, ConnectError> {
        self.validate()?;
        bounds::require_runtime()?;
        let connections = self.connections.get();
        let prefix = self.prefix.or(self.url_prefix?);
        let prefix = prefix.unwrap_or_else(|| "lock:".to_owned());
        let names = Names::new(prefix, self.redisson_tokens)?;
        let context = Arc::new(ClientContext {
            near: Mutex::default(),
            connect_timeout: self.connect_timeout,
            response_timeout: self.response_timeout,
            recovery: Recovery::default(),
            longest_lease: AtomicU64::new(millis(
                self.quarantine.unwrap_or_default().max(USUAL_LEASE),
            )),
        });
        self.servers.transport.user_timeout = self.connect_timeout.max(MIN_USER_TIMEOUT);
        let settings = Open {
            servers: self.servers,
            node: NodeSettings {
                connections,
                min_replicas: self.min_replicas,
                context: Arc::clone(&context),
                probed: None,
            },
            names: names.clone(),
            at_once,
        };
        let (topology, address, publish) = open(settings).await?;
        let batches_acquires = !topology.is_cluster()
            && self.quarantine.is_none()
            && self.min_replicas.is_none()
            && !self.redisson_tokens;
        let scripts = Scripts::new(&names, publish, self.quarantine);
        let calls = Arc::new(Calls::new(names, scripts));
        // Without a cluster, there is one node.
        let nodes = topology.nodes();
        let batched = if batches_acquires { connections } else { 0 };
        let [acquire_batches, share_batches] = [false, true].map(|is_shared| {
            let routes = (0..batched).map(|index| Route::over(&nodes[0], index));
            let batch = |route| Arc::new(AcquireBatch::new(Arc::clone(&calls), route, is_shared));
            routes.map(batch).collect()
        });
        Ok(Inner {
            calls,
            topology,
            context,
            min_replicas: self.min_replicas,
            acquire_batches,
            share_batches,
            address,
            warnings: OnceLock::new(),
        })
    }
}

impl fmt::Debug for RedisBackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs and pools contain passwords, and the certificates a private key.
        f.debug_struct("RedisBackendBuilder")
            .field("prefix", &self.prefix)
            .field("url_prefix", &self.url_prefix)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}
