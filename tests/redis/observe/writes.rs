//! Servers that reject all writes: what callers and the log get to know.

use std::future::IntoFuture as _;

use tower_lock::backend::{AcquireRequest, Backend as _, BackendErrorKind, Contended, LeaseId};
use tower_lock::{ErrorKind, LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use super::logs::{GRANTED, LEASE, REFUSED, logged};
use crate::support::engine::{PATIENCE, SECOND, eventually};
use crate::support::redis_server::RedisServer;

const UNRELEASED: &str = "WARN locks cannot be released";
const RELEASED: &str = "INFO locks can be released again";

/// Requires a replica that does not exist for each write: `NOREPLICAS`.
fn reject_writes(server: &RedisServer, reject: bool) {
    let replicas = if reject { "1" } else { "0" };
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", replicas]);
}

/// Creates a manager that reports no outage of a server on a busy machine.
pub(super) async fn patient_manager(url: String) -> LockManager {
    let backend = RedisBackend::builder(url).connect_timeout(PATIENCE);
    let backend = backend.response_timeout(PATIENCE).connect().await;
    let locks = LockManager::builder(backend.unwrap()).watchdog_timeout(LEASE);
    locks.build().unwrap()
}

fn lease(number: u64) -> LeaseId {
    LeaseId::new(Uuid::from_u128(7), number)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_writes_are_unavailable_on_held_key() {
    let server = RedisServer::start();
    let here = patient_manager(server.url()).await;
    let there = patient_manager(server.url()).await;
    let guard = here.acquire("k").await.unwrap();
    reject_writes(&server, true);
    // Its release is rejected as well, so the key stays held.
    guard.release().await.unwrap_err();
    for locks in [&here, &there] {
        let error = locks.acquire("k").wait(SECOND / 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    reject_writes(&server, false);
    // The release is retried at the latest after 1 s.
    drop(there.acquire("k").wait(PATIENCE).await.unwrap());
}

async fn contend(backend: &RedisBackend) -> Result<Contended, BackendErrorKind> {
    let request = AcquireRequest::new(LockKey::new("held"), lease(2), LEASE).with_listening(true);
    backend.contend(&request).await.map_err(|it| it.kind())
}

#[tokio::test]
async fn rejected_queue_is_no_busy_lock() {
    let server = RedisServer::start();
    let backend = RedisBackend::builder(server.url()).response_timeout(PATIENCE);
    let backend = backend.connect().await.unwrap();
    let held = AcquireRequest::new(LockKey::new("held"), lease(1), LEASE);
    backend.try_acquire(&held).await.unwrap();
    let is_waiting = |it| matches!(it, Ok(Contended::Waiting { queued: None, .. }));
    // With full memory, the holder can release, so the key is busy.
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(is_waiting(contend(&backend).await));
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    // A foreign value is no queue.
    server.cli(&["SET", "lock:{lock:held}%queue", "precious"]);
    assert!(is_waiting(contend(&backend).await));
    server.cli(&["DEL", "lock:{lock:held}%queue"]);
    for number in 0..2 {
        reject_writes(&server, true);
        let rejected = contend(&backend).await;
        assert_eq!(
            rejected.unwrap_err(),
            BackendErrorKind::Unavailable,
            "{number}"
        );
        reject_writes(&server, false);
        // The second time, it has a place.
        let waiting = contend(&backend).await.unwrap();
        assert!(matches!(
            waiting,
            Contended::Waiting {
                queued: Some(1),
                ..
            }
        ));
    }
    // A replica rejects writes until the client connects to the primary.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let rejected = contend(&backend).await;
    assert_eq!(rejected.unwrap_err(), BackendErrorKind::Unavailable);
}

#[test]
fn rejected_writes_end_with_grant_of_any_key() {
    logged(|log| async move {
        let server = RedisServer::start();
        let locks = patient_manager(server.url()).await;
        for _ in 0..2 {
            reject_writes(&server, true);
            let error = locks.acquire("a").wait(SECOND / 2).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            reject_writes(&server, false);
            let guard = locks.acquire("b").await.unwrap();
            guard.release().await.unwrap();
            // The next one is another outage.
            tokio::time::sleep(SECOND * 3 / 2).await;
            let guard = locks.acquire("b").await.unwrap();
            guard.release().await.unwrap();
        }
        assert_eq!(log.messages(), [REFUSED, GRANTED, REFUSED, GRANTED]);
    });
}

#[test]
fn rejected_writes_on_held_key_are_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let here = patient_manager(server.url()).await;
        let there = patient_manager(server.url()).await;
        let guard = here.acquire("k").await.unwrap();
        reject_writes(&server, true);
        for _ in 0..3 {
            there.acquire("k").wait(SECOND / 2).await.unwrap_err();
        }
        assert_eq!(log.messages(), [REFUSED]);
        reject_writes(&server, false);
        let waiting = tokio::spawn(there.acquire("k").wait(PATIENCE).into_future());
        eventually("the end", || log.messages() == [REFUSED, GRANTED]).await;
        guard.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
    });
}

#[test]
fn rejected_release_is_logged_once_until_done() {
    logged(|log| async move {
        let server = RedisServer::start();
        let locks = patient_manager(server.url()).await;
        let guards = [locks.acquire("a").await, locks.acquire("b").await];
        reject_writes(&server, true);
        for guard in guards {
            guard.unwrap().release().await.unwrap_err();
        }
        eventually("it is logged", || log.messages() == [UNRELEASED]).await;
        reject_writes(&server, false);
        eventually("the end", || log.messages() == [UNRELEASED, RELEASED]).await;
    });
}

/// The other scripts hide a denied queue, so the trial must not see one in another rejection.
#[tokio::test]
async fn rejecting_server_is_one_warning_on_connect() {
    let server = RedisServer::start();
    reject_writes(&server, true);
    let backend = RedisBackend::builder(server.url()).response_timeout(PATIENCE);
    let backend = backend.connect().await.unwrap();
    let warnings = backend.warnings();
    assert!(
        matches!(warnings, [it] if it.contains("NOREPLICAS")),
        "{warnings:?}"
    );
    reject_writes(&server, false);
    let request = AcquireRequest::new(LockKey::new("held"), lease(1), LEASE);
    backend.try_acquire(&request).await.unwrap();
    let waiting = contend(&backend).await.unwrap();
    assert!(matches!(
        waiting,
        Contended::Waiting {
            queued: Some(1),
            ..
        }
    ));
}
