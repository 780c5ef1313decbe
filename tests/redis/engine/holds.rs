//! Holds of a lock, and their end.

use futures_util::future::join_all;
use futures_util::poll;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::Backend as _;
use tower_lock::backend::{LeaseId, Release, Released};
use tower_lock::{ErrorKind, LockKey, RedisBackend};
use uuid::Uuid;

use super::support::{LEASE, percentile};
use crate::support::engine::{
    MS, SECOND, connected, eventually, fails_at_its_deadline, manager, managers, nothing_is_left,
    pttl, subscribers,
};
use crate::support::redis_server::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_counts_go_0_1_2_1_0() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LEASE).await;
    assert!(locks.inspect("k").await.unwrap().is_none());
    let first = locks.acquire("k").await.unwrap();
    assert_eq!(first.hold_count(), 1);
    let second = locks.acquire("k").owner(first.owner()).await.unwrap();
    assert_eq!((first.hold_count(), second.hold_count()), (2, 2));
    assert_eq!(first.fencing_token(), second.fencing_token());
    assert_eq!(locks.inspect("k").await.unwrap().unwrap().hold_count, 2);
    // The manager counts holds, so a resent acquire cannot double the count in Redis.
    assert_eq!(server.cli(&["HVALS", "lock:k"]), "1");
    let held = first.held();
    second.release().await.unwrap();
    assert_eq!(held.hold_count(), 1);
    assert!(held.is_held() && locks.is_locked("k").await.unwrap());
    first.release().await.unwrap();
    assert_eq!(held.hold_count(), 0);
    assert!(!held.is_held() && !locks.is_locked("k").await.unwrap());
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_owner_acquires_after_last_release() {
    let server = RedisServer::start();
    let (here, there) = managers(server.url(), LEASE).await;
    for other in [&here, &there] {
        let outer = here.acquire("k").await.unwrap();
        let inner = here.acquire("k").owner(outer.owner()).await.unwrap();
        let refused = other.acquire("k").no_wait().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        let mut waiter = Box::pin(other.acquire("k").into_future());
        assert!(poll!(&mut waiter).is_pending());
        outer.release().await.unwrap();
        assert!(
            timeout(50 * MS, &mut waiter).await.is_err(),
            "acquired before the last release"
        );
        inner.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
    }
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

/// `tryLock(3, SECONDS)`: between 2.99 and 3.35 s in Redisson's own tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_second_wait_on_held_key_ends_on_time() {
    let server = RedisServer::start();
    let (here, there) = managers(server.url(), LEASE).await;
    let _guard = here.acquire("k").await.unwrap();
    let waits = [&here, &there].map(|locks| fails_at_its_deadline(locks.acquire("k"), 3 * SECOND));
    for error in join_all(waits).await {
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.retry_after().is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_lease_admits_waiter_and_loses_guard() {
    let server = RedisServer::start();
    let (here, there) = managers(server.url(), LEASE).await;
    let (here, there) = (&here, &there);
    // Concurrent rounds: a busy machine may delay some of them, but hardly all.
    let rounds = (0..7_u32).map(async |n| {
        let key = format!("k:{n}");
        let start = Instant::now();
        let old = here.acquire(&*key).lease(2 * SECOND).await.unwrap();
        // The offsets spread polls, which are a second apart, over different times.
        sleep(n * 130 * MS).await;
        let new = there.acquire(&*key).await.unwrap();
        let admitted = start.elapsed();
        // The old guard ends 1 % + 2 ms ahead of its lease, and the manager then releases it.
        assert!(admitted >= 1_978 * MS, "two holders: {admitted:?}");
        assert!(!old.is_held());
        old.lost().await;
        assert!(old.release().await.unwrap_err().is_lost());
        assert!(new.is_held());
        assert!(pttl(&server, &key) > 0, "the key was freed");
        new.release().await.unwrap();
        admitted
    });
    let mut admitted = join_all(rounds).await;
    let median = percentile(&mut admitted, 50);
    // Without that release, a poll would find the key free half a second later.
    assert!(median <= 2_200 * MS, "{admitted:?}");
    nothing_is_left(&server, &[here, there], SECOND, "the end").await;
}

/// distributed-lock 0.2: a stale release freed the next holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_by_other_owner_changes_nothing() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LEASE).await;
    let guard = locks.acquire("k").await.unwrap();
    let before = server.cli(&["HGETALL", "lock:k"]);
    let stranger = connected(|| RedisBackend::builder(server.url())).await;
    let messages = server.calls("publish");
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let outcomes = stranger
        .release(&[Release::new(LockKey::new("k"), lease)])
        .await;
    assert_eq!(*outcomes[0].as_ref().unwrap(), Released::NotHeld);
    assert_eq!(server.cli(&["HGETALL", "lock:k"]), before);
    assert_eq!(server.calls("publish"), messages, "a waiter was notified");
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_release_notifies_waiter_and_holder() {
    let server = RedisServer::start();
    let lease = 6 * SECOND;
    let (here, there) = managers(server.url(), lease).await;
    // If the holder's own manager forces the release, the guard is lost at once.
    let guard = here.acquire("k").await.unwrap();
    let mut waiter = Box::pin(there.acquire("k").into_future());
    assert!(poll!(&mut waiter).is_pending());
    let waiter = tokio::spawn(waiter);
    eventually("subscribed", || subscribers(&server, "k") == 1).await;
    // The attempt after the subscription is over. Without a notification, the next is 900 ms away.
    sleep(50 * MS).await;
    let start = Instant::now();
    assert!(here.force_release("k").await.unwrap());
    assert!(!guard.is_held());
    guard.lost().await;
    let next = waiter.await.unwrap().unwrap();
    assert!(
        start.elapsed() < 600 * MS,
        "not woken: {:?}",
        start.elapsed()
    );
    assert!(guard.release().await.unwrap_err().is_lost());
    // The first renewal follows the grant.
    eventually("renewed", || next.remaining() > lease / 2).await;
    // If another manager forces it, the next renewal detects the loss before the lease ends.
    let end = Instant::now() + next.remaining();
    assert!(here.force_release("k").await.unwrap());
    assert!(!here.force_release("k").await.unwrap(), "free already");
    next.lost().await;
    assert!(Instant::now() < end, "lost only at the end of the lease");
    drop(next);
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}
