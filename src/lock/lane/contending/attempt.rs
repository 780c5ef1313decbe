//! One acquire command, from the moment it is sent until its reply.

use std::fmt;

use crate::backend::{Acquired, BackendError, BoxFuture, Contended, LATE};
use crate::lock::clock::{Moment, Span};
use crate::lock::lease::LeaseNumber;
use crate::lock::lease::claim::Terms;
use crate::lock::lease::place::PLACE;

/// Returns how long the backend may hold the lease of an attempt that has no reply, or its place in the queue.
/// `ttl`: of the lease, from the moment at which the attempt takes effect.
pub(in crate::lock) fn unanswered(ttl: Span) -> Span {
    Span::new(LATE) + ttl.max(PLACE)
}

/// The reply to an attempt.
#[derive(Debug)]
pub(in crate::lock) struct Replied {
    pub(in crate::lock) lease: LeaseNumber,
    pub(in crate::lock) terms: Terms,
    pub(in crate::lock) sent_at: Moment,
    pub(in crate::lock) now: Moment,
    pub(in crate::lock) outcome: Result<Contended, BackendError>,
}

/// A first attempt in flight. Its reply is still to be applied to the lane.
pub(in crate::lock) struct Attempt {
    pub(in crate::lock) lease: LeaseNumber,
    /// When the acquire began. The lease counts from it.
    pub(in crate::lock) sent_at: Moment,
    /// It does not panic.
    pub(in crate::lock) reply: BoxFuture<Result<Acquired, BackendError>>,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attempt").field(&self.lease).finish()
    }
}
