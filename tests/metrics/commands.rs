//! The commands of a backend, their replies, and what wakes waiters.

use std::time::Duration;

use tower_lock::LockManager;
use tower_lock::backend::{AcquireRequest, Backend, LeaseId, Release};
use uuid::Uuid;

use crate::backend::{Fault, Faulty};
use crate::{MS, SECOND, reported};

#[test]
fn commands_are_timed_by_outcome() {
    let seen = reported(async {
        let backend = Faulty::default();
        let locks = LockManager::builder(backend.clone()).build().unwrap();
        let guard = locks.acquire("k").await.unwrap();
        tokio::time::sleep(11 * SECOND).await;
        backend.renewals_fail_by(Fault::Refused);
        tokio::time::sleep(11 * SECOND).await;
        backend.releases_fail_by(Fault::Unknown);
        drop(guard);
        tokio::time::sleep(MS).await;
    });
    let timed = |command, outcome| {
        let name = "tower_lock_backend_command_seconds";
        let series = format!("{name}{{command=\"{command}\",outcome=\"{outcome}\"}}");
        seen.samples(&series).len()
    };
    assert_eq!(timed("acquire", "ok"), 1);
    assert_eq!(timed("renew", "ok"), 1);
    assert!(timed("renew", "refused") > 0);
    assert_eq!(timed("release", "ok"), 0);
    assert!(timed("release", "unknown") > 0);
    assert_eq!(timed("force_release", "ok"), 0);
}

#[test]
fn memory_has_no_commands() {
    let seen = reported(async {
        drop(LockManager::in_memory().acquire("k").await.unwrap());
    });
    let commands = seen.0.keys().find(|it| it.contains("command"));
    assert_eq!(commands, None);
}

#[test]
fn replies_are_counted() {
    let seen = reported(async {
        let backend = Faulty::default();
        let locks = LockManager::builder(backend.clone()).build().unwrap();
        locks.acquire("a").await.unwrap().release().await.unwrap();
        let (b, c) = (
            locks.acquire("b").await.unwrap(),
            locks.acquire("c").await.unwrap(),
        );
        tokio::time::sleep(11 * SECOND).await;
        backend.renewals_fail_by(Fault::NotHeld);
        b.lost().await;
        drop((b, c));
        let d = locks.acquire("d").lease(SECOND).await.unwrap();
        backend.releases_fail_by(Fault::Unknown);
        d.release().await.unwrap_err();
    });
    let renewals = seen.counts("tower_lock_renewals_total");
    assert_eq!(
        renewals,
        [("{outcome=\"not_held\"}", 2), ("{outcome=\"ok\"}", 2)]
    );
    let releases = seen.counts("tower_lock_releases_total");
    assert_eq!(
        releases,
        [("{outcome=\"failed\"}", 1), ("{outcome=\"ok\"}", 1)]
    );
}

/// Waits for a key that another process holds, and returns what woke the waiter.
fn woken_by(is_silent: bool, ttl: Duration, is_released: bool) -> Vec<String> {
    let seen = reported(async {
        let backend = Faulty::default().silent(is_silent);
        let locks = LockManager::builder(backend.clone()).build().unwrap();
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        let request = AcquireRequest::new("k".into(), lease, ttl);
        backend.try_acquire(&request).await.unwrap();
        let waiting = tokio::spawn(locks.acquire("k").into_future());
        tokio::time::sleep(100 * MS).await;
        if is_released {
            let release = Release::new("k".into(), lease);
            backend.release(&[release]).await.pop().unwrap().unwrap();
        }
        drop(waiting.await.unwrap().unwrap());
    });
    let counts = seen.counts("tower_lock_wakeups_total");
    counts.into_iter().map(|(by, _)| by.to_owned()).collect()
}

#[test]
fn waiter_is_woken_by_message() {
    assert_eq!(woken_by(false, 30 * SECOND, true), ["{by=\"message\"}"]);
}

#[test]
fn waiter_is_woken_by_expiry() {
    assert_eq!(woken_by(false, 300 * MS, false), ["{by=\"expiry\"}"]);
}

#[test]
fn waiter_without_messages_is_woken_by_backstop() {
    assert_eq!(woken_by(true, 30 * SECOND, true), ["{by=\"backstop\"}"]);
}
