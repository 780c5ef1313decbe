//! Faults of a minority.

use tokio::time::{Instant, sleep};
use tower_lock::backend::Backend;
use tower_lock::backend::{
    AcquireRequest, Acquired, Fence, Node as _, Release, Released, Renewal, Renewed,
};
use tower_lock::{LockKey, LockManager};

use super::world::{FAULTS, LATENCY, LEASE, NODE_TIMEOUT, Nodes, ROUND_TRIP, Site, fail, lease};
use crate::support::engine::{MS, SECOND};
use crate::support::simulated::{Command, Fault};

/// Grants, renewals and releases continue as fast as with all nodes. The leases of the minority are
/// released when it is reachable again.
#[tokio::test(start_paused = true)]
async fn failing_minority_delays_no_command() {
    for nodes in [3, 5] {
        for fault in FAULTS {
            let case = format!("{nodes} nodes, {fault:?}");
            let world = Nodes::used(nodes).await;
            let (here, there) = (world.manager(), world.manager());
            fail(world.minority(), fault);

            let start = Instant::now();
            let guard = here.acquire("a").await.unwrap();
            let took = start.elapsed();
            assert!(took <= ROUND_TRIP + MS, "{case}: granted after {took:?}");

            let start = Instant::now();
            let busy = there.acquire("a").no_wait().await.unwrap_err();
            assert!(busy.is_busy(), "{case}: {busy:?}");
            let took = start.elapsed();
            assert!(took <= ROUND_TRIP + MS, "{case}: busy after {took:?}");

            for _ in 0..100 {
                sleep(LEASE / 20).await;
                assert!(guard.remaining() > LEASE / 2, "{case}: not renewed");
            }

            let start = Instant::now();
            guard.release().await.unwrap();
            let took = start.elapsed();
            assert!(took <= ROUND_TRIP + MS, "{case}: released after {took:?}");

            drop(there.acquire("a").await.unwrap());
            fail(world.minority(), None);
            world.nothing_is_left_within(2 * SECOND, "a", &case).await;
        }
    }
}

/// A holder keeps its lock when a minority loses it. The minority does not receive it again.
#[tokio::test(start_paused = true)]
async fn empty_restart_of_minority_keeps_locks() {
    let world = Nodes::used(5).await;
    let locks = world.manager();
    let guard = locks.acquire("a").await.unwrap();
    sleep(SECOND).await;
    world.minority().iter().for_each(Site::restart_empty);
    sleep(3 * LEASE).await;
    assert!(guard.is_held());
    for site in world.minority() {
        assert!(!site.holds("a").await, "a renewal made a lease");
    }
    guard.release().await.unwrap();
    world.nothing_is_left_within(SECOND, "a", "the end").await;
}

#[tokio::test(start_paused = true)]
async fn loss_by_majority_is_reported_at_next_renewal() {
    let world = Nodes::used(5).await;
    let locks = world.manager();
    let guard = locks.acquire("a").await.unwrap();
    world.majority().iter().for_each(Site::restart_empty);
    let start = Instant::now();
    guard.lost().await;
    assert!(start.elapsed() < LEASE / 2, "reported by a renewal");
}

/// While a minority hangs, a key that needs the hung nodes delays the other renewals of its batch by at
/// most the node timeout.
#[tokio::test(start_paused = true)]
async fn hung_node_delays_commands_by_at_most_node_timeout() {
    let world = Nodes::used(3).await;
    let quorum = world.quorum();
    let (sound, shaky) = (LockKey::new("sound"), LockKey::new("shaky"));
    let lease = lease();
    for key in [&sound, &shaky] {
        let granted = quorum
            .try_acquire(&AcquireRequest::new(key.clone(), lease, LEASE))
            .await
            .unwrap();
        assert!(matches!(granted, Acquired::Granted { .. }));
    }
    sleep(SECOND).await;
    // One node lost one of the leases and another one hangs, so no majority is possible.
    world.sites[1]
        .wire()
        .memory
        .force_release(&shaky, None)
        .await
        .unwrap();
    world.sites[0].fail(Fault::Hung);
    let renewals = [&shaky, &sound].map(|key| Renewal::new(key.clone(), lease, LEASE));
    let start = Instant::now();
    let outcomes = quorum.renew(&renewals).await;
    assert!(start.elapsed() <= NODE_TIMEOUT + MS);
    let error = outcomes[0].as_ref().unwrap_err();
    assert!(error.may_have_taken_effect());
    assert_eq!(*outcomes[1].as_ref().unwrap(), Renewed::Renewed);
    let start = Instant::now();
    let outcomes = quorum
        .release(&[Release::new(shaky, lease), Release::new(sound, lease)])
        .await;
    assert!(start.elapsed() <= NODE_TIMEOUT + MS);
    assert!(outcomes[0].is_err());
    assert_eq!(*outcomes[1].as_ref().unwrap(), Released::Released);
    world.sites[0].fail(None);
    for key in ["sound", "shaky"] {
        world.nothing_is_left_within(SECOND, key, "the end").await;
    }
}

