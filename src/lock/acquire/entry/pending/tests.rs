use std::error::Error as _;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::FutureExt as _;
use tokio::time::sleep;

#[cfg(feature = "dashboard")]
use crate::LockKey;
use crate::LockManager;
use crate::backend::Memory;
use crate::lock::clock::Moment;
use crate::lock::tests::{MS, SECOND, Slow};

#[tokio::test(start_paused = true)]
async fn guard_outlives_deadline_of_its_acquire() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").await.expect("free");
    let next = locks.acquire("k").wait(SECOND).into_future();
    let (next, ()) = tokio::join!(next, async { drop(first) });
    let next = next.expect("handed off");
    sleep(2 * SECOND).await;
    assert!(next.is_held());
}

#[tokio::test(start_paused = true)]
async fn late_pick_up_extends_no_fixed_lease() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").await.expect("free");
    let mut next = locks.acquire("k").lease(20 * SECOND).into_future();
    assert!((&mut next).now_or_never().is_none());
    drop(first);
    sleep(2 * SECOND).await;
    let next = next.await.expect("granted");
    sleep(SECOND).await;
    assert!(next.remaining() <= 17 * SECOND, "{:?}", next.remaining());
}

#[tokio::test(start_paused = true)]
async fn acquire_polled_after_deadline_is_busy() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").await.expect("free");
    let mut next = locks.acquire("k").wait(SECOND).into_future();
    assert!((&mut next).now_or_never().is_none());
    drop(first);
    // The key is free again, because the grant was withdrawn.
    sleep(2 * SECOND).await;
    assert!(next.await.expect_err("too late").is_busy());
}

#[tokio::test(start_paused = true)]
async fn unpolled_acquire_enters_again_after_lost_grant() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").await.expect("free");
    let mut next = locks.acquire("k").max_hold(SECOND).into_future();
    assert!((&mut next).now_or_never().is_none());
    drop(first);
    sleep(2 * SECOND).await;
    let next = next.await.expect("a fresh grant");
    assert!(next.is_held());
}

#[tokio::test(start_paused = true)]
async fn unpolled_companion_enters_again_after_lost_grant() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").await.expect("free");
    let other = locks.acquire("other").await.expect("free");
    let acquire = || locks.acquire("k").owner(other.owner()).max_hold(SECOND);
    let mut both = [acquire().into_future(), acquire().into_future()];
    for acquire in &mut both {
        assert!(acquire.now_or_never().is_none());
    }
    drop(first);
    sleep(2 * SECOND).await;
    let [one, other] = both;
    let one = one.await.expect("a fresh grant");
    let other = other.await.expect("the same grant");
    assert_eq!(one.fencing_token(), other.fencing_token());
    assert!(one.is_held());
}

#[tokio::test(start_paused = true)]
async fn single_attempt_sends_one_command() {
    let backend = Slow {
        attempt_takes: MS,
        ..Slow::default()
    };
    let [one, other] = [backend.clone(), backend.clone()].map(|backend| {
        let locks = LockManager::builder(backend).build();
        locks.expect("defaults")
    });
    let _guard = one.acquire("k").await.expect("free");
    backend.attempts.store(0, Ordering::SeqCst);
    let error = other.acquire("k").no_wait().await.expect_err("held");
    assert!(error.is_busy());
    assert_eq!(backend.attempts.load(Ordering::SeqCst), 1);
}

/// Counts the wake-ups of a task.
struct CountedWaker {
    waker: Waker,
    count: AtomicUsize,
}

impl Wake for CountedWaker {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.waker.wake_by_ref();
    }
}

