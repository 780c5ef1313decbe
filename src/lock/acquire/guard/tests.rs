use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use super::Heir;
use crate::lock::clock::Moment;
use crate::lock::tests::{MS, SECOND, Slow};
use crate::{Error, ErrorKind, LockGuard, LockKey, LockManager};

#[tokio::test(start_paused = true)]
async fn view_of_released_lock_reports_no_hold() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").await.expect("free");
    let again = locks.acquire("k").owner(guard.owner()).await.expect("own");
    let held = guard.held();
    assert_eq!(held.hold_count(), 2);
    drop(again);
    assert_eq!(held.hold_count(), 1);
    assert!(held.remaining() > Duration::from_secs(29));
    assert!(held.is_held());
    drop(guard);
    assert!(!held.is_held());
    assert_eq!((held.hold_count(), held.remaining()), (0, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn lost_lock_has_no_remaining_time() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").await.expect("free");
    assert!(!guard.is_lost());
    assert!(locks.force_release("k").await.expect("in memory"));
    assert!(guard.is_lost());
    assert_eq!(guard.remaining(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn release_of_lost_lock_reports_loss() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").await.expect("free");
    assert!(locks.force_release("k").await.expect("in memory"));
    let error = guard.release().await.expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn group_has_token_per_key() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(["a", "b"]).await.expect("free");
    let of = |key| guard.fencing_token_for(&LockKey::new(key));
    assert!(of("a").is_some() && of("a") < of("b"));
    assert_eq!(of("b"), Some(guard.fencing_token()));
    assert_eq!(of("c"), None);
}

#[cfg(feature = "postgres")]
#[tokio::test(start_paused = true)]
async fn fence_has_stored_keys_and_their_tokens() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(["a", "b"]).await.expect("free");
    let (statement, keys, tokens) = guard.held().fence();
    assert!(statement.starts_with("SELECT tower_lock.fence("));
    let stored = ["a", "b"].map(|key| LockKey::new(key).stored().as_str().to_owned());
    assert_eq!(keys, stored);
    let of = |key| guard.fencing_token_for(&LockKey::new(key)).expect("held");
    assert_eq!(tokens, ["a", "b"].map(|key| of(key).get()));
}

#[tokio::test(start_paused = true)]
async fn debug_shows_key_and_hold_count() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire("k").await.expect("free");
    for (shown, name) in [
        (format!("{guard:?}"), "LockGuard"),
        (format!("{:?}", guard.held()), "Held"),
    ] {
        assert!(shown.starts_with(name), "{shown}");
        assert!(
            shown.contains("(k)") && shown.contains("hold_count: 1"),
            "{shown}"
        );
    }
}

/// Keeps the guard that it inherits.
#[derive(Default)]
struct Keeper(Mutex<Option<LockGuard>>);

impl Heir for Keeper {
    fn inherit(&self, guard: LockGuard) {
        *self.0.lock().expect("no panic") = Some(guard);
    }
}

#[tokio::test(start_paused = true)]
async fn heir_receives_dropped_guard() {
    let locks = LockManager::in_memory();
    let mut guard = locks.acquire("k").await.expect("free");
    let keeper = Arc::new(Keeper::default());
    guard.set_heir(Some(keeper.clone()));
    drop(guard);
    let kept = keeper.0.lock().expect("no panic").take();
    assert!(kept.expect("inherited").is_held());
}

#[tokio::test(start_paused = true)]
async fn guard_shows_wait() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").await.expect("free");
    assert_eq!(first.waited(), Duration::ZERO);
    let mut waiting = ["second", "third"].map(|_| locks.acquire("k").into_future());
    for waiter in &mut waiting {
        assert!(waiter.now_or_never().is_none());
    }
    let mut held = first;
    for (waiter, seconds) in waiting.into_iter().zip(1..) {
        sleep(SECOND).await;
        drop(held);
        held = waiter.await.expect("released");
        assert_eq!(held.waited(), seconds * SECOND);
    }
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true);
    builder.build().expect("a runtime")
}

/// Asserts that a release whose task does not run ends with the lease of a second.
async fn ends_with_lease(release: impl Future<Output = Result<(), Error>>) {
    let began = Moment::now();
    let outcome = timeout(3 * SECOND, release).await.expect("in time");
    assert!(outcome.expect_err("not sent").is_unavailable());
    let took = Moment::now().since(began);
    assert!(took <= SECOND + 100 * MS, "{took:?}");
}

#[test]
fn release_in_stopped_runtime_ends_with_lease() {
    let stopped = runtime();
    let builder = LockManager::builder(Slow::default());
    let locks = builder.runtime(stopped.handle().clone()).build();
    let locks = locks.expect("valid");
    let guard = stopped.block_on(locks.acquire("k").lease(SECOND).into_future());
    let release = guard.expect("free").release();
    runtime().block_on(ends_with_lease(release));
}
