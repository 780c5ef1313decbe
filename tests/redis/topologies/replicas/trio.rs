//! A primary with two replicas, and commands of one lease.

use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::time::Instant;
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend as _, BackendError, BackendErrorKind, LeaseId, Release,
    Released, Renewal, Renewed,
};
use tower_lock::{ConnectError, LockKey, RedisBackend};
use uuid::Uuid;

use crate::support::engine::PATIENCE;
use crate::support::errors::chain;
use crate::support::patience::wait_until;
use crate::support::redis_server::RedisServer;

pub(crate) const TTL: Duration = Duration::from_secs(30);
/// The number of acquires that may wait for replicas concurrently.
pub(crate) const LENT: usize = 32;

/// A primary and two replicas in sync.
pub(crate) struct Trio {
    pub(crate) primary: RedisServer,
    pub(crate) replicas: Vec<RedisServer>,
}

impl Trio {
    pub(crate) fn start() -> Self {
        // By default, the primary waits five seconds for more replicas before it sends its data.
        let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let port = primary.port().to_string();
        let replica = || RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
        let replicas = vec![replica(), replica()];
        wait_until(
            "replicas in sync",
            || primary.log(),
            || online(&primary) == 2 && replicas.iter().all(is_up),
        );
        Self { primary, replicas }
    }

    /// Uses long timeouts for a busy machine, except for the wait for replicas.
    pub(crate) fn builder(&self, replicas: usize, timeout: Duration) -> RedisBackendBuilder {
        self.builder_at(self.primary.url(), replicas, timeout)
    }

    pub(crate) fn builder_at(
        &self,
        url: String,
        replicas: usize,
        timeout: Duration,
    ) -> RedisBackendBuilder {
        RedisBackend::builder(url)
            .connect_timeout(PATIENCE)
            .response_timeout(PATIENCE)
            .min_replicas(NonZeroUsize::new(replicas).unwrap(), timeout)
    }

    /// Connects a backend that requires both replicas.
    pub(crate) async fn backend(&self, timeout: Duration) -> RedisBackend {
        connected(|| self.builder(2, timeout)).await
    }

    pub(crate) fn stop_replicas(&self) {
        self.replicas.iter().for_each(RedisServer::stop_process);
    }

    pub(crate) fn continue_replicas(&self) {
        self.replicas.iter().for_each(RedisServer::continue_process);
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        exists(&self.primary, key)
    }
}

/// Retries to connect: on a busy machine the replicas may be late at first.
pub(crate) async fn connected(builder: impl Fn() -> RedisBackendBuilder) -> RedisBackend {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match builder().connect().await {
            Ok(backend) => return backend,
            Err(error) => assert!(Instant::now() < deadline, "{}", chain(&error)),
        }
    }
}

pub(crate) fn online(primary: &RedisServer) -> usize {
    let replication = primary.cli(&["INFO", "replication"]);
    replication.matches("state=online").count()
}

/// Returns `true` if the replica has loaded the data of its primary.
pub(crate) fn is_up(replica: &RedisServer) -> bool {
    let replication = replica.cli(&["INFO", "replication"]);
    replication.contains("master_link_status:up")
}

pub(crate) fn exists(server: &RedisServer, key: &str) -> bool {
    server.cli(&["EXISTS", &format!("lock:{key}")]) == "1"
}

pub(crate) fn lease(number: u64) -> LeaseId {
    LeaseId::new(Uuid::from_u128(7), number)
}

pub(crate) async fn acquire(backend: &RedisBackend, key: &str) -> Result<Acquired, BackendError> {
    backend
        .try_acquire(&AcquireRequest::new(LockKey::new(key), lease(1), TTL))
        .await
}

/// Acquires the key and returns the counter of the grant.
pub(crate) async fn grant(backend: &RedisBackend, key: &str) -> u64 {
    match acquire(backend, key).await.unwrap() {
        Acquired::Granted { counter, .. } => counter,
        other => panic!("{key}: {other:?}"),
    }
}

pub(crate) async fn release(backend: &RedisBackend, key: &str) -> Released {
    let outcome = backend
        .release(&[Release::new(LockKey::new(key), lease(1))])
        .await;
    outcome.into_iter().next().unwrap().unwrap()
}

pub(crate) async fn renew(backend: &RedisBackend, key: &str) -> Renewed {
    let renewal = Renewal::new(LockKey::new(key), lease(1), TTL);
    let outcome = backend.renew(&[renewal]).await;
    outcome.into_iter().next().unwrap().unwrap()
}

/// Checks that too few replicas acknowledged the grant, and that the backend released it.
pub(crate) fn is_short(error: &BackendError, acknowledged: &str) {
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(!error.may_have_taken_effect(), "{}", chain(error));
    let said = format!("{acknowledged} replicas acknowledged the grant");
    assert!(chain(error).contains(&said), "{}", chain(error));
}

/// Returns `total_connections_received`.
pub(crate) fn connections(server: &RedisServer) -> usize {
    let stats = server.cli(&["INFO", "stats"]);
    let prefix = "total_connections_received:";
    let count = stats.lines().find_map(|line| line.strip_prefix(prefix));
    count.unwrap().trim().parse().unwrap()
}

/// Connects with a rejected setting, and returns its error.
pub(crate) async fn error_of(builder: RedisBackendBuilder) -> String {
    match builder.connect().await.unwrap_err() {
        ConnectError::Config(error) if error.field() == "min_replicas" => error.to_string(),
        error => panic!("{error}"),
    }
}
