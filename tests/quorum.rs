//! Several stores as one: a failing minority, and a missing majority.
#![allow(clippy::unwrap_used)]

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use tokio::time::{Instant, sleep};
use tower_lock::backend::{
    AcquireRequest, Acquired, BackendError, Fence, ForceReleased, Hints, Holder, KeepRequest,
    LeaseId, Node, QuorumBuilder, Release, Released, ReleasedOrKept, Renewal, Renewed,
};
use tower_lock::{Backend, LockKey, LockManager, Memory, Quorum};
use uuid::Uuid;

#[path = "support/simulated.rs"]
mod simulated;

use simulated::{Command, Fault, Simulated};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// The latency of one direction to a node.
const LATENCY: Duration = Duration::from_millis(3);
const ROUND_TRIP: Duration = Duration::from_millis(6);
const NODE_TIMEOUT: Duration = Duration::from_millis(100);
const LEASE: Duration = Duration::from_secs(3);
/// The faults of a node or of its connection.
const FAULTS: [Fault; 5] = [
    Fault::Refused,
    Fault::AnswerLost,
    Fault::CommandLost,
    Fault::Misconfigured,
    Fault::Hung,
];

/// One node, which can lose its data.
#[derive(Clone)]
struct Site {
    now: Arc<Mutex<Simulated>>,
}

impl Site {
    fn new(latency: Duration) -> Self {
        let now = Arc::new(Mutex::new(Simulated::new(latency)));
        Self { now }
    }

    fn wire(&self) -> Simulated {
        self.now.lock().unwrap().clone()
    }

    /// Commands in flight are lost too.
    fn restart_empty(&self) {
        let mut now = self.now.lock().unwrap();
        *now = Simulated::new(now.latency);
    }

    fn fail(&self, fault: impl Into<Option<Fault>>) {
        self.wire().down(fault.into());
    }

    async fn holds(&self, key: &str) -> bool {
        let holder = self.wire().memory.inspect(&LockKey::new(key)).await;
        holder.unwrap().is_some()
    }
}

impl Backend for Site {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        self.wire().try_acquire(request).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        self.wire().renew(renewals).await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.wire().release(leases).await
    }

    async fn release_or_keep(&self, request: &KeepRequest) -> Result<ReleasedOrKept, BackendError> {
        self.wire().release_or_keep(request).await
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        self.wire().watch(key, manager)
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.wire().inspect(key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        self.wire().force_release(key).await
    }
}

impl Node for Site {
    async fn vote(&self, request: &AcquireRequest, fence: Fence) -> Result<Acquired, BackendError> {
        self.wire().vote(request, fence).await
    }
}

/// The nodes. Each quorum over them represents a process.
struct World {
    sites: Vec<Site>,
}

impl World {
    fn new(nodes: usize) -> Self {
        Self::with_latencies(&vec![LATENCY; nodes])
    }

    fn with_latencies(latencies: &[Duration]) -> Self {
        let sites = latencies.iter().map(|latency| Site::new(*latency));
        Self {
            sites: sites.collect(),
        }
    }

    /// Creates nodes that have granted before, as all nodes but new ones have.
    async fn used(nodes: usize) -> Self {
        let world = Self::new(nodes);
        let locks = world.manager();
        locks
            .acquire("first")
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        sleep(SECOND).await;
        world
    }

    fn quorum(&self) -> Quorum {
        let sites = self.sites.iter().cloned();
        let builder = sites.fold(Quorum::builder(), QuorumBuilder::node);
        builder.node_timeout(NODE_TIMEOUT).build().unwrap()
    }

    fn manager(&self) -> LockManager {
        let builder = LockManager::builder(self.quorum()).watchdog_timeout(LEASE);
        builder.build().unwrap()
    }

    fn minority(&self) -> &[Site] {
        &self.sites[..self.sites.len() / 2]
    }

    /// Returns nodes that form a majority.
    fn majority(&self) -> &[Site] {
        &self.sites[..=self.sites.len() / 2]
    }

    async fn nothing_is_left_within(&self, patience: Duration, key: &str, case: &str) {
        let deadline = Instant::now() + patience;
        for (node, site) in self.sites.iter().enumerate() {
            while site.holds(key).await {
                assert!(Instant::now() < deadline, "{case}: left on node {node}");
                sleep(MS).await;
            }
        }
    }
}

fn fail(sites: &[Site], fault: impl Into<Option<Fault>> + Copy) {
    sites.iter().for_each(|site| site.fail(fault));
}

fn lease() -> LeaseId {
    LeaseId::new(Uuid::new_v4(), 1)
}

// ---- settings ----

#[test]
fn even_or_single_node_count_is_rejected_with_advice() {
    for (nodes, advice) in [
        (0, "3 or 5"),
        (1, "3 or 5"),
        (2, "3 or 5"),
        (4, "add one"),
        (6, "add one"),
    ] {
        let builder = (0..nodes).fold(Quorum::builder(), |it, _| it.node(Memory::new()));
        let error = builder.build().unwrap_err();
        assert_eq!(error.field(), "node");
        assert!(error.to_string().contains(advice), "{error}");
    }
}

#[test]
fn node_timeout_out_of_bounds_is_rejected() {
    for timeout in [Duration::ZERO, Duration::from_secs(61)] {
        let builder = (0..3).fold(Quorum::builder(), |it, _| it.node(Memory::new()));
        let error = builder.node_timeout(timeout).build().unwrap_err();
        assert_eq!(error.field(), "node_timeout");
    }
}

// ---- a minority in trouble ----

