//! Commands that need replies from a majority of the nodes and no order among the nodes.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::flight::Flight;
use super::inner::Inner;
use super::node::ErasedNode;
use super::release::release_ownerless;
use super::{acquire, fault};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, BackendError, BoxFuture, Downgraded, ForceReleased, Holder, Mode,
    Release, Renewal, Renewed,
};

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
    /// A node that renewed the lease reports an exclusive one that waits.
    wanted: bool,
    not_held: usize,
    failures: Vec<BackendError>,
}

impl Tally {
    /// Returns the result on which a majority agrees, if any.
    fn outcome(&self, nodes: usize) -> Option<Renewed> {
        let majority = nodes / 2 + 1;
        if self.renewed >= majority {
            Some(match self.wanted {
                true => Renewed::Wanted,
                false => Renewed::Renewed,
            })
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
                Ok(renewed @ (Renewed::Renewed | Renewed::Wanted)) => {
                    tally.renewed += 1;
                    tally.wanted |= renewed == Renewed::Wanted;
                }
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

/// Makes a lease shared on a majority of the nodes, and then takes its counter by a vote. Each node keeps the lease
/// throughout, so no exclusive lease has a majority in between.
///
/// A node that did not reply may hold the lease exclusively until it expires there, which excludes others only. If the
/// vote has no majority, the lease is released.
pub(super) async fn downgrade(
    inner: &Arc<Inner>,
    lease: &Renewal,
) -> Result<Downgraded, BackendError> {
    let (nodes, majority) = (inner.nodes.len(), inner.majority());
    let until = Instant::now() + lease.ttl;
    inner.ledger.prolong(&lease.key, lease.lease, until);
    let (mut flight, deadline) = inner.ask_all(|node| node.downgrade(lease.clone()));
    let (mut shared, mut not_held, mut failures) = (0, 0, Vec::new());
    while shared < majority && not_held < majority {
        match flight.next_until(deadline).await {
            Some((_, Ok(Downgraded::Shared { .. }))) => shared += 1,
            Some((_, Ok(Downgraded::NotHeld))) => not_held += 1,
            Some((_, Err(error))) => failures.push(error),
            None => break,
        }
    }
    inner.finish(flight);
    if shared >= majority {
        let Renewal {
            key, lease, ttl, ..
        } = lease.clone();
        let request = AcquireRequest::new(key, lease, ttl).with_mode(Mode::Shared);
        return match acquire::try_acquire(inner, &request).await {
            Ok(Acquired::Granted { counter }) => Ok(Downgraded::shared(counter)),
            Ok(Acquired::Busy { .. }) => Ok(Downgraded::NotHeld),
            Err(error) => Err(BackendError::unknown(error)),
        };
    }
    if not_held >= majority {
        release_ownerless(inner, &[Release::new(lease.key.clone(), lease.lease)]).await;
        return Ok(Downgraded::NotHeld);
    }
    let silent = nodes - shared - not_held - failures.len();
    let may_have = failures.iter().any(BackendError::may_have_taken_effect);
    let unsettled = shared + silent > 0 || may_have;
    let error = fault::no_majority(failures, silent, nodes, unsettled);
    // A majority may reject the lease for good, and other nodes still share it.
    Err(match unsettled && !error.may_have_taken_effect() {
        true => BackendError::unknown(error),
        false => error,
    })
}

/// Returns the holder that a majority of the nodes reports. With shared leases, each node may report another one of
/// them as the last to expire.
pub(super) async fn inspect(
    inner: &Arc<Inner>,
    key: &LockKey,
) -> Result<Option<Holder>, BackendError> {
    let (nodes, majority) = (inner.nodes.len(), inner.majority());
    let (mut flight, deadline) = inner.ask_all(|node| node.inspect(key.clone()));
    let mut holders: HashMap<Option<String>, Vec<Holder>> = HashMap::new();
    let (mut silent, mut failures) = (nodes, Vec::new());
    while let Some((_, answer)) = flight.next_until(deadline).await {
        silent -= 1;
        match answer {
            Ok(holder) => {
                if let Some(holder) = holder {
                    let exclusive = (holder.mode == Mode::Exclusive).then(|| holder.id.clone());
                    holders.entry(exclusive).or_default().push(holder);
                }
            }
            Err(error) => failures.push(error),
        }
        if let Some(votes) = holders.values_mut().find(|votes| votes.len() >= majority) {
            // The holder has the key while a majority keeps its lease. The shortest TTL of this majority is
            // a lower bound, whatever the other nodes reply.
            votes.sort_by_key(|holder| holder.ttl);
            // A node that lacks a lease counts fewer.
            let leases = votes.iter().map(|holder| holder.leases).max();
            return Ok(votes.drain(..).next().map(|holder| Holder {
                leases: leases.unwrap_or(1),
                ..holder
            }));
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
    let (mut not_held, mut released, mut failures) = (0, 0, Vec::new());
    // A lease on a minority holds no lock, so one node does not decide.
    while released < majority && nodes - not_held >= majority {
        match flight.next_until(deadline).await {
            Some((_, Ok(ForceReleased::Released))) => released += 1,
            Some((_, Ok(ForceReleased::NotHeld))) => not_held += 1,
            Some((_, Err(error))) => failures.push(error),
            None => break,
        }
    }
    inner.finish(flight);
    if nodes - not_held < majority {
        Ok(ForceReleased::NotHeld)
    } else if released + not_held >= majority {
        Ok(ForceReleased::Released)
    } else {
        let silent = nodes - released - not_held - failures.len();
        Err(fault::no_majority(failures, silent, nodes, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_report_of_wanted_lease_counts() {
        let tally = Tally {
            renewed: 2,
            wanted: true,
            ..Tally::default()
        };
        assert_eq!(tally.outcome(3), Some(Renewed::Wanted));
        assert_eq!(tally.outcome(5), None, "no majority");
    }

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
