//! The request of one acquire to a lane.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use crate::Owner;
use crate::backend::Mode;
use crate::lock::clock::{Clock, Moment, Span};
use crate::observe::{Name, RequestSpan};

/// The position of an acquire in any queue; smaller is earlier. Never reused, so that a late departure
/// cannot remove another acquire.
pub(crate) type Ticket = u64;

/// The position of an acquire in the queue of its lane when it joined it, or `None` if it did not queue. The next
/// acquire has the position 1.
pub(crate) type QueuePosition = Option<NonZeroU32>;

/// Identifies the hold of an acquire, on all of its keys.
pub(crate) type HoldId = u64;

/// The owner, the terms and the deadline of one acquire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) ticket: Ticket,
    pub(crate) hold: HoldId,
    pub(crate) owner: Owner,
    /// The owner was created for this claim, so it has no other one.
    pub(crate) is_owner_fresh: bool,
    pub(crate) terms: Terms,
    pub(crate) deadline: Deadline,
    /// The claim is for one of several keys: its grant is picked up once all of them are granted.
    pub(crate) of_several: bool,
    /// The acquire has a deadline, and holds other keys already: a shutdown serves it.
    pub(crate) served_at_shutdown: bool,
    pub(crate) clock: Clock,
    /// When the acquire began.
    pub(crate) since: Moment,
    pub(crate) name: Name,
    /// The span of the caller.
    pub(crate) span: RequestSpan,
}

/// The requested lifetime of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The length of the lease.
    pub(crate) ttl: Span,
    /// Whether the watchdog renews the lease while the lock is held.
    pub(crate) renewed: bool,
    pub(crate) mode: Mode,
    /// The most permits of the key, if the mode is [`Mode::Permit`].
    pub(crate) limit: Option<NonZeroU16>,
    /// The longest hold, after which the lock is lost despite renewals.
    pub(crate) max_hold: Span,
    /// For how long the lease stays here after the lock is dropped, if its key comes back.
    pub(crate) keep: Option<Keep>,
}

/// The time for which a released lease is kept, in units of 2 µs. At most 100 ms, so that it takes no space beside the other
/// parts of the terms and of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep(NonZeroU16);

/// In nanoseconds.
const UNIT: u32 = 2_000;

impl Keep {
    /// Returns `None` for zero. Longer times than 100 ms are invalid.
    pub(crate) fn new(time: Duration) -> Option<Self> {
        let nanos = u32::try_from(time.as_nanos()).unwrap_or(u32::MAX);
        let units = nanos.div_ceil(UNIT);
        NonZeroU16::new(u16::try_from(units).unwrap_or(u16::MAX)).map(Self)
    }

    pub(crate) fn span(self) -> Span {
        Span::new(Duration::from_nanos(
            u64::from(UNIT) * u64::from(self.0.get()),
        ))
    }
}

/// The end of an acquire's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// The acquire makes exactly one attempt, which ends by then.
    OneAttempt(Moment),
    At(Moment),
    Endless,
}

impl Deadline {
    pub(crate) fn moment(self) -> Option<Moment> {
        match self {
            Self::OneAttempt(until) | Self::At(until) => Some(until),
            Self::Endless => None,
        }
    }

    pub(crate) fn is_one_attempt(self) -> bool {
        matches!(self, Self::OneAttempt(_))
    }

    /// Returns `true` if an acquire still waits at `at`. A single attempt does not wait for others.
    pub(crate) fn outlasts(self, at: Moment) -> bool {
        match self {
            Self::OneAttempt(_) => false,
            Self::At(until) => until > at,
            Self::Endless => true,
        }
    }

    pub(crate) fn has_passed(self, now: Moment) -> bool {
        self.moment().is_some_and(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tests::MS;

    #[test]
    fn acquire_waits_until_before_its_deadline() {
        let until = Moment::now();
        let at = Deadline::At(until);
        assert!(at.outlasts(until.before(MS)) && !at.has_passed(until.before(MS)));
        assert!(!at.outlasts(until) && at.has_passed(until));
        assert!(!Deadline::OneAttempt(until).outlasts(until.before(MS)));
        assert!(Deadline::Endless.outlasts(until) && !Deadline::Endless.has_passed(until));
    }
}
