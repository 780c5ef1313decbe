//! Injected faults of the connection and of the process.

use std::time::Duration;

use tokio::time::{Instant, advance, sleep, timeout};
use tower_lock::backend::Backend;
use tower_lock::backend::LeaseId;
use tower_lock::{ErrorKind, LockGuard, LockKey, LockManager};

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::simulated::{Command, Fault, Simulated, is_free};

/// Other implementations leave the key held when the reply to an acquire is late.
#[tokio::test(start_paused = true)]
async fn timed_out_acquire_leaves_key_free() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    wire.fail_next(Command::Acquire, Fault::AnswerLost);
    let error = locks.acquire("k").wait(100 * MS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!is_free(&wire, "k").await, "the command took effect");
    sleep(SECOND).await;
    assert!(is_free(&wire, "k").await);
    assert!(locks.snapshot().is_idle());
}

/// Other implementations resend an acquire under the same id: one release then frees both.
#[tokio::test(start_paused = true)]
async fn attempt_after_unknown_outcome_uses_new_lease() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    wire.fail_next(Command::Acquire, Fault::AnswerLost);
    wire.fail_next(Command::Acquire, Fault::CommandLost);
    let guard = locks.acquire("k").await.unwrap();
    assert!(guard.is_held());
    let mut acquired: Vec<LeaseId> = Vec::new();
    for (command, _, lease) in wire.log() {
        if command == Command::Acquire {
            assert!(!acquired.contains(&lease), "a lease id was used twice");
            acquired.push(lease);
        }
    }
    assert!(acquired.len() >= 3);
    sleep(60 * SECOND).await;
    assert!(
        guard.is_held(),
        "the release of one attempt freed the next one"
    );
}

/// Redisson #2801, #3121: `tryLock` overran its wait while Redis was down.
#[tokio::test(start_paused = true)]
async fn acquire_on_unavailable_backend_ends_within_wait() {
    for fault in [Fault::Refused, Fault::CommandLost, Fault::AnswerLost] {
        let wire = Simulated::new(MS);
        wire.down(Some(fault));
        let locks = manager_on(&wire);
        for wait in [SECOND, 3 * SECOND] {
            let start = Instant::now();
            let error = locks.acquire("k").wait(wait).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.is_unavailable() && !error.is_busy());
            let waited = start.elapsed();
            assert!(waited >= wait && waited <= wait + 50 * MS, "{waited:?}");
        }
        let start = Instant::now();
        let error = locks.acquire("other").no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(start.elapsed() <= 550 * MS);
        // At most one attempt per backoff step.
        assert!(
            wire.sent(Command::Acquire) <= 22,
            "{:?}",
            wire.sent(Command::Acquire)
        );
        wire.down(None);
        let guard = locks.acquire("k").wait(2 * SECOND).await.unwrap();
        assert!(guard.is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn misconfigured_client_fails_at_once_without_retry() {
    let wire = Simulated::new(MS);
    wire.down(Some(Fault::Misconfigured));
    let locks = manager_on(&wire);
    let first = tokio::spawn(locks.acquire("k").into_future());
    let second = tokio::spawn(locks.acquire("k").into_future());
    for waiter in [first, second] {
        let start = Instant::now();
        let error = waiter.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(start.elapsed() < 100 * MS);
    }
    sleep(10 * SECOND).await;
    assert!(wire.sent(Command::Acquire) <= 2);
    assert!(locks.snapshot().is_idle());
}

/// Redisson #4698: no notification when the lock is lost.
#[tokio::test(start_paused = true)]
async fn lost_without_renewal_completes_at_local_deadline() {
    for fault in [Fault::Refused, Fault::CommandLost] {
        let wire = Simulated::new(MS);
        let locks = manager_on(&wire);
        let sent_at = Instant::now();
        let guard = locks.acquire("k").await.unwrap();
        wire.down(Some(fault));
        guard.lost().await;
        let lost_at = sent_at.elapsed();
        // The deadline is 30 s − 1 % − 2 ms; 10 ms are for scheduling.
        let deadline = Duration::from_millis(29_698);
        assert!(
            lost_at >= deadline && lost_at <= deadline + 10 * MS,
            "{lost_at:?}"
        );
        assert!(!guard.is_held());
        assert_eq!(guard.remaining(), Duration::ZERO);
        // Renewals are retried with backoff.
        let renewals = wire.sent(Command::Renew);
        assert!((10..=60).contains(&renewals), "{renewals}");
        assert!(guard.release().await.unwrap_err().is_lost());
    }
}

/// Redisson #2515, #3194: one connection error ended the watchdog.
#[tokio::test(start_paused = true)]
async fn watchdog_after_failed_renewals_keeps_locks() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let guards: Vec<_> = keys(20, &locks).await;
    for _ in 0..10 {
        wire.fail_next(Command::Renew, Fault::CommandLost);
        wire.fail_next(Command::Renew, Fault::Refused);
        sleep(10 * SECOND).await;
    }
    // Every round had failed renewals.
    assert!(guards.iter().all(|guard| guard.is_held()));
}

async fn keys(count: usize, locks: &LockManager) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for n in 0..count {
        guards.push(locks.acquire(format!("key:{n}")).await.unwrap());
    }
    guards
}

