//! The nodes that may hold a lease of this process, and the commands in flight for it.
//!
//! A release must not overtake an acquire on any node. A node has at most one vote or release of a lease in
//! flight: a sender acquires a [`Claim`] first. If there is a claim, its owner finds the lease unwanted
//! when the reply arrives, and releases it.
//!
//! | state | a vote | a release | the reply |
//! |---|---|---|---|
//! | out: the lease cannot be there | is sent: claimed | is not needed | |
//! | in: the lease may be there | is sent: claimed | is sent: claimed | |
//! | claimed | is not sent | is left to the claim | in, or certainly out |
//!
//! An entry is removed when its lease is unwanted and out everywhere, or when it must have expired and has
//! no claim. A wanted lease keeps its entry: a reply to an earlier command may arrive between two claims of
//! a repeated attempt.

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
    /// The number of entries at which expired ones are removed. It is then set to twice the remaining
    /// number.
    sweep_at: usize,
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
    /// Returns `true` if a command in flight may still take effect. Its reply belongs to this entry.
    fn is_claimed(&self) -> bool {
        self.nodes.contains(&NodeState::Claimed)
    }

    fn is_over(&self) -> bool {
        self.unwanted && self.nodes.iter().all(|state| *state == NodeState::Out)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeState {
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

    /// Records that the lease is wanted and expires at `until` at the latest.
    pub(super) fn open(&self, key: &LockKey, lease: LeaseId, until: Instant) {
        let mut entries = self.entries();
        if entries.leases.len() >= entries.sweep_at {
            let now = Instant::now();
            let stays = |entry: &Entry| entry.until > now || entry.is_claimed();
            entries.leases.retain(|_, entry| stays(entry));
            entries.sweep_at = 64.max(2 * entries.leases.len());
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
        let state = &mut entries.leases.get_mut(&name)?.nodes[node];
        let before = std::mem::replace(state, NodeState::Claimed);
        (before != NodeState::Claimed).then(|| Claim::new(self, node, &name, before))
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
        let claims = nodes.filter(|(_, state)| **state == NodeState::In);
        let claims = claims.map(|(node, state)| {
            *state = NodeState::Claimed;
            Claim::new(self, node, &name, NodeState::In)
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
        let entry = entries.leases.get_mut(&name)?;
        if !entry.unwanted || entry.nodes[node] != NodeState::In {
            return None;
        }
        entry.nodes[node] = NodeState::Claimed;
        Some(Claim::new(self, node, &name, NodeState::In))
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
    name: Name,
    /// The state of the node before the claim, and after it.
    before: NodeState,
    then: NodeState,
}

impl Claim {
    fn new(ledger: &Arc<Ledger>, node: usize, name: &Name, before: NodeState) -> Self {
        Self {
            ledger: Arc::clone(ledger),
            node,
            name: name.clone(),
            before,
            then: NodeState::In,
        }
    }

    pub(super) fn node(&self) -> usize {
        self.node
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Returns `true` if the lease may still be at the node.
    pub(super) fn is_owed(&self, now: Instant) -> bool {
        let entries = self.ledger.entries();
        let entry = entries.leases.get(&self.name);
        entry.is_some_and(|entry| entry.until > now)
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
        if let Some(entry) = entries.leases.get_mut(&self.name) {
            entry.nodes[self.node] = self.then;
            if entry.is_over() {
                entries.leases.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;

    impl Ledger {
        pub(in crate::backend::quorum) fn len(&self) -> usize {
            self.entries().leases.len()
        }

        fn sweep_at_next_open(&self) {
            self.entries().sweep_at = 0;
        }
    }

    #[test]
    fn earlier_reply_keeps_claim_of_repeated_attempt() {
        let ledger = Ledger::new(2);
        let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
        let until = Instant::now() + Duration::from_secs(60);
        ledger.open(&key, lease, until);
        for node in 0..2 {
            drop(ledger.claim(node, &key, lease).expect("not claimed"));
        }
        let (mut claims, out) = ledger.disown(&key, lease, None);
        assert_eq!((claims.len(), out), (2, 0));
        let slow = claims.pop().expect("two");
        claims.pop().expect("two").out();
        ledger.open(&key, lease, until);
        slow.out();
        for node in 0..2 {
            ledger.claim(node, &key, lease).expect("not claimed").out();
        }
        let (claims, out) = ledger.disown(&key, lease, None);
        assert_eq!((claims.len(), out), (0, 2));
        assert!(ledger.is_out(&key, lease));
    }

    #[test]
    fn expired_lease_with_vote_in_flight_is_kept() {
        let ledger = Ledger::new(1);
        let (key, other) = (LockKey::new("k"), LockKey::new("other"));
        let lease = LeaseId::new(Uuid::from_u128(1), 1);
        let now = Instant::now();
        ledger.open(&key, lease, now);
        let vote = ledger.claim(0, &key, lease).expect("not claimed");
        ledger.disown(&key, lease, None);
        ledger.sweep_at_next_open();
        ledger.open(&other, lease, now);
        assert!(!ledger.is_out(&key, lease));
        drop(vote);
        ledger
            .reclaim(0, &key, lease)
            .expect("the lease must be released");
        ledger.sweep_at_next_open();
        ledger.open(&other, lease, now);
        assert!(ledger.is_out(&key, lease));
    }

    #[test]
    fn sweep_keeps_unexpired_leases() {
        let ledger = Ledger::new(1);
        let lease = LeaseId::new(Uuid::from_u128(1), 1);
        let now = Instant::now();
        let until = now + Duration::from_secs(60);
        for nth in 0..40 {
            let key = LockKey::new(format!("k{nth}"));
            ledger.open(&key, lease, until);
        }
        let key = LockKey::new("k0");
        let claim = ledger.claim(0, &key, lease).expect("not claimed");
        assert!(claim.is_owed(now) && !claim.is_owed(until));
        drop(claim);
        ledger.sweep_at_next_open();
        ledger.open(&LockKey::new("other"), lease, now);
        assert!(!ledger.is_out(&key, lease));
        // The next sweep is due when as many entries were added.
        assert_eq!(ledger.entries().sweep_at, 80);
    }

    #[test]
    fn prolonged_lease_is_owed_until_later_end() {
        let ledger = Ledger::new(1);
        let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        ledger.open(&key, lease, now + 2 * second);
        let claim = ledger.claim(0, &key, lease).expect("not claimed");
        for (until, end) in [(3, 3), (1, 3)] {
            ledger.prolong(&key, lease, now + until * second);
            let end = now + end * second;
            assert!(claim.is_owed(end - second) && !claim.is_owed(end));
        }
    }

    #[test]
    fn command_without_effect_leaves_node_unchanged() {
        let ledger = Ledger::new(1);
        let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
        let claim = || ledger.claim(0, &key, lease).expect("not claimed");
        ledger.open(&key, lease, Instant::now() + Duration::from_secs(60));
        claim().unchanged();
        assert_eq!(ledger.disown(&key, lease, None).1, 1, "out");
        ledger.open(&key, lease, Instant::now() + Duration::from_secs(60));
        // The node may have granted the lease.
        drop(claim());
        claim().unchanged();
        assert_eq!(ledger.disown(&key, lease, None).0.len(), 1, "still there");
    }
}
