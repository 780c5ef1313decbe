//! Tests that need access to the internals: nodes that fail, and processes whose clocks differ.

mod late;
mod tokens;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::sleep;
use uuid::Uuid;

use crate::LockKey;
use crate::backend::Erased;
use crate::backend::quorum::inner::{Inner, wall_clock};
use crate::backend::quorum::node::ErasedNode;
use crate::backend::quorum::{Fence, Node, Quorum};
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
    /// The number of votes that have not taken effect yet.
    late: Arc<AtomicUsize>,
}

impl Flaky {
    async fn reach(&self) -> Result<Memory, BackendError> {
        sleep(Duration::from_micros(self.latency.load(Ordering::SeqCst))).await;
        self.late_votes_landed().await;
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
        node.late.fetch_add(1, Ordering::SeqCst);
        drop(tokio::spawn(async move {
            let mut stopped = node.stopped.subscribe();
            drop(stopped.wait_for(|stopped| !stopped).await);
            let memory = node.memory.lock().unwrap().clone();
            drop(memory.vote(&request, fence).await);
            node.late.fetch_sub(1, Ordering::SeqCst);
        }));
    }

    /// Completes when no vote is left in the buffers, or at once while the node is stopped. A later command takes effect
    /// after these votes.
    async fn late_votes_landed(&self) {
        while !self.is_stopped() && self.late.load(Ordering::SeqCst) > 0 {
            yield_now().await;
        }
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

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        self.reach().await?.force_release(key, holder).await
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
            let nodes = nodes
                .iter()
                .cloned()
                .map(|node| Erased::new(node) as Arc<_>);
            let nodes: Vec<Arc<dyn ErasedNode>> = nodes.collect();
            Quorum {
                inner: Inner::new(nodes, NODE_TIMEOUT, clock),
            }
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
