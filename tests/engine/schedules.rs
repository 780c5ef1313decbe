//! Schedules that once violated a guarantee of the engine.
use std::time::Duration;

use futures_util::poll;
use tokio::time::{Instant, advance, sleep, timeout};
use tower_lock::{ErrorKind, LockManager};

use crate::simulated::{Command, Fault, Simulated};
use crate::support::{MS, SECOND, manager};

fn quick(wire: &Simulated, ttl: Duration) -> LockManager {
    LockManager::builder(wire.clone())
        .watchdog_timeout(ttl)
        .build()
        .unwrap()
}

/// no_wait queued behind a waiter during `release_or_keep`, then waits for that waiter's whole hold.
#[tokio::test(start_paused = true)]
async fn no_wait_during_keep_ends_before_next_hold() {
    let wire = Simulated::new(10 * MS);
    let locks = manager(&wire);
    let first = locks.acquire("k").await.unwrap();
    sleep(200 * MS).await; // the hand-off budget has ended
    let l = locks.clone();
    let second = tokio::spawn(async move {
        let g = l.acquire("k").await.unwrap();
        sleep(600 * SECOND).await;
        drop(g);
    });
    sleep(MS).await;
    drop(first); // sends `release_or_keep`
    sleep(5 * MS).await; // the command is in flight
    let start = Instant::now();
    let outcome = timeout(3000 * SECOND, locks.acquire("k").no_wait()).await;
    assert!(outcome.expect("an outcome").is_err());
    assert!(start.elapsed() < SECOND);
    second.await.unwrap();
}

/// The whole queue waited for a reply at each end of the budget of hand-offs.
#[tokio::test(start_paused = true)]
async fn busy_queue_during_extend_does_not_stall() {
    let wire = Simulated::new(10 * MS);
    let locks = manager(&wire);
    let start = Instant::now();
    let holders = (0..500).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let guard = locks.acquire("k").await.unwrap();
            sleep(MS).await;
            drop(guard);
        })
    });
    for holder in holders.collect::<Vec<_>>() {
        holder.await.unwrap();
    }
    // The first attempt, and 1 ms per holder.
    assert!(start.elapsed() < 530 * MS, "{:?}", start.elapsed());
    assert_eq!(wire.sent(Command::ReleaseOrKeep), 0);
    let asked = wire.sent(Command::Extend);
    assert!((10..=24).contains(&asked), "{asked} commands");
}

/// With a round trip longer than the budget, a request to extend it would be late.
#[tokio::test(start_paused = true)]
async fn queue_on_distant_store_sends_no_extend() {
    let wire = Simulated::new(60 * MS);
    let locks = manager(&wire);
    let start = Instant::now();
    let holders = (0..20).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let guard = locks.acquire("k").wait_forever().await.unwrap();
            sleep(MS).await;
            drop(guard);
        })
    });
    for holder in holders.collect::<Vec<_>>() {
        holder.await.unwrap();
    }
    assert_eq!(wire.sent(Command::Extend), 0);
    assert!(start.elapsed() < 2_600 * MS, "{:?}", start.elapsed());
}

/// A remote waiter ends the extensions of a busy local queue.
#[tokio::test(start_paused = true)]
async fn remote_waiter_of_extended_key_acquires_in_time() {
    let wire = Simulated::new(5 * MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let holders = (0..2_000).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let guard = locks.acquire("k").wait_forever().await.unwrap();
            sleep(MS).await;
            drop(guard);
        })
    });
    let holders: Vec<_> = holders.collect();
    sleep(500 * MS).await;
    assert!(wire.sent(Command::Extend) > 3, "no extension yet");
    let start = Instant::now();
    drop(there.acquire("k").await.unwrap());
    assert!(start.elapsed() < 150 * MS, "{:?}", start.elapsed());
    for holder in holders {
        holder.abort();
    }
}

/// The lock is freed while a request to extend it is in flight.
#[tokio::test(start_paused = true)]
async fn force_release_during_extend_loses_one_guard() {
    let wire = Simulated::new(10 * MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let holders = (0..200).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let guard = locks.acquire("k").wait_forever().await.unwrap();
            sleep(MS).await;
            guard.release().await.is_err_and(|error| error.is_lost())
        })
    });
    let holders: Vec<_> = holders.collect();
    while wire.sent(Command::Extend) == 0 {
        sleep(MS).await;
    }
    assert!(there.force_release("k").await.unwrap());
    let mut lost = 0;
    for holder in holders {
        lost += usize::from(holder.await.unwrap());
    }
    assert_eq!(lost, 1);
    sleep(SECOND).await;
    assert!(locks.snapshot().is_idle());
    assert!(!locks.is_locked("k").await.unwrap());
}

