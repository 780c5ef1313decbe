//! The nodes that may hold a lease of this process, and the commands in flight for it.
//!
//! A release must not overtake an acquire on any node. A node has at most one vote or release of a lease in
//! flight: a sender acquires a [`Claim`] first. If there is a claim, its owner finds the lease unwanted
//! when the reply arrives, and releases it. The runtime of that owner may idle or block, so a release takes over
//! a claim that is older than [`STALLED`]. If the vote takes effect even later, its owner releases the lease.
//!
//! | state | a vote | a release | the reply |
//! |---|---|---|---|
//! | out: the lease cannot be there | is sent: claimed | is not needed | |
//! | in: the lease may be there | is sent: claimed | is sent: claimed | |
//! | claimed | is not sent | is left to the claim | in, or certainly out |
//! | claimed and stalled | is not sent | is sent: claimed again | |
//!
//! A node owes the release of an unwanted lease whose state is *in*. The ledger keeps the names of these leases per node, so nothing searches all leases, of which a process may hold many.
//!
//! An entry is removed when its lease is unwanted and out everywhere, or when it must have expired and has
//! no claim. A wanted lease keeps its entry: a reply to an earlier command may arrive between two claims of
//! a repeated attempt.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use crate::LockKey;
use crate::backend::LeaseId;
use crate::mutex::Mutex;

type KeyLease = (LockKey, LeaseId);

/// The age at which a release takes over a claim. With the default response timeout, a command in a runtime
/// that is driven ends before.
const STALLED: Duration = Duration::from_secs(2);

/// The time for which a release of an unknown lease is repeated at nodes that do not reply.
const UNKNOWN_LEASE: Duration = Duration::from_secs(1);

/// The number of owed releases at which a node receives no further votes, those in flight aside. Each vote that it took
/// without a reply would leave another release, until its lease expires.
pub(super) const FULL: usize = 10_000;

#[derive(Debug)]
pub(super) struct Ledger {
    leases: HashMap<KeyLease, Entry>,
    /// The leases whose release each node owes, the oldest first: by the number of their state there.
    owed: Vec<BTreeMap<u64, KeyLease>>,
    /// The number of the last change of a state.
    last: u64,
    /// The number of entries at which expired ones are removed. It is then set to twice the remaining
    /// number.
    sweep_at: usize,
}

impl Ledger {
    /// Removes the entries of expired leases. A reply to a claim belongs to its entry.
    fn sweep(&mut self) {
        let now = Instant::now();
        (0..self.owed.len()).for_each(|node| self.expire(node, now));
        let is_claimed = |(_, state): &(u64, _)| matches!(state, NodeState::Claimed { .. });
        // An unwanted lease without a claim is owed.
        self.leases.retain(|_, entry| {
            entry.unwanted || entry.until > now || entry.nodes.iter().any(is_claimed)
        });
        self.sweep_at = 64.max(2 * self.leases.len());
    }

    /// Returns the entry of a lease. A new one is unwanted, and in this state at each node.
    fn entry(&mut self, name: &KeyLease, until: Instant, state: NodeState) -> &mut Entry {
        let nodes = self.owed.len();
        self.leases.entry(name.clone()).or_insert_with(|| Entry {
            until,
            unwanted: true,
            nodes: smallvec![(0, state); nodes],
        })
    }

    /// Sets the state of a node. Returns `true` if it owes the release, because it may hold an unwanted lease.
    fn set(&mut self, node: usize, name: &KeyLease, state: NodeState) -> bool {
        self.last += 1;
        let Some(entry) = self.leases.get_mut(name) else {
            return false;
        };
        let owes = entry.unwanted && state == NodeState::In;
        let (before, _) = std::mem::replace(&mut entry.nodes[node], (self.last, state));
        self.owed[node].remove(&before);
        if owes {
            self.owed[node].insert(self.last, name.clone());
        }
        let is_out = |(_, state): &(u64, _)| *state == NodeState::Out;
        if entry.unwanted && entry.nodes.iter().all(is_out) {
            self.leases.remove(name);
        }
        owes
    }

    /// Claims a node for a command that is sent at `since`.
    fn claim_at(
        &mut self,
        ledger: &Arc<Mutex<Self>>,
        node: usize,
        name: &KeyLease,
        before: NodeState,
        since: Instant,
    ) -> Claim {
        self.set(node, name, NodeState::Claimed { since });
        Claim {
            ledger: Arc::clone(ledger),
            node,
            name: name.clone(),
            nth: self.last,
            before,
        }
    }

    /// Makes the first releases that a node owes out if their leases must have expired.
    fn expire(&mut self, node: usize, now: Instant) {
        while let Some(first) = self.owed[node].first_entry()
            && (self.leases.get(first.get())).is_none_or(|entry| entry.until <= now)
        {
            let name = first.remove();
            self.set(node, &name, NodeState::Out);
        }
    }
}

