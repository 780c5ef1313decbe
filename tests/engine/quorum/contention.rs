//! Processes that contend.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::backend::Backend;
use tower_lock::backend::{AcquireRequest, Acquired, Fence, Node as _, QuorumBuilder};
use tower_lock::{LockKey, LockManager, Quorum};

use super::world::{FAULTS, LATENCY, LEASE, Nodes, ROUND_TRIP, lease};
use crate::support::engine::{MS, SECOND};
use crate::support::simulated::{Command, Fault, Simulated};

#[tokio::test(start_paused = true)]
async fn busy_returns_time_until_majority_is_free() {
    let world = Nodes::used(5).await;
    let key = LockKey::new("a");
    for (site, seconds) in world.sites.iter().zip([10, 20, 30, 40]) {
        let ttl = seconds * SECOND;
        site.vote(
            &AcquireRequest::new(key.clone(), lease(), ttl),
            Fence::Propose(1),
        )
        .await
        .unwrap();
    }
    let quorum = world.quorum();
    // The fifth node is free, and two more are free after 20 s.
    match quorum
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), LEASE))
        .await
        .unwrap()
    {
        Acquired::Busy { ttl, .. } => assert!(ttl > 19 * SECOND && ttl < 20 * SECOND, "{ttl:?}"),
        granted => panic!("{granted:?}"),
    }
    assert!(
        !world.sites[4].holds("a").await,
        "released before the reply"
    );
}

/// Each contender reaches other nodes first, so none has a majority at first. All are notified of every
/// release at the same moment.
#[tokio::test(start_paused = true)]
async fn contenders_with_split_votes_soon_acquire() {
    for contenders in [2_usize, 3, 5, 8] {
        for round in 0..10 {
            let nodes = 5;
            let stores: Vec<_> = (0..nodes).map(|_| Simulated::new(MS)).collect();
            // With one node unavailable, even two contenders can split the votes.
            stores[round % nodes].down(Some(Fault::Refused));
            let managers: Vec<_> = (0..contenders)
                .map(|contender| {
                    let nodes = stores.iter().enumerate().map(|(index, store)| {
                        let mut node = store.clone();
                        // The contenders are as far from each other as from the nodes.
                        let far = (index + contender) % nodes;
                        node.latency = MS * u32::try_from(1 + 2 * far).unwrap();
                        node
                    });
                    let quorum = nodes.fold(Quorum::builder(), QuorumBuilder::node);
                    LockManager::builder(quorum.build().unwrap())
                        .build()
                        .unwrap()
                })
                .collect();
            let start = Instant::now();
            let held = AtomicBool::new(false);
            join_all(managers.iter().map(async |locks| {
                let guard = locks.acquire("a").wait(20 * SECOND).await.unwrap();
                assert!(!held.swap(true, Ordering::SeqCst), "two hold it");
                sleep(MS).await;
                held.store(false, Ordering::SeqCst);
                guard.release().await.unwrap();
            }))
            .await;
            let each = start.elapsed() / u32::try_from(contenders).unwrap();
            assert!(each < SECOND, "{contenders} contenders: {each:?} each");
        }
    }
}

