//! Shared leases of a quorum, where it differs from one store and from exclusive leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::Backend;
use tower_lock::backend::{
    AcquireRequest, Acquired, Capabilities, Fence, ForceReleased, LeaseId, Mode, Node as _,
    Release, Renewal, Renewed,
};
use tower_lock::manager::LostReason;
use tower_lock::{ErrorKind, LockKey, LockManager, Memory, Quorum};

use super::world::{LEASE, Nodes, ROUND_TRIP, Site, fail, lease};
use crate::support::engine::{MS, SECOND};
use crate::support::simulated::{Fault, Simulated};

const TTL: std::time::Duration = SECOND.saturating_mul(60);

fn key() -> LockKey {
    LockKey::new("a")
}

fn request(lease: LeaseId, mode: Mode) -> AcquireRequest {
    AcquireRequest::new(key(), lease, TTL).with_mode(mode)
}

/// Casts the vote of a part of the nodes, which is no majority or has no other votes.
async fn vote(sites: &[Site], lease: LeaseId, mode: Mode) {
    for site in sites {
        let vote = site.vote(&request(lease, mode), Fence::Propose(1)).await;
        assert!(matches!(vote, Ok(Acquired::Granted { .. })), "{vote:?}");
    }
}

async fn acquire(quorum: &Quorum, lease: LeaseId, mode: Mode) -> Option<u64> {
    match quorum.try_acquire(&request(lease, mode)).await.unwrap() {
        Acquired::Granted { counter, .. } => Some(counter),
        _ => None,
    }
}

async fn renew(quorum: &Quorum, lease: LeaseId) -> Renewed {
    let renewal = Renewal::new(key(), lease, TTL).with_mode(Mode::Shared);
    quorum.renew(&[renewal]).await.remove(0).unwrap()
}

async fn release(quorum: &Quorum, lease: LeaseId) {
    let release = Release::new(key(), lease);
    quorum.release(&[release]).await.remove(0).unwrap();
}

#[tokio::test(start_paused = true)]
async fn shared_minority_does_not_exclude_writer() {
    let world = Nodes::used(3).await;
    let (quorum, stray) = (world.quorum(), lease());
    vote(world.minority(), stray, Mode::Shared).await;
    assert!(acquire(&quorum, lease(), Mode::Exclusive).await.is_some());
    assert_eq!(renew(&quorum, stray).await, Renewed::NotHeld);
    sleep(SECOND).await;
    assert!(
        !world.sites[0].holds("a").await,
        "the lost lease was released"
    );
}

#[tokio::test(start_paused = true)]
async fn exclusive_minority_does_not_exclude_readers() {
    let world = Nodes::used(5).await;
    let quorum = world.quorum();
    vote(world.minority(), lease(), Mode::Exclusive).await;
    assert!(acquire(&quorum, lease(), Mode::Shared).await.is_some());
    assert!(acquire(&quorum, lease(), Mode::Shared).await.is_some());
    assert!(acquire(&quorum, lease(), Mode::Exclusive).await.is_none());
}

/// The nodes of the readers have only one node in common, and the writer is refused until the last reader ends.
#[tokio::test(start_paused = true)]
async fn readers_on_different_majorities_exclude_writer() {
    let world = Nodes::used(3).await;
    let (quorum, writer) = (world.quorum(), lease());
    let (first, second) = (lease(), lease());
    world.sites[2].fail(Fault::Refused);
    let one = acquire(&quorum, first, Mode::Shared).await.unwrap();
    world.sites[2].fail(None);
    world.sites[0].fail(Fault::Refused);
    let two = acquire(&quorum, second, Mode::Shared).await.unwrap();
    world.sites[0].fail(None);
    assert!(acquire(&quorum, writer, Mode::Exclusive).await.is_none());
    for reader in [first, second] {
        assert_eq!(renew(&quorum, reader).await, Renewed::Renewed);
    }
    release(&quorum, first).await;
    assert!(acquire(&quorum, writer, Mode::Exclusive).await.is_none());
    release(&quorum, second).await;
    let last = acquire(&quorum, writer, Mode::Exclusive).await.unwrap();
    assert!(last > one.max(two), "{last} after {one} and {two}");
    assert!(acquire(&quorum, lease(), Mode::Shared).await.is_none());
}

