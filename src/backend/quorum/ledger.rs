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
//! A node owes the release of an unwanted lease that it may hold, without a claim. The ledger keeps the names of these
//! leases per node, so nothing searches all leases, of which a process may hold many.
//!
//! An entry is removed when its lease is unwanted and out everywhere, or when it must have expired and has
//! no claim. A wanted lease keeps its entry: a reply to an earlier command may arrive between two claims of
//! a repeated attempt.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::LockKey;
use crate::backend::LeaseId;

type KeyLease = (LockKey, LeaseId);

/// The age at which a release takes over a claim. With the default response timeout, a command in a runtime
/// that is driven ends before.
const STALLED: Duration = Duration::from_secs(2);

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
    /// The leases whose release each node owes, the oldest first. Some may be confirmed, wanted or expired by now.
    owed: Vec<VecDeque<KeyLease>>,
    /// The number of entries at which expired ones are removed. It is then set to twice the remaining
    /// number.
    sweep_at: usize,
    claims: u64,
}

impl Entries {
    fn sweep(&mut self) {
        let now = Instant::now();
        self.leases.retain(|_, entry| !entry.has_expired(now));
        self.sweep_at = 64.max(2 * self.leases.len());
    }

    /// Sets the state of a node whose claim has ended.
    fn settle(&mut self, node: usize, name: &KeyLease, state: NodeState) {
        let Some(entry) = self.leases.get_mut(name) else {
            return;
        };
        entry.nodes[node] = state;
        if entry.is_over() {
            self.leases.remove(name);
        } else if entry.unwanted && state == NodeState::In && !entry.owed_by.contains(&node) {
            entry.owed_by.push(node);
            // Most late votes are released at once, and nothing else looks for what is owed then.
            self.first_owed(node, Instant::now());
            self.owed[node].push_back(name.clone());
        }
    }

    /// Returns the first lease whose release the node owes. Removes those before it that it does not owe any more, and
    /// those that must have expired.
    fn first_owed(&mut self, node: usize, now: Instant) -> Option<&KeyLease> {
        while let Some(name) = self.owed[node].front() {
            if let Some(entry) = self.leases.get_mut(name) {
                if entry.is_owed_by(node, now) {
                    break;
                }
                entry.owed_by.retain(|it| *it != node);
                if entry.has_expired(now) {
                    self.leases.remove(name);
                }
            }
            self.owed[node].pop_front();
        }
        self.owed[node].front()
    }

    /// Claims the first lease whose release the node owes.
    fn claim_owed(&mut self, node: usize, now: Instant, claimed: NodeState) -> Option<KeyLease> {
        self.first_owed(node, now)?;
        let name = self.owed[node].pop_front()?;
        let entry = self.leases.get_mut(&name)?;
        entry.owed_by.retain(|it| *it != node);
        entry.nodes[node] = claimed;
        Some(name)
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
    /// The nodes in whose list of owed releases it is.
    owed_by: Vec<usize>,
}

impl Entry {
    fn new(until: Instant, unwanted: bool, nodes: Vec<NodeState>) -> Self {
        Self {
            until,
            unwanted,
            nodes,
            owed_by: Vec::new(),
        }
    }

    /// Returns `true` if no node can hold the lease, and no command in flight can change that.
    fn has_expired(&self, now: Instant) -> bool {
        self.until <= now && !self.is_claimed()
    }

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
        let entries = Entries {
            owed: vec![VecDeque::new(); nodes],
            ..Entries::default()
        };
        let entries = Mutex::new(entries);
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
        let entry =
            entry.or_insert_with(|| Entry::new(until, false, vec![NodeState::Out; self.nodes]));
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
            entry.or_insert_with(|| Entry::new(until, true, vec![NodeState::In; self.nodes]));
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

    /// Returns claims that release leases which the node owes, at most so many.
    pub(super) fn owed(self: &Arc<Self>, node: usize, most: usize) -> Vec<Claim> {
        let (mut entries, now) = (self.entries(), Instant::now());
        let claimed = entries.claimed();
        let next = std::iter::from_fn(|| entries.claim_owed(node, now, claimed));
        let claims = next.take(most);
        let claims = claims.map(|name| Claim::new(self, node, &name, NodeState::In, claimed));
        claims.collect()
    }

    pub(super) fn owes_nothing(&self, node: usize) -> bool {
        let mut entries = self.entries();
        entries.first_owed(node, Instant::now()).is_none()
    }

    /// Returns `true` if the node owes so many releases that it receives no votes.
    pub(super) fn is_full(&self, node: usize) -> bool {
        self.entries().owed[node].len() >= FULL
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
        let out = || vec![NodeState::Out; self.ledger.nodes];
        let entry = entry.or_insert_with(|| Entry::new(until, true, out()));
        entry.until = entry.until.max(until);
        if entry.nodes[self.node] != self.claimed {
            // Whatever has the node now, its reply may be older than this effect.
            entries.settle(self.node, &self.name, NodeState::In);
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
        if let Some(entry) = entries.leases.get(&self.name)
            && entry.nodes[self.node] == self.claimed
        {
            entries.settle(self.node, &self.name, self.then);
        }
    }
}

#[cfg(test)]
mod tests;
