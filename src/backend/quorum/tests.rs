//! Tokens under clocks that differ, and votes that take effect late, which need access to the internals.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::sleep;
use uuid::Uuid;

use super::inner::{Inner, wall_clock};
use super::node::ErasedNode;
use super::owed::FULL;
use super::{Fence, Node, Quorum};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, ForceReleased, Hints,
    Holder, LeaseId, Memory, Release, Released, Renewal, Renewed,
};

const TTL: Duration = Duration::from_secs(60);
const NODE_TIMEOUT: Duration = Duration::from_millis(100);

/// A node that can become unreachable, can stop, can lose its data, and replies with a delay.
#[derive(Clone, Default)]
struct Flaky {
    memory: Arc<Mutex<Memory>>,
    lost: Arc<AtomicBool>,
    /// Replies arrive too late. Votes take effect when the node continues, and other commands are lost.
    stopped: watch::Sender<bool>,
    latency: Arc<AtomicU64>,
    votes: Arc<AtomicUsize>,
}

impl Flaky {
    async fn reach(&self) -> Result<Memory, BackendError> {
        sleep(Duration::from_micros(self.latency.load(Ordering::SeqCst))).await;
        if self.is_stopped() {
            sleep(5 * NODE_TIMEOUT).await;
            return Err(BackendError::unknown("stopped on order"));
        }
        if self.lost.load(Ordering::SeqCst) {
            return Err(BackendError::refused(
                BackendErrorKind::Unavailable,
                "lost on order",
            ));
        }
        Ok(self.memory.lock().unwrap().clone())
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    fn stop(&self, stopped: bool) {
        self.stopped.send_replace(stopped);
    }

    /// Leaves a vote in the buffers of the node.
    fn vote_later(&self, request: &AcquireRequest, fence: Fence) {
        let (node, request) = (self.clone(), request.clone());
        drop(tokio::spawn(async move {
            let mut stopped = node.stopped.subscribe();
            drop(stopped.wait_for(|stopped| !stopped).await);
            let memory = node.memory.lock().unwrap().clone();
            memory.vote(&request, fence).await
        }));
    }

    async fn holds(&self, key: &LockKey) -> bool {
        let memory = self.memory.lock().unwrap().clone();
        memory.inspect(key).await.unwrap().is_some()
    }

    fn restart_empty(&self) {
        *self.memory.lock().unwrap() = Memory::new();
    }
}

impl Backend for Flaky {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        Backend::try_acquire(&self.reach().await?, request).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        match self.reach().await {
            Ok(memory) => memory.renew(renewals).await,
            Err(error) => renewals.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        match self.reach().await {
            Ok(memory) => Backend::release(&memory, leases).await,
            Err(error) => leases.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        self.memory.lock().unwrap().watch(key, manager)
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.reach().await?.inspect(key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        self.reach().await?.force_release(key).await
    }
}

impl Node for Flaky {
    async fn vote(&self, request: &AcquireRequest, fence: Fence) -> Result<Acquired, BackendError> {
        self.votes.fetch_add(1, Ordering::SeqCst);
        if self.is_stopped() {
            self.vote_later(request, fence);
        }
        self.reach().await?.vote(request, fence).await
    }
}

/// The nodes, and processes whose clocks are five seconds slow, exact and five seconds fast.
struct World {
    nodes: Vec<Flaky>,
    processes: [Quorum; 3],
}

fn behind() -> u64 {
    wall_clock() - 5_000_000
}

fn ahead() -> u64 {
    wall_clock() + 5_000_000
}

impl World {
    fn new(nodes: usize) -> Self {
        let nodes: Vec<Flaky> = (0..nodes).map(|_| Flaky::default()).collect();
        let process = |clock| {
            let nodes = nodes.iter().cloned().map(|node| Arc::new(node) as Arc<_>);
            let nodes: Vec<Arc<dyn ErasedNode>> = nodes.collect();
            Quorum::new(Inner::with_clock(nodes, NODE_TIMEOUT, clock))
        };
        let processes = [process(behind), process(wall_clock), process(ahead)];
        Self { nodes, processes }
    }

