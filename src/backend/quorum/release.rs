//! Releases leases on all nodes.
//!
//! The outcome requires a majority. Releases at the other nodes continue in tasks. Those that a node does not
//! confirm are [`owed`](super::owed).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::fault;
use super::flight::Flight;
use super::inner::Inner;
use super::ledger::Claim;
use crate::backend::{BackendError, BoxFuture, Release, Released};

/// The time for which a release of an unknown lease is repeated at nodes that do not reply.
const UNKNOWN_LEASE: Duration = Duration::from_secs(1);

/// One node's reply for one lease, and the claim if the release must be repeated.
pub(super) struct Answer {
    lease: usize,
    outcome: Result<Released, BackendError>,
    claim: Option<Claim>,
}

/// The replies of the nodes for one lease.
#[derive(Default)]
struct Tally {
    released: usize,
    /// The number of nodes that do not or cannot hold the lease.
    not_held: usize,
    failures: Vec<BackendError>,
    /// The claims at nodes where the release must be repeated.
    claims: Vec<Claim>,
}

impl Tally {
    /// Returns the result on which a majority agrees, if any.
    fn outcome(&self, nodes: usize) -> Option<Released> {
        let majority = nodes / 2 + 1;
        if self.released >= majority {
            Some(Released::Released)
        } else if self.not_held >= majority {
            Some(Released::NotHeld)
        } else {
            None
        }
    }
}

pub(super) async fn release(
    inner: &Arc<Inner>,
    leases: &[Release],
) -> Vec<Result<Released, BackendError>> {
    let nodes = inner.nodes.len();
    let tallies = tally(inner, leases).await.into_iter();
    let outcomes = tallies.map(|tally| match tally.outcome(nodes) {
        Some(outcome) => {
            inner.owe(tally.claims);
            Ok(outcome)
        }
        // The claims are dropped, because the engine repeats the release.
        None => {
            let silent = nodes - tally.released - tally.not_held - tally.failures.len();
            Err(fault::no_majority(tally.failures, silent, nodes, true))
        }
    });
    outcomes.collect()
}

/// Releases leases that have no owner which repeats a failed release.
pub(super) async fn release_ownerless(inner: &Arc<Inner>, leases: &[Release]) {
    for tally in tally(inner, leases).await {
        inner.owe(tally.claims);
    }
}

/// Sends releases and counts the replies, until a majority agrees on each outcome or the time is over.
async fn tally(inner: &Arc<Inner>, leases: &[Release]) -> Vec<Tally> {
    let nodes = inner.nodes.len();
    let unknown = Instant::now() + UNKNOWN_LEASE;
    let (mut flight, mut tallies) = inner.recall(leases, Some(unknown));
    let deadline = Instant::now() + inner.node_timeout;
    // Replies are polled before they are counted, so that every command is sent.
    while let Some((_, answers)) = flight.next_until(deadline).await {
        for answer in answers {
            let tally = &mut tallies[answer.lease];
            match answer.outcome {
                Ok(Released::NotHeld) => tally.not_held += 1,
                // A node may leave the key to its own clients.
                Ok(_) => tally.released += 1,
                Err(error) => tally.failures.push(error),
            }
            tally.claims.extend(answer.claim);
        }
        if tallies.iter().all(|tally| tally.outcome(nodes).is_some()) {
            break;
        }
    }
    inner.finish_releases(flight);
    tallies
}

impl Inner {
    /// Disowns leases and prepares one command per node.
    fn recall(
        self: &Arc<Self>,
        leases: &[Release],
        unknown: Option<Instant>,
    ) -> (Flight<Vec<Answer>>, Vec<Tally>) {
        let mut batches: Vec<Vec<(usize, Claim)>> = self.nodes.iter().map(|_| Vec::new()).collect();
        let mut tallies = Vec::with_capacity(leases.len());
        for (index, Release { key, lease }) in leases.iter().enumerate() {
            let (claims, out) = self.ledger.disown(key, *lease, unknown);
            for claim in claims {
                batches[claim.node()].push((index, claim));
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

    pub(super) fn release_at(
        &self,
        node: usize,
        batch: Vec<(usize, Claim)>,
    ) -> BoxFuture<Vec<Answer>> {
        let leases = batch.iter().map(|(_, claim)| {
            let (key, lease) = claim.name();
            Release::new(key.clone(), *lease)
        });
        let command = Arc::clone(&self.nodes[node]).release(leases.collect());
        Box::pin(async move {
            // Only the end of the runtime drops this future. The claims are dropped too, and the leases
            // expire.
            let outcomes = command.await;
            let answers = batch.into_iter().zip(outcomes);
            let answers = answers.map(|((lease, claim), outcome)| {
                let claim = match &outcome {
                    Ok(_) => {
                        claim.out();
                        None
                    }
                    Err(_) => Some(claim),
                };
                Answer {
                    lease,
                    outcome,
                    claim,
                }
            });
            answers.collect()
        })
    }

    /// Releases a lease that was not granted. The commands are sent at the first poll. Waits for each node
    /// that may have granted it, at most the node timeout. Returns `true` if no node can hold it.
    pub(super) fn abandon(
        self: &Arc<Self>,
        lease: Release,
    ) -> impl Future<Output = bool> + Send + use<> {
        let inner = Arc::clone(self);
        let (mut flight, _) = self.recall(std::slice::from_ref(&lease), None);
        async move {
            let deadline = Instant::now() + inner.node_timeout;
            while let Some((_, answers)) = flight.next_until(deadline).await {
                inner.owe(unconfirmed(answers));
            }
            inner.finish_releases(flight);
            inner.ledger.is_out(&lease.key, lease.lease)
        }
    }

    /// Releases a lease in a task.
    pub(super) fn release_claimed(self: &Arc<Self>, claim: Claim) {
        let mut flight = Flight::new();
        let node = claim.node();
        flight.push(node, self.release_at(node, vec![(0, claim)]));
        self.finish_releases(flight);
    }

    fn finish_releases(self: &Arc<Self>, mut flight: Flight<Vec<Answer>>) {
        if flight.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        self.spawner.spawn(async move {
            while let Some((_, answers)) = flight.next().await {
                inner.owe(unconfirmed(answers));
            }
        });
    }
}

/// Returns the claims of the releases that must be repeated.
pub(super) fn unconfirmed(answers: Vec<Answer>) -> impl Iterator<Item = Claim> {
    answers.into_iter().filter_map(|answer| answer.claim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_requires_majority() {
        for (nodes, released, not_held, expected) in [
            (3, 2, 1, Some(Released::Released)),
            (3, 1, 2, Some(Released::NotHeld)),
            (3, 1, 1, None),
            (4, 2, 2, None),
            (5, 2, 2, None),
            (5, 2, 3, Some(Released::NotHeld)),
        ] {
            let tally = Tally {
                released,
                not_held,
                ..Tally::default()
            };
            let counts = format!("{released} and {not_held} of {nodes}");
            assert_eq!(tally.outcome(nodes), expected, "{counts}");
        }
    }
}
