//! When an acquire loop attempts again.

use futures_util::future::join_all;

use super::*;
use crate::lock::tasks::contender::pause::{AT_ONCE, LAST_ATTEMPT, POLL, REFRESH, spread};

#[tokio::test(start_paused = true)]
async fn waiter_deadlines_cause_no_attempts_in_outage() {
    let backend = Slow {
        is_down: true,
        ..Slow::default()
    };
    let attempts = Arc::clone(&backend.attempts);
    let locks = LockManager::builder(backend).build().expect("defaults");
    // The deadlines are 50 ms apart, the attempts up to 1 s.
    let waits = (1..100).map(|nth| 50 * nth * MS);
    let acquires = waits.map(|wait| locks.acquire("k").wait(wait).into_future());
    for outcome in join_all(acquires).await {
        assert!(outcome.expect_err("an outage").is_unavailable());
    }
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(attempts <= 20, "{attempts} attempts");
}

#[tokio::test(start_paused = true)]
async fn waiter_makes_last_attempt_before_deadline() {
    let backend = Slow::default();
    let attempts = Arc::clone(&backend.attempts);
    let [one, other] = [backend.clone(), backend].map(|backend| {
        let locks = LockManager::builder(backend).build();
        locks.expect("defaults")
    });
    let _guard = one.acquire("k").await.expect("free");
    let waiter = other.acquire("k").wait(300 * MS).into_future();
    let before_last = async {
        sleep(250 * MS).await;
        attempts.load(Ordering::SeqCst)
    };
    let (outcome, before_last) = tokio::join!(waiter, before_last);
    assert!(outcome.expect_err("held").is_busy());
    assert_eq!(attempts.load(Ordering::SeqCst), before_last + 1);
}

/// Returns the number of attempts for a waiter in the last `last` of its wait, which is too short for a refresh.
/// Another process holds the key.
async fn attempts_before_deadline(backend: Slow, wait: Duration, last: Duration) -> usize {
    let attempts = Arc::clone(&backend.attempts);
    let [one, other] = [backend.clone(), backend].map(|backend| {
        let locks = LockManager::builder(backend).build();
        locks.expect("defaults")
    });
    let _guard = one.acquire("k").await.expect("free");
    let waiter = other.acquire("k").wait(wait).into_future();
    let before = async {
        sleep(wait.saturating_sub(last)).await;
        attempts.load(Ordering::SeqCst)
    };
    let (outcome, before) = tokio::join!(waiter, before);
    assert!(outcome.expect_err("held").is_busy());
    attempts.load(Ordering::SeqCst) - before
}

#[tokio::test(start_paused = true)]
async fn notified_waiter_makes_no_last_attempt() {
    let backend = Slow {
        has_queue: true,
        ..Slow::default()
    };
    let attempts = attempts_before_deadline(backend, 500 * MS, 2 * LAST_ATTEMPT).await;
    assert_eq!(attempts, 0);
}

/// The first poll would come after the deadline.
#[tokio::test(start_paused = true)]
async fn polling_listener_makes_last_attempt() {
    let backend = Slow {
        has_queue: true,
        reaches_none: true,
        ..Slow::default()
    };
    let attempts = attempts_before_deadline(backend, 60 * MS, 3 * LAST_ATTEMPT / 2).await;
    assert_eq!(attempts, 1);
}

/// Returns the time until the first attempt of a waiter whose place a release has entered.
async fn first_attempt_at_place(is_silent: bool) -> Duration {
    let backend = Slow {
        has_queue: true,
        listens: true,
        is_silent,
        ..Slow::default()
    };
    let attempts = Arc::clone(&backend.attempts);
    let elsewhere = Slow {
        attempts: Arc::default(),
        ..backend.clone()
    };
    let [one, other] = [backend, elsewhere].map(|backend| {
        let locks = LockManager::builder(backend).build();
        locks.expect("defaults")
    });
    let first = one.acquire("k").await.expect("free");
    let there = tokio::spawn(other.acquire("k").into_future());
    let here = tokio::spawn(one.acquire("k").into_future());
    // Longer than a turn.
    sleep(200 * MS).await;
    let (before, since) = (attempts.load(Ordering::SeqCst), Moment::now());
    drop(first);
    let attempted = async {
        while attempts.load(Ordering::SeqCst) == before {
            sleep(MS).await;
        }
        Moment::now().since(since)
    };
    let (there, attempted) = tokio::join!(there, attempted);
    assert!(there.expect("no panic").is_ok());
    here.abort();
    attempted
}

