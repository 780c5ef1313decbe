//! Which nodes may hold which lease of this process, and which of them is being talked to.
//!
//! A release must not overtake an acquire, on no node. So there is never more than one vote or
//! release of a lease in flight at a node: a sender takes a [`Claim`] first. If there is a claim, its owner finds
//! the lease unwanted when the reply arrives, and releases it.
//!
//! | state | a vote | a release | the answer |
//! |---|---|---|---|
//! | out: it cannot be there | goes out: claimed | has nothing to do | |
//! | in: it may be there | goes out: claimed | goes out: claimed | |
//! | claimed | is left out | is left to the claim | in, or out for sure |
//!
//! An entry goes when its lease is unwanted and out everywhere, or must have run out and nothing is
//! claimed. While it is wanted it stays: between two claims of a try that was made again, an answer to
//! what went before may come.

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
    /// It was released, or never granted: each node that still holds it must release it.
    unwanted: bool,
    nodes: Vec<NodeState>,
}

impl Entry {
    /// What is under way may still have an effect, and its answer belongs to this entry.
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

    /// The lease is wanted, and over at `until` at the latest.
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
        let state = &mut entries.leases.get_mut(&name)?.nodes[node];
        let before = std::mem::replace(state, NodeState::Claimed);
        (before != NodeState::Claimed).then(|| Claim::new(self, node, &name, before))
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
        if !entry.unwanted || entry.nodes[node] != NodeState::In {
            return None;
        }
        entry.nodes[node] = NodeState::Claimed;
        Some(Claim::new(self, node, &name, NodeState::In))
    }

    /// Whether no node can hold a lease that is not wanted any more.
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
        fn sweep_at_next_open(&self) {
            self.entries().sweep_at = 0;
        }
    }

    #[test]
    fn an_answer_to_an_earlier_command_takes_no_claim_from_a_try_that_is_made_again() {
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
    fn a_lease_that_has_run_out_is_remembered_while_its_vote_is_under_way() {
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
        ledger.reclaim(0, &key, lease).expect("to be given back");
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
        // The next sweep waits for as many entries again.
        assert_eq!(ledger.entries().sweep_at, 80);
    }
}
