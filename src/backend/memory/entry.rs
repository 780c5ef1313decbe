//! The leases that hold one key.

use std::num::NonZeroU16;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use crate::backend::{Holder, LeaseId, Mode};

/// The leases that hold a key in one mode, each until it expires.
#[derive(Debug)]
pub(super) struct Entry {
    mode: Mode,
    leases: SmallVec<[Held; 1]>,
}

/// What a key has room for besides the leases that hold it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Room {
    /// Nothing: an exclusive lease holds it.
    None,
    /// Shared leases.
    Shared,
    /// Permits whose limit is above this number.
    Permits(usize),
}

impl Room {
    pub(super) fn admits(self, mode: Mode, limit: Option<NonZeroU16>) -> bool {
        match self {
            Self::None => false,
            Self::Shared => mode == Mode::Shared,
            Self::Permits(held) => {
                mode == Mode::Permit && limit.is_some_and(|limit| held < limit.get().into())
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) lease: LeaseId,
    pub(super) expires: Instant,
}

impl Entry {
    pub(super) fn new(lease: LeaseId, mode: Mode, expires: Instant) -> Self {
        let leases = smallvec![Held { lease, expires }];
        Self { mode, leases }
    }

    pub(super) fn room(&self) -> Room {
        match self.mode {
            Mode::Exclusive => Room::None,
            Mode::Shared => Room::Shared,
            Mode::Permit => Room::Permits(self.leases.len()),
        }
    }

    /// Describes the holder. `None` if no lease holds the key.
    pub(super) fn holder(&self, now: Instant) -> Option<Holder> {
        let last = self.last_to_expire()?;
        let holder = Holder::new(last.lease.to_string(), last.expires - now, 1);
        let leases = u32::try_from(self.leases.len()).unwrap_or(u32::MAX);
        Some(match self.mode {
            Mode::Exclusive => holder,
            Mode::Shared => holder.with_shared(leases),
            Mode::Permit => holder.with_permits(leases),
        })
    }

    /// Returns the lease of a key that has one.
    pub(super) fn only(&self) -> Option<&Held> {
        match &self.leases[..] {
            [held] => Some(held),
            _ => None,
        }
    }

    pub(super) fn has(&self, lease: LeaseId) -> bool {
        self.leases.iter().any(|held| held.lease == lease)
    }

    /// Drops the expired leases. Returns `true` if the key is held.
    pub(super) fn is_live(&mut self, now: Instant) -> bool {
        self.leases.retain(|held| held.expires > now);
        !self.leases.is_empty()
    }

    fn last_to_expire(&self) -> Option<&Held> {
        self.leases.iter().max_by_key(|held| held.expires)
    }

    /// Returns when the key is free if no lease is renewed.
    pub(super) fn expires(&self) -> Option<Instant> {
        self.last_to_expire().map(|held| held.expires)
    }

    /// Returns when a lease of this mode could hold the key if no lease is renewed.
    pub(super) fn has_room_at(&self, mode: Mode) -> Option<Instant> {
        match (self.mode, mode) {
            (Mode::Permit, Mode::Permit) => self.leases.iter().map(|held| held.expires).min(),
            _ => self.expires(),
        }
    }

    pub(super) fn lease(&self, which: impl Fn(&Held) -> bool) -> Option<LeaseId> {
        let held = self.leases.iter().find(|held| which(held));
        held.map(|held| held.lease)
    }

    pub(super) fn find(&mut self, lease: LeaseId) -> Option<&mut Held> {
        self.leases.iter_mut().find(|held| held.lease == lease)
    }

    /// Makes the exclusive lease with this id a shared one, or returns the shared one.
    pub(super) fn share(&mut self, lease: LeaseId) -> Option<&mut Held> {
        if self.mode == Mode::Permit || !self.has(lease) {
            return None;
        }
        self.mode = Mode::Shared;
        self.find(lease)
    }

    /// Adds a lease beside the others.
    pub(super) fn join(&mut self, lease: LeaseId, expires: Instant) {
        if self.mode != Mode::Exclusive {
            self.leases.push(Held { lease, expires });
        }
    }

    /// Removes a lease. Returns `false` if other leases hold the key.
    pub(super) fn is_last(&mut self, lease: LeaseId) -> bool {
        self.leases.retain(|held| held.lease != lease);
        self.leases.is_empty()
    }
}
