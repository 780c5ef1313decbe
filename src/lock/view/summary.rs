//! What all lanes of one key contain together.

use smol_str::SmolStr;

use super::{HoldView, LaneView};
use crate::FencingToken;
use crate::LockKey;
use crate::backend::Mode;
use crate::lock::clock::Moment;
use crate::lock::lane::{HeldBy, Lane};
use crate::observe::{Name, Tally};

/// The lanes of one key: one for locks, and one for each permit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Summary {
    holders: Option<Holders>,
    pub(super) waiters: usize,
    held_by: Option<HeldBy>,
    pub(super) is_returning: bool,
}

/// The owners that hold the key.
#[derive(Debug, Clone, Copy)]
struct Holders {
    mode: Mode,
    owners: usize,
    /// The grant of the oldest hold.
    since: Moment,
    name: Name,
    /// The first end of their leases.
    until: Moment,
    holds: u32,
    /// The token, unless theirs differ.
    token: Option<FencingToken>,
}

impl Summary {
    pub(super) fn of(lane: &Lane) -> Self {
        let grants = lane.holders().map(|grant| Holders {
            mode: lane.mode(),
            owners: 1,
            since: grant.granted_at(),
            name: grant.name(),
            until: grant.valid_until(),
            holds: grant.holds(),
            token: Some(grant.token()),
        });
        Self {
            holders: grants.reduce(Holders::and),
            waiters: lane.waiters(),
            held_by: Some(lane.held_by()),
            is_returning: lane.is_returning(),
        }
    }

    /// Adds another lane of the key.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            holders: match (self.holders, other.holders) {
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
        self.holders.is_some() || self.waiters > 0
    }

    /// Returns when the oldest hold began.
    pub(super) fn since(&self) -> Option<Moment> {
        self.holders.map(|holders| holders.since)
    }

    /// Returns when the first of the leases ends.
    pub(super) fn until(&self) -> Option<Moment> {
        self.holders.map(|holders| holders.until)
    }

    pub(super) fn view(&self, key: &LockKey, now: Moment, tally: &Tally) -> LaneView {
        let layer = self.holders.and_then(|holders| tally.text(holders.name));
        LaneView {
            key: key.clone(),
            hold: self.holders.map(|holders| HoldView {
                mode: holders.mode,
                owners: holders.owners,
                since: now.since(holders.since),
                left: holders.until.since(now),
                holds: holders.holds,
                token: holders.token,
            }),
            layer: layer.map(SmolStr::new),
            held_by: self.held_by.unwrap_or(HeldBy::Unknown),
            waiters: self.waiters,
        }
    }
}

impl Holders {
    fn and(self, other: Self) -> Self {
        let (old, new) = match self.since <= other.since {
            true => (self, other),
            false => (other, self),
        };
        Self {
            owners: old.owners + new.owners,
            until: old.until.min(new.until),
            holds: old.holds.saturating_add(new.holds),
            token: old.token.filter(|token| Some(*token) == new.token),
            ..old
        }
    }
}
