//! Events while a lease is extended ahead of a hand-off.

use tokio::time::{Instant, sleep, timeout};
use tower_lock::Backend as _;

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::simulated::{Command, Fault, Simulated};

/// no_wait queued behind a waiter during `release_or_keep`, then waits for that waiter's whole hold.
#[tokio::test(start_paused = true)]
async fn no_wait_during_keep_ends_before_next_hold() {
    let wire = Simulated::new(10 * MS);
    let locks = manager_on(&wire);
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
    let locks = manager_on(&wire);
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
    let locks = manager_on(&wire);
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
    let (locks, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
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
    let (locks, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
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
        let locks = manager_on(&wire);
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
    let locks = manager_on(&wire);
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

/// The reply to `release_or_keep` is lost, and the release sent next finds no lease.
#[tokio::test(start_paused = true)]
async fn release_after_lost_keep_reply_is_not_lost() {
    let wire = Simulated::new(MS);
    let (locks, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
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

/// The server that received `release_or_keep` is no primary any more, and the new one has not got the lease.
#[tokio::test(start_paused = true)]
async fn release_after_rejected_keep_is_lost() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let guard = locks.acquire("k").await.unwrap();
    let _mine = tokio::spawn(locks.acquire("k").into_future());
    sleep(200 * MS).await;
    wire.fail_next(Command::ReleaseOrKeep, Fault::Refused);
    wire.memory.force_release(&"k".into()).await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert_eq!(wire.sent(Command::ReleaseOrKeep), 1);
}
