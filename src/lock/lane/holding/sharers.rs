//! The other owners that share a lease.

use std::time::Duration;

use hashbrown::HashTable;

use super::OwnerHolds;
use crate::Owner;
use crate::lock::clock::Moment;

/// The age of the last reply at which an owner that joins a shared lease makes a renewal due. The reply shows whether
/// an exclusive acquire of another process waits.
const ASK_AFTER: Duration = Duration::from_millis(50);

/// The time between two renewals while an exclusive acquire of another process keeps owners of this one from joining.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(250);

/// The time after which owners no longer join a lease without a reply.
const JOIN_WITHOUT_REPLY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Sharers {
    /// The owners besides the first one, which share the lease. By owner, which each grant contains: a map would store it
    /// twice, and thousands of owners can share a lease.
    pub(super) readers: HashTable<OwnerHolds>,
    /// A time at or before which the first of these ends, without its release or the end of the lease.
    pub(super) readers_end: Option<Moment>,
    /// Whether the owners may have asked for different terms.
    pub(super) is_mixed: bool,
    joining: Joining,
}

/// Whether further owners may join a shared lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joining {
    /// No process waited, according to the grant, or to a reply to a command that was sent then.
    Open(Moment),
    /// The same, and a renewal has been due since then.
    Asking(Moment),
    /// An exclusive acquire of another process waits.
    Closed,
}

impl Sharers {
    /// Creates the list of those that share a lease that was granted then.
    pub(super) fn new(granted_at: Moment) -> Self {
        Self {
            readers: HashTable::new(),
            readers_end: None,
            is_mixed: false,
            joining: Joining::Open(granted_at),
        }
    }

    pub(super) fn reader(&mut self, owner: Owner) -> Option<&mut OwnerHolds> {
        (self.readers).find_mut(hash(owner), |it| it.grant.owner() == owner)
    }

    pub(super) fn add(&mut self, reader: OwnerHolds) {
        let hash_of = |it: &OwnerHolds| hash(it.grant.owner());
        (self.readers).insert_unique(hash_of(&reader), reader, hash_of);
    }

    pub(super) fn remove(&mut self, owner: Owner) -> Option<OwnerHolds> {
        let found = (self.readers).find_entry(hash(owner), |it| it.grant.owner() == owner);
        Some(found.ok()?.remove().0)
    }

    /// Removes any of the readers.
    pub(super) fn pop(&mut self) -> Option<OwnerHolds> {
        let owner = self.readers.iter().next()?.grant.owner();
        self.remove(owner)
    }

    /// Returns `true` if an owner may join at `now`.
    pub(super) fn is_open(&self, now: Moment) -> bool {
        match self.joining {
            Joining::Open(_) => true,
            Joining::Asking(since) => now < since + JOIN_WITHOUT_REPLY,
            Joining::Closed => false,
        }
    }

    /// Returns `true` if the reply to a renewal decides whether owners may join.
    pub(super) fn awaits_reply(&self) -> bool {
        matches!(self.joining, Joining::Asking(_) | Joining::Closed)
    }

    /// Records that an owner joins the lease. Returns `true` if a renewal is due.
    pub(super) fn asks(&mut self, now: Moment) -> bool {
        let asks = matches!(self.joining, Joining::Open(replied) if now >= replied + ASK_AFTER);
        if asks {
            self.joining = Joining::Asking(now);
        }
        asks
    }

    /// Applies the reply to a renewal that was sent at `sent_at`.
    pub(super) fn replied(&mut self, sent_at: Moment, wanted: bool) {
        self.joining = if wanted {
            Joining::Closed
        } else {
            Joining::Open(sent_at)
        };
    }

    /// Records when a reader ends, without its release or the end of the lease.
    pub(super) fn expect_end(&mut self, at: Moment) {
        self.readers_end = Some(self.readers_end.map_or(at, |end| end.min(at)));
    }
}

/// The numbers of owners are consecutive. The multiplication distributes them over all bits, of which the table uses the
/// high and the low ones.
fn hash(owner: Owner) -> u64 {
    owner.number().wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
