//! Commands of one lease on a backend, and waits for the server.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, Hints, LeaseId, Release, Released, Renewal,
    Renewed,
};
use tower_lock::{LockKey, RedisBackend};
use uuid::Uuid;

use crate::support::redis_server::RedisServer;

pub(crate) const TTL: Duration = Duration::from_secs(30);
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const MANAGER: Uuid = Uuid::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef);
pub(crate) const LEASE: &str = "01234567-89ab-4def-8123-456789abcdef:7";

pub(crate) fn lease() -> LeaseId {
    LeaseId::new(MANAGER, 7)
}

pub(crate) fn stranger() -> LeaseId {
    LeaseId::new(Uuid::new_v4(), 1)
}

/// Connects with a long response timeout, because a busy machine must not fail these tests.
pub(crate) async fn connect(server: &RedisServer) -> RedisBackend {
    let builder = RedisBackend::builder(server.url()).response_timeout(PATIENCE);
    builder.connect().await.unwrap()
}

pub(crate) async fn grant(backend: &RedisBackend, key: &str) -> u64 {
    let key = LockKey::new(key);
    match backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap()
    {
        Acquired::Granted { counter, .. } => counter,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn release(backend: &RedisBackend, key: &str) -> Result<Released, BackendError> {
    let mut answers = backend
        .release(&[Release::new(LockKey::new(key), lease())])
        .await;
    answers.remove(0)
}

/// Repeats a command that could not be sent: a busy machine opens its connection late.
pub(crate) async fn sent<T>(command: impl AsyncFn() -> Result<T, BackendError>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match command().await {
            Err(error) if !error.may_have_taken_effect() && Instant::now() < end => {}
            outcome => return outcome.unwrap(),
        }
    }
}

pub(crate) async fn renew(backend: &RedisBackend, key: &str) -> Result<Renewed, BackendError> {
    let renewal = Renewal::new(LockKey::new(key), lease(), TTL);
    backend.renew(&[renewal]).await.remove(0)
}

pub(crate) async fn hinted(hints: &mut Hints) -> bool {
    timeout(PATIENCE, hints.next()).await.is_ok()
}

/// Returns the number of connections that the server has accepted since its start.
pub(crate) fn connections(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "stats"]);
    let prefix = "total_connections_received:";
    let count = stats.lines().find_map(|line| line.strip_prefix(prefix));
    count.unwrap().trim().parse().unwrap()
}