/// Each exclusive token exceeds the shared one before it, and the reverse, whichever node is unavailable.
#[tokio::test(start_paused = true)]
async fn tokens_of_both_modes_increase_over_majorities() {
    let world = Nodes::used(3).await;
    let (here, there) = (world.quorum(), world.quorum());
    let mut last = 0;
    for round in 0..12 {
        let down = &world.sites[round % 3];
        down.fail(Fault::Refused);
        let mode = [Mode::Shared, Mode::Exclusive][round % 2];
        let (quorum, lease) = ([&here, &there][round % 2], lease());
        let token = acquire(quorum, lease, mode).await.unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
        release(quorum, lease).await;
        down.fail(None);
        sleep(2 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn reader_without_majority_is_lost_alone() {
    let world = Nodes::used(3).await;
    let (here, there) = (world.manager(), world.manager());
    let lost = here.acquire("a").shared().await.unwrap();
    let holder = world.quorum().inspect(&key()).await.unwrap().unwrap();
    let kept = there.acquire("a").shared().await.unwrap();
    for site in world.majority() {
        let memory = site.wire().memory;
        let ended = memory.force_release(&key(), Some(&holder.id)).await;
        assert_eq!(ended.unwrap(), ForceReleased::Released);
    }
    timeout(LEASE / 2, lost.lost()).await.unwrap();
    assert_eq!(lost.lost_reason(), Some(LostReason::NotHeld));
    sleep(3 * LEASE).await;
    assert!(kept.is_held());
}

/// A reader of a failed attempt is the last to expire at one node, and the others report different readers.
#[tokio::test(start_paused = true)]
async fn inspect_reports_shared_holders_of_majority() {
    let world = Nodes::used(3).await;
    let quorum = world.quorum();
    let leases = [lease(), lease(), lease()];
    for (site, reader) in world.sites.iter().zip(leases) {
        vote(std::slice::from_ref(site), reader, Mode::Shared).await;
    }
    for reader in leases {
        assert!(acquire(&quorum, reader, Mode::Shared).await.is_some());
    }
    sleep(SECOND).await;
    for (site, reader) in world.sites.iter().zip(leases) {
        let renewal = Renewal::new(key(), reader, 2 * TTL).with_mode(Mode::Shared);
        site.renew(&[renewal]).await.remove(0).unwrap();
    }
    let holder = quorum.inspect(&key()).await.unwrap().unwrap();
    assert_eq!((holder.mode, holder.leases), (Mode::Shared, 3));
    let (key, holder) = (key(), leases[0].to_string());
    let ended = quorum.force_release(&key, Some(&holder)).await.unwrap();
    assert_eq!(ended, ForceReleased::Released);
    sleep(SECOND).await;
    let holder = quorum.inspect(&key).await.unwrap().unwrap();
    assert_eq!((holder.mode, holder.leases), (Mode::Shared, 2));
    let ended = quorum.force_release(&key, None).await.unwrap();
    assert_eq!(ended, ForceReleased::Released);
    world.nothing_is_left_within(SECOND, "a", "forced").await;
    // Exclusive leases of three attempts are no holder.
    for site in &world.sites {
        vote(std::slice::from_ref(site), lease(), Mode::Exclusive).await;
    }
    assert_eq!(quorum.inspect(&key).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn managers_inspect_and_force_readers_of_quorum() {
    let world = Nodes::used(3).await;
    let (here, there) = (world.manager(), world.manager());
    let first = here.acquire("a").shared().await.unwrap();
    let second = here.acquire("a").shared().await.unwrap();
    let third = there.acquire("a").shared().await.unwrap();
    let holders = async |locks: &LockManager| {
        let info = locks.inspect("a").await.unwrap().unwrap();
        (info.mode, info.holders)
    };
    assert_eq!(holders(&here).await, (Mode::Shared, 3));
    assert_eq!(holders(&there).await, (Mode::Shared, 2));
    assert!(here.is_locked("a").await.unwrap());
    assert!(here.force_release("a").await.unwrap());
    for guard in [&first, &second] {
        assert_eq!(guard.lost_reason(), Some(LostReason::Forced));
    }
    timeout(LEASE / 2, third.lost()).await.unwrap();
    sleep(SECOND).await;
    assert!(!here.is_locked("a").await.unwrap());
}

/// Readers of other processes overlap without end. The writer is served after the longest read, while one node is
/// unavailable as well.
#[tokio::test(start_paused = true)]
async fn writer_is_served_between_readers_of_quorum() {
    for fault in [None, Some(Fault::Refused)] {
        let world = Nodes::used(3).await;
        fail(world.minority(), fault);
        let over = Arc::new(AtomicBool::new(false));
        let readers = (0..8).map(|reader| {
            let (locks, over) = (world.manager(), Arc::clone(&over));
            tokio::spawn(async move {
                let mut reads = 0;
                while !over.load(Ordering::SeqCst) {
                    let guard = locks.acquire("a").shared().wait(20 * SECOND);
                    let guard = guard.await.unwrap();
                    sleep((25 + 7 * reader) * MS).await;
                    assert!(guard.is_held());
                    drop(guard);
                    reads += 1;
                }
                reads
            })
        });
        let readers: Vec<_> = readers.collect();
        let locks = world.manager();
        for _ in 0..10 {
            sleep(SECOND).await;
            let start = Instant::now();
            let guard = locks.acquire("a").wait(20 * SECOND).await.unwrap();
            let took = start.elapsed();
            assert!(took <= 150 * MS, "{fault:?}: {took:?}");
            sleep(10 * MS).await;
            guard.release().await.unwrap();
        }
        over.store(true, Ordering::SeqCst);
        for reads in join_all(readers).await {
            let reads = reads.unwrap();
            assert!(reads > 50, "{fault:?}: {reads} reads");
        }
    }
}

/// A reader learns of the writer by its renewal, and of the end of the writer's wait as well.
#[tokio::test(start_paused = true)]
async fn readers_continue_after_waiting_writer_ended() {
    let world = Nodes::used(3).await;
    let (here, there) = (world.manager(), world.manager());
    let reader = here.acquire("a").shared().await.unwrap();
    let writer = there.acquire("a").wait(SECOND / 2).await.unwrap_err();
    assert_eq!(writer.kind(), ErrorKind::Busy);
    let error = there.acquire("a").shared().no_wait().await;
    drop(error.expect("the writer was of this process"));
    let other = world.manager();
    let error = other.acquire("a").shared().no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "the nodes keep it out");
    let start = Instant::now();
    let next = other.acquire("a").shared().wait(5 * SECOND).await.unwrap();
    let took = start.elapsed();
    assert!(took <= 1300 * MS + 2 * ROUND_TRIP, "{took:?}");
    assert!(reader.is_held() && next.is_held());
}

#[tokio::test(start_paused = true)]
async fn exclusive_attempt_without_wait_delays_no_reader() {
    let world = Nodes::used(3).await;
    let reader = world.manager().acquire("a").shared().await.unwrap();
    let error = world.manager().acquire("a").no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let other = world.manager().acquire("a").shared().no_wait();
    assert!(other.await.is_ok() && reader.is_held());
}

#[tokio::test(start_paused = true)]
async fn quorum_shares_only_if_all_nodes_do() {
    let nodes = Quorum::builder().node(Memory::new()).node(Memory::new());
    let mut exclusive = Simulated::new(MS);
    exclusive.modes = Capabilities::EXCLUSIVE;
    let quorum = nodes.node(exclusive).build().unwrap();
    let locks = LockManager::builder(quorum).build().unwrap();
    let error = locks.acquire("a").shared().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn quorum_rejects_permits() {
    let world = Nodes::used(3).await;
    let error = world.manager().acquire("a").permits(2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(world.manager().acquire("a").no_wait().await.is_ok());
}
