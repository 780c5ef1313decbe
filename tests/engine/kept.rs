//! Leases that are kept after the last hold, for keys that come back.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::backend::Backend;
use tower_lock::{LockManager, Memory};

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::simulated::{Command, Fault, Simulated, is_free};

const KEEP: Duration = Duration::from_millis(50);

fn keeping(backend: &(impl Backend + Clone)) -> LockManager {
    let locks = LockManager::builder(backend.clone()).keep_released(KEEP);
    locks.build().unwrap()
}

/// Holds the key twice, after which it has come back.
async fn come_back(locks: &LockManager, key: &str) {
    for _ in 0..2 {
        drop(locks.acquire(key).wait(SECOND).await.unwrap());
    }
}

fn sent(wire: &Simulated) -> usize {
    wire.log().len()
}

#[tokio::test(start_paused = true)]
async fn key_that_comes_back_needs_few_commands() {
    let wire = Simulated::new(MS);
    let locks = keeping(&wire);
    let mut last = 0;
    for _ in 0..1_000 {
        let guard = locks.acquire("k").await.unwrap();
        assert!(guard.is_held() && guard.fencing_token().get() > last);
        last = guard.fencing_token().get();
    }
    assert_eq!(
        (wire.sent(Command::Acquire), wire.sent(Command::Release)),
        (1, 0)
    );
    // A turn has 256 tokens at first, and each further one twice as many as the last one needed.
    assert!(wire.sent(Command::ReleaseOrKeep) <= 3, "{:?}", wire.log());
}

/// Their turns begin together, and each key is in use until its turn ends.
#[tokio::test(start_paused = true)]
async fn keys_whose_turns_end_together_share_command() {
    const KEYS: usize = 64;
    let wire = Simulated::new(MS);
    let locks = keeping(&wire);
    let keys: Vec<_> = (0..KEYS).map(|n| format!("k{n}")).collect();
    for _ in 0..20 {
        let acquires = keys.iter().map(|key| locks.acquire(&**key).into_future());
        let guards = join_all(acquires).await;
        guards.into_iter().for_each(|guard| drop(guard.unwrap()));
        sleep(10 * MS).await;
    }
    let (kept, commands) = (wire.sent(Command::ReleaseOrKeep), wire.keep_batches());
    assert!(kept >= 2 * KEYS, "{kept} leases were kept");
    assert!(
        commands * 8 <= kept,
        "{commands} commands for {kept} leases"
    );
}

#[tokio::test(start_paused = true)]
async fn manager_keeps_nothing_by_default() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    for _ in 0..10 {
        drop(locks.acquire("k").await.unwrap());
        sleep(3 * MS).await;
        assert!(is_free(&wire, "k").await);
    }
    assert_eq!(wire.sent(Command::Acquire), 10);
}

#[tokio::test(start_paused = true)]
async fn new_key_is_free_at_once() {
    let wire = Simulated::new(MS);
    let locks = keeping(&wire);
    for n in 0..100 {
        let key = format!("k{n}");
        drop(locks.acquire(&*key).await.unwrap());
        sleep(3 * MS).await;
        assert!(is_free(&wire, &key).await, "{key}");
    }
    assert_eq!(wire.sent(Command::ReleaseOrKeep), 0);
}

/// It paused before the acquire of the waiter, which has the lease from another one of this process.
#[tokio::test(start_paused = true)]
async fn key_that_paused_is_not_kept_for_waiter() {
    let wire = Simulated::new(MS);
    let builder = LockManager::builder(wire.clone()).keep_released(20 * MS);
    let locks = builder.build().unwrap();
    drop(locks.acquire("k").await.unwrap());
    sleep(25 * MS).await;
    let first = locks.acquire("k").await.unwrap();
    let waiter = tokio::spawn(locks.acquire("k").wait(SECOND).into_future());
    sleep(35 * MS).await;
    drop(first);
    drop(waiter.await.unwrap().unwrap());
    sleep(5 * MS).await;
    let sent = [Command::Acquire, Command::Release, Command::ReleaseOrKeep];
    assert_eq!(sent.map(|command| wire.sent(command)), [2, 2, 0]);
}

#[tokio::test(start_paused = true)]
async fn kept_lease_that_nobody_takes_is_released() {
    let wire = Simulated::new(MS);
    let locks = keeping(&wire);
    come_back(&locks, "k").await;
    let before = sent(&wire);
    sleep(KEEP - 5 * MS).await;
    let snapshot = locks.snapshot();
    assert_eq!((snapshot.kept, snapshot.unreleased), (1, 0));
    let info = locks.inspect("k").await.unwrap().unwrap();
    assert!(info.kept && !snapshot.is_idle());
    sleep(10 * MS).await;
    assert!(is_free(&wire, "k").await && locks.snapshot().is_idle());
    assert_eq!(sent(&wire) - before, 1, "{:?}", wire.log());
}