/// The acquire drives its attempt itself. If the answer woke it as well, a second thread would poll it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn reply_to_own_attempt_wakes_acquire_once() {
    let backend = Slow {
        attempt_takes: MS,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    let mut acquire = pin!(locks.acquire("k").into_future());
    let mut counted = None;
    let guard = poll_fn(|cx| {
        let counted = counted.get_or_insert_with(|| {
            Arc::new(CountedWaker {
                waker: cx.waker().clone(),
                count: AtomicUsize::new(0),
            })
        });
        let waker = Waker::from(Arc::clone(counted));
        acquire.as_mut().poll(&mut Context::from_waker(&waker))
    });
    drop(guard.await.expect("free"));
    let wakes = counted.expect("polled").count.load(Ordering::SeqCst);
    assert_eq!(wakes, 1);
}

#[tokio::test(start_paused = true)]
async fn attempt_without_reply_ends_at_deadline() {
    let backend = Slow {
        attempt_takes: 10 * SECOND,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    let began = Moment::now();
    let error = locks.acquire("k").wait(SECOND).await.expect_err("no reply");
    assert!(error.is_unavailable());
    let cause = error.source().map(ToString::to_string);
    assert_eq!(
        cause.as_deref(),
        Some("no reply from the lock backend within the wait")
    );
    assert!(Moment::now().since(began) <= SECOND + 5 * MS);
}

#[tokio::test(start_paused = true)]
async fn short_wait_without_reply_ends_at_deadline() {
    let backend = Slow {
        attempt_takes: SECOND,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    let began = Moment::now();
    let error = locks.acquire("k").wait(4 * MS).await.expect_err("no reply");
    assert!(error.is_unavailable());
    assert!(Moment::now().since(began) <= 6 * MS);
}

#[tokio::test(start_paused = true)]
async fn attempt_of_dropped_acquire_is_finished() {
    let backend = Slow {
        attempt_takes: SECOND,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    let mut dropped = locks.acquire("k").into_future();
    assert!((&mut dropped).now_or_never().is_none());
    drop(dropped);
    let next = locks.acquire("k").wait(3 * SECOND).await;
    assert!(next.is_ok(), "{next:?}");
}

#[tokio::test(start_paused = true)]
async fn dropped_waiter_leaves_queue() {
    let locks = LockManager::builder(Memory::new()).max_waiters_per_key(1);
    let locks = locks.build().expect("valid");
    let _guard = locks.acquire("k").await.expect("free");
    for _ in 0..2 {
        let mut waiting = locks.acquire("k").into_future();
        assert!((&mut waiting).now_or_never().is_none(), "no place");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_waiter_releases_its_grant() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").await.expect("free");
    let mut waiting = locks.acquire("k").into_future();
    assert!((&mut waiting).now_or_never().is_none());
    drop(first);
    drop(waiting);
    let next = locks.acquire("k").no_wait().await;
    assert!(next.is_ok(), "{next:?}");
}

#[tokio::test(start_paused = true)]
async fn unpolled_group_holds_no_key_past_deadline() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("a").await.expect("free");
    let _second = locks.acquire("b").await.expect("free");
    let mut group = locks.acquire(["a", "b"]).wait(SECOND).into_future();
    assert!((&mut group).now_or_never().is_none());
    drop(first);
    assert!((&mut group).now_or_never().is_none());
    assert!(locks.acquire("a").no_wait().await.is_err());
    sleep(2 * SECOND).await;
    let next = locks.acquire("a").no_wait().await;
    assert!(next.is_ok(), "{next:?}");
}

/// Each owner of a permit has a key of its own in this process.
#[cfg(feature = "dashboard")]
#[tokio::test(start_paused = true)]
async fn waits_for_permits_count_for_stored_key() {
    let locks = LockManager::in_memory();
    locks.hot_keys().enable();
    let _held = locks.acquire("k").permits(1).await.expect("free");
    for _ in 0..2 {
        let full = locks.acquire("k").permits(1).wait(MS).await;
        assert!(full.expect_err("held").is_busy());
    }
    let (top, _missed) = locks.hot_keys().top(2);
    let counts: Vec<_> = top.iter().map(|hot| (hot.key.clone(), hot.waits)).collect();
    assert_eq!(counts, [(LockKey::new("k"), 2)]);
}
