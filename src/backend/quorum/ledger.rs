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
//! An entry is removed when its lease is unwanted and out everywhere, or when it must have expired and has
//! no claim. A wanted lease keeps its entry: a reply to an earlier command may arrive between two claims of
//! a repeated attempt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::LockKey;
use crate::backend::LeaseId;

type KeyLease = (LockKey, LeaseId);

/// The age at which a release takes over a claim. With the default response timeout, a command in a runtime
/// that is driven ends before.
const STALLED: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Ledger {
    nodes: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    leases: HashMap<KeyLease, Entry>,
    /// The number of entries at which expired ones are removed. It is then set to twice the remaining
    /// number.
    sweep_at: usize,
    claims: u64,
}

impl Entries {
    fn sweep(&mut self) {
        let now = Instant::now();
        let stays = |entry: &Entry| entry.until > now || entry.is_claimed();
        self.leases.retain(|_, entry| stays(entry));
        self.sweep_at = 64.max(2 * self.leases.len());
    }

    /// Claims a node for a command that is sent now.
    fn claimed(&mut self) -> NodeState {
        self.claims += 1;
        NodeState::Claimed {
            nth: self.claims,
            since: Instant::now(),
        }
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
    /// Returns `true` if the node may hold a lease that is not wanted any more, and no command releases it there.
    fn is_owed_by(&self, node: usize, now: Instant) -> bool {
        self.unwanted && self.until > now && self.nodes[node] == NodeState::In
    }

    /// Returns `true` if a command in flight may still take effect. Its reply belongs to this entry.
    fn is_claimed(&self) -> bool {
        self.nodes.iter().any(|state| state.is_claimed())
    }

    fn is_over(&self) -> bool {
        self.unwanted && self.nodes.iter().all(|state| *state == NodeState::Out)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeState {
    Out,
    In,
    /// The number identifies the claim.
    Claimed {
        nth: u64,
        since: Instant,
    },
}

impl NodeState {
    fn is_claimed(self) -> bool {
        matches!(self, Self::Claimed { .. })
    }

    /// Returns `true` if a release at this node is sent now.
    fn takes_release(self) -> bool {
        match self {
            Self::Out => false,
            Self::In => true,
            Self::Claimed { since, .. } => since.elapsed() >= STALLED,
        }
    }
}

impl Ledger {
    pub(super) fn new(nodes: usize) -> Arc<Self> {
        let entries = Mutex::default();
        Arc::new(Self { nodes, entries })
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the lease is wanted and expires at `until` at the latest.
    pub(super) fn open(&self, key: &LockKey, lease: LeaseId, until: Instant) {
        let mut entries = self.entries();
        if entries.leases.len() >= entries.sweep_at {
            entries.sweep();
        }
        let entry = entries.leases.entry((key.clone(), lease));
        let entry = entry.or_insert_with(|| Entry {
            until,
            unwanted: false,
            nodes: vec![NodeState::Out; self.nodes],
        });
        entry.until = entry.until.max(until);
        entry.unwanted = false;
    }

    /// Records that the lease may have been extended.
    pub(super) fn prolong(&self, key: &LockKey, lease: LeaseId, until: Instant) {
        let mut entries = self.entries();
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
        let mut entries = self.entries();
        let claimed = entries.claimed();
        let state = &mut entries.leases.get_mut(&name)?.nodes[node];
        let before = *state;
        if before.is_claimed() {
            return None;
        }
        *state = claimed;
        Some(Claim::new(self, node, &name, before, claimed))
    }

    /// Records that the lease is not wanted any more. Returns the claims that release it, and the number of
    /// nodes that cannot hold it.
    ///
    /// An unknown lease is out everywhere, unless `unknown` is set: the nodes are then asked until that
    /// time.
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
                nodes: vec![NodeState::In; self.nodes],
            });
        }
        // One number serves all nodes: it has to differ from those of earlier claims of a node.
        let claimed = entries.claimed();
        let Some(entry) = entries.leases.get_mut(&name) else {
            return (Vec::new(), self.nodes);
        };
        entry.unwanted = true;
        if entry.is_over() {
            entries.leases.remove(&name);
            return (Vec::new(), self.nodes);
        }
        let out = entry.nodes.iter().filter(|state| **state == NodeState::Out);
        let out = out.count();
        let nodes = entry.nodes.iter_mut().enumerate();
        let claims = nodes.filter(|(_, state)| state.takes_release());
        let claims = claims.map(|(node, state)| {
            *state = claimed;
            Claim::new(self, node, &name, NodeState::In, claimed)
        });
        (claims.collect(), out)
    }

