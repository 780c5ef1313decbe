//! How owners join a shared lease, as the replies to its renewals show it.

use tower_lock::backend::LeaseId;

use super::Seen;
use crate::store::Outcome;
use crate::time::Time;

/// The joins of a lease since the last reply to a renewal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Joins {
    /// When the last reply arrived, if it said that an exclusive lease waits.
    pub closed: Option<Time>,
    /// When the exclusive lease entered the queue that waits at the joins, and the first join that asks for it.
    pub asked: Option<(Time, Time)>,
}

impl Seen {
    /// Takes note of the reply to a renewal.
    pub(super) fn renewed(&mut self, lease: LeaseId, outcome: Outcome, now: Time) {
        let closed = match outcome {
            Outcome::RenewedWanted => Some(now),
            Outcome::Renewed => None,
            _ => return,
        };
        self.joins.entry(lease).or_default().closed = closed;
    }
}
