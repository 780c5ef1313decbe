//! Faults of the wire and of the process, on order and in paused time.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, advance, sleep, timeout};
use tower_lock::backend::LeaseId;
use tower_lock::{Backend, ErrorKind, LockGuard, LockKey, LockManager};

#[path = "support/simulated.rs"]
mod simulated;

use simulated::{Command, Fault, Simulated};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn manager(wire: &Simulated) -> LockManager {
    LockManager::builder(wire.clone()).build().unwrap()
}

async fn is_free(wire: &Simulated, key: &str) -> bool {
    let holder = wire.memory.inspect(&LockKey::new(key)).await;
    holder.unwrap().is_none()
}

/// Others left the key held when the answer to an acquire came too late.
#[tokio::test(start_paused = true)]
async fn a_timed_out_acquire_does_not_leave_the_key_held() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    wire.fail_next(Command::Acquire, Fault::AnswerLost);
    let error = locks.acquire("k").wait(100 * MS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!is_free(&wire, "k").await, "the command took effect");
    sleep(SECOND).await;
    assert!(is_free(&wire, "k").await);
    assert!(locks.snapshot().is_idle());
}

/// Others gave a resent acquire the name of the first, and one release freed what another still held.
#[tokio::test(start_paused = true)]
async fn each_try_after_an_unknown_one_has_a_lease_of_its_own() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
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
        "the give-back of a try freed its successor"
    );
}

/// Redisson #2801, #3121: `tryLock` overran its wait while Redis was down.
#[tokio::test(start_paused = true)]
async fn a_backend_that_is_down_makes_nobody_wait_longer_than_its_wait() {
    for fault in [Fault::Refused, Fault::CommandLost, Fault::AnswerLost] {
        let wire = Simulated::new(MS);
        wire.down(Some(fault));
        let locks = manager(&wire);
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
        // No storm meanwhile: at most one try a backoff step.
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
async fn a_refused_client_is_told_at_once_and_does_not_try_again() {
    let wire = Simulated::new(MS);
    wire.down(Some(Fault::Misconfigured));
    let locks = manager(&wire);
    let first = tokio::spawn(locks.acquire("k").into_future());
    let second = tokio::spawn(locks.acquire("k").into_future());
    for waiter in [first, second] {
        let start = Instant::now();
        let error = waiter.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        assert!(start.elapsed() < 100 * MS);
    }
    sleep(10 * SECOND).await;
    assert!(wire.sent(Command::Acquire) <= 2);
    assert!(locks.snapshot().is_idle());
}

/// Redisson #4698: no signal when the lock is lost.
#[tokio::test(start_paused = true)]
async fn the_loss_is_told_by_the_local_deadline_when_no_renewal_succeeds() {
    for fault in [Fault::Refused, Fault::CommandLost] {
        let wire = Simulated::new(MS);
        let locks = manager(&wire);
        let sent_at = Instant::now();
        let guard = locks.acquire("k").await.unwrap();
        wire.down(Some(fault));
        guard.lost().await;
        let told = sent_at.elapsed();
        // 30 s − 1 % − 2 ms, and at most 10 ms more.
        let deadline = Duration::from_millis(29_698);
        assert!(told >= deadline && told <= deadline + 10 * MS, "{told:?}");
        assert!(!guard.is_held());
        assert_eq!(guard.remaining(), Duration::ZERO);
        // It was tried again and again, though not in a storm.
        let renewals = wire.sent(Command::Renew);
        assert!((10..=60).contains(&renewals), "{renewals}");
        assert!(guard.release().await.unwrap_err().is_lost());
    }
}

/// Redisson #2515, #3194: the watchdog was dead after one connection error.
#[tokio::test(start_paused = true)]
async fn the_watchdog_survives_errors() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    let guards: Vec<_> = keys(20, &locks).await;
    for _ in 0..10 {
        wire.fail_next(Command::Renew, Fault::CommandLost);
        wire.fail_next(Command::Renew, Fault::Refused);
        sleep(10 * SECOND).await;
    }
    // None is lost, although each round some of them failed.
    assert!(guards.iter().all(|guard| guard.is_held()));
}

async fn keys(count: usize, locks: &LockManager) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for n in 0..count {
        guards.push(locks.acquire(format!("key:{n}")).await.unwrap());
    }
    guards
}

