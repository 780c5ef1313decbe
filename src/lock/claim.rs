//! What one acquire asks of a lane.

use super::clock::{Moment, Span};
use crate::Owner;
use crate::task::RuntimeId;

/// The place of an acquire in any queue: smaller is earlier. Never used twice, so that an acquire
/// that leaves late cannot take the place of another.
pub(super) type Ticket = u64;

/// Names the hold that an acquire gets, on all of its keys.
pub(super) type HoldId = u64;

/// Who asks for the lock, and under which terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) ticket: Ticket,
    pub(super) hold: HoldId,
    pub(super) owner: ClaimOwner,
    pub(super) terms: Terms,
    pub(super) deadline: Deadline,
    /// It is one of several keys: its grant is picked up once all of them are granted.
    pub(super) grouped: bool,
    /// The runtime whose background tasks serve this acquire and the grant it gets.
    pub(super) home: RuntimeId,
}

/// The owner of a claim. A fresh one is unknown to all other claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimOwner {
    Fresh(Owner),
    Named(Owner),
}

impl ClaimOwner {
    pub(super) fn get(self) -> Owner {
        match self {
            Self::Fresh(owner) | Self::Named(owner) => owner,
        }
    }
}

/// How long a lock is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    /// The length of the lease.
    pub(super) ttl: Span,
    /// Whether the watchdog renews it for as long as it is held.
    pub(super) renewed: bool,
    /// When the lock is lost however often it was renewed.
    pub(super) max_hold: Span,
}

/// How long an acquire waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deadline {
    /// Exactly one attempt, which ends by then.
    OneAttempt(Moment),
    At(Moment),
    Endless,
}

impl Deadline {
    pub(super) fn moment(self) -> Option<Moment> {
        match self {
            Self::OneAttempt(until) | Self::At(until) => Some(until),
            Self::Endless => None,
        }
    }

    pub(super) fn is_one_attempt(self) -> bool {
        matches!(self, Self::OneAttempt(_))
    }

    pub(super) fn has_passed(self, now: Moment) -> bool {
        self.moment().is_some_and(|until| until <= now)
    }
}
