//! The state of a lane, and the queries that all events share.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use super::effect::{Report, Wakeup};
use super::holding::held_lease::HeldLease;
use super::queue::waiters::Waiters;
use crate::backend::{BackendError, Mode};
use crate::lock::clock::{Moment, Span};
#[cfg(any(feature = "metrics", feature = "dashboard"))]
use crate::lock::lease::Claim;
use crate::lock::lease::{Grant, Lease, LeaseNumber, QueuePlace};
use crate::{Error, ErrorKind, Owner};

/// The time for which a release is still sent after the lease must have expired, in case the backend's
/// clock was set back.
pub(super) const LATE_RELEASE: Duration = Duration::from_millis(500);

/// The time after a transfer in which the next acquire enters the queue of the backend. A turn of other
/// clients is shorter.
pub(super) const YIELDING: Duration = Duration::from_millis(20);

/// The assumed remaining time of a hold of another process, of which a single attempt observes only the lease.
const REMAINING_HOLD: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(super) phase: Phase,
    pub(super) queue: Waiters,
}

#[derive(Debug, Default)]
pub(super) enum Phase {
    /// The lane holds nothing and is about to leave the table.
    #[default]
    Idle,
    /// The lease was transferred to another process, or left to others. Until then, the next acquire enters the
    /// queue of the backend instead of an attempt that could overtake others.
    Yielding {
        until: Moment,
    },
    Contending(Contending),
    Held(HeldLease),
    Returning(Returning),
}

/// The lane contends for the key, by one task: that of the first attempt, near its caller, or an acquire loop at home.
#[derive(Debug)]
pub(super) struct Contending {
    pub(super) contender: Contender,
    /// The lease of the attempt in flight.
    pub(super) attempt: Option<(LeaseNumber, Span)>,
    pub(super) seen: LastReply,
    /// Whether another process holds the key, or waited when it was released here.
    pub(super) others_wait: bool,
    /// Until when others have the next turn. If the last waiter leaves before that, the lane yields.
    pub(super) yields_until: Option<Moment>,
    pub(super) place: Option<QueuePlace>,
    /// Whether the lease that the attempt in flight acquires may already be lost.
    pub(super) suspect: bool,
}

/// The task that contends for a lane.
#[derive(Debug)]
pub(super) enum Contender {
    /// The first attempt of an acquire. Its lease identifies it, because a loop can replace it.
    FirstAttempt(First),
    /// An acquire loop, which this wakes. No other task replaces it.
    Loop(Wakeup),
}

/// The first attempt of an acquire, which may be driven by a runtime that blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct First {
    /// When it counts as unanswered.
    pub(crate) due: Moment,
    /// When home takes it, unless its acquire polls it at that moment. `None` if the acquire does not drive it.
    pub(crate) unpolled_at: Option<Moment>,
}

/// A lease without holds: *surrendered*, *kept* or *returning* by `sent`. Until its command is sent, it can be taken back.
#[derive(Debug)]
pub(super) struct Returning {
    pub(super) lease: Lease,
    /// Resolves the `release` future.
    pub(super) report: Option<Report>,
    pub(super) sent: Sent,
    /// From when on the backend counts as unavailable, and why: the reply to the first release is overdue, or the
    /// renewal failed for whose reply the release waited.
    pub(super) trouble: Option<(Moment, LastReply)>,
    /// When the return ends without a reply: the lease must have expired, and there was time for a release.
    pub(super) forget_at: Moment,
}

/// How often the release of a lease was sent. It waits for the reply to a renewal, so none is in flight then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Never,
    /// The lease is *kept*: its release is due later, unless the next acquire takes the lease back.
    Kept {
        until: Moment,
    },
    Once {
        /// When it is sent again from home: the runtime of its task may block.
        due: Moment,
        /// Whether the backend may have lost the lease since. A reply that it was kept may predate that.
        may_be_lost: bool,
    },
    /// The lease cannot be kept, and one of the two releases finds no lease.
    Twice,
}

/// No command was answered until the deadline.
#[derive(Debug, thiserror::Error)]
#[error("no reply from the lock backend within the wait")]
struct NoReply;

/// Returns `true` if the acquire ended before the reply to its only attempt.
pub(crate) fn is_unanswered(error: &Error) -> bool {
    error.source().is_some_and(<dyn StdError>::is::<NoReply>)
}

/// The last reply of the backend.
#[derive(Debug)]
pub(crate) enum LastReply {
    Nothing,
    /// Another process holds the key until about then.
    Busy(Moment),
    Trouble(BackendError),
}

/// The holder of a key, as far as this process knows. For a key with several lanes, the first one of these.
#[cfg(feature = "dashboard")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HeldBy {
    Here,
    Elsewhere,
    /// The last attempt failed.
    Unavailable,
    /// No attempt has a reply.
    Unknown,
    /// This process, for its next acquire.
    Kept,
    /// This process, whose release has no confirmation.
    Releasing,
}