#[tokio::test(start_paused = true)]
async fn place_of_release_is_refreshed_first() {
    let first = first_attempt_at_place(false).await;
    assert!(first >= REFRESH * 9 / 10, "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn place_without_subscription_is_contended_for() {
    let first = first_attempt_at_place(true).await;
    assert!(first <= 3 * POLITE, "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn queued_waiter_without_subscription_polls() {
    let backend = Slow {
        has_queue: true,
        is_silent: true,
        ..Slow::default()
    };
    let attempts = attempts_before_deadline(backend, 500 * MS, 4 * POLL).await;
    assert!((3..=6).contains(&attempts), "{attempts} attempts");
}

#[tokio::test]
async fn time_of_next_poll_grows_without_progress() {
    let (engine, mut acquire_loop) = idle_loop();
    let lease = LeaseNumber::of(engine.new_lease_id());
    let began = Moment::now();
    let mut next_attempt = |poll_after, now| {
        let outcome = Contended::polling(SECOND, 1, poll_after);
        let replied = Replied {
            lease,
            terms: RENEWED,
            sent_at: now,
            now,
            outcome: Ok(outcome),
        };
        acquire_loop.place_after(lease, &replied);
        let seen = LastReply::Busy(now + 10 * SECOND);
        acquire_loop.next_attempt(&seen, now).since(now)
    };
    for (after, elapsed, expected) in [
        (10 * MS, Duration::ZERO, 10 * MS),
        (10 * MS, 500 * MS, 50 * MS),
        (10 * MS, 5 * SECOND, POLL),
        (20 * MS, 5 * SECOND, 20 * MS),
    ] {
        let pause = next_attempt(after, began + elapsed);
        let range = expected * 9 / 10..=expected * 11 / 10;
        assert!(range.contains(&pause), "{pause:?} for {expected:?}");
    }
}

#[tokio::test]
async fn listening_process_refreshes_place_rarely() {
    let (_engine, mut acquire_loop) = idle_loop();
    acquire_loop.queued = Some(1);
    let now = Moment::now();
    for (listens, expected) in [(false, POLL), (true, REFRESH)] {
        acquire_loop.listens = listens;
        let seen = LastReply::Busy(now + 10 * SECOND);
        let pause = acquire_loop.next_attempt(&seen, now).since(now);
        let range = expected * 9 / 10..=expected * 11 / 10;
        assert!(range.contains(&pause), "{pause:?} for {expected:?}");
    }
}

/// No message reports the expiry.
#[tokio::test]
async fn waiter_attempts_at_expiry_of_holder() {
    let (_engine, mut acquire_loop) = idle_loop();
    let now = Moment::now();
    for (queued, listens) in [
        (None, false),
        (None, true),
        (Some(1), false),
        (Some(1), true),
    ] {
        (acquire_loop.queued, acquire_loop.listens) = (queued, listens);
        let expiry = now + 20 * MS;
        let next = acquire_loop.next_attempt(&LastReply::Busy(expiry), now);
        assert_eq!(next, expiry + MS, "{queued:?}, {listens}");
        assert_eq!(acquire_loop.holder_expires, Some(next));
    }
}

#[test]
fn short_queue_attempts_at_once() {
    assert_eq!(spread(AT_ONCE), Duration::ZERO);
    let spreads = (0..100).map(|_| spread(1000));
    let longest = spreads.max().expect("some draws");
    assert!(longest > 100 * MS && longest < SECOND, "{longest:?}");
}
