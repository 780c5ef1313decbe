//! The contract, on several nodes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::builder::QuorumBuilder;
use super::inner::Inner;
use super::{acquire, ask, release};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, ForceReleased, Hints, Holder, Release,
    Released, Renewal, Renewed,
};

/// Several independent stores as one. A process holds a key if it holds it on a majority of them.
///
/// ```text
///   process ── LockManager ── Quorum ─┬─► node 1    granted
///                                     ├─► node 2    granted     3 of 5: held, and the lease
///                                     ├─► node 3    (hangs)     counts from before the first
///                                     ├─► node 4    granted     command went out
///                                     └─► node 5    (is down)
///   The nodes know nothing of each other: no replication, no leader, no failover.
/// ```
///
/// A cheap handle: clones share what they know of their leases.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_lock::{LockManager, Memory, Quorum};
///
/// // Stores in one process survive nothing; in earnest each is a `RedisBackend` on a machine of its own.
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
/// # What it guarantees
///
/// With N nodes, N odd, a *minority* is any number below N/2: one of three, two of five.
///
/// - *Available* while a minority is down, hangs, or loses its replies, without a delay.
///   Without a majority every acquire is [`Unavailable`](crate::ErrorKind::Unavailable) within four
///   [node timeouts](QuorumBuilder::node_timeout), and locks that are held are lost at their deadline.
/// - *Mutual exclusion*, as long as no node forgets a lease that is held: two majorities share a node,
///   and that node grants one lease at a time. A lease counts from before the first command, on every
///   node from that or later, so a majority keeps it for as long as the process trusts it. The clocks
///   need not agree on the time, only run at the same speed within 1 % and not be set while
///   they run.
/// - *A failed attempt leaves nothing behind*: it is released on every node that it may have reached. The
///   release is repeated at an unreachable node until the lease must have expired there.
/// - *A renewal never takes anything.* A node that forgot a lease is not made to hold it again: it
///   might make up a majority that has never been one. So a lease lives on the nodes that granted
///   it, and is lost with the majority of them; a fresh one has all nodes to choose from.
///
/// # Fencing tokens
///
/// Tokens increase from grant to grant, whatever the clocks say, as long as the nodes that gave no vote
/// for a grant and those that lost their data since the grant before are together a minority. Each
/// node keeps one counter, and:
///
/// 1. A vote takes the counter of the node beyond what it was, and tells it. The grant's counter is the
///    largest of a majority's.
/// 2. A grant counts only once a majority *knows* its counter: the node's own has come as far.
///    Most often all of them answer the same, since the process proposes one, and that takes no more than
///    the one round trip; otherwise those that are behind receive it, with the same lease, in a second one.
/// 3. A node that knows no counter says so, and learns one only in that second round, not from a proposal. Its
///    vote does not count for 1, unless all nodes have replied or timed out.
///
/// Let a grant have the counter *c*. By 2 a majority knew *c* while they held its lease. A node that voted
/// for the next grant did so after it released that lease. Fewer than half of the nodes
/// remember less than *c*. So of a majority that remembers anything, which 3 asks for, one voted
/// beyond *c*; and where so many do not remember that there is no such majority, all others
/// were heard, and one of them knew *c*, by the assumption above. The maximum of 1 is larger
/// than *c* in either case.
///
/// The maximum of 1 alone would not do: it may come from a node that is not among the next majority.
/// Where more is lost than a minority, tokens go on from the wall clocks of the processes, which are what
/// they propose; so too for a command that was under way at a node while it lost its data.
///
/// # What to set
///
/// - *Nodes that fail apart*: own machines, own power, no replicas. The same nodes, by the same prefix, in
///   every process. More than five seldom help: each command goes to all of them.
/// - *Persistence.* A node that restarts without its data may vote a second time for a key that is held.
///   Either it keeps each write (`appendonly yes`, `appendfsync always`), or it stays away, and
///   grants nothing, for as long as the longest lease after it has come back empty.
/// - *No eviction*: `maxmemory-policy noeviction`. A vote that is evicted may be given a second time.
/// - [`node_timeout`](QuorumBuilder::node_timeout), when leases are short or nodes are far.
///
/// # Where it comes from
///
/// The algorithm is [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/),
/// with tokens added. Kleppmann, [*How to do distributed
/// locking*](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html) (2016), holds
/// against it that it relies on clocks and has no fencing token: if a holder pauses or a clock jumps, two
/// processes may hold a lock. The same is true here, as with any lease. A guard expires by the monotonic
/// clock of the process, and the token lets the storage reject a stale holder. Without a storage that checks
/// tokens, use a quorum for locks that save work, not for locks that keep data right.
#[derive(Clone)]
pub struct Quorum {
    inner: Arc<Inner>,
}

/// The node timeouts that one command takes at most: two rounds, the release, and a pause.
const COMMAND_TIMEOUTS: u32 = 4;

impl Quorum {
    /// A quorum without nodes yet, and with a [node timeout](QuorumBuilder::node_timeout) of 100 ms.
    pub fn builder() -> QuorumBuilder {
        QuorumBuilder::new()
    }

    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }
}

/// No method waits for a node longer than its answer matters, and at most four node timeouts.
///
/// A quorum releases in `release_or_keep` and extends no lease, as is the default. To keep a lease, all
/// nodes would have to report no subscribers, and a majority would have to agree on fresh counters. An
/// unavailable node cannot report, and the lease would have to be released on the nodes that kept it. The
/// saving would be one acquire per hand-off budget of 50 ms.
///
/// A quorum has no queue of waiters: the default of `contend` and `leave`. Each node would order its waiters
/// by their arrival there, so the nodes could transfer one key to different leases, and none of them would
/// have a majority. Waiters acquire after the hints of a majority, as they do without a queue.
///
/// Dropping the future of any method but `try_acquire` leaves nothing behind: what was sent takes
/// effect or does not, and may be asked for again.
impl Backend for Quorum {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        acquire::try_acquire(&self.inner, request).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        ask::renew(&self.inner, renewals).await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        release::release(&self.inner, leases).await
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        let inner = &self.inner;
        let hints = inner.nodes.iter().map(|node| node.watch(key, manager));
        Hints::gathered(hints, inner.majority())
    }

    /// Forwards the hints of every node: the leases of a node that restarted may decide a majority.
    fn recoveries(&self) -> Hints {
        let nodes = self.inner.nodes.iter();
        Hints::gathered(nodes.map(|node| node.recoveries()), 1)
    }

    fn response_timeout(&self) -> Duration {
        self.inner.node_timeout * COMMAND_TIMEOUTS
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        ask::inspect(&self.inner, key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        ask::force_release(&self.inner, key).await
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