impl Lane {
    #[cfg(feature = "dashboard")]
    pub(crate) fn held_by(&self) -> HeldBy {
        match &self.phase {
            Phase::Held(_) => HeldBy::Here,
            Phase::Returning(_) if self.kept_lease().is_some() => HeldBy::Kept,
            Phase::Returning(_) => HeldBy::Releasing,
            Phase::Contending(contending) => match contending.seen {
                LastReply::Busy(_) => HeldBy::Elsewhere,
                LastReply::Trouble(_) => HeldBy::Unavailable,
                LastReply::Nothing => HeldBy::Unknown,
            },
            Phase::Idle | Phase::Yielding { .. } => HeldBy::Unknown,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.queue.is_empty()
    }

    /// Ends the contest for the key. If others have the next turn, the lane yields until its end.
    pub(super) fn stop_contending(&mut self, now: Moment) {
        let yields_until = match &self.phase {
            Phase::Contending(contending) => contending.yields_until,
            _ => None,
        };
        self.phase = match yields_until {
            Some(until) if now < until => Phase::Yielding { until },
            _ => Phase::Idle,
        };
    }

    /// Returns `true` if the lane only remembers that others have the next turn.
    pub(crate) fn is_yielding(&self) -> bool {
        matches!(self.phase, Phase::Yielding { .. })
    }

    /// Returns `true` if this process is in the queue of the backend.
    pub(crate) fn has_place(&self) -> bool {
        matches!(&self.phase, Phase::Contending(contending) if contending.place.is_some())
    }

    /// Returns the number of waiters. An acquire whose first attempt is in flight does not count.
    pub(crate) fn waiters(&self) -> usize {
        self.queue.queue_len()
    }

    /// Returns the claims of the waiters.
    #[cfg(any(feature = "metrics", feature = "dashboard"))]
    pub(crate) fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.queue.queued().map(|waiter| &waiter.claim)
    }

    /// Returns the number of waiters, including the acquire whose first attempt is in flight, which may become one.
    pub(crate) fn seats_taken(&self) -> usize {
        self.queue.len()
    }

    /// Returns the lease that is held, with its owners.
    pub(super) fn held_lease(&self) -> Option<&HeldLease> {
        match &self.phase {
            Phase::Held(held_lease) => Some(held_lease),
            _ => None,
        }
    }

    pub(super) fn held_lease_mut(&mut self) -> Option<&mut HeldLease> {
        match &mut self.phase {
            Phase::Held(held_lease) => Some(held_lease),
            _ => None,
        }
    }

    /// Returns the grants of the owners that hold the lease.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &Arc<Grant>> {
        self.held_lease().into_iter().flat_map(HeldLease::grants)
    }

    /// Returns how the backend has the lease that is held.
    pub(crate) fn mode(&self) -> Mode {
        (self.held_lease()).map_or(Mode::Exclusive, |held_lease| held_lease.lease.mode())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held_lease().is_some()
    }

    /// Returns `true` if the lane is held or waited for.
    pub(crate) fn is_shown(&self) -> bool {
        self.is_held() || self.waiters() > 0
    }

    /// Returns `true` if this owner holds the lease.
    pub(crate) fn is_held_by(&mut self, owner: Owner, now: Moment) -> bool {
        let holding = (self.held_lease_mut()).and_then(|held_lease| held_lease.of_owner(owner));
        holding.is_some_and(|holding| holding.grant.is_held(now))
    }

    pub(crate) fn is_returning(&self) -> bool {
        matches!(self.phase, Phase::Returning(_))
    }

    /// Returns `true` if a lease is kept or being returned, and the backend may still hold it. A home that has ended leaves
    /// the lane in this phase, also after the lease must have expired.
    pub(crate) fn may_have_lease(&self, now: Moment) -> bool {
        matches!(&self.phase, Phase::Returning(returning) if now < returning.forget_at)
    }

    /// Returns `true` if a lease is being returned, and not kept, and the backend may still hold it.
    pub(crate) fn is_unreleased(&self, now: Moment) -> bool {
        self.kept_lease().is_none() && self.may_have_lease(now)
    }

    /// Returns the lease that is held or being returned.
    pub(crate) fn lease_number(&self) -> Option<LeaseNumber> {
        match &self.phase {
            Phase::Held(held_lease) => Some(held_lease.lease.number()),
            Phase::Returning(returning) => Some(returning.lease.number()),
            Phase::Idle | Phase::Yielding { .. } | Phase::Contending(_) => None,
        }
    }

    /// Returns the error of an acquire that stops waiting now.
    pub(crate) fn why_not(&mut self, now: Moment) -> Error {
        let lease_left = match &self.phase {
            Phase::Returning(Returning {
                trouble: Some((from, seen)),
                ..
            }) if *from <= now => return seen.error(now),
            Phase::Contending(contending) => match contending.seen {
                LastReply::Busy(until) => Some(until.since(now)),
                LastReply::Nothing | LastReply::Trouble(_) => return contending.seen.error(now),
            },
            _ => None,
        };
        let error = Error::new(ErrorKind::Busy).with_retry_after(self.free_in(now));
        match lease_left {
            Some(left) => error.with_lease_left(left),
            None if self.is_held() => error.held_here(),
            None => error,
        }
    }
}

impl LastReply {
    /// Returns the error of an acquire that waits no longer.
    pub(crate) fn error(&self, now: Moment) -> Error {
        match self {
            Self::Nothing => Error::new(ErrorKind::Unavailable).with_source(NoReply),
            // A retry does not help against the other kinds.
            Self::Trouble(error) => Error::of_backend(error.clone()),
            Self::Busy(until) => {
                let lease = until.since(now);
                Error::new(ErrorKind::Busy)
                    .with_retry_after(lease.min(REMAINING_HOLD))
                    .with_lease_left(lease)
            }
        }
    }
}
