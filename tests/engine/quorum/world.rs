//! Nodes with faults, and quorums over them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::backend::Backend;
use tower_lock::backend::{
    AcquireRequest, Acquired, BackendError, Capabilities, Downgraded, Fence, ForceReleased, Hints,
    Holder, KeepRequest, LeaseId, Node, QuorumBuilder, Release, Released, ReleasedOrKept, Renewal,
    Renewed,
};
use tower_lock::{LockKey, LockManager, Quorum};
use uuid::Uuid;

use crate::support::engine::{MS, SECOND};
use crate::support::simulated::{Fault, Simulated};

/// The latency of one direction to a node.
pub(crate) const LATENCY: Duration = Duration::from_millis(3);
pub(crate) const ROUND_TRIP: Duration = Duration::from_millis(6);
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(100);
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// The faults of a node or of its connection.
pub(crate) const FAULTS: [Fault; 5] = [
    Fault::Refused,
    Fault::AnswerLost,
    Fault::CommandLost,
    Fault::Misconfigured,
    Fault::Hung,
];

/// One node, which can lose its data.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) now: Arc<Mutex<Simulated>>,
}

impl Site {
    pub(crate) fn new(latency: Duration) -> Self {
        let now = Arc::new(Mutex::new(Simulated::new(latency)));
        Self { now }
    }

    pub(crate) fn wire(&self) -> Simulated {
        self.now.lock().unwrap().clone()
    }

    /// Commands in flight are lost too.
    pub(crate) fn restart_empty(&self) {
        let mut now = self.now.lock().unwrap();
        *now = Simulated::new(now.latency);
    }

    pub(crate) fn fail(&self, fault: impl Into<Option<Fault>>) {
        self.wire().down(fault.into());
    }

    pub(crate) async fn holds(&self, key: &str) -> bool {
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

    async fn release_or_keep(
        &self,
        leases: &[KeepRequest],
    ) -> Vec<Result<ReleasedOrKept, BackendError>> {
        self.wire().release_or_keep(leases).await
    }

    async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        self.wire().downgrade(lease).await
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        self.wire().watch(key, manager)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE.with_shared()
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.wire().inspect(key).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        self.wire().force_release(key, holder).await
    }
}

impl Node for Site {
    async fn vote(&self, request: &AcquireRequest, fence: Fence) -> Result<Acquired, BackendError> {
        self.wire().vote(request, fence).await
    }
}

/// The nodes. Each quorum over them represents a process.
pub(crate) struct Nodes {
    pub(crate) sites: Vec<Site>,
}

impl Nodes {
    pub(crate) fn new(nodes: usize) -> Self {
        Self::with_latencies(&vec![LATENCY; nodes])
    }

    pub(crate) fn with_latencies(latencies: &[Duration]) -> Self {
        let sites = latencies.iter().map(|latency| Site::new(*latency));
        Self {
            sites: sites.collect(),
        }
    }

    /// Creates nodes that have granted before, as all nodes but new ones have.
    pub(crate) async fn used(nodes: usize) -> Self {
        let world = Self::new(nodes);
        let locks = world.patient_manager();
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

    pub(crate) fn quorum(&self) -> Quorum {
        self.quorum_within(NODE_TIMEOUT)
    }

    fn quorum_within(&self, node_timeout: Duration) -> Quorum {
        let sites = self.sites.iter().cloned();
        let builder = sites.fold(Quorum::builder(), QuorumBuilder::node);
        builder.node_timeout(node_timeout).build().unwrap()
    }

    pub(crate) fn manager(&self) -> LockManager {
        let builder = LockManager::builder(self.quorum()).watchdog_timeout(LEASE);
        builder.build().unwrap()
    }

    /// For tests in real time: on a busy machine a healthy node may be silent for [`NODE_TIMEOUT`].
    pub(crate) fn patient_manager(&self) -> LockManager {
        let builder = LockManager::builder(self.quorum_within(5 * SECOND));
        builder.build().unwrap()
    }

    pub(crate) fn minority(&self) -> &[Site] {
        &self.sites[..self.sites.len() / 2]
    }

    /// Returns nodes that form a majority.
    pub(crate) fn majority(&self) -> &[Site] {
        &self.sites[..=self.sites.len() / 2]
    }

    pub(crate) async fn nothing_is_left_within(&self, patience: Duration, key: &str, case: &str) {
        let deadline = Instant::now() + patience;
        for (node, site) in self.sites.iter().enumerate() {
            while site.holds(key).await {
                assert!(Instant::now() < deadline, "{case}: left on node {node}");
                sleep(MS).await;
            }
        }
    }
}

pub(crate) fn fail(sites: &[Site], fault: impl Into<Option<Fault>> + Copy) {
    sites.iter().for_each(|site| site.fail(fault));
}

pub(crate) fn lease() -> LeaseId {
    LeaseId::new(Uuid::new_v4(), 1)
}