/// The reply to the request for an extension is lost.
#[tokio::test(start_paused = true)]
async fn queue_after_failed_extend_is_served() {
    for fault in [Fault::Refused, Fault::AnswerLost, Fault::CommandLost] {
        let wire = Simulated::new(10 * MS);
        let locks = manager(&wire);
        wire.fail_next(Command::Extend, fault);
        let holders = (0..200).map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let guard = locks.acquire("k").wait(SECOND).await.unwrap();
                sleep(MS).await;
                assert!(guard.is_held());
                drop(guard);
            })
        });
        for holder in holders.collect::<Vec<_>>() {
            holder.await.unwrap();
        }
        sleep(SECOND).await;
        assert!(locks.snapshot().is_idle());
        assert!(!locks.is_locked("k").await.unwrap());
    }
}

/// Fixed leases are never handed off: `no_wait` queued behind the next contender.
#[tokio::test(start_paused = true)]
async fn no_wait_with_fixed_leases_ends_before_next_hold() {
    let wire = Simulated::new(10 * MS);
    let locks = manager(&wire);
    let first = locks.acquire("k").lease(3600 * SECOND).await.unwrap();
    let l = locks.clone();
    let second = tokio::spawn(async move {
        let g = l.acquire("k").lease(3600 * SECOND).await.unwrap();
        sleep(600 * SECOND).await;
        drop(g);
    });
    sleep(MS).await;
    drop(first);
    sleep(5 * MS).await;
    let start = Instant::now();
    let outcome = timeout(3000 * SECOND, locks.acquire("k").no_wait()).await;
    assert!(outcome.expect("an outcome").is_err());
    assert!(start.elapsed() < SECOND);
    second.await.unwrap();
}

/// The driver queued after the shutdown had rejected the queue.
#[tokio::test(start_paused = true)]
async fn shutdown_rejects_acquire_with_attempt_in_flight() {
    let wire = Simulated::new(50 * MS);
    let there = manager(&wire.another_wire());
    let _held = there.acquire("k").await.unwrap();
    let locks = manager(&wire);
    let acquire = tokio::spawn(locks.acquire("k").wait_forever().into_future());
    sleep(20 * MS).await;
    let left = locks.shutdown(10 * SECOND).await;
    assert!(left.is_idle());
    assert!(acquire.is_finished(), "waits after the shutdown");
    assert_eq!(
        acquire.await.unwrap().unwrap_err().kind(),
        ErrorKind::ShuttingDown
    );
}

/// The watchdog is requested while the only renewal for a fixed lease is in flight.
#[tokio::test(start_paused = true)]
async fn nested_watchdog_hold_during_renewal_is_kept() {
    let wire = Simulated::new(20 * MS);
    let locks = manager(&wire);
    let outer = locks.acquire("k").lease(2 * SECOND).await.unwrap();
    let nested = locks
        .acquire("k")
        .owner(outer.owner())
        .lease(3 * SECOND)
        .await
        .unwrap();
    sleep(10 * MS).await; // the renewal is in flight
    let inner = locks.acquire("k").owner(outer.owner()).await.unwrap();
    for _ in 0..20 {
        sleep(500 * MS).await;
        if !inner.is_held() {
            break;
        }
    }
    assert!(
        inner.is_held(),
        "a watchdog lock on a healthy wire was lost"
    );
    drop((outer, nested, inner));
}