/// The hints of a majority wake a waiter that is closer to the nodes than the holder, not the first hint.
/// Its only attempt succeeds.
#[tokio::test(start_paused = true)]
async fn waiter_attempts_on_free_majority() {
    let near: Vec<_> = (0..5).map(|_| Simulated::new(MS)).collect();
    let far = near.iter().zip([5, 10, 15, 20, 25]).map(|(node, millis)| {
        let mut node = node.clone();
        node.latency = millis * MS;
        node
    });
    let manager = |nodes: Vec<Simulated>| {
        let quorum = nodes
            .into_iter()
            .fold(Quorum::builder(), QuorumBuilder::node);
        LockManager::builder(quorum.build().unwrap())
            .build()
            .unwrap()
    };
    let (here, there) = (manager(far.collect()), manager(near.clone()));
    let guard = here.acquire("a").await.unwrap();
    let waiter = tokio::spawn(there.acquire("a").wait_forever().into_future());
    sleep(SECOND / 2).await;
    // The release follows a round of the backstop closely, so the backstop does not interfere.
    let before = near[0].sent(Command::Acquire);
    while near[0].sent(Command::Acquire) == before {
        sleep(MS).await;
    }
    sleep(100 * MS).await;
    let before = near[0].sent(Command::Acquire);
    let start = Instant::now();
    drop(guard);
    let next = waiter.await.unwrap().unwrap();
    let took = start.elapsed();
    assert_eq!(near[0].sent(Command::Acquire) - before, 1);
    // The third node is free after 15 ms, and the attempt takes 2 ms.
    assert!(took <= 15 * MS + 2 * MS + 5 * MS, "{took:?}");
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn waiter_with_hints_of_minority_is_served() {
    let sites: Vec<_> = (0..3).map(|_| Simulated::new(LATENCY)).collect();
    let manager = |sites: Vec<Simulated>| {
        let quorum = sites
            .into_iter()
            .fold(Quorum::builder(), QuorumBuilder::node);
        LockManager::builder(quorum.build().unwrap())
            .build()
            .unwrap()
    };
    let here = manager(sites.clone());
    let mut deaf: Vec<_> = sites
        .iter()
        .map(|site| site.clone().without_hints())
        .collect();
    deaf[0] = sites[0].clone();
    let there = manager(deaf);
    let guard = here.acquire("a").await.unwrap();
    let waiter = tokio::spawn(there.acquire("a").wait_forever().into_future());
    // The release is between two rounds of the backstop, so the backstop does not interfere.
    sleep(10 * SECOND + 50 * MS).await;
    let start = Instant::now();
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    assert!(start.elapsed() <= 50 * MS + 4 * ROUND_TRIP);
}

/// Two processes contend for one key while changing minorities fail.
#[tokio::test(start_paused = true)]
async fn managers_over_failing_minorities_exclude_others() {
    for nodes in [3, 5] {
        let world = Nodes::used(nodes).await;
        let managers = [world.manager(), world.manager(), world.manager()];
        let held = Arc::new(AtomicBool::new(false));
        let last = Arc::new(Mutex::new(None));
        let stop = Arc::new(AtomicBool::new(false));
        let workers = managers
            .iter()
            .flat_map(|locks| [locks.clone(), locks.clone()]);
        let workers = workers.map(|locks| {
            let (held, last, stop) = (Arc::clone(&held), Arc::clone(&last), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut grants = 0;
                while !stop.load(Ordering::SeqCst) {
                    let Ok(guard) = locks.acquire("a").await else {
                        continue;
                    };
                    assert!(!held.swap(true, Ordering::SeqCst), "two hold it");
                    let token = Some(guard.fencing_token());
                    let before = std::mem::replace(&mut *last.lock().unwrap(), token);
                    assert!(token > before, "{token:?} after {before:?}");
                    sleep(7 * MS).await;
                    assert!(guard.is_held());
                    held.store(false, Ordering::SeqCst);
                    drop(guard);
                    grants += 1;
                }
                grants
            })
        });
        let workers: Vec<_> = workers.collect();
        for step in 0..60 {
            let fault = FAULTS[step % FAULTS.len()];
            let harmed = (0..nodes / 2).map(|n| &world.sites[(step + 2 * n) % nodes]);
            let harmed: Vec<_> = harmed.collect();
            harmed.iter().for_each(|site| site.fail(fault));
            sleep(700 * MS).await;
            harmed.iter().for_each(|site| site.fail(None));
            // A node that missed a release receives it within a second.
            sleep(1_500 * MS).await;
        }
        stop.store(true, Ordering::SeqCst);
        let mut grants = 0;
        for worker in workers {
            let worked: u32 = worker.await.unwrap();
            assert!(worked > 0, "starved");
            grants += worked;
        }
        assert!(grants > 2_000, "{nodes} nodes: {grants} grants in 132 s");
        world
            .nothing_is_left_within(2 * SECOND, "a", "the end")
            .await;
        sleep(LEASE).await;
        for locks in &managers {
            assert!(locks.snapshot().is_idle(), "{locks:?}");
        }
    }
}