/// The release follows a vote that is in flight at a hung node, and does not overtake it.
#[tokio::test(start_paused = true)]
async fn release_does_not_overtake_hung_vote() {
    let world = Nodes::used(3).await;
    let locks = world.manager();
    let slow = &world.sites[2];
    slow.fail(Fault::Hung);
    let guard = locks.acquire("a").await.unwrap();
    guard.release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(
        slow.wire().sent(Command::Release),
        1,
        "only that of the key before"
    );
    slow.fail(None);
    sleep(10 * ROUND_TRIP).await;
    assert!(!slow.holds("a").await, "the vote came after the release");
    assert_eq!(slow.wire().sent(Command::Release), 2);
}

/// A node that was unavailable during a release receives it later.
#[tokio::test(start_paused = true)]
async fn node_without_release_receives_it_later() {
    for fault in FAULTS {
        // The connection is so fast that it fails before the other nodes reply.
        let world = Nodes::with_latencies(&[MS / 2, LATENCY, LATENCY]);
        let locks = LockManager::builder(world.quorum());
        let locks = locks.watchdog_timeout(30 * SECOND).build().unwrap();
        let guard = locks.acquire("a").await.unwrap();
        sleep(SECOND).await;
        world.sites[0].fail(fault);
        guard.release().await.unwrap();
        sleep(3 * SECOND).await;
        world.sites[0].fail(None);
        let case = format!("{fault:?}");
        world.nothing_is_left_within(3 * SECOND, "a", &case).await;
    }
}

/// A slow node receives all grants and releases.
#[tokio::test(start_paused = true)]
async fn slow_node_receives_grants_and_releases() {
    let world = Nodes::with_latencies(&[LATENCY, LATENCY, 20 * MS]);
    let (locks, quorum) = (world.manager(), world.quorum());
    let guard = locks.acquire("a").await.unwrap();
    sleep(3 * LEASE).await;
    assert!(guard.is_held());
    assert!(world.sites[2].holds("a").await, "its renewals were dropped");
    quorum
        .force_release(&LockKey::new("a"), None)
        .await
        .unwrap();
    sleep(50 * MS).await;
    assert!(!world.sites[2].holds("a").await, "not forced");
}

#[tokio::test]
async fn response_timeout_is_four_node_timeouts() {
    let world = Nodes::new(3);
    assert_eq!(
        world.quorum().capabilities().response_timeout,
        4 * NODE_TIMEOUT
    );
}

/// A partial grant is released, even if the first release fails.
#[tokio::test(start_paused = true)]
async fn failed_release_of_partial_grant_is_repeated() {
    for fault in [Fault::Refused, Fault::CommandLost, Fault::AnswerLost] {
        let world = Nodes::used(3).await;
        let key = LockKey::new("a");
        for site in &world.sites[1..] {
            let request = AcquireRequest::new(key.clone(), lease(), 30 * SECOND);
            site.vote(&request, Fence::Propose(1)).await.unwrap();
        }
        world.sites[0].wire().fail_next(Command::Release, fault);
        let start = Instant::now();
        let outcome = world
            .quorum()
            .try_acquire(&AcquireRequest::new(key.clone(), lease(), 30 * SECOND))
            .await;
        assert!(matches!(outcome, Ok(Acquired::Busy { .. })), "{fault:?}");
        assert!(start.elapsed() <= 4 * NODE_TIMEOUT);
        let deadline = Instant::now() + SECOND;
        while world.sites[0].holds("a").await {
            assert!(Instant::now() < deadline, "{fault:?}: left behind");
            sleep(MS).await;
        }
    }
}