/// A guard hands its lease off while `force_release` is in flight.
#[tokio::test(start_paused = true)]
async fn force_release_during_hand_off_loses_next_guard() {
    let wire = Simulated::new(15 * MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let first = locks.acquire("k").await.unwrap();
    let second = tokio::spawn(locks.acquire("k").into_future());
    sleep(MS).await;
    let l = locks.clone();
    let force = tokio::spawn(async move { l.force_release("k").await.unwrap() });
    sleep(10 * MS).await;
    drop(first); // hands off the lease that the command in flight deletes
    let second = second.await.unwrap().unwrap();
    assert!(force.await.unwrap());
    let other = there.acquire("k").await.unwrap();
    sleep(MS).await;
    let both = second.is_held() && other.is_held();
    second.lost().await;
    assert!(!both, "two guards at a time");
}

/// `force_release` is sent while an acquire is in flight.
#[tokio::test(start_paused = true)]
async fn force_release_during_acquire_loses_guard() {
    let wire = Simulated::new(20 * MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let first = tokio::spawn(locks.acquire("k").into_future());
    sleep(5 * MS).await;
    assert!(locks.force_release("k").await.unwrap());
    let first = first.await.unwrap().unwrap();
    let _other = there.acquire("k").await.unwrap();
    let lost = timeout(100 * MS, first.lost()).await;
    assert!(lost.is_ok(), "two guards until the next renewal");
}

/// `is_held` returned `true` after `lost` had completed.
#[tokio::test(start_paused = true)]
async fn guard_reported_lost_stays_lost() {
    let wire = Simulated::new(100 * MS);
    let locks = quick(&wire, SECOND);
    let guard = locks.acquire("k").await.unwrap(); // sent at 0 ms, valid until 988 ms
    sleep(280 * MS).await; // at 480 ms; renewal sent at 333, reply at 533
    assert_eq!(wire.sent(Command::Renew), 1);
    let mut stall = Box::pin(advance(600 * MS)); // paused until 1,080 ms
    assert!(poll!(&mut stall).is_pending());
    assert!(!guard.is_held());
    assert!(
        poll!(Box::pin(guard.lost())).is_ready(),
        "the loss is not reported"
    );
    stall.await;
    sleep(5 * MS).await;
    assert!(!guard.is_held(), "held again after it was lost");
}

/// A renewal that took effect after the loss left the lease in the store.
#[tokio::test(start_paused = true)]
async fn lease_renewed_after_loss_is_released() {
    let wire = Simulated::new(MS);
    let mut slow = wire.clone();
    slow.latency = 300 * MS;
    let locks = quick(&slow, SECOND);
    // Sent at 0 ms, executed at 300 ms, reply at 600 ms, valid until 988 ms. The renewal is overdue
    // by then: executed at 900 ms, its reply known to be lost at 1,400 ms.
    let guard = locks.acquire("k").await.unwrap();
    wire.fail_next(Command::Renew, Fault::AnswerLost);
    let waiter = tokio::spawn(locks.acquire("k").wait_forever().into_future());
    guard.lost().await;
    drop(guard);
    let got = waiter.await.unwrap().unwrap();
    let id = wire.log().iter().find(|e| e.0 == Command::Renew).unwrap().2;
    assert!(
        wire.log()
            .iter()
            .any(|e| e.0 == Command::Release && e.2 == id),
        "the old lease was never released"
    );
    drop(got);
}

/// One hanging release delayed the releases of all other keys.
#[tokio::test(start_paused = true)]
async fn hanging_release_does_not_delay_other_keys() {
    let wire = Simulated::new(MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let a = locks.acquire("a").await.unwrap();
    let b = locks.acquire("b").await.unwrap();
    wire.fail_next(Command::Release, Fault::CommandLost);
    drop(a);
    sleep(MS).await;
    let waiter = tokio::spawn(there.acquire("b").into_future());
    sleep(20 * MS).await;
    let start = Instant::now();
    drop(b);
    let _got = waiter.await.unwrap().unwrap();
    assert!(start.elapsed() < 50 * MS);
}

/// The driver of the first attempt queued without a check of `max_waiters_per_key`.
#[tokio::test(start_paused = true)]
async fn queue_after_failed_first_attempt_keeps_bound() {
    let wire = Simulated::new(10 * MS);
    let there = manager(&wire.another_wire());
    let _held = there.acquire("k").await.unwrap();
    let locks = LockManager::builder(wire.clone())
        .max_waiters_per_key(1)
        .build()
        .unwrap();
    let _a = tokio::spawn(locks.acquire("k").into_future());
    tokio::task::yield_now().await;
    let _b = tokio::spawn(locks.acquire("k").into_future());
    sleep(100 * MS).await;
    assert!(locks.snapshot().waiting <= 1);
}

/// A watchdog kept its timer for a released lease of 24 hours.
#[tokio::test(start_paused = true)]
async fn manager_dropped_leaves_no_task() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    let before = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    let g = locks.acquire("k").lease(24 * 3600 * SECOND).await.unwrap();
    g.release().await.unwrap();
    sleep(60 * SECOND).await;
    assert!(locks.snapshot().is_idle());
    drop(locks);
    sleep(3600 * SECOND).await;
    let after = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    assert_eq!(before, after);
}

/// The reply to `release_or_keep` is lost, and the release sent next finds no lease.
#[tokio::test(start_paused = true)]
async fn release_after_lost_keep_reply_is_not_lost() {
    let wire = Simulated::new(MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let guard = locks.acquire("k").await.unwrap();
    let _other = tokio::spawn(there.acquire("k").into_future());
    let _mine = tokio::spawn(locks.acquire("k").into_future());
    sleep(200 * MS).await;
    wire.fail_next(Command::ReleaseOrKeep, Fault::AnswerLost);
    let outcome = guard.release().await;
    assert!(
        !matches!(&outcome, Err(e) if e.is_lost()),
        "held until the release, but reported lost"
    );
}

/// A nested acquire adds the watchdog to a short fixed lease, and the first renewal fails.
#[tokio::test(start_paused = true)]
async fn failed_renewal_of_widened_lease_keeps_lock() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    let outer = locks.acquire("k").lease(SECOND).await.unwrap();
    wire.fail_next(Command::Renew, Fault::Refused);
    let inner = locks.acquire("k").owner(outer.owner()).await.unwrap();
    sleep(2 * SECOND).await;
    assert!(
        inner.is_held(),
        "one failed renewal lost the lock, with a second left"
    );
}

/// Each of many waiters on an unavailable backend made its own last attempt.
#[tokio::test(start_paused = true)]
async fn last_attempts_of_many_waiters_make_no_storm() {
    let wire = Simulated::new(MS);
    wire.down(Some(Fault::Refused));
    let locks = manager(&wire);
    for _ in 0..400 {
        let l = locks.clone();
        tokio::spawn(async move { drop(l.acquire("k").wait(3 * SECOND).await) });
        sleep(25 * MS).await;
    }
    let tries = wire.sent(Command::Acquire);
    assert!(tries <= 30, "{tries} tries in 10 s");
}

/// The task that finishes a dropped attempt has no reply yet, so `no_wait` was rejected
/// as unavailable.
#[tokio::test(start_paused = true)]
async fn no_wait_behind_dropped_acquire_gets_its_reply() {
    let wire = Simulated::new(10 * MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let held = there.acquire("busy").await.unwrap();
    for key in ["busy", "free"] {
        let mut abandoned = Box::pin(locks.acquire(key).into_future());
        assert!(poll!(&mut abandoned).is_pending());
        drop(abandoned);
        let outcome = locks.acquire(key).no_wait().await;
        match key {
            "busy" => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Busy),
            _ => drop(outcome.unwrap()),
        }
    }
    drop(held);
}

/// A remote waiter acquires the key when the backend recovers: it need not wait up to 1 s for the
/// next scheduled retry of the release.
#[tokio::test(start_paused = true)]
async fn failed_release_is_resent_when_backend_recovers() {
    let wire = Simulated::new(MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let guard = locks.acquire("k").await.unwrap();
    wire.down(Some(Fault::Refused));
    drop(guard);
    let waiter = tokio::spawn(there.acquire("k").wait(20 * SECOND).into_future());
    // By now the release was sent five times, last at 1.5 s; the next retry is due 1 s later.
    sleep(1_900 * MS).await;
    assert!(!waiter.is_finished());
    wire.down(None);
    let start = Instant::now();
    drop(waiter.await.unwrap().unwrap());
    assert!(start.elapsed() < 20 * MS, "{:?}", start.elapsed());
}

/// An older ticket overtook `no_wait` in an empty queue.
#[tokio::test(start_paused = true)]
async fn no_wait_beside_acquire_of_keys_ends_at_once() {
    let wire = Simulated::new(10 * MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let b = there.acquire("a").await.unwrap();
    // Its ticket is older than that of `no_wait`, but it waits for "a" first.
    let l = locks.clone();
    let old = tokio::spawn(async move {
        let g = l.acquire(["a", "k"]).await.unwrap();
        sleep(600 * SECOND).await;
        drop(g);
    });
    sleep(100 * MS).await;
    let first = locks.acquire("k").await.unwrap();
    sleep(150 * MS).await;
    drop(b);
    sleep(19 * MS).await;
    drop(first); // the lane is returning
    sleep(Duration::from_micros(500)).await;
    let start = Instant::now();
    let outcome = timeout(3000 * SECOND, locks.acquire("k").no_wait()).await;
    drop(outcome.expect("an outcome"));
    assert!(start.elapsed() < SECOND);
    old.await.unwrap();
}

/// The guard has expired, and no task has run since.
#[tokio::test(start_paused = true)]
async fn shutdown_rejects_owner_of_lost_lock() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").lease(SECOND).await.unwrap();
    let mut shutdown = Box::pin(locks.shutdown(10 * SECOND));
    assert!(poll!(&mut shutdown).is_pending());
    let mut stall = Box::pin(advance(5 * SECOND));
    assert!(poll!(&mut stall).is_pending());
    assert!(!guard.is_held());
    let mut again = Box::pin(locks.acquire("k").owner(guard.owner()).into_future());
    let std::task::Poll::Ready(outcome) = poll!(&mut again) else {
        panic!("queued");
    };
    assert!(outcome.unwrap_err().is_shutting_down());
}
