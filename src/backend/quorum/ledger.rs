//! Which nodes may hold which lease of this process, and which of them is being talked to.
//!
//! A release must not overtake an acquire, on no node. So there is never more than one vote or
//! release of a lease under way at a node: whoever wants to send one makes a [`Claim`] first. What
//! cannot be claimed is left to whoever has the claim, who finds the lease unwanted when the
//! answer comes and gives it back.
//!
//! | place | a vote | a release | the answer |
//! |---|---|---|---|
//! | out: it cannot be there | goes out: claimed | has nothing to do | |
//! | in: it may be there | goes out: claimed | goes out: claimed | |
//! | claimed | is left out | is left to the claim | in, or out for sure |
//!
//! An entry goes when its lease is out everywhere, or must have run out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::LockKey;
use crate::backend::LeaseId;

type Name = (LockKey, LeaseId);

#[derive(Debug)]
pub(super) struct Ledger {
    nodes: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    leases: HashMap<Name, Entry>,
    /// Entries that ran out are swept when there are so many; then it is twice what is left.
    sweep_at: usize,
}

#[derive(Debug)]
struct Entry {
    /// When the lease must have run out on every node.
    until: Instant,
    /// It was given back, or never granted: wherever it is found, it is to go.
    unwanted: bool,
    places: Vec<Place>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Out,
    In,
    Claimed,
}

impl Ledger {
    pub(super) fn new(nodes: usize) -> Arc<Self> {
        let entries = Mutex::default();
        Arc::new(Self { nodes, entries })
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease is wanted, and over at `until` at the latest.
    pub(super) fn open(&self, key: &LockKey, lease: LeaseId, until: Instant) {
        let mut entries = self.entries();
        if entries.leases.len() >= entries.sweep_at {
            let now = Instant::now();
            entries.leases.retain(|_, entry| entry.until > now);
            entries.sweep_at = 64.max(2 * entries.leases.len());
        }
        let entry = entries.leases.entry((key.clone(), lease));
        let entry = entry.or_insert_with(|| Entry {
            until,
            unwanted: false,
            places: vec![Place::Out; self.nodes],
        });
        entry.until = entry.until.max(until);
        entry.unwanted = false;
    }

    /// The lease may have been lengthened.
    pub(super) fn prolong(&self, key: &LockKey, lease: LeaseId, until: Instant) {
        let mut entries = self.entries();
        if let Some(entry) = entries.leases.get_mut(&(key.clone(), lease)) {
            entry.until = entry.until.max(until);
        }
    }

    /// The right to vote for a lease at a node; `None` while it is claimed.
    pub(super) fn claim(
        self: &Arc<Self>,
        node: usize,
        key: &LockKey,
        lease: LeaseId,
    ) -> Option<Claim> {
        let name = (key.clone(), lease);
        let mut entries = self.entries();
        let place = &mut entries.leases.get_mut(&name)?.places[node];
        let before = std::mem::replace(place, Place::Claimed);
        (before != Place::Claimed).then(|| Claim::new(self, node, &name, before))
    }

    /// The lease is not wanted any more: the claims that release it, and how many nodes cannot hold it.
    ///
    /// One that is not known here is out everywhere, unless it is to be looked for until `unknown`.
    pub(super) fn disown(
        self: &Arc<Self>,
        key: &LockKey,
        lease: LeaseId,
        unknown: Option<Instant>,
    ) -> (Vec<Claim>, usize) {
        let name = (key.clone(), lease);
        let mut entries = self.entries();
        if let Some(until) = unknown {
            let entry = entries.leases.entry(name.clone());
            entry.or_insert_with(|| Entry {
                until,
                unwanted: true,
                places: vec![Place::In; self.nodes],
            });
        }
        let Some(entry) = entries.leases.get_mut(&name) else {
            return (Vec::new(), self.nodes);
        };
        entry.unwanted = true;
        let out = entry.places.iter().filter(|place| **place == Place::Out);
        let out = out.count();
        let places = entry.places.iter_mut().enumerate();
        let claims = places.filter(|(_, place)| **place == Place::In);
        let claims = claims.map(|(node, place)| {
            *place = Place::Claimed;
            Claim::new(self, node, &name, Place::In)
        });
        (claims.collect(), out)
    }

    /// The claim that releases a lease which turned up at a node after it was given back.
    pub(super) fn reclaim(
        self: &Arc<Self>,
        node: usize,
        key: &LockKey,
        lease: LeaseId,
    ) -> Option<Claim> {
        let name = (key.clone(), lease);
        let mut entries = self.entries();
        let entry = entries.leases.get_mut(&name)?;
        if !entry.unwanted || entry.places[node] != Place::In {
            return None;
        }
        entry.places[node] = Place::Claimed;
        Some(Claim::new(self, node, &name, Place::In))
    }

    /// Whether no node can hold the lease.
    pub(super) fn is_out(&self, key: &LockKey, lease: LeaseId) -> bool {
        !self.entries().leases.contains_key(&(key.clone(), lease))
    }
}

/// The right to send one command for one lease to one node. Dropped without an answer, it leaves
/// behind that the lease may be there.
#[derive(Debug)]
pub(super) struct Claim {
    ledger: Arc<Ledger>,
    node: usize,
    name: Name,
    /// What the node's place was, and what it becomes.
    before: Place,
    then: Place,
}

impl Claim {
    fn new(ledger: &Arc<Ledger>, node: usize, name: &Name, before: Place) -> Self {
        Self {
            ledger: Arc::clone(ledger),
            node,
            name: name.clone(),
            before,
            then: Place::In,
        }
    }

    pub(super) fn node(&self) -> usize {
        self.node
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Whether the lease may still be there.
    pub(super) fn is_owed(&self, now: Instant) -> bool {
        let entries = self.ledger.entries();
        let entry = entries.leases.get(&self.name);
        entry.is_some_and(|entry| entry.until > now)
    }

    /// The command had no effect, and will have none.
    pub(super) fn unchanged(mut self) {
        self.then = self.before;
    }

    /// The lease is not at the node, and will not be.
    pub(super) fn out(mut self) {
        self.then = Place::Out;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut entries = self.ledger.entries();
        if let Some(entry) = entries.leases.get_mut(&self.name) {
            entry.places[self.node] = self.then;
            if entry.places.iter().all(|place| *place == Place::Out) {
                entries.leases.remove(&self.name);
            }
        }
    }
}
