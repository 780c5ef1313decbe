//! The [`Backend`] of a quorum.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::builder::QuorumBuilder;
use super::inner::Inner;
use super::{acquire, ask, release};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, Capabilities, Contended, Downgraded,
    ForceReleased, Hints, Holder, Mode, Release, Released, Renewal, Renewed,
};

/// Several independent stores as one. A process holds a key if it holds it on a majority of them.
///
/// ```text
///   process ── LockManager ── Quorum ─┬─► node 1    granted
///                                     ├─► node 2    granted     3 of 5: held, and the lease
///                                     ├─► node 3    (hangs)     counts from before the first
///                                     ├─► node 4    granted     command went out
///                                     └─► node 5    (is down)
///   The nodes do not communicate: no replication, no leader, no failover.
/// ```
///
/// A cheap handle: clones share the state of their leases.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_lock::{LockManager, Memory, Quorum};
///
/// // Stores in one process are for demonstration. In production, each node is a `RedisBackend` on a server
/// // of its own.
/// let quorum = Quorum::builder()
///     .node(Memory::new())
///     .node(Memory::new())
///     .node(Memory::new())
///     .build()?;
/// let locks = LockManager::builder(quorum).build()?;
/// let guard = locks.acquire("order:42").await?;
/// # guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// Let N be the number of nodes, which is odd. A *minority* is any number below N/2: one of three, two of
/// five.
///
/// - *Availability.* While a minority is unavailable, hangs or loses its replies, commands have no added
///   delay. Without a majority, each acquire is [`Unavailable`](crate::ErrorKind::Unavailable) within four
///   [node timeouts](QuorumBuilder::node_timeout), and held locks are lost at their deadline.
/// - *Mutual exclusion.* While no node forgets a lease that is held, at most one process holds a key. Two
///   majorities share a node, and that node grants one lease at a time. The process counts a lease from
///   before the first command, and each node from that time or later. A majority therefore keeps the lease
///   for as long as the process relies on it. The clocks may show different times. They must run at the
///   same speed within 1 % and must not be set while they run.
/// - *Shared leases.* A shared lease needs a majority as well. It shares a node with each majority of an exclusive
///   lease, and that node grants only one of the two. An exclusive lease that waits announces itself at each node that
///   shared leases hold. Such a node grants no further shared lease to other processes for 1.3 s after each attempt. So
///   a process that ends while it waits delays them by at most about that time.
/// - *Failed attempts.* A failed attempt is released on every node that it may have reached. The release is
///   repeated at an unreachable node until the lease must have expired there.
/// - *Renewals.* A renewal does not create a lease. A node that forgot a lease does not hold it again,
///   because it could complete a majority that did not exist before. A lease is therefore lost with the
///   majority of the nodes that granted it. A fresh lease can be granted by all nodes.
///
/// # Fencing tokens
///
/// Tokens increase from grant to grant, independent of the clocks, under one condition. The nodes that cast
/// no vote for a grant and those that lost their data since the previous grant must together be a minority.
/// Each node keeps one counter:
///
/// 1. A vote increases the counter of the node and returns it. The grant's counter is the largest one of a
///    majority.
/// 2. A grant is complete when a majority *has* its counter: the node's own counter is at least as large.
///    The process proposes a counter, so normally all nodes return the same one in the first round trip.
///    Otherwise the other nodes receive the counter and the same lease in a second round trip.
/// 3. A node without a counter reports this. It adopts a counter only in the second round, not from a
///    proposal. Its vote does not count for 1, unless all nodes have replied or timed out.
///
/// Let a grant have the counter *c*. By 2, a majority had *c* while they held its lease. A node that voted
/// for the next grant did so after it released that lease. Fewer than half of the nodes have a counter less
/// than *c*. A majority of nodes with a counter, as 3 requires, therefore contains one that voted above
/// *c*. If there is no such majority, all other nodes have replied. One of them had *c*, by the assumption
/// above. In both cases the maximum of 1 is larger than *c*.
///
/// The maximum of 1 alone is not sufficient: it may come from a node outside the next majority. If more
/// than a minority lost their data, tokens continue from the wall clocks of the processes, because these
/// are the proposals. The same is true for a command that was in flight at a node while it lost its data.
///
/// # Deployment
///
/// - *Independent nodes.* Use separate machines and power supplies, without replicas. Every process must
///   use the same nodes and the same prefix. More than five nodes seldom help, because each command goes to
///   all nodes.
/// - *Persistence.* A node that restarts without its data may vote a second time for a held key. It must
///   persist each write (`appendonly yes`, `appendfsync always`), or grant no lock for the longest lease
///   after an empty restart.
/// - *No eviction.* Set `maxmemory-policy noeviction`. A node can cast an evicted vote a second time.
/// - *Timeout.* Set [`node_timeout`](QuorumBuilder::node_timeout) if leases are short or nodes are far.
///
/// # Source
///
/// The algorithm is [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/),
/// with tokens added. Kleppmann, [*How to do distributed
/// locking*](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html) (2016), objects
/// that Redlock relies on clocks and has no fencing token. If a holder pauses or a clock jumps, two
/// processes can hold a lock. The same is true here, as with any lease. A guard expires by the monotonic
/// clock of the process, and the token lets the storage reject a stale holder. Without a storage that checks
/// tokens, use a quorum for locks that save work, not for locks that keep data right.
#[derive(Clone)]
pub struct Quorum {
    pub(super) inner: Arc<Inner>,
}