    /// Returns the claim that releases a lease which a node granted after it was disowned.
    pub(super) fn reclaim(
        self: &Arc<Self>,
        node: usize,
        key: &LockKey,
        lease: LeaseId,
    ) -> Option<Claim> {
        let name = (key.clone(), lease);
        let mut entries = self.entries();
        let claimed = entries.claimed();
        let entry = entries.leases.get_mut(&name)?;
        if !entry.unwanted || entry.nodes[node] != NodeState::In {
            return None;
        }
        entry.nodes[node] = claimed;
        Some(Claim::new(self, node, &name, NodeState::In, claimed))
    }

    /// Removes the leases that must have expired.
    pub(super) fn sweep(&self) {
        self.entries().sweep();
    }

    /// Returns claims that release leases which the node owes, at most so many.
    pub(super) fn owed(self: &Arc<Self>, node: usize, most: usize) -> Vec<Claim> {
        let (mut entries, now) = (self.entries(), Instant::now());
        let claimed = entries.claimed();
        let leases = entries.leases.iter_mut();
        let owed = leases.filter(|(_, entry)| entry.is_owed_by(node, now));
        let claims = owed.take(most).map(|(name, entry)| {
            entry.nodes[node] = claimed;
            Claim::new(self, node, name, NodeState::In, claimed)
        });
        claims.collect()
    }

    pub(super) fn owes_nothing(&self, node: usize) -> bool {
        let (entries, now) = (self.entries(), Instant::now());
        let mut leases = entries.leases.values();
        !leases.any(|entry| entry.is_owed_by(node, now))
    }

    /// Returns `true` if no node can hold a lease that is not wanted any more.
    pub(super) fn is_out(&self, key: &LockKey, lease: LeaseId) -> bool {
        !self.entries().leases.contains_key(&(key.clone(), lease))
    }
}

/// The right to send one command for one lease to one node. If dropped without a reply, the node counts as
/// one that may hold the lease.
#[derive(Debug)]
pub(super) struct Claim {
    ledger: Arc<Ledger>,
    node: usize,
    name: KeyLease,
    /// The state of the node before the claim, during it, and after it.
    before: NodeState,
    claimed: NodeState,
    then: NodeState,
}

impl Claim {
    fn new(
        ledger: &Arc<Ledger>,
        node: usize,
        name: &KeyLease,
        before: NodeState,
        claimed: NodeState,
    ) -> Self {
        Self {
            ledger: Arc::clone(ledger),
            node,
            name: name.clone(),
            before,
            claimed,
            then: NodeState::In,
        }
    }

    pub(super) fn node(&self) -> usize {
        self.node
    }

    pub(super) fn name(&self) -> &KeyLease {
        &self.name
    }

    /// Records that the lease may be at the node until `until`, also if a release has taken over this claim.
    pub(super) fn granted(self, until: Instant) {
        let mut entries = self.ledger.entries();
        let entry = entries.leases.entry(self.name.clone());
        // A release that took over the claim may have removed the entry.
        let entry = entry.or_insert_with(|| Entry {
            until,
            unwanted: true,
            nodes: vec![NodeState::Out; self.ledger.nodes],
        });
        entry.until = entry.until.max(until);
        if entry.nodes[self.node] != self.claimed {
            // Whatever has the node now, its reply may be older than this effect.
            entry.nodes[self.node] = NodeState::In;
        }
    }

    /// Records that the command did not and will not take effect.
    pub(super) fn unchanged(mut self) {
        self.then = self.before;
    }

    /// Records that the lease is not and will not be at the node.
    pub(super) fn out(mut self) {
        self.then = NodeState::Out;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut entries = self.ledger.entries();
        if let Some(entry) = entries.leases.get_mut(&self.name)
            && entry.nodes[self.node] == self.claimed
        {
            entry.nodes[self.node] = self.then;
            if entry.is_over() {
                entries.leases.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests;
