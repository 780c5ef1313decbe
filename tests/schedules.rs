//! Schedules that once broke a promise of the engine, one by one.
#![allow(clippy::unwrap_used)]
use futures_util::poll;
use std::time::Duration;
use tokio::time::{Instant, advance, sleep, timeout};
use tower_lock::{Backend, ErrorKind, LockKey, LockManager};

#[path = "support/simulated.rs"]
mod simulated;

use simulated::{Command, Fault, Simulated};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
fn manager(wire: &Simulated) -> LockManager {
    LockManager::builder(wire.clone()).build().unwrap()
}
fn quick(wire: &Simulated, ttl: Duration) -> LockManager {
    LockManager::builder(wire.clone())
        .watchdog_timeout(ttl)
        .build()
        .unwrap()
}

/// no_wait queued behind a waiter during `pass`, then waits for that waiter's whole hold.
#[tokio::test(start_paused = true)]
async fn a_single_try_does_not_wait_behind_the_one_a_lease_is_passed_to() {
    let wire = Simulated::new(10 * MS);
    let locks = manager(&wire);
    let first = locks.acquire("k").await.unwrap();
    sleep(200 * MS).await; // budget is spent
    let l = locks.clone();
    let second = tokio::spawn(async move {
        let g = l.acquire("k").await.unwrap();
        sleep(600 * SECOND).await;
        drop(g);
    });
    sleep(MS).await;
    drop(first); // pass goes out
    sleep(5 * MS).await; // on the wire
    let start = Instant::now();
    let outcome = timeout(3000 * SECOND, locks.acquire("k").no_wait()).await;
    assert!(outcome.expect("an answer").is_err());
    assert!(start.elapsed() < SECOND);
    second.await.unwrap();
}

/// Each 100 ms all of them used to wait for an answer.
#[tokio::test(start_paused = true)]
async fn a_busy_queue_does_not_wait_for_the_answer_that_lets_it_go_on() {
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
    // The first try, and everybody's millisecond.
    assert!(start.elapsed() < 530 * MS, "{:?}", start.elapsed());
    assert_eq!(wire.sent(Command::Pass), 0);
    let asked = wire.sent(Command::Extend);
    assert!((5..=12).contains(&asked), "{asked} commands");
}

/// Where the store is farther away than a budget lasts, there is no time to ask ahead.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_far_away_is_asked_once_for_each_turn() {
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

/// However often this process may go on, another one that waits ends that in time.
#[tokio::test(start_paused = true)]
async fn whoever_waits_elsewhere_has_a_busy_key_in_time() {
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
    assert!(wire.sent(Command::Extend) > 3, "it was extended by then");
    let start = Instant::now();
    drop(there.acquire("k").await.unwrap());
    assert!(start.elapsed() < 150 * MS, "{:?}", start.elapsed());
    for holder in holders {
        holder.abort();
    }
}