/// The node timeouts that one command takes at most: two rounds, the release, and a pause.
const COMMAND_TIMEOUTS: u32 = 4;

/// For how long a waiting exclusive lease keeps further shared ones out after each attempt: longer than the time until
/// the next one, which is at most 1.1 s without hints.
const INTENT: Duration = Duration::from_millis(1300);

impl Quorum {
    /// Creates a builder without nodes, and with a [node timeout](QuorumBuilder::node_timeout) of 100 ms.
    pub fn builder() -> QuorumBuilder {
        QuorumBuilder {
            nodes: Vec::new(),
            node_timeout: Duration::from_millis(100),
        }
    }
}

/// Each method waits for a node only while its reply can change the outcome, and at most four node
/// timeouts. A `downgrade`, which is followed by a vote, waits at most five.
///
/// A quorum releases in `release_or_keep` and keeps no lease, as is the default. To keep a lease, all
/// nodes would have to report no subscribers, and a majority would have to agree on fresh counters. An
/// unavailable node cannot report, and the lease would have to be released on the nodes that kept it. The
/// saving would be one acquire per hand-off budget of 50 ms.
///
/// A quorum has no queue of waiters: the default of `leave`, and a `contend` that votes. Each node would order its
/// waiters by their arrival there, so the nodes could transfer one key to different leases, and none of them would
/// have a majority. Waiters acquire after the hints of a majority, as they do without a queue.
///
/// If the future of any method but `try_acquire` is dropped, a command that was sent takes effect or does
/// not. The caller can repeat it.
impl Backend for Quorum {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        acquire::try_acquire(&self.inner, request).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Contended, BackendError> {
        let mut acquire = request.clone();
        if request.mode == Mode::Exclusive {
            acquire = acquire.with_intent(INTENT);
        }
        Ok(Contended::of(self.try_acquire(&acquire).await?))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        ask::renew(&self.inner, renewals).await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        release::release(&self.inner, leases).await
    }

    async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        ask::downgrade(&self.inner, lease).await
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        let hints = (self.inner.nodes.iter()).map(|node| node.watch(key, manager));
        Hints::gathered(hints, self.inner.majority())
    }

    /// Forwards the hints of every node: the leases of a node that restarted may decide a majority.
    fn recoveries(&self) -> Hints {
        let nodes = self.inner.nodes.iter();
        Hints::gathered(nodes.map(|node| node.recoveries()), 1)
    }

    fn capabilities(&self) -> Capabilities {
        // Permits cannot be counted: with a limit of 2 on three nodes, each of three holders would have a majority.
        let mut nodes = self.inner.nodes.iter();
        Capabilities {
            shared: nodes.all(|node| node.capabilities().shared),
            response_timeout: self.inner.node_timeout * COMMAND_TIMEOUTS,
            may_be_kept: false,
            ..Capabilities::EXCLUSIVE
        }
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        ask::inspect(&self.inner, key).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        ask::force_release(&self.inner, key, holder).await
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("nodes", &self.inner.nodes.len())
            .field("node_timeout", &self.inner.node_timeout)
            .finish_non_exhaustive()
    }
}
