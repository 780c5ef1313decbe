//! When a lease is renewed, and what is in flight for it.

use std::time::Duration;

use crate::lock::clock::Moment;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upkeep {
    Due(Moment),
    /// The last renewal failed, so the next one is not sent early.
    RetryDue(Moment),
    /// A renewal or a downgrade was sent at `since`.
    InFlight {
        since: Moment,
        next: NextRenewal,
    },
}

/// When a renewal is due while a command is in flight. As small as a [`Moment`]: each held lock stores one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextRenewal {
    /// A third of the lease after the command.
    Later,
    AfterReply,
    /// This many microseconds after the command was sent, without waiting for the reply: the runtime that sent
    /// it may not run.
    WithoutReply(u32),
}

impl NextRenewal {
    fn without_reply(since: Moment, at: Moment) -> Self {
        let micros = at.since(since).as_micros();
        Self::WithoutReply(u32::try_from(micros).unwrap_or(u32::MAX))
    }
}

impl Upkeep {
    pub(super) fn sent(now: Moment) -> Self {
        Self::InFlight {
            since: now,
            next: NextRenewal::Later,
        }
    }

    pub(super) fn in_flight_since(self) -> Option<Moment> {
        match self {
            Self::InFlight { since, .. } => Some(since),
            Self::Due(_) | Self::RetryDue(_) => None,
        }
    }

    /// Returns when a renewal is due without the reply to the command in flight.
    pub(super) fn reply_due(self) -> Option<Moment> {
        match self {
            Self::InFlight {
                since,
                next: NextRenewal::WithoutReply(micros),
            } => Some(since + Duration::from_micros(micros.into())),
            Self::InFlight { .. } | Self::Due(_) | Self::RetryDue(_) => None,
        }
    }

    /// Returns when the next renewal is due, or `None` if the reply to a command comes first.
    pub(super) fn due(self) -> Option<Moment> {
        match self {
            Self::Due(at) | Self::RetryDue(at) => Some(at),
            Self::InFlight { .. } => self.reply_due(),
        }
    }

    /// Makes a renewal due then, whenever it was due, or after the reply to the command in flight.
    pub(super) fn postpone(&mut self, until: Moment) {
        match self {
            Self::Due(at) | Self::RetryDue(at) => *at = until,
            Self::InFlight { .. } => self.hasten(until),
        }
    }

    /// Makes a renewal due now, or after the reply to the command in flight.
    pub(super) fn hasten(&mut self, now: Moment) {
        match self {
            Self::Due(at) | Self::RetryDue(at) => *at = (*at).min(now),
            Self::InFlight { since, next } => match next {
                NextRenewal::Later | NextRenewal::AfterReply => *next = NextRenewal::AfterReply,
                NextRenewal::WithoutReply(micros) => {
                    let due = *since + Duration::from_micros((*micros).into());
                    *next = NextRenewal::without_reply(*since, due.min(now));
                }
            },
        }
    }

    /// Returns `true` if a renewal became due while a command was in flight.
    pub(super) fn is_due_again(self, now: Moment) -> bool {
        match self {
            Self::InFlight { next, .. } => match next {
                NextRenewal::Later => false,
                NextRenewal::AfterReply => true,
                NextRenewal::WithoutReply(_) => self.reply_due().is_some_and(|at| at <= now),
            },
            Self::Due(_) | Self::RetryDue(_) => false,
        }
    }

    /// Makes a renewal due if the reply to a command in flight has not come within this time.
    pub(super) fn expect_reply_within(&mut self, time: Duration, now: Moment) {
        if let Self::InFlight { since, next } = self {
            *next = match *next {
                NextRenewal::Later => NextRenewal::without_reply(*since, now + time),
                NextRenewal::AfterReply => NextRenewal::without_reply(*since, now),
                NextRenewal::WithoutReply(micros) => NextRenewal::WithoutReply(micros),
            };
        }
    }
}
