//! One acquire command, from the moment it is sent until its reply.

use std::fmt;

use crate::backend::{Acquired, BackendError, BoxFuture, Contended, LATE};
use crate::lock::clock::{Moment, Span};
use crate::lock::lease::{LeaseNumber, PLACE, Terms};

/// Returns how long the backend may hold the lease of an attempt that has no reply, or its place in the queue.
/// `ttl`: of the lease, from the moment at which the attempt takes effect.
pub(crate) fn unanswered(ttl: Span) -> Span {
    Span::new(LATE) + ttl.max(PLACE)
}

/// The reply to an attempt.
#[derive(Debug)]
pub(crate) struct Replied {
    pub(crate) lease: LeaseNumber,
    pub(crate) terms: Terms,
    pub(crate) sent_at: Moment,
    pub(crate) now: Moment,
    pub(crate) outcome: Result<Contended, BackendError>,
}

/// A first attempt in flight. Its reply is still to be applied to the lane.
pub(crate) struct Attempt {
    pub(crate) lease: LeaseNumber,
    /// When the acquire began. The lease counts from it.
    pub(crate) sent_at: Moment,
    /// It does not panic.
    pub(crate) reply: BoxFuture<Result<Acquired, BackendError>>,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attempt").field(&self.lease).finish()
    }
}