/// Forced open while it is asked for more: nobody thinks that it is held.
#[tokio::test(start_paused = true)]
async fn a_lock_forced_open_is_lost_although_it_was_to_be_extended() {
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

/// An answer that never comes: the lease is not stuck with it.
#[tokio::test(start_paused = true)]
async fn a_queue_goes_on_without_the_answer_that_would_let_it() {
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

/// the same without hand-off: fixed leases only.
#[tokio::test(start_paused = true)]
async fn a_single_try_does_not_wait_behind_the_one_that_contends_next() {
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
    assert!(outcome.expect("an answer").is_err());
    assert!(start.elapsed() < SECOND);
    second.await.unwrap();
}

/// shutdown while a first try is on the wire: the driver queues afterwards.
#[tokio::test(start_paused = true)]
async fn shutdown_refuses_an_acquire_whose_first_try_is_on_the_wire() {
    let wire = Simulated::new(50 * MS);
    let there = manager(&wire.another_wire());
    let _held = there.acquire("k").await.unwrap();
    let locks = manager(&wire);
    let acquire = tokio::spawn(locks.acquire("k").wait_forever().into_future());
    sleep(20 * MS).await;
    let left = locks.shutdown(10 * SECOND).await;
    assert!(left.is_idle());
    assert!(acquire.is_finished(), "still waits after the shutdown");
    assert_eq!(
        acquire.await.unwrap().unwrap_err().kind(),
        ErrorKind::ShuttingDown
    );
}

/// nested watchdog acquire while the one renewal of a nested fixed lease is on the wire.
#[tokio::test(start_paused = true)]
async fn a_nested_watchdog_hold_is_renewed_although_a_nested_lease_is_on_the_wire() {
    let wire = Simulated::new(20 * MS);
    let locks = manager(&wire);
    let outer = locks.acquire("k").lease(2 * SECOND).await.unwrap();
    let nested = locks
        .acquire("k")
        .owner(outer.owner())
        .lease(3 * SECOND)
        .await
        .unwrap();
    sleep(10 * MS).await; // its renewal is on the wire
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

/// force_release while the guard hands its lease on.
#[tokio::test(start_paused = true)]
async fn force_release_reaches_the_one_its_lease_was_handed_to_meanwhile() {
    let wire = Simulated::new(20 * MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let first = locks.acquire("k").await.unwrap();
    let second = tokio::spawn(locks.acquire("k").into_future());
    sleep(MS).await;
    let l = locks.clone();
    let force = tokio::spawn(async move { l.force_release("k").await.unwrap() });
    sleep(10 * MS).await;
    drop(first); // handed on: the same lease, which the command on the wire deletes
    let second = second.await.unwrap().unwrap();
    assert!(force.await.unwrap());
    let other = there.acquire("k").await.unwrap();
    sleep(MS).await;
    let both = second.is_held() && other.is_held();
    second.lost().await;
    assert!(!both, "two guards at a time");
}

/// force_release right behind an acquire on the wire.
#[tokio::test(start_paused = true)]
async fn force_release_reaches_the_one_that_was_being_granted() {
    let wire = Simulated::new(20 * MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let first = tokio::spawn(locks.acquire("k").into_future());
    sleep(5 * MS).await;
    assert!(locks.force_release("k").await.unwrap());
    let first = first.await.unwrap().unwrap();
    let _other = there.acquire("k").await.unwrap();
    let told = timeout(100 * MS, first.lost()).await;
    assert!(told.is_ok(), "two guards until the next renewal");
}

/// is_held: false, lost() told, and then true again.
#[tokio::test(start_paused = true)]
async fn a_guard_that_was_seen_lost_stays_lost() {
    let wire = Simulated::new(100 * MS);
    let locks = quick(&wire, SECOND);
    let guard = locks.acquire("k").await.unwrap(); // sent at 0, valid until 988
    sleep(280 * MS).await; // t=480: renewal sent at 333, in effect at 433, answer at 533
    assert_eq!(wire.sent(Command::Renew), 1);
    let mut stall = Box::pin(advance(600 * MS)); // SIGSTOP until 1080
    assert!(poll!(&mut stall).is_pending());
    assert!(!guard.is_held());
    assert!(poll!(Box::pin(guard.lost())).is_ready(), "lost is told");
    stall.await;
    sleep(5 * MS).await;
    assert!(!guard.is_held(), "held again after it was lost");
}

/// A lease whose renewal is answered after the lane went on without it is never released.
#[tokio::test(start_paused = true)]
async fn a_lease_renewed_after_its_lane_went_on_is_given_back() {
    let wire = Simulated::new(MS);
    let mut slow = wire.clone();
    slow.latency = 300 * MS;
    let locks = quick(&slow, SECOND);
    let guard = locks.acquire("k").await.unwrap(); // sent 0, executed 300 -> 1300, valid until 988, t=600
    // the renewal at 333.. is due at once: sent at ~600, executed at 900 -> 1900, AnswerLost at 1400
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

/// One hanging release holds back those of all other keys.
#[tokio::test(start_paused = true)]
async fn a_release_that_hangs_delays_no_other() {
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

/// max_waiters_per_key
#[tokio::test(start_paused = true)]
async fn a_queue_keeps_its_bound_when_the_first_try_fails() {
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

/// no task when nothing is held
#[tokio::test(start_paused = true)]
async fn no_task_outlives_its_manager() {
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

/// A pass whose answer was lost, then a plain release that finds nothing.
#[tokio::test(start_paused = true)]
async fn a_release_in_good_order_is_not_called_lost() {
    let wire = Simulated::new(MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let guard = locks.acquire("k").await.unwrap();
    let _other = tokio::spawn(there.acquire("k").into_future());
    let _mine = tokio::spawn(locks.acquire("k").into_future());
    sleep(200 * MS).await;
    wire.fail_next(Command::Pass, Fault::AnswerLost);
    let outcome = guard.release().await;
    assert!(
        !matches!(&outcome, Err(e) if e.is_lost()),
        "held to the end, yet told lost"
    );
}

/// Nested watchdog over a short fixed lease: the first renewal fails once.
#[tokio::test(start_paused = true)]
async fn one_failed_renewal_does_not_cost_a_widened_lease() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    let outer = locks.acquire("k").lease(SECOND).await.unwrap();
    wire.fail_next(Command::Renew, Fault::Refused);
    let inner = locks.acquire("k").owner(outer.owner()).await.unwrap();
    sleep(2 * SECOND).await;
    assert!(
        inner.is_held(),
        "one refused renewal cost the lock, with a second left"
    );
}

/// A lane whose task died with its runtime.
#[test]
fn a_single_try_takes_over_where_a_runtime_died() {
    let wire = Simulated::new(5 * MS);
    let rt = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (one, two) = (rt(), rt());
    let there = manager(&wire.another_wire());
    let locks = manager(&wire);
    let held = two.block_on(there.acquire("k").into_future()).unwrap();
    {
        let l = locks.clone();
        one.spawn(async move { drop(l.acquire("k").wait_forever().await) });
    }
    std::thread::sleep(200 * MS);
    one.shutdown_timeout(SECOND);
    two.block_on(async {
        held.release().await.unwrap();
        sleep(100 * MS).await;
        assert!(
            wire.memory
                .inspect(&LockKey::new("k"))
                .await
                .unwrap()
                .is_none()
        );
        for _ in 0..3 {
            drop(locks.acquire("k").no_wait().await);
            sleep(500 * MS).await;
        }
        assert!(
            locks.acquire("k").no_wait().await.is_ok(),
            "free, and refused for ever"
        );
    });
}

/// Tries per second while Redis refuses, with many waiters.
#[tokio::test(start_paused = true)]
async fn many_deadlines_make_no_storm_of_last_tries() {
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

/// The driver's future is dropped while its try is on the wire: the task that finishes it has seen
/// nothing yet, and that is no reason to call the backend unavailable.
#[tokio::test(start_paused = true)]
async fn a_single_try_behind_an_abandoned_one_hears_its_answer() {
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

/// Others wait for the key: as soon as the backend is back they get it, and not when the next try of
/// a release that failed is due, which may be a second later.
#[tokio::test(start_paused = true)]
async fn a_release_that_failed_is_sent_again_as_soon_as_the_backend_is_back() {
    let wire = Simulated::new(MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let guard = locks.acquire("k").await.unwrap();
    wire.down(Some(Fault::Refused));
    drop(guard);
    let waiter = tokio::spawn(there.acquire("k").wait(20 * SECOND).into_future());
    // It was tried five times by now, last after one and a half seconds; the next pause is a whole one.
    sleep(1_900 * MS).await;
    assert!(!waiter.is_finished());
    wire.down(None);
    let start = Instant::now();
    drop(waiter.await.unwrap().unwrap());
    assert!(start.elapsed() < 20 * MS, "{:?}", start.elapsed());
}

/// a no_wait in an empty queue is overtaken by an older ticket
#[tokio::test(start_paused = true)]
async fn a_single_try_is_answered_at_once_beside_an_acquire_of_several_keys() {
    let wire = Simulated::new(10 * MS);
    let (locks, there) = (manager(&wire), manager(&wire.another_wire()));
    let b = there.acquire("a").await.unwrap();
    // its ticket is older than that of the no_wait; it waits for "a" first
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
    drop(first); // Returning
    sleep(Duration::from_micros(500)).await;
    let start = Instant::now();
    let outcome = timeout(3000 * SECOND, locks.acquire("k").no_wait()).await;
    drop(outcome.expect("an answer"));
    assert!(start.elapsed() < SECOND);
    old.await.unwrap();
}

/// Its guard is over, and no task has run since.
#[tokio::test(start_paused = true)]
async fn shutdown_refuses_the_owner_of_a_lost_lock() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").lease(SECOND).await.unwrap();
    let mut shutdown = Box::pin(locks.shutdown(10 * SECOND));
    assert!(poll!(&mut shutdown).is_pending());
    let mut stall = Box::pin(advance(5 * SECOND));
    assert!(poll!(&mut stall).is_pending());
    assert!(!guard.is_held());
    let mut again = Box::pin(locks.acquire("k").owner(guard.owner()).into_future());
    let std::task::Poll::Ready(outcome) = poll!(&mut again) else {
        panic!("it queued");
    };
    assert!(outcome.unwrap_err().is_shutting_down());
}
