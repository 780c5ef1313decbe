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

type Name = (LockKey, LeaseId);

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
    leases: HashMap<Name, Entry>,
    /// The number of entries at which expired ones are removed. It is then set to twice the remaining
    /// number.
    sweep_at: usize,
    claims: u64,
}

impl Entries {
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
    /// The state of the node before the claim, during it, and after it.
    before: NodeState,
    claimed: NodeState,
    then: NodeState,
}

impl Claim {
    fn new(
        ledger: &Arc<Ledger>,
        node: usize,
        name: &Name,
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

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Returns `true` if the lease may still be at the node.
    pub(super) fn is_owed(&self, now: Instant) -> bool {
        let entries = self.ledger.entries();
        let entry = entries.leases.get(&self.name);
        entry.is_some_and(|entry| entry.until > now && entry.nodes[self.node] == self.claimed)
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

    #[tokio::test(start_paused = true)]
    async fn release_takes_over_stalled_claims() {
        let ledger = Ledger::new(1);
        let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
        let until = Instant::now() + Duration::from_secs(60);
        ledger.open(&key, lease, until);
        let vote = ledger.claim(0, &key, lease).expect("not claimed");
        let release = || ledger.disown(&key, lease, None).0.pop();
        assert!(release().is_none(), "the vote's sender releases it");
        tokio::time::advance(STALLED).await;
        let first = release().expect("taken over");
        assert!(release().is_none(), "the release is in flight");
        tokio::time::advance(STALLED).await;
        let second = release().expect("taken over");
        assert!(!first.is_owed(Instant::now()) && second.is_owed(Instant::now()));
        // The reply to the first release says nothing about the second.
        first.out();
        assert!(!ledger.is_out(&key, lease));
        second.out();
        assert!(ledger.is_out(&key, lease));
        vote.granted(until);
        let third = ledger.reclaim(0, &key, lease);
        third.expect("the lease of the late vote is released").out();
        assert!(ledger.is_out(&key, lease));
    }

    #[tokio::test(start_paused = true)]
    async fn late_vote_is_released_after_release_in_flight() {
        let ledger = Ledger::new(1);
        let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
        let until = Instant::now() + Duration::from_secs(60);
        ledger.open(&key, lease, until);
        let vote = ledger.claim(0, &key, lease).expect("not claimed");
        tokio::time::advance(STALLED).await;
        let release = ledger.disown(&key, lease, None).0.pop();
        vote.granted(until);
        let another = ledger.reclaim(0, &key, lease).expect("granted later");
        // The release may have overtaken the vote.
        release.expect("taken over").out();
        assert!(!ledger.is_out(&key, lease));
        another.out();
        assert!(ledger.is_out(&key, lease));
    }

    #[tokio::test(start_paused = true)]
    async fn late_vote_of_repeated_attempt_is_kept() {
        late_vote_is_kept(true).await;
        late_vote_is_kept(false).await;
    }

    async fn late_vote_is_kept(release_first: bool) {
        let ledger = Ledger::new(1);
        let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
        let until = Instant::now() + Duration::from_secs(60);
        ledger.open(&key, lease, until);
        let vote = ledger.claim(0, &key, lease).expect("not claimed");
        tokio::time::advance(STALLED).await;
        let release = ledger.disown(&key, lease, None).0.pop();
        ledger.open(&key, lease, until);
        // The replies may arrive in any order.
        let release = release.expect("taken over");
        if release_first {
            release.out();
            vote.granted(until);
        } else {
            vote.granted(until);
            release.out();
        }
        assert!(ledger.reclaim(0, &key, lease).is_none(), "wanted again");
        assert_eq!(ledger.disown(&key, lease, None).0.len(), 1, "still there");
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
