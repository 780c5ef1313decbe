//! When a lease is renewed, and what is in flight for it.

use crate::lock::clock::Moment;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RenewalState {
    Due(Moment),
    /// The last renewal failed, so the next one is not sent early.
    RetryDue(Moment),
    /// A renewal or a downgrade was sent.
    InFlight {
        /// Whether another one is due after the reply.
        again: bool,
    },
}

impl RenewalState {
    pub(super) const SENT: Self = Self::InFlight { again: false };

    /// Returns when the next renewal is due, or `None` if the reply to a command comes first.
    pub(super) fn due(self) -> Option<Moment> {
        match self {
            Self::Due(at) | Self::RetryDue(at) => Some(at),
            Self::InFlight { .. } => None,
        }
    }

    /// Makes a renewal due now, or after the reply to the command in flight.
    pub(super) fn hasten(&mut self, now: Moment) {
        match self {
            Self::Due(at) | Self::RetryDue(at) => *at = (*at).min(now),
            Self::InFlight { again } => *again = true,
        }
    }
}
