//! Events at the end of a hand-off budget, while a command keeps or releases the lease.

use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::Backend as _;

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

/// The whole queue waits for one reply at each end of the hand-off budget.
#[tokio::test(start_paused = true)]
async fn busy_queue_waits_once_per_budget() {
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
    // The first attempt, 1 ms per holder, and a round trip of 20 ms per budget.
    assert!(start.elapsed() < 760 * MS, "{:?}", start.elapsed());
    let kept = wire.sent(Command::ReleaseOrKeep);
    assert!((9..=11).contains(&kept), "{kept} commands");
    assert_eq!(wire.sent(Command::Acquire), 1);
}

/// The budget counts from the reply: a round trip is longer than the budget.
#[tokio::test(start_paused = true)]
async fn queue_on_distant_store_has_whole_budget() {
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
    assert_eq!(wire.sent(Command::ReleaseOrKeep), 1);
    assert!(start.elapsed() < 280 * MS, "{:?}", start.elapsed());
}

/// A waiter of another process ends the turns of a busy local queue.
#[tokio::test(start_paused = true)]
async fn remote_waiter_of_kept_key_acquires_in_time() {
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
    assert!(wire.sent(Command::ReleaseOrKeep) > 3, "not kept yet");
    let start = Instant::now();
    drop(there.acquire("k").await.unwrap());
    assert!(start.elapsed() < 150 * MS, "{:?}", start.elapsed());
    for holder in holders {
        holder.abort();
    }
}

/// The lock is freed while a command that keeps it is in flight.
#[tokio::test(start_paused = true)]
async fn force_release_during_keep_loses_one_guard() {
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
    while wire.sent(Command::ReleaseOrKeep) == 0 {
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

#[tokio::test(start_paused = true)]
async fn queue_after_failed_keep_is_served() {
    for fault in [Fault::Refused, Fault::AnswerLost, Fault::CommandLost] {
        let wire = Simulated::new(10 * MS);
        let locks = manager_on(&wire);
        wire.fail_next(Command::ReleaseOrKeep, fault);
        let holders = (0..200).map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let guard = locks.acquire("k").wait(2 * SECOND).await.unwrap();
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
    wire.memory.force_release(&"k".into(), None).await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert_eq!(wire.sent(Command::ReleaseOrKeep), 1);
}

/// After an empty restart, a store counts from the microseconds of its clock. Tokens would fall back if its counter had
/// outrun them.
#[tokio::test(start_paused = true)]
async fn counters_of_10000_busy_keys_stay_behind_clock() {
    const KEYS: usize = 10_000;
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let counter = async || {
        let guard = locks.acquire("counter").await.unwrap();
        guard.fencing_token().get() / i64::from(wire.capabilities().tokens_per_counter)
    };
    let (before, start) = (counter().await, Instant::now());
    let end = start + 600 * MS;
    let holders = (0..3 * KEYS).map(|number| {
        let (locks, key) = (locks.clone(), format!("k{}", number % KEYS));
        tokio::spawn(async move {
            while Instant::now() < end {
                let guard = locks.acquire(key.as_str()).wait_forever().await.unwrap();
                sleep(20 * MS).await;
                drop(guard);
            }
        })
    });
    for holder in holders.collect::<Vec<_>>() {
        holder.await.unwrap();
    }
    let kept = wire.sent(Command::ReleaseOrKeep);
    assert!(kept > 8 * KEYS, "{kept} turns");
    let (taken, elapsed) = (counter().await - before, start.elapsed());
    let micros = i64::try_from(elapsed.as_micros()).unwrap();
    assert!(taken < micros, "{taken} counters in {micros} µs");
}