    fn votes(&self) -> usize {
        let votes = self
            .nodes
            .iter()
            .map(|node| node.votes.load(Ordering::SeqCst));
        votes.sum()
    }

    fn lose(&self, nodes: &[usize], lost: bool) {
        for node in nodes {
            self.nodes[*node].lost.store(lost, Ordering::SeqCst);
        }
    }

    /// Grants and releases a lock, and returns the counter.
    async fn grant(&self, process: usize) -> Result<u64, BackendError> {
        let (quorum, key) = (&self.processes[process], LockKey::new("a"));
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        let counter = match quorum
            .try_acquire(&AcquireRequest::new(key.clone(), lease, TTL))
            .await?
        {
            Acquired::Granted { counter } => counter,
            Acquired::Busy { ttl } => panic!("busy for {ttl:?}"),
        };
        quorum
            .release(&[Release::new(key, lease)])
            .await
            .remove(0)?;
        // Late votes have arrived and been released by then.
        sleep(Duration::from_secs(3)).await;
        Ok(counter)
    }
}

/// An endless sequence of numbers, equal for equal seeds.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from((self.0 >> 33) % end as u64).unwrap()
    }

    fn some(&mut self, count: usize, of: usize) -> Vec<usize> {
        let mut all: Vec<_> = (0..of).collect();
        (0..count)
            .map(|_| all.swap_remove(self.below(all.len())))
            .collect()
    }
}

/// Before each grant, another minority fails: some of its nodes are unreachable, others lose their data.
/// Nodes reply and processes acquire in random order. In between, attempts fail without a majority.
async fn tokens_increase(seed: u64, nodes: usize) {
    let random = &mut Random(seed);
    let world = World::new(nodes);
    let mut last = 0;
    for step in 0..12 {
        let minority = random.below(nodes / 2 + 1);
        let harmed = random.some(minority, nodes);
        let (lost, forgetful) = harmed.split_at(random.below(minority + 1));
        for node in forgetful {
            world.nodes[*node].restart_empty();
        }
        for node in &world.nodes {
            let latency = 100 * random.below(100) as u64;
            node.latency.store(latency, Ordering::SeqCst);
        }
        if random.below(3) == 0 {
            let cut_off = random.some(nodes / 2 + 1, nodes);
            world.lose(&cut_off, true);
            let failed = world.grant(random.below(3)).await;
            assert!(failed.is_err(), "{failed:?}");
            sleep(TTL).await;
            world.lose(&cut_off, false);
        }
        world.lose(lost, true);
        let counter = world.grant(random.below(3)).await.unwrap();
        assert!(
            counter > last,
            "seed {seed}, {nodes} nodes, grant {step}: {counter} after {last}; lost {lost:?}, forgetful {forgetful:?}"
        );
        last = counter;
        world.lose(lost, false);
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_over_failing_minorities_increase() {
    let random = RandomState::new().hash_one(0);
    for seed in (0..300).chain([random]) {
        for nodes in [3, 5, 7] {
            tokens_increase(seed, nodes).await;
        }
    }
}

/// The nodes that know the last token and the nodes that vote next share only one node, and the clock of the
/// next process is ten seconds slow. The largest counter of a majority alone would be wrong here.
#[tokio::test(start_paused = true)]
async fn token_of_grant_binds_every_later_majority() {
    let world = World::new(3);
    world.grant(0).await.unwrap();
    world.lose(&[2], true);
    let first = world.grant(2).await.unwrap();
    world.lose(&[2], false);
    for lost in [0, 1] {
        world.lose(&[lost], true);
        let next = world.grant(0).await.unwrap();
        assert!(next > first, "{next} after {first}");
        world.lose(&[lost], false);
    }
}

/// The first grant sets the counters of the nodes. Later grants find equal counters, whichever process
/// votes. A node that was unreachable does not matter.
#[tokio::test(start_paused = true)]
async fn grant_with_equal_counters_takes_one_round() {
    let world = World::new(5);
    world.grant(0).await.unwrap();
    for (process, lost) in [(0, 0), (2, 1), (1, 2), (0, 3), (2, 4), (0, 0)] {
        let before = world.votes();
        world.grant(process).await.unwrap();
        assert_eq!(world.votes() - before, 5, "process {process}");
        world.lose(&[lost], true);
        world.grant(2 - process).await.unwrap();
        world.lose(&[lost], false);
        world.grant(2).await.unwrap();
    }
}

/// A node that lost its counter receives it again, and counts again.
#[tokio::test(start_paused = true)]
async fn node_without_counter_adopts_it_at_next_grant() {
    let world = World::new(3);
    world.grant(1).await.unwrap();
    world.nodes[0].restart_empty();
    let before = world.votes();
    world.grant(1).await.unwrap();
    assert_eq!(world.votes() - before, 4, "one node receives the counter");
    let before = world.votes();
    world.grant(1).await.unwrap();
    assert_eq!(world.votes() - before, 3, "all nodes have it");
}

/// Two nodes of five lose their data while two others are unreachable. The holder is notified, and the other
/// nodes still hold the lease. The clock of the next process is ten seconds slow.
#[tokio::test(start_paused = true)]
async fn lost_lock_is_released_and_its_token_remembered() {
    let world = World::new(5);
    let key = LockKey::new("k");
    let id = |number| LeaseId::new(Uuid::new_v4(), number);
    let request = |lease| AcquireRequest::new(key.clone(), lease, TTL);
    let counter = |answer| match answer {
        Ok(Acquired::Granted { counter }) => counter,
        other => panic!("{other:?}"),
    };
    let reachable = |yes: bool| {
        for node in &world.nodes[3..] {
            node.lost.store(!yes, Ordering::SeqCst);
        }
    };
    let [late, _, early] = &world.processes;
    let first = id(1);
    counter(late.try_acquire(&request(first)).await);
    drop(late.release(&[Release::new(key.clone(), first)]).await);
    sleep(Duration::from_secs(1)).await;
    reachable(false);
    let second = id(2);
    let before = counter(early.try_acquire(&request(second)).await);
    reachable(true);
    for node in &world.nodes[..2] {
        node.restart_empty();
    }
    let renewal = Renewal::new(key.clone(), second, TTL);
    let renewed = early.renew(&[renewal]).await.remove(0);
    assert!(matches!(renewed, Ok(Renewed::NotHeld)), "{renewed:?}");
    sleep(Duration::from_secs(1)).await;
    let after = counter(late.try_acquire(&request(id(3))).await);
    assert!(after > before, "{before} then {after}");
}

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
        sleep(Duration::from_millis(2)).await;
        assert!(world.nodes[0].holds(&key).await, "no late vote");
        sleep(Duration::from_secs(2)).await;
        assert!(!world.nodes[0].holds(&key).await, "held for nobody");
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
    assert_eq!((quorum.inner().ledger.len(), tasks()), (0, 0), "unsent");
    world.nodes[0].lost.store(false, Ordering::SeqCst);
    world.nodes[0].stop(true);
    for nth in 0..FULL / 1_000 + 2 {
        let keys = (0..1_000).map(|key| LockKey::new(format!("{nth}:{key}")));
        let keys: Vec<_> = keys.collect();
        join_all(keys.iter().map(|key| acquire_and_release(quorum, key, TTL))).await;
        sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(world.nodes[0].votes.load(Ordering::SeqCst), 10 + FULL);
    assert_eq!(quorum.inner().ledger.len(), FULL);
    // Each vote waits in a task of the node.
    assert_eq!(tasks(), FULL + 1);
    world.nodes[0].stop(false);
    sleep(Duration::from_secs(4)).await;
    assert_eq!((quorum.inner().ledger.len(), tasks()), (0, 0));
    acquire_and_release(quorum, &LockKey::new("a"), TTL).await;
    assert_eq!(world.nodes[0].votes.load(Ordering::SeqCst), 11 + FULL);
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