#[tokio::test(start_paused = true)]
async fn kept_key_is_busy_elsewhere_for_its_time() {
    let memory = Memory::new();
    let (here, there) = (keeping(&memory), manager_on(&memory));
    come_back(&here, "k").await;
    let busy = there.acquire("k").no_wait().await.unwrap_err();
    assert!(busy.is_busy());
    sleep(KEEP + 5 * MS).await;
    drop(there.acquire("k").no_wait().await.unwrap());
}

/// The key repeats without a pause, and each hold takes 7 ms.
#[tokio::test(start_paused = true)]
async fn waiter_elsewhere_waits_for_turn_and_hold() {
    const HOLD: Duration = Duration::from_millis(7);
    for busy in [Duration::ZERO, 3 * MS] {
        let wire = Simulated::new(MS);
        let (here, there) = (keeping(&wire), manager_on(&wire.another_wire()));
        let repeats = tokio::spawn(async move {
            loop {
                let guard = here.acquire("k").wait_forever().await.unwrap();
                sleep(HOLD).await;
                drop(guard);
                sleep(busy).await;
            }
        });
        for round in 0..20 {
            sleep(100 * MS + round * MS).await;
            let start = Instant::now();
            let guard = there.acquire("k").wait(SECOND).await.unwrap();
            let waited = start.elapsed();
            assert!(waited <= KEEP + HOLD + 10 * MS, "{waited:?}");
            drop(guard);
        }
        repeats.abort();
    }
}

/// Each acquire follows the drop before it at once, earlier than the task that returns the lease.
#[tokio::test(start_paused = true)]
async fn waiter_elsewhere_has_turn_without_pause() {
    let wire = Simulated::new(MS);
    let here = LockManager::builder(wire.clone()).keep_released(10 * MS);
    let (here, there) = (here.build().unwrap(), manager_on(&wire.another_wire()));
    let repeats = tokio::spawn(async move {
        loop {
            let _guard = here.acquire("k").wait_forever().await.unwrap();
            sleep(2 * MS).await;
        }
    });
    for round in 0..20 {
        sleep(100 * MS + round * MS).await;
        let start = Instant::now();
        let guard = there.acquire("k").wait(SECOND).await.unwrap();
        let waited = start.elapsed();
        assert!(waited <= 10 * MS + 2 * MS + 8 * MS, "{waited:?}");
        drop(guard);
    }
    repeats.abort();
}

#[tokio::test(start_paused = true)]
async fn two_processes_share_repeated_key_equally() {
    let wire = Simulated::new(MS);
    let repeats = |wire: &Simulated| {
        let locks = keeping(wire);
        tokio::spawn(async move {
            let start = Instant::now();
            let mut holds = 0;
            while start.elapsed() < 5 * SECOND {
                let guard = locks.acquire("k").wait_forever().await.unwrap();
                sleep(MS).await;
                drop(guard);
                holds += 1;
            }
            holds
        })
    };
    let both = [repeats(&wire), repeats(&wire.another_wire())];
    let [one, other] = both.map(|it| async { it.await.unwrap() });
    let (one, other) = tokio::join!(one, other);
    assert!(
        5 * one.min(other) >= 4 * one.max(other),
        "{one} and {other}"
    );
}

#[tokio::test(start_paused = true)]
async fn awaited_release_keeps_nothing() {
    let wire = Simulated::new(MS);
    let locks = keeping(&wire);
    come_back(&locks, "k").await;
    let guard = locks.acquire("k").await.unwrap();
    guard.release().await.unwrap();
    assert!(is_free(&wire, "k").await);
}

