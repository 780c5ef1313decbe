//! The contract of a store that can be a node of a quorum.

use std::future::Future;
use std::sync::Arc;

use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BoxFuture, Erased, ErasedBackend,
};

/// A store that can be a node of a [`Quorum`](super::Quorum): a [`Backend`] with a counter that other nodes
/// can raise.
///
/// Counters that are independent of each other do not order the tokens of a quorum. The majorities of two
/// grants may share only one node, and that node must have the counter of the first grant. The nodes
/// therefore agree on a counter, which is separate from the counter of
/// [`try_acquire`](Backend::try_acquire).
///
/// # Example
///
/// [`Memory`](crate::Memory) is a node. A node of your own computes its counter by [`Fence::after`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_lock::backend::BackendError> {
/// use std::time::Duration;
///
/// use tower_lock::{LockKey, Memory};
/// use tower_lock::backend::{AcquireRequest, Acquired, Fence, LeaseId, Node};
/// use uuid::Uuid;
///
/// let node = Memory::new();
/// let lease = LeaseId::new(Uuid::new_v4(), 1);
/// let request = AcquireRequest::new(LockKey::new("order:42"), lease, Duration::from_secs(30));
///
/// // The store is empty, so the node has no counter until it adopts one.
/// let granted = node.vote(&request, Fence::Propose(7)).await?;
/// assert!(matches!(granted, Acquired::Granted { counter: 0, .. }));
/// let granted = node.vote(&request, Fence::Confirm(7)).await?;
/// assert!(matches!(granted, Acquired::Granted { counter: 7, .. }));
/// let granted = node.vote(&request, Fence::Propose(3)).await?;
/// assert!(matches!(granted, Acquired::Granted { counter: 8, .. }));
/// # Ok(())
/// # }
/// ```
pub trait Node: Backend {
    /// Acquires a key as [`try_acquire`](Backend::try_acquire) does, with the same guarantees, under a
    /// counter that `fence` raises.
    ///
    /// A grant returns the node's new counter, which is larger than every counter that it returned for this
    /// key before. A node without a counter returns 0. Only a node with an empty store has no counter. The
    /// counter must be as durable as the leases.
    fn vote(
        &self,
        request: &AcquireRequest,
        fence: Fence,
    ) -> impl Future<Output = Result<Acquired, BackendError>> + Send;

    /// Returns an id of the server that votes, or `None` if it is unknown. A quorum calls this for each acquire, and
    /// grants nothing while two nodes have the same id: one server would vote twice.
    fn server_id(&self) -> Option<u64> {
        None
    }
}

/// The effect of a granted [`vote`](Node::vote) on the counter of a [`Node`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fence {
    /// Raises the counter to its successor or to this, whichever is larger. A node without a counter stays
    /// without one.
    ///
    /// The reply then reflects the data of the node, not the proposal.
    Propose(u64),
    /// Raises the counter to its successor or to this, whichever is larger. A node without a counter adopts
    /// this.
    Confirm(u64),
}

impl Fence {
    /// Returns the counter after `last`, where `None` means no counter.
    #[must_use]
    pub fn after(self, last: Option<u64>) -> Option<u64> {
        match (self, last) {
            (Self::Propose(_), None) => None,
            (Self::Confirm(counter), None) => Some(counter),
            (Self::Propose(counter) | Self::Confirm(counter), Some(last)) => {
                Some(counter.max(last + 1))
            }
        }
    }
}

/// The reply to a vote.
pub(super) type Vote = Result<Acquired, BackendError>;

/// The object-safe twin of [`Node`], because the nodes of one quorum may have different types.
pub(super) trait ErasedNode: ErasedBackend {
    fn vote(self: Arc<Self>, request: AcquireRequest, fence: Fence) -> BoxFuture<Vote>;
    fn server_id(&self) -> Option<u64>;
}

impl<N: Node> ErasedNode for Erased<N> {
    fn vote(self: Arc<Self>, request: AcquireRequest, fence: Fence) -> BoxFuture<Vote> {
        self.one(
            None,
            |it| async move { it.backend.vote(&request, fence).await },
        )
    }

    fn server_id(&self) -> Option<u64> {
        self.backend.server_id()
    }
}
