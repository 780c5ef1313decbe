//! One acquire command, from the moment it is sent until its reply.

use std::fmt;
use std::task::{Context, Poll, ready};

use crate::backend::{Acquired, BackendError, BoxFuture, Contended, LATE, LeaseId};
use crate::lock::clock::{Clock, Moment, Span};
use crate::lock::lease::claim::Terms;
use crate::lock::lease::place::PLACE;

/// Returns how long the backend may hold the lease of an attempt that has no reply, or its place in the queue.
/// `ttl`: of the lease, from the moment at which the attempt takes effect.
pub(in crate::lock) fn unanswered(ttl: Span) -> Span {
    Span::new(LATE) + ttl.max(PLACE)
}

/// An acquire command in flight. Never dropped before its reply, unless its runtime ends.
pub(in crate::lock) struct Attempt {
    pub(in crate::lock) lease: LeaseId,
    pub(in crate::lock) terms: Terms,
    pub(in crate::lock) sent_at: Moment,
    pub(in crate::lock) clock: Clock,
    pub(in crate::lock) reply: Reply,
}

/// The reply to a command that acquires.
pub(in crate::lock) enum Reply {
    /// The reply to the first attempt of an acquire.
    Acquire(BoxFuture<Result<Acquired, BackendError>>),
    /// The reply to an attempt for the waiters of a lane.
    Contend(BoxFuture<Result<Contended, BackendError>>),
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

impl Attempt {
    #[inline]
    pub(in crate::lock) fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Replied> {
        let outcome = match &mut self.reply {
            Reply::Acquire(reply) => ready!(reply.as_mut().poll(cx)).map(Contended::from),
            Reply::Contend(reply) => ready!(reply.as_mut().poll(cx)),
        };
        Poll::Ready(Replied {
            lease: self.lease,
            terms: self.terms,
            sent_at: self.sent_at,
            now: self.clock.now(),
            outcome,
        })
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
