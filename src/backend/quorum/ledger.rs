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
//! | owed: in, and unwanted | as in | as in | |
//! | claimed | is not sent | is left to the claim | in or owed, or certainly out |
//! | claimed and stalled | is not sent | is sent: claimed again | |
//!
//! A node owes the release of an unwanted lease that it may hold, without a claim. The ledger keeps the names of these
//! leases per node, so nothing searches all leases, of which a process may hold many.
//!
//! An entry is removed when its lease is unwanted and out everywhere, or when it must have expired and has
//! no claim. A wanted lease keeps its entry: a reply to an earlier command may arrive between two claims of
//! a repeated attempt.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
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
    nodes: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    leases: HashMap<KeyLease, Entry>,
    /// The leases whose release each node owes, the oldest first.
    owed: Vec<BTreeMap<u64, KeyLease>>,
    /// The last number of a claim or of an owed release.
    last: u64,
    /// The number of entries at which expired ones are removed. It is then set to twice the remaining
    /// number.
    sweep_at: usize,
}

impl Entries {
    /// Removes the entries of expired leases. A reply to a claim belongs to its entry.
    fn sweep(&mut self) {
        let now = Instant::now();
        (0..self.owed.len()).for_each(|node| self.expire(node, now));
        let is_idle = |state: &NodeState| matches!(state, NodeState::Out | NodeState::In);
        self.leases
            .retain(|_, entry| entry.until > now || !entry.nodes.iter().all(is_idle));
        self.sweep_at = 64.max(2 * self.leases.len());
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Sets the state of a node. Returns `true` if it owes the release, because it may hold an unwanted lease.
    fn set(&mut self, node: usize, name: &KeyLease, state: NodeState) -> bool {
        let nth = self.next();
        let Some(entry) = self.leases.get_mut(name) else {
            return false;
        };
        let owes = entry.unwanted && state == NodeState::In;
        let state = if owes { NodeState::Owed(nth) } else { state };
        if let NodeState::Owed(before) = std::mem::replace(&mut entry.nodes[node], state) {
            self.owed[node].remove(&before);
        }
        if owes {
            self.owed[node].insert(nth, name.clone());
        }
        if entry.is_over() {
            self.leases.remove(name);
        }
        owes
    }

    /// Claims a node for a command that is sent at `since`.
    fn claim(
        &mut self,
        ledger: &Arc<Ledger>,
        node: usize,
        name: &KeyLease,
        before: NodeState,
        since: Instant,
    ) -> Claim {
        let nth = self.next();
        self.set(node, name, NodeState::Claimed { nth, since });
        Claim {
            ledger: Arc::clone(ledger),
            node,
            name: name.clone(),
            nth,
            before,
            then: NodeState::In,
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

    /// Returns the leases whose release the node owes, at most so many.
    fn owed(&mut self, node: usize, most: usize, now: Instant) -> Vec<KeyLease> {
        self.expire(node, now);
        self.owed[node].values().take(most).cloned().collect()
    }
}

#[derive(Debug)]
struct Entry {
    /// The time at which the lease must have expired on every node.
    until: Instant,
    /// The lease was released or not granted, so each node that still holds it must release it.
    unwanted: bool,
    nodes: Vec<NodeState>,
}

impl Entry {
    fn is_over(&self) -> bool {
        self.unwanted && self.nodes.iter().all(|state| *state == NodeState::Out)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeState {
    Out,
    In,
    /// In and unwanted, under this number in the list of the node.
    Owed(u64),
    /// The number identifies the claim.
    Claimed {
        nth: u64,
        since: Instant,
    },
}

impl Ledger {
    pub(super) fn new(nodes: usize) -> Arc<Self> {
        let entries = Entries {
            owed: vec![BTreeMap::new(); nodes],
            ..Entries::default()
        };
        let entries = Mutex::new(entries);
        Arc::new(Self { nodes, entries })
    }

    /// Records that the lease is wanted and expires at `until` at the latest.
    pub(super) fn open(&self, key: &LockKey, lease: LeaseId, until: Instant) {
        let mut entries = self.entries.lock();
        if entries.leases.len() >= entries.sweep_at {
            entries.sweep();
        }
        let Entries { leases, owed, .. } = &mut *entries;
        let entry = leases.entry((key.clone(), lease)).or_insert_with(|| Entry {
            until,
            unwanted: false,
            nodes: vec![NodeState::Out; self.nodes],
        });
        entry.until = entry.until.max(until);
        entry.unwanted = false;
        for (state, owed) in entry.nodes.iter_mut().zip(owed) {
            if let NodeState::Owed(nth) = *state {
                owed.remove(&nth);
                *state = NodeState::In;
            }
        }
    }

    /// Records that the lease may have been extended.
    pub(super) fn prolong(&self, key: &LockKey, lease: LeaseId, until: Instant) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.leases.get_mut(&(key.clone(), lease)) {
            entry.until = entry.until.max(until);
        }
    }

    /// Returns the right to vote for a lease at a node, or `None` while it is claimed.
    pub(super) fn claim(
        self: &Arc<Self>,
        node: usize,
        key: &LockKey,
        lease: LeaseId,
    ) -> Option<Claim> {
        let name = (key.clone(), lease);
        let mut entries = self.entries.lock();
        let before = match entries.leases.get(&name)?.nodes[node] {
            NodeState::Claimed { .. } => return None,
            NodeState::Out => NodeState::Out,
            NodeState::In | NodeState::Owed(_) => NodeState::In,
        };
        Some(entries.claim(self, node, &name, before, Instant::now()))
    }

    /// Records that the lease is not wanted any more. Returns the claims that release it, and the number of
    /// nodes that cannot hold it. Any node may hold an unknown lease.
    pub(super) fn disown(self: &Arc<Self>, key: &LockKey, lease: LeaseId) -> (Vec<Claim>, usize) {
        let name = (key.clone(), lease);
        let (mut entries, now) = (self.entries.lock(), Instant::now());
        let entry = entries.leases.entry(name.clone());
        let entry = entry.or_insert_with(|| Entry {
            until: now + UNKNOWN_LEASE,
            unwanted: true,
            nodes: vec![NodeState::In; self.nodes],
        });
        entry.unwanted = true;
        let states: SmallVec<[_; 5]> = entry.nodes.iter().copied().collect();
        let (mut claims, mut out) = (Vec::new(), 0);
        for (node, state) in states.into_iter().enumerate() {
            match state {
                NodeState::Out => out += 1,
                NodeState::Claimed { since, .. } if now - since < STALLED => {}
                _ => claims.push(entries.claim(self, node, &name, NodeState::In, now)),
            }
        }
        if out == self.nodes {
            entries.leases.remove(&name);
        }
        (claims, out)
    }

    /// Returns claims that release leases which the node owes, at most so many.
    pub(super) fn owed(self: &Arc<Self>, node: usize, most: usize) -> Vec<Claim> {
        let (mut entries, now) = (self.entries.lock(), Instant::now());
        let names = entries.owed(node, most, now).into_iter();
        let claims = names.map(|name| entries.claim(self, node, &name, NodeState::In, now));
        claims.collect()
    }

    pub(super) fn owes_nothing(&self, node: usize) -> bool {
        self.entries.lock().owed(node, 1, Instant::now()).is_empty()
    }

    /// Returns `true` if the node owes so many releases that it receives no votes.
    pub(super) fn is_full(&self, node: usize) -> bool {
        let mut entries = self.entries.lock();
        entries.expire(node, Instant::now());
        entries.owed[node].len() >= FULL
    }

    /// Returns `true` if no node can hold a lease that is not wanted any more.
    pub(super) fn is_out(&self, key: &LockKey, lease: LeaseId) -> bool {
        let entries = self.entries.lock();
        !entries.leases.contains_key(&(key.clone(), lease))
    }
}

/// The right to send one command for one lease to one node. If dropped without a reply, the node counts as
/// one that may hold the lease.
#[derive(Debug)]
pub(super) struct Claim {
    ledger: Arc<Ledger>,
    node: usize,
    name: KeyLease,
    nth: u64,
    /// The state of the node before the claim, and after it.
    before: NodeState,
    then: NodeState,
}

impl Claim {
    pub(super) fn node(&self) -> usize {
        self.node
    }

    pub(super) fn name(&self) -> &KeyLease {
        &self.name
    }

    /// Records that the lease may be at the node until `until`. Returns `true` if its release is owed.
    pub(super) fn granted(self, until: Instant) -> bool {
        let mut entries = self.ledger.entries.lock();
        // A release that took over the claim may have removed the entry.
        let entry = entries.leases.entry(self.name.clone());
        let entry = entry.or_insert_with(|| Entry {
            until,
            unwanted: true,
            nodes: vec![NodeState::Out; self.ledger.nodes],
        });
        entry.until = entry.until.max(until);
        // Another claim may have the node now. Its reply may be older than this effect.
        entries.set(self.node, &self.name, NodeState::In)
    }

    /// Records that the command did not and will not take effect. Returns `true` if a release is owed from before.
    pub(super) fn unchanged(mut self) -> bool {
        self.then = self.before;
        self.end()
    }

    /// Records that the lease is not and will not be at the node.
    pub(super) fn out(mut self) {
        self.then = NodeState::Out;
    }

    /// Sets the state of the node if it still has this claim.
    fn end(&mut self) -> bool {
        let mut entries = self.ledger.entries.lock();
        let entry = entries.leases.get(&self.name);
        let state = entry.map(|entry| entry.nodes[self.node]);
        matches!(state, Some(NodeState::Claimed { nth, .. }) if nth == self.nth)
            && entries.set(self.node, &self.name, self.then)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests;
