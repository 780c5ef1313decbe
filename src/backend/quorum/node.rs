//! What a store must be able to do to be one of several.

use std::future::Future;
use std::sync::Arc;

use crate::backend::erased::outcome;
use crate::backend::{AcquireRequest, Acquired, Backend, BackendError, BoxFuture, ErasedBackend};

/// A store that can be a node of a [`Quorum`](super::Quorum): a [`Backend`] whose counter others
/// can move.
///
/// A counter that only its own store moves cannot make the tokens of a quorum: the majority of one
/// grant and the majority of the next share no more than one node, and that node must know what the
/// first grant was worth. So the nodes agree on a counter, which each of them keeps apart from that of
/// [`try_acquire`](Backend::try_acquire).
pub trait Node: Backend {
    /// As [`try_acquire`](Backend::try_acquire), and owing the same, under a counter that is moved
    /// as `fence` says.
    ///
    /// The counter of the answer is the node's after that, larger than every counter it answered for
    /// this key before; 0 while it knows none, as only a node with an empty store does. Like the leases,
    /// it must be gone only when the data are.
    fn vote(
        &self,
        request: &AcquireRequest,
        fence: Fence,
    ) -> impl Future<Output = Result<Acquired, BackendError>> + Send;
}

/// Where the counter of a [`Node`] goes with a granted [`vote`](Node::vote).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fence {
    /// To the larger of its successor and this; a node that knows no counter goes on without.
    ///
    /// So what the node says is what it remembers, never what it was just told.
    Propose(u64),
    /// To the larger of its successor and this, also where the node knew none.
    Confirm(u64),
}

impl Fence {
    /// The counter after `last`, which is `None` at a node that knows none; `None` if that stays so.
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

/// The object-safe twin: nodes of one quorum may be of different types.
pub(super) trait ErasedNode: ErasedBackend {
    fn vote(
        self: Arc<Self>,
        request: AcquireRequest,
        fence: Fence,
    ) -> BoxFuture<Result<Acquired, BackendError>>;
}

impl<N: Node> ErasedNode for N {
    fn vote(
        self: Arc<Self>,
        request: AcquireRequest,
        fence: Fence,
    ) -> BoxFuture<Result<Acquired, BackendError>> {
        outcome(async move { Node::vote(&*self, &request, fence).await })
    }
}