#[tokio::test(start_paused = true)]
async fn locks_with_other_terms_are_not_kept() {
    let wire = Simulated::new(MS);
    let locks = keeping(&wire);
    let fixed = || locks.acquire("fixed").lease(SECOND);
    let shared = || locks.acquire("shared").shared();
    let permit = || locks.acquire("permit").permits(3);
    let several = || locks.acquire(["several", "keys"]);
    for _ in 0..5 {
        for acquire in [fixed(), shared(), permit(), several()] {
            drop(acquire.await.unwrap());
        }
        sleep(3 * MS).await;
        for key in ["fixed", "shared", "permit", "several", "keys"] {
            assert!(is_free(&wire, key).await, "{key}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn acquires_with_other_terms_end_kept_lease() {
    let wire = Simulated::new(MS);
    let locks = keeping(&wire);
    let acquire = || locks.acquire("k").wait(SECOND);
    for acquire in [
        acquire().lease(SECOND),
        acquire().shared(),
        acquire().permits(3),
    ] {
        come_back(&locks, "k").await;
        let start = Instant::now();
        let guard = acquire.await.unwrap();
        let took = start.elapsed();
        assert!(took <= 10 * MS, "{took:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn max_hold_counts_from_each_take() {
    let wire = Simulated::new(MS);
    let locks = keeping(&wire);
    come_back(&locks, "k").await;
    for _ in 0..3 {
        let guard = locks.acquire("k").max_hold(20 * MS).await.unwrap();
        sleep(15 * MS).await;
        assert!(guard.is_held());
    }
    let guard = locks.acquire("k").max_hold(20 * MS).await.unwrap();
    sleep(21 * MS).await;
    assert!(!guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn shutdown_releases_kept_leases_first() {
    let wire = Simulated::new(MS);
    let locks = keeping(&wire);
    for n in 0..10 {
        come_back(&locks, &format!("k{n}")).await;
    }
    let guard = locks.acquire("held").await.unwrap();
    let start = Instant::now();
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(SECOND).await }
    });
    sleep(5 * MS).await;
    for n in 0..10 {
        assert!(is_free(&wire, &format!("k{n}")).await);
    }
    drop(guard);
    assert!(shutdown.await.unwrap().is_idle());
    assert!(start.elapsed() < KEEP, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn last_handle_releases_kept_leases() {
    let wire = Simulated::new(MS);
    wire.fail_next(Command::Release, Fault::Refused);
    let locks = keeping(&wire);
    drop(locks.acquire("k").await.unwrap());
    sleep(2 * SECOND).await;
    let locks = keeping(&wire);
    come_back(&locks, "k").await;
    drop(locks);
    sleep(3 * MS).await;
    assert!(is_free(&wire, "k").await);
    // A release that fails is repeated.
    let locks = keeping(&wire);
    come_back(&locks, "k").await;
    wire.fail_next(Command::Release, Fault::Refused);
    drop(locks);
    sleep(5 * MS).await;
    assert!(!is_free(&wire, "k").await);
    sleep(2 * SECOND).await;
    assert!(is_free(&wire, "k").await);
}

#[tokio::test(start_paused = true)]
async fn last_guard_releases_its_lease() {
    let wire = Simulated::new(MS);
    let locks = keeping(&wire);
    come_back(&locks, "k").await;
    let guard = locks.acquire("k").await.unwrap();
    drop(locks);
    drop(guard);
    sleep(3 * MS).await;
    assert!(is_free(&wire, "k").await);
}

#[tokio::test(start_paused = true)]
async fn forced_release_ends_kept_lease() {
    let wire = Simulated::new(MS);
    let (here, there) = (keeping(&wire), manager_on(&wire.another_wire()));
    come_back(&here, "k").await;
    assert!(here.force_release("k").await.unwrap());
    let guard = there.acquire("k").no_wait().await.unwrap();
    let busy = here.acquire("k").no_wait().await.unwrap_err();
    assert!(busy.is_busy());
    drop(guard);
}

/// The store loses its data while the lease is kept, and says so.
#[tokio::test(start_paused = true)]
async fn suspect_kept_lease_is_confirmed_first() {
    let wire = Simulated::new(MS);
    let (here, there) = (keeping(&wire), manager_on(&wire.another_wire()));
    come_back(&here, "k").await;
    assert!(there.force_release("k").await.unwrap());
    let guard = there.acquire("k").no_wait().await.unwrap();
    // As after a reconnect.
    wire.down(None);
    sleep(MS).await;
    let busy = here.acquire("k").no_wait().await.unwrap_err();
    assert!(busy.is_busy());
    assert!(guard.is_held());
}

/// The store loses its data while the lock is held, and replies to no renewal at first.
#[tokio::test(start_paused = true)]
async fn suspect_lease_is_kept_only_by_backend() {
    let wire = Simulated::new(MS);
    let (here, there) = (keeping(&wire), manager_on(&wire.another_wire()));
    come_back(&here, "k").await;
    let lost = here.acquire("k").await.unwrap();
    assert!(there.force_release("k").await.unwrap());
    let guard = there.acquire("k").no_wait().await.unwrap();
    wire.fail_next(Command::Renew, Fault::Refused);
    wire.down(None);
    sleep(4 * MS).await;
    drop(lost);
    sleep(5 * MS).await;
    let busy = here.acquire("k").no_wait().await.unwrap_err();
    assert!(busy.is_busy());
    assert!(guard.is_held());
}

/// The command that ends the turns has no reply, or fails.
#[tokio::test(start_paused = true)]
async fn failed_end_of_turn_releases_lease() {
    for fault in [Fault::Refused, Fault::AnswerLost, Fault::CommandLost] {
        let wire = Simulated::new(MS);
        let locks = keeping(&wire);
        let mut guards = Vec::new();
        for key in ["k", "l"] {
            come_back(&locks, key).await;
            guards.push(locks.acquire(key).await.unwrap());
            wire.fail_next(Command::ReleaseOrKeep, fault);
        }
        sleep(KEEP).await;
        drop(guards);
        let start = Instant::now();
        sleep(MS / 2).await;
        assert_eq!(wire.keep_batches(), 1);
        for key in ["k", "l"] {
            drop(locks.acquire(key).await.unwrap());
        }
        assert!(start.elapsed() < SECOND, "{fault:?}");
        sleep(SECOND).await;
        for key in ["k", "l"] {
            assert!(is_free(&wire, key).await, "{fault:?}, {key}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keeping_for_more_than_100_ms_is_rejected() {
    let build = |time| {
        LockManager::builder(Memory::new())
            .keep_released(time)
            .build()
    };
    assert!(build(100 * MS).is_ok());
    let error = build(101 * MS).unwrap_err();
    assert!(error.to_string().contains("keep_released"), "{error}");
}
