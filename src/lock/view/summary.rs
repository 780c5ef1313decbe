//! What all lanes of one key contain together.

use std::time::Duration;

use smol_str::SmolStr;

use super::LaneView;
use crate::FencingToken;
use crate::LockKey;
use crate::backend::Mode;
use crate::lock::clock::Moment;
use crate::lock::lane::{HeldBy, Lane};
use crate::observe::{Name, Tally};

/// The lanes of one key: one for locks, and one for each permit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Summary {
    /// The holds of this process, or `None` while only waiters are here.
    pub(crate) hold: Option<Holds>,
    pub(crate) waiters: usize,
    held_by: Option<HeldBy>,
    pub(super) is_returning: bool,
}

/// The holds of the owners of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holds {
    pub(crate) mode: Mode,
    pub(crate) owners: usize,
    /// The time since the first grant.
    pub(crate) since: Duration,
    /// The layer name of that grant.
    name: Name,
    /// The time until the first of their leases ends if no renewal succeeds.
    pub(crate) left: Duration,
    pub(crate) holds: u32,
    /// `None` if their tokens differ.
    pub(crate) token: Option<FencingToken>,
}

impl Summary {
    pub(super) fn of(lane: &Lane, now: Moment) -> Self {
        let grants = lane.holders().map(|grant| Holds {
            mode: lane.mode(),
            owners: 1,
            since: now.since(grant.granted_at),
            name: grant.name,
            left: grant.valid_until().since(now),
            holds: grant.holds(),
            token: Some(grant.token()),
        });
        Self {
            hold: grants.reduce(Holds::and),
            waiters: lane.waiters(),
            held_by: Some(lane.held_by()),
            is_returning: lane.is_returning(),
        }
    }

    /// Adds another lane of the key.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            hold: match (self.hold, other.hold) {
                (Some(one), Some(other)) => Some(one.and(other)),
                (one, other) => one.or(other),
            },
            waiters: self.waiters + other.waiters,
            held_by: match (self.held_by, other.held_by) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            },
            is_returning: self.is_returning | other.is_returning,
        }
    }

    pub(super) fn is_shown(&self) -> bool {
        self.hold.is_some() || self.waiters > 0
    }

    pub(crate) fn held_by(&self) -> HeldBy {
        self.held_by.unwrap_or(HeldBy::Unknown)
    }

    pub(super) fn view(self, key: &LockKey, tally: &Tally) -> LaneView {
        let layer = self.hold.and_then(|hold| tally.text(hold.name));
        LaneView {
            key: key.clone(),
            layer: layer.map(SmolStr::new),
            lanes: self,
        }
    }
}

impl Holds {
    fn and(self, other: Self) -> Self {
        let (old, new) = match self.since >= other.since {
            true => (self, other),
            false => (other, self),
        };
        Self {
            owners: old.owners + new.owners,
            left: old.left.min(new.left),
            holds: old.holds.saturating_add(new.holds),
            token: old.token.filter(|token| Some(*token) == new.token),
            ..old
        }
    }
}