#[derive(Debug)]
struct Entry {
    /// The time at which the lease must have expired on every node.
    until: Instant,
    /// The lease was released or not granted, so each node that still holds it must release it.
    unwanted: bool,
    /// The state at each node, and the number of its last change.
    nodes: SmallVec<[(u64, NodeState); 5]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeState {
    Out,
    In,
    Claimed { since: Instant },
}

impl Ledger {
    pub(super) fn new(nodes: usize) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            leases: HashMap::new(),
            owed: vec![BTreeMap::new(); nodes],
            last: 0,
            sweep_at: 0,
        }))
    }

    /// Records that the lease is wanted and expires at `until` at the latest.
    pub(super) fn open(&mut self, key: &LockKey, lease: LeaseId, until: Instant) {
        if self.leases.len() >= self.sweep_at {
            self.sweep();
        }
        let entry = self.entry(&(key.clone(), lease), until, NodeState::Out);
        entry.until = entry.until.max(until);
        entry.unwanted = false;
        let states = entry.nodes.clone();
        for ((nth, _), owed) in states.iter().zip(&mut self.owed) {
            owed.remove(nth);
        }
    }

    /// Records that the lease may have been extended.
    pub(super) fn prolong(&mut self, key: &LockKey, lease: LeaseId, until: Instant) {
        if let Some(entry) = self.leases.get_mut(&(key.clone(), lease)) {
            entry.until = entry.until.max(until);
        }
    }

    /// Returns the right to vote for a lease at a node, or `None` while it is claimed.
    pub(super) fn claim(
        this: &Arc<Mutex<Self>>,
        node: usize,
        key: &LockKey,
        lease: LeaseId,
    ) -> Option<Claim> {
        let (mut ledger, name) = (this.lock(), (key.clone(), lease));
        match ledger.leases.get(&name)?.nodes[node] {
            (_, NodeState::Claimed { .. }) => None,
            (_, before) => Some(ledger.claim_at(this, node, &name, before, Instant::now())),
        }
    }

    /// Records that the lease is not wanted any more. Returns the claims that release it, and the number of
    /// nodes that cannot hold it. Any node may hold an unknown lease.
    pub(super) fn disown(
        this: &Arc<Mutex<Self>>,
        key: &LockKey,
        lease: LeaseId,
    ) -> (Vec<Claim>, usize) {
        let name = (key.clone(), lease);
        let (mut ledger, now) = (this.lock(), Instant::now());
        let entry = ledger.entry(&name, now + UNKNOWN_LEASE, NodeState::In);
        entry.unwanted = true;
        let states = entry.nodes.clone();
        let (mut claims, mut out) = (Vec::new(), 0);
        for (node, (_, state)) in states.into_iter().enumerate() {
            match state {
                NodeState::Out => out += 1,
                NodeState::Claimed { since, .. } if now - since < STALLED => {}
                _ => claims.push(ledger.claim_at(this, node, &name, NodeState::In, now)),
            }
        }
        if out == ledger.owed.len() {
            ledger.leases.remove(&name);
        }
        (claims, out)
    }

    /// Returns claims that release leases which the node owes, at most so many.
    pub(super) fn owed(this: &Arc<Mutex<Self>>, node: usize, most: usize) -> Vec<Claim> {
        let (mut ledger, now) = (this.lock(), Instant::now());
        ledger.expire(node, now);
        let names: Vec<_> = ledger.owed[node].values().take(most).cloned().collect();
        let claims = names
            .iter()
            .map(|name| ledger.claim_at(this, node, name, NodeState::In, now));
        claims.collect()
    }

    /// Returns the number of releases that the node owes.
    pub(super) fn owes(&mut self, node: usize) -> usize {
        self.expire(node, Instant::now());
        self.owed[node].len()
    }

    /// Returns `true` if no node can hold a lease that is not wanted any more.
    pub(super) fn is_out(&self, key: &LockKey, lease: LeaseId) -> bool {
        !self.leases.contains_key(&(key.clone(), lease))
    }
}

/// The right to send one command for one lease to one node. If dropped without a reply, the node counts as
/// one that may hold the lease.
#[derive(Debug)]
pub(super) struct Claim {
    ledger: Arc<Mutex<Ledger>>,
    pub(super) node: usize,
    pub(super) name: KeyLease,
    nth: u64,
    before: NodeState,
}

impl Claim {
    /// Records that the lease may be at the node until `until`. Returns `true` if its release is owed.
    pub(super) fn granted(self, until: Instant) -> bool {
        let mut entries = self.ledger.lock();
        // A release that took over the claim may have removed the entry.
        let entry = entries.entry(&self.name, until, NodeState::Out);
        entry.until = entry.until.max(until);
        // Another claim may have the node now. Its reply may be older than this effect.
        entries.set(self.node, &self.name, NodeState::In)
    }

    /// Records that the command did not and will not take effect. Returns `true` if a release is owed from before.
    pub(super) fn unchanged(self) -> bool {
        self.end(self.before)
    }

    /// Records that the lease is not and will not be at the node. Returns `false`: no release is owed.
    pub(super) fn out(self) -> bool {
        self.end(NodeState::Out)
    }

    /// Sets the state of the node if it still has this claim.
    fn end(&self, state: NodeState) -> bool {
        let mut entries = self.ledger.lock();
        let entry = entries.leases.get(&self.name);
        entry.is_some_and(|entry| entry.nodes[self.node].0 == self.nth)
            && entries.set(self.node, &self.name, state)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end(NodeState::In);
    }
}

#[cfg(test)]
mod tests;