/// Redisson #4698: no signal when the lock is lost.
#[tokio::test(start_paused = true)]
async fn a_guard_is_lost_as_soon_as_a_renewal_says_not_held() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    let guard = locks.acquire("k").await.unwrap();
    let kept = locks.acquire("kept").await.unwrap();
    wire.memory.force_release(&LockKey::new("k")).await.unwrap();
    let start = Instant::now();
    guard.lost().await;
    assert!(start.elapsed() <= Duration::from_millis(10_100));
    assert!(!guard.is_held() && kept.is_held());
    // Nothing is renewed or created for the lost one.
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

/// Redisson #7272: a renewal that outlives the unlock.
#[tokio::test(start_paused = true)]
async fn no_renewal_is_sent_after_the_release() {
    // Renewals take two seconds, and the guards go while they are on the wire, before and after.
    for hold in [9_500, 9_999, 10_001, 10_500, 11_999, 12_500, 14_000] {
        let wire = Simulated::new(SECOND);
        let locks = manager(&wire);
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

/// Redisson #5761, #763: missed unlock messages.
#[tokio::test(start_paused = true)]
async fn a_waiter_is_served_within_the_backstop_when_every_notification_is_lost() {
    let wire = Simulated::new(MS).without_hints();
    let (here, there) = (manager(&wire), manager(&wire.another_wire()));
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

/// Redisson #5070, #4744: a release between the failed try and the subscription.
#[tokio::test(start_paused = true)]
async fn a_waiter_is_served_at_once_when_it_is_told() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager(&wire), manager(&wire.another_wire()));
    // Also when the release falls between the first try and the subscription.
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
async fn one_last_try_is_made_before_the_deadline() {
    // Nobody tells, and the backstop would come too late.
    let wire = Simulated::new(MS).without_hints();
    let (here, there) = (manager(&wire), manager(&wire.another_wire()));
    let guard = here.acquire("k").await.unwrap();
    let waiter = tokio::spawn(there.acquire("k").wait(500 * MS).into_future());
    sleep(400 * MS).await;
    drop(guard);
    assert!(waiter.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_tried_again_until_it_succeeds() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    for fault in [Fault::Refused, Fault::CommandLost, Fault::AnswerLost] {
        let guard = locks.acquire("k").await.unwrap();
        wire.fail_next(Command::Release, fault);
        wire.fail_next(Command::Release, fault);
        drop(guard);
        sleep(2 * SECOND).await;
        assert!(is_free(&wire, "k").await);
        assert!(locks.snapshot().is_idle());
        // Those who ask are told that it was not confirmed.
        let guard = locks.acquire("k").await.unwrap();
        wire.fail_next(Command::Release, fault);
        let outcome = guard.release().await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
        sleep(2 * SECOND).await;
        assert!(is_free(&wire, "k").await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_is_given_up_when_the_lease_has_run_out() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
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

/// A renewal without an answer may have made the lease longer than anybody here knows.
#[tokio::test(start_paused = true)]
async fn a_release_is_tried_for_as_long_as_the_lease_may_last() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    let guard = locks.acquire("k").await.unwrap();
    wire.fail_next(Command::Renew, Fault::AnswerLost);
    sleep(11 * SECOND).await;
    assert_eq!(wire.sent(Command::Renew), 1);
    wire.down(Some(Fault::Refused));
    sleep(15 * SECOND).await;
    drop(guard);
    // The lease that was granted has run out; what was renewed has not.
    sleep(10 * SECOND).await;
    assert!(!is_free(&wire, "k").await);
    wire.down(None);
    sleep(SECOND).await;
    assert!(is_free(&wire, "k").await);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_slept_through_its_lease_says_lost_at_the_first_look() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    let guard = locks.acquire("k").await.unwrap();
    sleep(SECOND).await;
    let renewals = wire.sent(Command::Renew);
    // As after SIGSTOP: the clock has moved, and no task has run yet.
    advance(60 * SECOND).await;
    assert!(!guard.is_held());
    timeout(MS, guard.lost()).await.expect("told at once");
    sleep(SECOND).await;
    assert_eq!(
        wire.sent(Command::Renew),
        renewals,
        "renewed an expired lease"
    );
    assert!(guard.release().await.unwrap_err().is_lost());
}

/// etcd #11456: a grant was not looked at again after the wait for it.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_answer_comes_after_the_end_of_its_lease_is_no_grant() {
    let wire = Simulated::new(100 * MS);
    let locks = manager(&wire);
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

/// etcd #11456, with several keys: the first one's lease ends while the last one is waited for.
#[tokio::test(start_paused = true)]
async fn several_keys_of_which_one_was_lost_during_the_wait_are_not_granted() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager(&wire), manager(&wire.another_wire()));
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

/// etcd #11456, in a process that stood still between the grant and the return of the acquire.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_slept_through_its_grant_gets_another() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    let guard = locks.acquire("k").await.unwrap();
    let mut waiter = Box::pin(locks.acquire("k").wait_forever().into_future());
    assert!(futures_util::poll!(&mut waiter).is_pending());
    // Handed over; nobody looks for a minute.
    drop(guard);
    advance(60 * SECOND).await;
    let guard = waiter.await.unwrap();
    assert!(guard.is_held());
    drop(guard);
    sleep(SECOND).await;
    assert!(locks.snapshot().is_idle());
}

/// rslock, node-redlock #168: "busy" and "down" came as one error.
#[tokio::test(start_paused = true)]
async fn somebody_in_the_way_and_a_backend_that_is_down_are_told_apart() {
    let wire = Simulated::new(MS);
    let (here, there) = (manager(&wire), manager(&wire.another_wire()));
    let _guard = there.acquire("k").await.unwrap();
    for (down, kind) in [
        (None, ErrorKind::Busy),
        (Some(Fault::Refused), ErrorKind::Unavailable),
        (Some(Fault::CommandLost), ErrorKind::Unavailable),
        (None, ErrorKind::Busy),
    ] {
        wire.down(down);
        // Whoever waited before has gone, and with them what they saw.
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

#[tokio::test(start_paused = true)]
async fn ten_thousand_waiters_share_one_conversation() {
    let wire = Simulated::new(MS);
    let here = LockManager::builder(wire.clone())
        .max_waiters_per_key(10_000)
        .build()
        .unwrap();
    let there = manager(&wire.another_wire());
    let guard = there.acquire("k").await.unwrap();
    let waiters: Vec<_> = (0..10_000)
        .map(|_| {
            let acquire = here.acquire("k").wait_forever();
            tokio::spawn(async move { acquire.await.unwrap().fencing_token() })
        })
        .collect();
    sleep(100 * MS).await;
    assert_eq!(here.snapshot().waiting, 10_000);
    let mut last = guard.fencing_token();
    drop(guard);
    for waiter in waiters {
        let token = waiter.await.unwrap();
        assert!(token > last, "served out of order");
        last = token;
    }
    assert_eq!(wire.most_in_flight(), 1);
    // A command for every 256 grants, and a few for the start.
    let commands = wire.log().len();
    assert!(commands <= 10_000 / 256 + 10, "{commands} commands");
}

#[tokio::test(start_paused = true)]
async fn other_processes_get_their_turn_while_the_local_queue_never_empties() {
    let wire = Simulated::new(Duration::from_micros(200));
    let (here, there) = (manager(&wire), manager(&wire.another_wire()));
    let hog = |locks: LockManager| {
        tokio::spawn(async move {
            loop {
                let guard = locks.acquire("k").wait_forever().await.unwrap();
                sleep(MS).await;
                drop(guard);
            }
        })
    };
    let hogs: Vec<_> = (0..16).map(|_| hog(here.clone())).collect();
    sleep(10 * MS).await;
    for _ in 0..20 {
        let guard = there.acquire("k").wait(SECOND).await.expect("its turn");
        sleep(MS).await;
        drop(guard);
        sleep(5 * MS).await;
    }
    for hog in hogs {
        hog.abort();
    }
}

/// Where each is a little farther away than the one before, the nearest would win each race.
#[tokio::test(start_paused = true)]
async fn processes_that_all_wait_have_the_key_in_turn() {
    const PROCESSES: usize = 4;
    const WAITERS: usize = 16;
    let wire = Simulated::new(MS);
    let (sender, mut grants) = tokio::sync::mpsc::unbounded_channel();
    let mut workers = tokio::task::JoinSet::new();
    for process in 0..PROCESSES {
        let mut wire = wire.another_wire();
        wire.latency += u32::try_from(process).unwrap() * MS;
        let locks = manager(&wire);
        for _ in 0..WAITERS {
            let (locks, sender) = (locks.clone(), sender.clone());
            workers.spawn(async move {
                loop {
                    let asked = Instant::now();
                    let guard = locks.acquire("k").wait_forever().await.unwrap();
                    sender.send((process, asked.elapsed())).unwrap();
                    sleep(MS).await;
                    drop(guard);
                }
            });
        }
    }
    sleep(30 * SECOND).await;
    workers.shutdown().await;
    drop(sender);
    let mut all = Vec::new();
    while let Some(grant) = grants.recv().await {
        all.push(grant);
    }
    let shares: Vec<_> = (0..PROCESSES)
        .map(|process| all.iter().filter(|it| it.0 == process).count() * 100 / all.len())
        .collect();
    assert!(
        shares.iter().all(|share| *share >= 20),
        "{shares:?} per cent"
    );
    // A turn is that of 28 holders, and there are four.
    let longest = all.iter().map(|it| it.1).max().unwrap();
    assert!(longest <= 400 * MS, "waited {longest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_held_locks_are_renewed_and_none_is_lost() {
    let wire = Simulated::new(MS);
    let locks = manager(&wire);
    let mut guards = Vec::new();
    for n in 0..100_000 {
        let acquire = locks.acquire(format!("key:{n}"));
        guards.push(tokio::spawn(async move { acquire.await.unwrap() }));
    }
    let mut held = Vec::new();
    for guard in guards {
        held.push(guard.await.unwrap());
    }
    sleep(100 * SECOND).await;
    assert!(held.iter().all(|guard| guard.is_held()));
    let renewals = wire.sent(Command::Renew);
    let batches = wire.renew_batches();
    assert!(renewals >= 900_000, "{renewals}");
    assert!(
        batches <= renewals / 90,
        "{batches} batches for {renewals} renewals"
    );
    // They must not wait for each other where their time for an answer runs.
    assert!((2..=16).contains(&wire.most_renewals_in_flight()));
    drop(held);
    sleep(10 * SECOND).await;
    assert!(locks.snapshot().is_idle());
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_over_ten_thousand_grants_of_two_managers_with_handoffs() {
    let wire = Simulated::new(Duration::from_micros(100));
    let managers = [manager(&wire), manager(&wire.another_wire())];
    let (sender, mut tokens) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for n in 0..10 {
        let locks = managers[n % 2].clone();
        let sender = sender.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..1000 {
                let guard = locks.acquire("k").wait_forever().await.unwrap();
                sender.send(guard.fencing_token()).unwrap();
                tokio::task::yield_now().await;
                drop(guard);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    drop(sender);
    let mut grants = 0;
    let mut last = None;
    while let Some(token) = tokens.recv().await {
        assert!(Some(token) > last);
        last = Some(token);
        grants += 1;
    }
    assert_eq!(grants, 10_000);
    // Hand-offs cost no command.
    let commands: HashMap<_, usize> = wire.log().iter().fold(HashMap::new(), |mut sum, entry| {
        *sum.entry(entry.0 as usize).or_default() += 1;
        sum
    });
    let sent: usize = commands.values().sum();
    assert!(sent < 1000, "{commands:?}");
}
