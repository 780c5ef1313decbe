//! Faults of a majority.

use tokio::time::{Instant, sleep};
use tower_lock::backend::Backend;
use tower_lock::backend::{
    AcquireRequest, Acquired, Fence, ForceReleased, Node as _, Release, Released,
};
use tower_lock::{ErrorKind, LockKey};

use super::world::{FAULTS, LEASE, NODE_TIMEOUT, Nodes, ROUND_TRIP, fail, lease};
use crate::support::engine::{MS, SECOND};
use crate::support::simulated::Fault;

#[tokio::test(start_paused = true)]
async fn acquire_without_majority_fails_soon_and_cleanly() {
    for nodes in [3, 5] {
        for fault in FAULTS {
            let case = format!("{nodes} nodes, {fault:?}");
            let kind = match fault {
                Fault::Misconfigured => ErrorKind::Refused,
                _ => ErrorKind::Unavailable,
            };
            let world = Nodes::used(nodes).await;
            let locks = world.manager();
            fail(world.majority(), fault);
            let start = Instant::now();
            let error = locks.acquire("a").no_wait().await.unwrap_err();
            assert_eq!(error.kind(), kind, "{case}: {error:?}");
            let took = start.elapsed();
            assert!(took <= 4 * NODE_TIMEOUT, "{case}: after {took:?}");
            let start = Instant::now();
            let error = locks.acquire("a").wait(SECOND).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{case}: {error:?}");
            let took = start.elapsed();
            let late = SECOND + 4 * NODE_TIMEOUT;
            assert!(took <= late, "{case}: after {took:?}");
            // The last attempt may have been in flight.
            let sound = &world.sites[nodes / 2 + 1..];
            for site in sound {
                let deadline = Instant::now() + 4 * NODE_TIMEOUT;
                while site.holds("a").await {
                    assert!(Instant::now() < deadline, "{case}: left on a sound node");
                    sleep(MS).await;
                }
            }
            fail(world.majority(), None);
            world.nothing_is_left_within(2 * SECOND, "a", &case).await;
            drop(locks.acquire("a").await.unwrap());
            world.nothing_is_left_within(2 * SECOND, "a", &case).await;
            sleep(LEASE).await;
            assert!(locks.snapshot().is_idle(), "{case}: {locks:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lock_without_majority_is_lost_at_its_deadline() {
    for fault in FAULTS {
        let world = Nodes::used(3).await;
        let locks = world.manager();
        let guard = locks.acquire("a").await.unwrap();
        fail(world.majority(), fault);
        let end = Instant::now() + guard.remaining();
        guard.lost().await;
        let now = Instant::now();
        assert!(now >= end && now <= end + 10 * MS, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn inspect_and_force_release_need_majority() {
    for fault in FAULTS {
        let world = Nodes::used(5).await;
        let quorum = world.quorum();
        let (key, lease) = (LockKey::new("a"), lease());
        quorum
            .try_acquire(&AcquireRequest::new(key.clone(), lease, LEASE))
            .await
            .unwrap();
        sleep(SECOND).await;
        fail(world.minority(), fault);
        let holder = quorum.inspect(&key).await.unwrap().unwrap();
        assert_eq!(holder.id, lease.to_string(), "{fault:?}");
        fail(world.majority(), fault);
        let start = Instant::now();
        assert!(quorum.inspect(&key).await.is_err(), "{fault:?}");
        assert!(quorum.force_release(&key, None).await.is_err(), "{fault:?}");
        assert!(start.elapsed() <= 2 * NODE_TIMEOUT + MS, "{fault:?}");
        fail(world.majority(), None);
        fail(world.minority(), fault);
        quorum.force_release(&key, None).await.unwrap();
        assert_eq!(quorum.inspect(&key).await.unwrap(), None, "{fault:?}");
    }
}

/// A release that is late at one node leaves a lease there, which holds no lock.
#[tokio::test(start_paused = true)]
async fn forced_release_of_lease_on_minority_is_not_held() {
    let world = Nodes::used(3).await;
    let (quorum, key, [stale, next]) = (world.quorum(), LockKey::new("a"), [lease(), lease()]);
    let late = AcquireRequest::new(key.clone(), stale, LEASE);
    world.sites[0].vote(&late, Fence::Propose(1)).await.unwrap();
    let granted = AcquireRequest::new(key.clone(), next, LEASE);
    quorum.try_acquire(&granted).await.unwrap();
    let (quorum, key) = (&quorum, &key);
    let outcome = |holder: String| async move { quorum.force_release(key, Some(&holder)).await };
    let (stale, next) = (stale.to_string(), next.to_string());
    assert_eq!(outcome(stale).await.unwrap(), ForceReleased::NotHeld);
    assert_eq!(
        outcome(next.clone()).await.unwrap(),
        ForceReleased::Released
    );
    assert_eq!(outcome(next).await.unwrap(), ForceReleased::NotHeld);
}

/// A minority of votes grants no lock and blocks no other attempt.
#[tokio::test(start_paused = true)]
async fn lease_on_minority_holds_no_lock() {
    let world = Nodes::used(5).await;
    let (key, ghost) = (LockKey::new("a"), lease());
    for site in world.minority() {
        site.vote(
            &AcquireRequest::new(key.clone(), ghost, 60 * SECOND),
            Fence::Propose(1),
        )
        .await
        .unwrap();
    }
    let quorum = world.quorum();
    assert_eq!(quorum.inspect(&key).await.unwrap(), None);
    let lease = lease();
    let start = Instant::now();
    let granted = quorum
        .try_acquire(&AcquireRequest::new(key.clone(), lease, LEASE))
        .await
        .unwrap();
    assert!(matches!(granted, Acquired::Granted { .. }), "{granted:?}");
    assert!(start.elapsed() <= ROUND_TRIP + MS);
    let released = quorum.release(&[Release::new(key, lease)]).await.remove(0);
    assert_eq!(released.unwrap(), Released::Released);
    for site in world.minority() {
        assert!(
            site.holds("a").await,
            "a release must not affect another lease"
        );
    }
}
