//! Locks in PostgreSQL, against real servers.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout)]

// First by name, because its tests wait longest: they start first.
mod asleep;
mod batch;
mod blocked;
mod connect;
mod contract;
#[allow(
    dead_code,
    unreachable_pub,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
#[path = "../simulate/draw/mod.rs"]
mod draw;
mod engine;
mod examples;
mod faults;
mod fence;
mod herd;
mod load;
mod migration;
mod notify_queue;
mod observe;
mod pgbouncer;
#[allow(dead_code, unreachable_pub)]
#[path = "../simulate/plan.rs"]
mod plan;
mod queue;
mod random;
mod schedules;
mod sessions;
mod sqlx;
#[path = "../support/mod.rs"]
mod support;
mod sweep;
mod timeouts;
mod tls;

use std::time::Duration;

use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, LeaseId, Release, Released,
};
use tower_lock::{LockKey, PostgresBackend};
use uuid::Uuid;

use support::postgres_server::PostgresServer;

const LONG: Duration = Duration::from_secs(60);

/// Returns a backend that waits for a busy machine.
async fn backend(server: &PostgresServer) -> PostgresBackend {
    let builder = PostgresBackend::builder(server.url()).response_timeout(LONG / 10);
    builder.connect().await.unwrap()
}

/// Returns a backend with the default timeout of commands, 1 s.
async fn impatient_backend(server: &PostgresServer) -> PostgresBackend {
    let builder = PostgresBackend::builder(server.url());
    builder.connect().await.unwrap()
}

fn lease() -> LeaseId {
    LeaseId::new(Uuid::new_v4(), 1)
}

async fn try_acquire(
    backend: &PostgresBackend,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
) -> Result<Acquired, BackendError> {
    let request = AcquireRequest::new(key.clone(), lease, ttl);
    backend.try_acquire(&request).await
}

async fn acquire(backend: &PostgresBackend, key: &LockKey, lease: LeaseId, ttl: Duration) -> u64 {
    match try_acquire(backend, key, lease, ttl).await.unwrap() {
        Acquired::Granted { counter, .. } => counter,
        busy => panic!("{busy:?}"),
    }
}

async fn is_busy(backend: &PostgresBackend, key: &LockKey) -> bool {
    let acquired = try_acquire(backend, key, lease(), LONG).await.unwrap();
    matches!(acquired, Acquired::Busy { .. })
}

async fn release(backend: &PostgresBackend, key: &LockKey, lease: LeaseId) -> Released {
    let released = backend.release(&[Release::new(key.clone(), lease)]).await;
    released.into_iter().next().unwrap().unwrap()
}
