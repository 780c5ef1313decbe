//! Releases leases on all nodes.
//!
//! The answer waits for a majority. What the others are owed goes on in tasks, until each of them
//! has answered or the lease must have run out there.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::fault;
use super::flight::Flight;
use super::inner::Inner;
use super::ledger::Claim;
use crate::backend::{BackendError, BoxFuture, Release, Released};
use crate::jitter::jittered;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// How long nodes that do not answer are asked again for a lease that this process did not take.
const UNKNOWN_LEASE: Duration = Duration::from_secs(1);

/// One node's answer for one lease, with the claim where it has to be asked again.
struct Answer {
    lease: usize,
    outcome: Result<Released, BackendError>,
    claim: Option<Claim>,
}

/// What the nodes said about one lease.
#[derive(Default)]
struct Tally {
    released: usize,
    /// Nodes that do not hold it, or cannot.
    not_held: usize,
    failures: Vec<BackendError>,
    /// The claims at nodes that must be asked again.
    claims: Vec<Claim>,
}

impl Tally {
    /// Released if a majority held it; not held once that cannot be so any more.
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
    let unknown = Instant::now() + UNKNOWN_LEASE;
    let (mut flight, mut tallies) = inner.recall(leases, Some(unknown));
    let deadline = Instant::now() + inner.node_timeout;
    // Looked for before anything is counted, so that every command is out whatever comes.
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
    let mut owed = Vec::new();
    let outcomes = tallies.into_iter().map(|tally| match tally.outcome(nodes) {
        Some(outcome) => {
            owed.extend(tally.claims);
            Ok(outcome)
        }
        // The claims go: it will be asked for again.
        None => Err(fault::no_majority(tally.failures, nodes, true)),
    });
    let outcomes = outcomes.collect();
    inner.settle(owed, FIRST_BACKOFF);
    outcomes
}

impl Inner {
    /// Disowns leases and prepares what is to be sent: one command per node.
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

    fn release_at(&self, node: usize, batch: Vec<(usize, Claim)>) -> BoxFuture<Vec<Answer>> {
        let leases = batch.iter().map(|(_, claim)| {
            let (key, lease) = claim.name();
            Release::new(key.clone(), *lease)
        });
        let command = Arc::clone(&self.nodes[node]).release(leases.collect());
        Box::pin(async move {
            // Dropped here only with the runtime; then the claims go, and the leases run out.
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

    /// Gives a lease back that was not granted; the commands go out with the first poll. Waits for
    /// each node that may have granted it, at most the node timeout. Whether it is out for sure.
    pub(super) fn give_back(
        self: &Arc<Self>,
        lease: Release,
    ) -> impl Future<Output = bool> + Send + use<> {
        let inner = Arc::clone(self);
        let (mut flight, _) = self.recall(std::slice::from_ref(&lease), None);
        async move {
            let deadline = Instant::now() + inner.node_timeout;
            let mut owed = Vec::new();
            while let Some((_, answers)) = flight.next_until(deadline).await {
                owed.extend(answers.into_iter().filter_map(|answer| answer.claim));
            }
            inner.settle(owed, FIRST_BACKOFF);
            inner.finish_releases(flight);
            inner.ledger.is_out(&lease.key, lease.lease)
        }
    }

    fn finish_releases(self: &Arc<Self>, mut flight: Flight<Vec<Answer>>) {
        if flight.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        self.spawner.spawn(async move {
            while let Some((_, answers)) = flight.next().await {
                let claims = answers.into_iter().filter_map(|answer| answer.claim);
                inner.settle(claims.collect(), FIRST_BACKOFF);
            }
        });
    }

    /// Releases in tasks, one per node, what was claimed: after a pause, then again and again until
    /// it is out or must have run out.
    pub(super) fn settle(self: &Arc<Self>, claims: Vec<Claim>, pause: Duration) {
        let mut batches: Vec<Vec<Claim>> = self.nodes.iter().map(|_| Vec::new()).collect();
        for claim in claims {
            batches[claim.node()].push(claim);
        }
        for (node, batch) in batches.into_iter().enumerate() {
            if !batch.is_empty() {
                let settle = settle(Arc::clone(self), node, batch, pause);
                self.spawner.spawn(settle);
            }
        }
    }
}

async fn settle(inner: Arc<Inner>, node: usize, mut claims: Vec<Claim>, mut pause: Duration) {
    loop {
        if pause > Duration::ZERO {
            sleep(jittered(pause)).await;
            let now = Instant::now();
            let (owed, over): (Vec<_>, _) = claims.into_iter().partition(|it| it.is_owed(now));
            claims = owed;
            Vec::into_iter(over).for_each(Claim::out);
        }
        if claims.is_empty() {
            return;
        }
        let batch = claims.into_iter().enumerate().collect();
        let answers = inner.release_at(node, batch).await;
        let claimed = answers.into_iter().filter_map(|answer| answer.claim);
        claims = claimed.collect();
        pause = (pause * 2).clamp(FIRST_BACKOFF, LAST_BACKOFF);
    }
}
