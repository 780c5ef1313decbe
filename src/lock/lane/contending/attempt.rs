//! One acquire command, from the moment it is sent until its reply.

use crate::backend::{BackendError, Contended, LATE, LeaseId};
use crate::lock::clock::{Moment, Span};
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
    pub(in crate::lock) lease: LeaseId,
    pub(in crate::lock) terms: Terms,
    pub(in crate::lock) sent_at: Moment,
    pub(in crate::lock) now: Moment,
    pub(in crate::lock) outcome: Result<Contended, BackendError>,
}