/// Redisson #4698: no notification when the lock is lost.
#[tokio::test(start_paused = true)]
async fn renewal_of_unheld_lease_loses_guard() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let guard = locks.acquire("k").await.unwrap();
    let kept = locks.acquire("kept").await.unwrap();
    wire.memory
        .force_release(&LockKey::new("k"), None)
        .await
        .unwrap();
    let start = Instant::now();
    guard.lost().await;
    assert!(start.elapsed() <= Duration::from_millis(10_100));
    assert!(!guard.is_held() && kept.is_held());
    // A lost guard sends no renewals and creates no lock.
    let renewals = |key: &str| {
        let key = LockKey::new(key);
        let log = wire.log();
        log.iter()
            .filter(|(command, of, _)| *command == Command::Renew && *of == key)
            .count()
    };
    let before = renewals("k");
    sleep(60 * SECOND).await;
    assert_eq!(renewals("k"), before);
    assert!(is_free(&wire, "k").await);
    drop(guard);
    assert!(kept.is_held());
}

/// Redisson #7272: a renewal was sent after the unlock.
#[tokio::test(start_paused = true)]
async fn release_is_followed_by_no_renewal() {
    // A renewal takes 2 s from 10 s on: guards are dropped before, during and after it.
    for hold in [9_500, 9_999, 10_001, 10_500, 11_999, 12_500, 14_000] {
        let wire = Simulated::new(SECOND);
        let locks = manager_on(&wire);
        let guard = locks.acquire("k").await.unwrap();
        sleep(hold * MS).await;
        drop(guard);
        sleep(60 * SECOND).await;
        let log = wire.log();
        let release = log
            .iter()
            .position(|(command, ..)| *command == Command::Release);
        let release = release.expect("released");
        let later = &log[release..];
        assert!(later.iter().all(|(command, ..)| *command != Command::Renew));
        assert!(is_free(&wire, "k").await);
        assert!(locks.snapshot().is_idle());
    }
}

/// Redisson #5761, #763: a waiter missed the unlock message.
#[tokio::test(start_paused = true)]
async fn waiter_without_notifications_acquires_by_polling() {
    let wire = Simulated::new(MS).without_hints();
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    for delay in [0, 1, 5, 50, 999, 1000, 1001, 2500] {
        let guard = here.acquire("k").await.unwrap();
        let waiter = tokio::spawn(there.acquire("k").wait_forever().into_future());
        sleep(delay * MS).await;
        let start = Instant::now();
        drop(guard);
        drop(waiter.await.unwrap().unwrap());
        assert!(start.elapsed() <= 1150 * MS, "{:?}", start.elapsed());
        sleep(10 * MS).await;
    }
}

