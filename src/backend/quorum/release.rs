//! Releases leases on all nodes.
//!
//! The outcome requires a majority. Releases at the other nodes continue in tasks.

use std::sync::Arc;

use super::flight::Flight;
use super::inner::Inner;
use super::ledger::{Claim, Ledger};
use super::tally::Tally;
use crate::backend::{BackendError, BoxFuture, Release, Released};

/// A node's replies, each with the index of its lease.
type Answers = Vec<(usize, Result<Released, BackendError>)>;

/// Sends releases and counts the replies, until a majority agrees on each outcome or the time is over.
pub(super) async fn release(
    inner: &Arc<Inner>,
    leases: &[Release],
) -> Vec<Result<Released, BackendError>> {
    let nodes = inner.nodes.len();
    let (flight, mut tallies) = inner.recall(leases);
    let count = |tallies: &mut [Tally], answers: Answers| {
        for (lease, outcome) in answers {
            tallies[lease].count(outcome, &Released::NotHeld);
        }
    };
    inner.tally(flight, &mut tallies, count).await;
    // A node may leave the key to its own clients, which is a release as well.
    let outcomes = tallies.into_iter();
    let outcomes = outcomes.map(|it| it.outcome(nodes, Released::Released, Released::NotHeld));
    outcomes.collect()
}

impl Inner {
    /// Disowns leases and prepares one command per node.
    pub(super) fn recall(self: &Arc<Self>, leases: &[Release]) -> (Flight<Answers>, Vec<Tally>) {
        let mut batches: Vec<Vec<(usize, Claim)>> = self.nodes.iter().map(|_| Vec::new()).collect();
        let mut tallies = Vec::with_capacity(leases.len());
        for (index, Release { key, lease }) in leases.iter().enumerate() {
            let (claims, out) = Ledger::disown(&self.ledger, key, *lease);
            for claim in claims {
                batches[claim.node].push((index, claim));
            }
            tallies.push(Tally {
                not_held: out,
                ..Tally::default()
            });
        }
        let mut flight = Flight::new();
        for (node, batch) in batches.into_iter().enumerate() {
            if !batch.is_empty() {
                flight.push(node, self.release_at(node, batch));
            }
        }
        (flight, tallies)
    }

    /// Releases leases at a node. Those that it does not confirm are [`owed`](super::owed).
    pub(super) fn release_at(
        self: &Arc<Self>,
        node: usize,
        batch: Vec<(usize, Claim)>,
    ) -> BoxFuture<Answers> {
        let leases = batch.iter().map(|(_, claim)| {
            let (key, lease) = &claim.name;
            Release::new(key.clone(), *lease)
        });
        let command = Arc::clone(&self.nodes[node]).release(leases.collect());
        let inner = Arc::clone(self);
        Box::pin(async move {
            // Only the end of the runtime drops this future. The claims are dropped too, and the leases
            // expire.
            let outcomes = command.await;
            let answers = batch.into_iter().zip(outcomes);
            let answers = answers.map(|((lease, claim), outcome)| {
                if outcome.is_ok() {
                    claim.out();
                }
                (lease, outcome)
            });
            let answers: Answers = answers.collect();
            if answers.iter().any(|(_, outcome)| outcome.is_err()) {
                inner.repeat_releases(node);
            }
            answers
        })
    }
}
