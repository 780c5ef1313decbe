//! One acquire command, from the moment it is sent until its reply.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker, ready};

use tokio::sync::oneshot;

use super::claim::{Claim, QueuePosition, Terms};
use super::clock::{Moment, Span};
use super::given::Given;
use super::place::PLACE;
use super::seats::Seat;
use crate::Error;
use crate::backend::{Acquired, BackendError, BoxFuture, Contended, LATE, LeaseId};

/// Returns how long the backend may hold the lease of an attempt that has no reply, or its place in the queue.
/// `ttl`: of the lease, from the moment at which the attempt takes effect.
pub(super) fn unanswered(ttl: Span) -> Span {
    Span::new(LATE) + ttl.max(PLACE)
}

/// An acquire command in flight. Never dropped before its reply, unless its runtime ends.
pub(super) struct Attempt {
    pub(super) lease: LeaseId,
    pub(super) terms: Terms,
    pub(super) sent_at: Moment,
    pub(super) reply: Reply,
}

/// The reply to a command that acquires.
pub(super) enum Reply {
    /// The reply to the first attempt of an acquire.
    Acquire(BoxFuture<Result<Acquired, BackendError>>),
    /// The reply to an attempt for the waiters of a lane.
    Contend(BoxFuture<Result<Contended, BackendError>>),
}

/// The reply to an attempt.
#[derive(Debug)]
pub(super) struct Replied {
    pub(super) lease: LeaseId,
    pub(super) terms: Terms,
    pub(super) sent_at: Moment,
    pub(super) now: Moment,
    pub(super) outcome: Result<Contended, BackendError>,
}

impl Attempt {
    #[inline]
    pub(super) fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Replied> {
        let outcome = match &mut self.reply {
            Reply::Acquire(reply) => ready!(reply.as_mut().poll(cx)).map(Contended::from),
            Reply::Contend(reply) => ready!(reply.as_mut().poll(cx)),
        };
        Poll::Ready(Replied {
            lease: self.lease,
            terms: self.terms,
            sent_at: self.sent_at,
            now: Moment::now(),
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

/// Resolves the future of a waiter.
pub(super) type Answer = oneshot::Receiver<Result<Given, Error>>;

/// The wait of an acquire in the queue of its lane.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) answer: Answer,
    pub(super) position: QueuePosition,
}

/// The first attempt of an acquire, driven by the acquire while it is polled. The lane and the acquire
/// share it, so that a task can take it over.
#[derive(Debug, Default)]
pub(super) struct InlineAttempt(Mutex<Inline>);

// The usual variant is not boxed, because each acquire would allocate twice.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Default)]
pub(super) enum Inline {
    /// The attempt is unsent or finished.
    #[default]
    Empty,
    InFlight(InFlight),
    /// A task drives the attempt. The acquire waits in the queue.
    TakenOver(Queued),
}

/// An attempt in flight, with what a task needs to take it over.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) attempt: Attempt,
    pub(super) claim: Claim,
    pub(super) seat: Seat,
    /// Wakes the acquire, which then waits in the queue.
    pub(super) waker: Waker,
}

impl InFlight {
    #[inline]
    pub(super) fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Replied> {
        let reply = self.attempt.poll_reply(cx);
        if reply.is_pending() {
            self.waker.clone_from(cx.waker());
        }
        reply
    }
}

impl InlineAttempt {
    pub(super) fn state(&self) -> MutexGuard<'_, Inline> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state, or `None` while the acquire is being polled.
    pub(super) fn unpolled(&self) -> Option<MutexGuard<'_, Inline>> {
        match self.0.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
