//! Commands that need replies from a majority of the nodes and no order among the nodes.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::fault;
use super::flight::Flight;
use super::inner::Inner;
use super::node::ErasedNode;
use super::release::release_ownerless;
use crate::LockKey;
use crate::backend::{BackendError, BoxFuture, ForceReleased, Holder, Release, Renewal, Renewed};

impl Inner {
    fn ask_all<T>(
        &self,
        command: impl Fn(Arc<dyn ErasedNode>) -> BoxFuture<T>,
    ) -> (Flight<T>, Instant) {
        let mut flight = Flight::new();
        for (index, node) in self.nodes.iter().enumerate() {
            flight.push(index, command(Arc::clone(node)));
        }
        (flight, Instant::now() + self.node_timeout)
    }
}

#[derive(Default)]
struct Tally {
    renewed: usize,
    not_held: usize,
    failures: Vec<BackendError>,
}

impl Tally {
    /// Returns the result on which a majority agrees, if any.
    fn outcome(&self, nodes: usize) -> Option<Renewed> {
        let majority = nodes / 2 + 1;
        if self.renewed >= majority {
            Some(Renewed::Renewed)
        } else if self.not_held >= majority {
            Some(Renewed::NotHeld)
        } else {
            None
        }
    }
}

/// Renews leases. A renewal that arrives after the release of its lease creates no lease, so it needs no
/// claim.
pub(super) async fn renew(
    inner: &Arc<Inner>,
    renewals: &[Renewal],
) -> Vec<Result<Renewed, BackendError>> {
    if renewals.is_empty() {
        return Vec::new();
    }
    let nodes = inner.nodes.len();
    let now = Instant::now();
    for renewal in renewals {
        let until = now + renewal.ttl;
        inner.ledger.prolong(&renewal.key, renewal.lease, until);
    }
    let (mut flight, deadline) = inner.ask_all(|node| node.renew(renewals.to_vec()));
    let mut tallies: Vec<Tally> = renewals.iter().map(|_| Tally::default()).collect();
    while let Some((_, outcomes)) = flight.next_until(deadline).await {
        for (tally, outcome) in tallies.iter_mut().zip(outcomes) {
            match outcome {
                Ok(Renewed::Renewed) => tally.renewed += 1,
                Ok(Renewed::NotHeld) => tally.not_held += 1,
                Err(error) => tally.failures.push(error),
            }
        }
        if tallies.iter().all(|tally| tally.outcome(nodes).is_some()) {
            break;
        }
    }
    // A slow node renews the lease when the command arrives.
    inner.finish(flight);
    let outcomes = tallies.into_iter().map(|tally| match tally.outcome(nodes) {
        Some(outcome) => Ok(outcome),
        None => {
            let silent = nodes - tally.renewed - tally.not_held - tally.failures.len();
            Err(fault::no_majority(tally.failures, silent, nodes, true))
        }
    });
    let outcomes: Vec<_> = outcomes.collect();
    // A lost lease has no owner that releases it. Nodes that still hold it have just renewed it, and
    // would not report their counters until it expires.
    let lost = outcomes.iter().zip(renewals);
    let lost = lost.filter(|(outcome, _)| matches!(outcome, Ok(Renewed::NotHeld)));
    let lost: Vec<_> = lost
        .map(|(_, it)| Release::new(it.key.clone(), it.lease))
        .collect();
    if !lost.is_empty() {
        release_ownerless(inner, &lost).await;
    }
    outcomes
}

/// Returns the holder that a majority of the nodes reports.
pub(super) async fn inspect(
    inner: &Arc<Inner>,
    key: &LockKey,
) -> Result<Option<Holder>, BackendError> {
    let (nodes, majority) = (inner.nodes.len(), inner.majority());
    let (mut flight, deadline) = inner.ask_all(|node| node.inspect(key.clone()));
    let mut holders: HashMap<String, Vec<Holder>> = HashMap::new();
    let (mut silent, mut failures) = (nodes, Vec::new());
    while let Some((_, answer)) = flight.next_until(deadline).await {
        silent -= 1;
        match answer {
            Ok(holder) => {
                if let Some(holder) = holder {
                    holders.entry(holder.id.clone()).or_default().push(holder);
                }
            }
            Err(error) => failures.push(error),
        }
        if let Some(votes) = holders.values_mut().find(|votes| votes.len() >= majority) {
            // The holder has the key while a majority keeps its lease. The shortest TTL of this majority is
            // a lower bound, whatever the other nodes reply.
            votes.sort_by_key(|holder| holder.ttl);
            return Ok(votes.drain(..).next());
        }
        let most = holders.values().map(Vec::len).max().unwrap_or(0);
        if most + silent + failures.len() < majority {
            return Ok(None);
        }
    }
    Err(fault::no_majority(failures, silent, nodes, false))
}

/// Releases a key by a command to every node, and requires replies from a majority. A lease that was released on any
/// node is reported, because its holder may have lost its majority.
pub(super) async fn force_release(
    inner: &Arc<Inner>,
    command: impl Fn(Arc<dyn ErasedNode>) -> BoxFuture<Result<ForceReleased, BackendError>>,
) -> Result<ForceReleased, BackendError> {
    let (nodes, majority) = (inner.nodes.len(), inner.majority());
    let (mut flight, deadline) = inner.ask_all(command);
    let (mut answered, mut released, mut failures) = (0, false, Vec::new());
    while answered < majority {
        match flight.next_until(deadline).await {
            Some((_, Ok(outcome))) => {
                answered += 1;
                released |= outcome == ForceReleased::Released;
            }
            Some((_, Err(error))) => failures.push(error),
            None => break,
        }
    }
    inner.finish(flight);
    match (answered >= majority, released) {
        (true, true) => Ok(ForceReleased::Released),
        (true, false) => Ok(ForceReleased::NotHeld),
        (false, _) => {
            let silent = nodes - answered - failures.len();
            Err(fault::no_majority(failures, silent, nodes, true))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_requires_majority() {
        for (nodes, renewed, not_held, expected) in [
            (3, 2, 1, Some(Renewed::Renewed)),
            (3, 1, 2, Some(Renewed::NotHeld)),
            (3, 1, 1, None),
            (4, 2, 2, None),
            (5, 2, 2, None),
            (5, 2, 3, Some(Renewed::NotHeld)),
        ] {
            let tally = Tally {
                renewed,
                not_held,
                ..Tally::default()
            };
            let counts = format!("{renewed} and {not_held} of {nodes}");
            assert_eq!(tally.outcome(nodes), expected, "{counts}");
        }
    }
}