/// Redisson #5070, #4744: a release between the failed attempt and the subscription was missed.
#[tokio::test(start_paused = true)]
async fn notified_waiter_acquires_at_once() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    // Some of these delays put the release between the first attempt and the subscription.
    for delay in 0..20 {
        let guard = here.acquire("k").await.unwrap();
        let waiter = tokio::spawn(there.acquire("k").wait_forever().into_future());
        sleep(delay * MS).await;
        let start = Instant::now();
        drop(guard);
        drop(waiter.await.unwrap().unwrap());
        assert!(start.elapsed() <= 12 * MS, "{delay}: {:?}", start.elapsed());
        sleep(10 * MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_before_deadline_makes_last_attempt() {
    // Without notifications, the next poll would be after the deadline.
    let wire = Simulated::new(MS).without_hints();
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let guard = here.acquire("k").await.unwrap();
    let waiter = tokio::spawn(there.acquire("k").wait(500 * MS).into_future());
    sleep(400 * MS).await;
    drop(guard);
    assert!(waiter.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn failed_release_is_retried_until_success() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    for fault in [Fault::Refused, Fault::CommandLost, Fault::AnswerLost] {
        let guard = locks.acquire("k").await.unwrap();
        wire.fail_next(Command::Release, fault);
        wire.fail_next(Command::Release, fault);
        drop(guard);
        sleep(2 * SECOND).await;
        assert!(is_free(&wire, "k").await);
        assert!(locks.snapshot().is_idle());
        // `release().await` reports an unconfirmed release.
        let guard = locks.acquire("k").await.unwrap();
        wire.fail_next(Command::Release, fault);
        let outcome = guard.release().await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
        sleep(2 * SECOND).await;
        assert!(is_free(&wire, "k").await);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_release_stops_after_lease_expired() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let guard = locks.acquire("k").await.unwrap();
    wire.down(Some(Fault::Refused));
    drop(guard);
    sleep(32 * SECOND).await;
    assert!(locks.snapshot().is_idle());
    let sent = wire.sent(Command::Release);
    assert!(sent <= 45, "{sent} releases are a storm");
    sleep(60 * SECOND).await;
    assert_eq!(wire.sent(Command::Release), sent);
}

/// A renewal without a reply may have extended the lease.
#[tokio::test(start_paused = true)]
async fn failed_release_continues_for_unknown_renewal() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let guard = locks.acquire("k").await.unwrap();
    wire.fail_next(Command::Renew, Fault::AnswerLost);
    sleep(11 * SECOND).await;
    assert_eq!(wire.sent(Command::Renew), 1);
    wire.down(Some(Fault::Refused));
    sleep(15 * SECOND).await;
    drop(guard);
    // The granted lease has expired; the renewed one has not.
    sleep(10 * SECOND).await;
    assert!(!is_free(&wire, "k").await);
    wire.down(None);
    sleep(SECOND).await;
    assert!(is_free(&wire, "k").await);
}

#[tokio::test(start_paused = true)]
async fn process_paused_beyond_lease_reports_loss_at_once() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let guard = locks.acquire("k").await.unwrap();
    sleep(SECOND).await;
    let renewals = wire.sent(Command::Renew);
    // As after SIGSTOP, the clock advances before any task runs.
    advance(60 * SECOND).await;
    assert!(!guard.is_held());
    timeout(MS, guard.lost()).await.expect("lost at once");
    sleep(SECOND).await;
    assert_eq!(
        wire.sent(Command::Renew),
        renewals,
        "renewed an expired lease"
    );
    assert!(guard.release().await.unwrap_err().is_lost());
}

/// etcd #11456: a grant was not checked again after the wait.
#[tokio::test(start_paused = true)]
async fn grant_reply_after_lease_end_is_no_grant() {
    let wire = Simulated::new(100 * MS);
    let locks = manager_on(&wire);
    let acquire = || locks.acquire("k").lease(150 * MS);
    let error = acquire().no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let start = Instant::now();
    let error = acquire().wait(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(start.elapsed() <= 1050 * MS);
    sleep(SECOND).await;
    assert!(locks.snapshot().is_idle());
    assert!(is_free(&wire, "k").await);
    assert!(acquire().lease(SECOND).await.unwrap().is_held());
}

/// etcd #11456 with several keys: the first lease expires during the wait for the last key.
#[tokio::test(start_paused = true)]
async fn expired_first_lease_fails_acquire_of_keys() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let guard = there.acquire("b").await.unwrap();
    let both = here.acquire(["a", "b"]).lease(SECOND).wait(10 * SECOND);
    let both = tokio::spawn(both.into_future());
    sleep(2 * SECOND).await;
    drop(guard);
    assert!(both.await.unwrap().unwrap_err().is_lost());
    sleep(SECOND / 2).await;
    assert!(is_free(&wire, "a").await && is_free(&wire, "b").await);
    assert!(here.snapshot().is_idle());
}

/// etcd #11456 in a process that is paused between the grant and the return of the acquire.
#[tokio::test(start_paused = true)]
async fn waiter_paused_through_its_grant_acquires_again() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let guard = locks.acquire("k").await.unwrap();
    let mut waiter = Box::pin(locks.acquire("k").wait_forever().into_future());
    assert!(futures_util::poll!(&mut waiter).is_pending());
    // The lease is handed off, and the waiter is not polled for a minute.
    drop(guard);
    advance(60 * SECOND).await;
    let guard = waiter.await.unwrap();
    assert!(guard.is_held());
    drop(guard);
    sleep(SECOND).await;
    assert!(locks.snapshot().is_idle());
}

/// rslock, node-redlock #168: one error for both "busy" and "unavailable".
#[tokio::test(start_paused = true)]
async fn acquire_distinguishes_busy_from_unavailable() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let _guard = there.acquire("k").await.unwrap();
    for (down, kind) in [
        (None, ErrorKind::Busy),
        (Some(Fault::Refused), ErrorKind::Unavailable),
        (Some(Fault::CommandLost), ErrorKind::Unavailable),
        (None, ErrorKind::Busy),
    ] {
        wire.down(down);
        // The lane of earlier waiters is removed, and with it their last outcome.
        sleep(SECOND).await;
        let once = here.acquire("k").no_wait().await.unwrap_err();
        let waited = here.acquire("k").wait(2 * SECOND).await.unwrap_err();
        for error in [once, waited] {
            assert_eq!(error.kind(), kind);
            assert_eq!(error.is_busy(), kind == ErrorKind::Busy);
            assert_eq!(error.is_unavailable(), kind == ErrorKind::Unavailable);
        }
    }
}

/// The wait for the first key leaves no time for a reply about the second one.
#[tokio::test(start_paused = true)]
async fn wait_spent_on_first_key_is_busy() {
    let wire = Simulated::new(20 * MS);
    let (locks, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let guard = there.acquire("a").await.unwrap();
    let both = locks.acquire(["a", "b"]).wait(SECOND).into_future();
    let both = tokio::spawn(both);
    sleep(930 * MS).await;
    guard.release().await.unwrap();
    let error = both.await.unwrap().unwrap_err();
    let log = wire.log();
    assert!(log.iter().any(|(_, key, _)| *key == LockKey::new("b")));
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn second_key_without_reply_is_unavailable() {
    let wire = Simulated::new(20 * MS);
    let locks = manager_on(&wire);
    let both = locks.acquire(["a", "b"]).wait(300 * MS).into_future();
    let both = tokio::spawn(both);
    sleep(30 * MS).await;
    wire.fail_next(Command::Acquire, Fault::AnswerLost);
    let error = both.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}