/// Grants, renewals and releases continue as fast as with all nodes. The leases of the minority are
/// released when it is reachable again.
#[tokio::test(start_paused = true)]
async fn failing_minority_delays_no_command() {
    for nodes in [3, 5] {
        for fault in FAULTS {
            let case = format!("{nodes} nodes, {fault:?}");
            let world = World::used(nodes).await;
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
    let world = World::used(5).await;
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
    let world = World::used(5).await;
    let locks = world.manager();
    let guard = locks.acquire("a").await.unwrap();
    world.majority().iter().for_each(Site::restart_empty);
    let start = Instant::now();
    guard.lost().await;
    assert!(start.elapsed() < LEASE / 2, "told by a renewal");
}

/// While a minority hangs, a key that needs the hung nodes delays the other renewals of its batch by at
/// most the node timeout.
#[tokio::test(start_paused = true)]
async fn hung_node_delays_commands_by_at_most_node_timeout() {
    let world = World::used(3).await;
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
        .force_release(&shaky)
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
    let world = World::used(3).await;
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
async fn node_that_missed_release_receives_it_later() {
    for fault in FAULTS {
        // The connection is so fast that it fails before the other nodes reply.
        let world = World::with_latencies(&[MS / 2, LATENCY, LATENCY]);
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
    let world = World::with_latencies(&[LATENCY, LATENCY, 20 * MS]);
    let (locks, quorum) = (world.manager(), world.quorum());
    let guard = locks.acquire("a").await.unwrap();
    sleep(3 * LEASE).await;
    assert!(guard.is_held());
    assert!(world.sites[2].holds("a").await, "its renewals were dropped");
    quorum.force_release(&LockKey::new("a")).await.unwrap();
    sleep(50 * MS).await;
    assert!(!world.sites[2].holds("a").await, "not forced");
}

#[tokio::test]
async fn response_timeout_is_four_node_timeouts() {
    let world = World::new(3);
    assert_eq!(world.quorum().response_timeout(), 4 * NODE_TIMEOUT);
}

/// A partial grant is released, even if the first release fails.
#[tokio::test(start_paused = true)]
async fn failed_release_of_partial_grant_is_repeated() {
    for fault in [Fault::Refused, Fault::CommandLost, Fault::AnswerLost] {
        let world = World::used(3).await;
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

// ---- a majority in trouble ----

#[tokio::test(start_paused = true)]
async fn acquire_without_majority_fails_soon_and_cleanly() {
    for nodes in [3, 5] {
        for fault in FAULTS {
            let case = format!("{nodes} nodes, {fault:?}");
            let world = World::used(nodes).await;
            let locks = world.manager();
            fail(world.majority(), fault);
            let start = Instant::now();
            let error = locks.acquire("a").no_wait().await.unwrap_err();
            assert!(error.is_unavailable(), "{case}: {error:?}");
            let took = start.elapsed();
            assert!(took <= 4 * NODE_TIMEOUT, "{case}: after {took:?}");
            let start = Instant::now();
            let error = locks.acquire("a").wait(SECOND).await.unwrap_err();
            assert!(error.is_unavailable(), "{case}: {error:?}");
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
        let world = World::used(3).await;
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
        let world = World::used(5).await;
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
        assert!(quorum.force_release(&key).await.is_err(), "{fault:?}");
        assert!(start.elapsed() <= 2 * NODE_TIMEOUT + MS, "{fault:?}");
        fail(world.majority(), None);
        fail(world.minority(), fault);
        quorum.force_release(&key).await.unwrap();
        assert_eq!(quorum.inspect(&key).await.unwrap(), None, "{fault:?}");
    }
}

/// A minority of votes grants no lock and blocks no other attempt.
#[tokio::test(start_paused = true)]
async fn lease_on_minority_holds_no_lock() {
    let world = World::used(5).await;
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

// ---- contention ----

#[tokio::test(start_paused = true)]
async fn busy_returns_time_until_majority_is_free() {
    let world = World::used(5).await;
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
async fn contenders_that_split_votes_soon_acquire() {
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
async fn waiter_attempts_when_majority_is_free() {
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
        let world = World::used(nodes).await;
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

// ---- cancellation ----

/// An acquire that is dropped after any number of polls leaves no lease on any node. This includes slow
/// votes and a minority that hangs.
#[tokio::test(start_paused = true)]
async fn dropped_acquire_leaves_no_key() {
    for harm in [None, Some(Fault::Hung), Some(Fault::AnswerLost)] {
        for fresh in [true, false] {
            for polls in 0..200 {
                let case = format!("{harm:?}, fresh: {fresh}, {polls} polls");
                let world = if fresh {
                    World::new(3)
                } else {
                    World::used(3).await
                };
                let locks = world.manager();
                fail(world.minority(), harm);
                let ready = {
                    let mut acquire = pin!(locks.acquire("a").into_future());
                    let mut ready = false;
                    for _ in 0..polls {
                        ready = poll!(&mut acquire).is_ready();
                        if ready {
                            break;
                        }
                        sleep(MS).await;
                    }
                    ready
                };
                sleep(2 * NODE_TIMEOUT).await;
                fail(world.minority(), None);
                world.nothing_is_left_within(SECOND, "a", &case).await;
                assert!(locks.snapshot().is_idle(), "{case}: {locks:?}");
                if ready {
                    assert!(polls > 1, "it never waits");
                    break;
                }
                assert!(polls < 199, "never ready");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_and_entries_end_with_their_leases() {
    let tasks = || {
        let runtime = tokio::runtime::Handle::current();
        runtime.metrics().num_alive_tasks()
    };
    let before = tasks();
    let world = World::used(5).await;
    let locks = world.manager();
    for fault in FAULTS {
        fail(world.minority(), fault);
        let guard = locks.acquire("a").await.unwrap();
        sleep(LEASE).await;
        drop(guard);
        sleep(SECOND).await;
        fail(world.minority(), None);
    }
    sleep(2 * LEASE).await;
    assert_eq!(tasks(), before);
}
