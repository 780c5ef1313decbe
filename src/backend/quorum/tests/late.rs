//! Votes that take effect late, and the releases that are owed for them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;
use uuid::Uuid;

use super::{Flaky, TTL, World};
use crate::LockKey;
use crate::backend::quorum::Quorum;
use crate::backend::quorum::ledger::FULL;
use crate::backend::{AcquireRequest, Backend as _, LeaseId, Release, Renewal, Renewed};

async fn acquire_and_release(quorum: &Quorum, key: &LockKey, ttl: Duration) {
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let request = AcquireRequest::new(key.clone(), lease, ttl);
    quorum.try_acquire(&request).await.unwrap();
    let release = Release::new(key.clone(), lease);
    quorum.release(&[release]).await.remove(0).unwrap();
}

/// The node is stopped for longer than the TTL.
#[tokio::test(start_paused = true)]
async fn late_vote_is_released_when_node_continues() {
    for stopped in [10, 50] {
        let world = World::new(3);
        let key = LockKey::new("a");
        world.nodes[0].stop(true);
        acquire_and_release(&world.processes[0], &key, Duration::from_secs(5)).await;
        sleep(Duration::from_secs(stopped)).await;
        world.nodes[0].stop(false);
        world.nodes[0].late_votes_landed().await;
        assert!(world.nodes[0].holds(&key).await, "no late vote");
        sleep(Duration::from_secs(2)).await;
        assert!(!world.nodes[0].holds(&key).await, "held without an owner");
    }
}

/// Each acquire leaves a release that the node does not confirm. One task repeats them, and the node receives
/// no votes from a limit on.
#[tokio::test(start_paused = true)]
async fn releases_owed_by_stopped_node_are_bounded() {
    let world = World::new(3);
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let quorum = &world.processes[0];
    world.nodes[0].lost.store(true, Ordering::SeqCst);
    for nth in 0..10 {
        acquire_and_release(quorum, &LockKey::new(format!("unsent:{nth}")), TTL).await;
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (quorum.inner.ledger.lock().len(), tasks()),
        (0, 0),
        "unsent"
    );
    world.nodes[0].lost.store(false, Ordering::SeqCst);
    world.nodes[0].stop(true);
    for nth in 0..FULL / 1_000 + 2 {
        let keys = (0..1_000).map(|key| LockKey::new(format!("{nth}:{key}")));
        let keys: Vec<_> = keys.collect();
        join_all(keys.iter().map(|key| acquire_and_release(quorum, key, TTL))).await;
        sleep(Duration::from_secs(2)).await;
    }
    let votes = || world.nodes[0].votes.load(Ordering::SeqCst) - 10;
    // A batch of releases is in flight.
    let count = votes();
    assert!((FULL..FULL + 2_000).contains(&count), "{count}");
    assert_eq!(quorum.inner.ledger.lock().len(), count);
    // Each vote waits in a task of the node.
    assert_eq!(tasks(), count + 1);
    world.nodes[0].stop(false);
    sleep(Duration::from_secs(4)).await;
    assert_eq!((quorum.inner.ledger.lock().len(), tasks()), (0, 0));
    acquire_and_release(quorum, &LockKey::new("a"), TTL).await;
    assert_eq!(votes(), count + 1);
}

/// The lease is lost at a majority. All nodes fail after their replies to the renewal.
#[tokio::test(start_paused = true)]
async fn failed_release_of_lost_lease_is_repeated() {
    const LATENCY: Duration = Duration::from_millis(10);
    let world = World::new(3);
    let (quorum, key) = (&world.processes[0], LockKey::new("a"));
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let request = AcquireRequest::new(key.clone(), lease, TTL);
    quorum.try_acquire(&request).await.unwrap();
    world.nodes[1..].iter().for_each(Flaky::restart_empty);
    let micros = u64::try_from(LATENCY.as_micros()).unwrap();
    for node in &world.nodes {
        node.latency.store(micros, Ordering::SeqCst);
    }
    let renewals = [Renewal::new(key.clone(), lease, TTL)];
    let fail = async {
        sleep(LATENCY * 3 / 2).await;
        world.lose(&[0, 1, 2], true);
    };
    let (outcomes, ()) = tokio::join!(quorum.renew(&renewals), fail);
    assert!(matches!(outcomes[..], [Ok(Renewed::NotHeld)]));
    assert!(world.nodes[0].holds(&key).await);
    world.lose(&[0, 1, 2], false);
    sleep(Duration::from_secs(2)).await;
    assert!(
        !world.nodes[0].holds(&key).await,
        "held until the lease expires"
    );
}

#[tokio::test(start_paused = true)]
async fn errors_count_nodes_without_reply() {
    let world = World::new(3);
    let (quorum, key) = (&world.processes[0], LockKey::new("a"));
    world.lose(&[0], true);
    world.nodes[1].stop(true);
    world.nodes[2].stop(true);
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let request = AcquireRequest::new(key.clone(), lease, TTL);
    let renewal = Renewal::new(key.clone(), lease, TTL);
    let release = Release::new(LockKey::new("b"), lease);
    for error in [
        quorum.try_acquire(&request).await.unwrap_err(),
        quorum.renew(&[renewal]).await.remove(0).unwrap_err(),
        quorum.release(&[release]).await.remove(0).unwrap_err(),
        quorum.inspect(&key).await.unwrap_err(),
        quorum.force_release(&key, None).await.unwrap_err(),
    ] {
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "of 3 nodes, 1 failed and 2 did not reply");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_quorum_repeats_no_release() {
    let world = World::new(3);
    world.nodes[0].stop(true);
    acquire_and_release(&world.processes[0], &LockKey::new("a"), TTL).await;
    sleep(Duration::from_secs(5)).await;
    drop(world);
    sleep(Duration::from_secs(2)).await;
    let alive = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    // The vote waits in a task of the node.
    assert_eq!(alive, 1);
}
