//! Commands that need replies from a majority of the nodes and no order among the nodes.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::flight::Flight;
use super::inner::Inner;
use super::node::ErasedNode;
use super::release::release;
use super::tally::{Agreed, Tally};
use super::{acquire, fault};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, BackendError, BoxFuture, Downgraded, ForceReleased, Holder, Mode,
    Release, Renewal, Renewed,
};

impl Inner {
    fn ask_all<T>(&self, command: impl Fn(Arc<dyn ErasedNode>) -> BoxFuture<T>) -> Flight<T> {
        let mut flight = Flight::new();
        for (index, node) in self.nodes.iter().enumerate() {
            flight.push(index, command(Arc::clone(node)));
        }
        flight
    }

    /// Sends a command to every node, until a majority agrees. `not_held` is the reply of a node without the lease.
    async fn agree<T: PartialEq + Send + 'static>(
        &self,
        command: impl Fn(Arc<dyn ErasedNode>) -> BoxFuture<Result<T, BackendError>>,
        not_held: T,
    ) -> Tally {
        let mut tally = [Tally::default()];
        let count = |tally: &mut [Tally], reply| tally[0].count(reply, &not_held);
        self.tally(self.ask_all(command), &mut tally, count).await;
        let [tally] = tally;
        tally
    }
}

/// Renews leases. A renewal that arrives after the release of its lease creates no lease, so it needs no
/// claim.
pub(super) async fn renew(
    inner: &Arc<Inner>,
    renewals: &[Renewal],
) -> Vec<Result<Renewed, BackendError>> {
    let nodes = inner.nodes.len();
    let now = Instant::now();
    for renewal in renewals {
        let until = now + renewal.ttl;
        inner
            .ledger
            .lock()
            .prolong(&renewal.key, renewal.lease, until);
    }
    let flight = inner.ask_all(|node| node.renew(renewals.to_vec()));
    let mut tallies: Vec<Tally> = renewals.iter().map(|_| Tally::default()).collect();
    // The nodes that renewed the lease report an exclusive one that waits.
    let mut renewed = vec![Renewed::Renewed; renewals.len()];
    let count = |tallies: &mut [Tally], outcomes: Vec<_>| {
        for ((tally, renewed), outcome) in tallies.iter_mut().zip(&mut renewed).zip(outcomes) {
            if let Ok(Renewed::Wanted) = outcome {
                *renewed = Renewed::Wanted;
            }
            tally.count(outcome, &Renewed::NotHeld);
        }
    };
    inner.tally(flight, &mut tallies, count).await;
    let outcomes = tallies.into_iter().zip(renewed);
    let outcomes = outcomes.map(|(tally, renewed)| tally.outcome(nodes, renewed, Renewed::NotHeld));
    let outcomes: Vec<_> = outcomes.collect();
    // A lost lease has no owner that releases it. Nodes that still hold it have just renewed it, and
    // would not report their counters until it expires. What they do not confirm is repeated.
    let lost = outcomes.iter().zip(renewals);
    let lost = lost.filter(|(outcome, _)| matches!(outcome, Ok(Renewed::NotHeld)));
    let lost = lost.map(|(_, it)| Release::new(it.key.clone(), it.lease));
    drop(release(inner, &lost.collect::<Vec<_>>()).await);
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
    let nodes = inner.nodes.len();
    let until = Instant::now() + lease.ttl;
    inner.ledger.lock().prolong(&lease.key, lease.lease, until);
    let command = |node: Arc<dyn ErasedNode>| node.downgrade(lease.clone());
    let tally = inner.agree(command, Downgraded::NotHeld).await;
    match tally.agreed(nodes) {
        Some(Agreed::Done) => {
            let Renewal {
                key, lease, ttl, ..
            } = lease.clone();
            let request = AcquireRequest::new(key, lease, ttl).with_mode(Mode::Shared);
            match acquire::try_acquire(inner, &request).await {
                Ok(Acquired::Granted { counter }) => Ok(Downgraded::shared(counter)),
                Ok(Acquired::Busy { .. }) => Ok(Downgraded::NotHeld),
                Err(error) => Err(BackendError::unknown(error)),
            }
        }
        Some(Agreed::NotHeld) => {
            drop(release(inner, &[Release::new(lease.key.clone(), lease.lease)]).await);
            Ok(Downgraded::NotHeld)
        }
        None => {
            let failures = tally.failures.iter();
            let without_effect = failures.filter(|it| !it.may_have_taken_effect()).count();
            let unsettled = tally.not_held + without_effect < nodes;
            // A majority may reject the lease for good, and other nodes still share it.
            match tally.no_majority(nodes, unsettled) {
                error if !unsettled || error.may_have_taken_effect() => Err(error),
                error => Err(BackendError::unknown(error)),
            }
        }
    }
}

/// Returns the holder that a majority of the nodes reports. With shared leases, each node may report another one of
/// them as the last to expire.
pub(super) async fn inspect(
    inner: &Arc<Inner>,
    key: &LockKey,
) -> Result<Option<Holder>, BackendError> {
    let (nodes, majority) = (inner.nodes.len(), inner.majority());
    let mut flight = inner.ask_all(|node| node.inspect(key.clone()));
    let deadline = Instant::now() + inner.node_timeout;
    let mut holders: HashMap<Option<String>, Vec<Holder>> = HashMap::new();
    let (mut silent, mut failures) = (nodes, Vec::new());
    loop {
        let answers = flight.next_until(deadline).await;
        if answers.is_empty() {
            return Err(fault::no_majority(failures, silent, nodes, false));
        }
        silent -= answers.len();
        for (_, answer) in answers {
            match answer {
                Ok(Some(holder)) => {
                    let exclusive = (holder.mode == Mode::Exclusive).then(|| holder.id.clone());
                    holders.entry(exclusive).or_default().push(holder);
                }
                Ok(None) => {}
                Err(error) => failures.push(error),
            }
        }
        let votes = holders.values().max_by_key(|votes| votes.len());
        let votes = votes.map_or(&[][..], Vec::as_slice);
        if votes.len() >= majority {
            // The holder has the key while a majority keeps its lease. The shortest TTL of this majority is
            // a lower bound, whatever the other nodes reply.
            let shortest = votes.iter().min_by_key(|holder| holder.ttl).cloned();
            // A node that lacks a lease counts fewer.
            let leases = votes.iter().map(|it| it.leases).max().unwrap_or(1);
            return Ok(shortest.map(|it| Holder { leases, ..it }));
        }
        if votes.len() + silent + failures.len() < majority {
            return Ok(None);
        }
    }
}

/// Releases a key on every node, and requires replies from a majority. A lease that was released on any
/// node is reported, because its holder may have lost its majority.
pub(super) async fn force_release(
    inner: &Arc<Inner>,
    key: &LockKey,
    holder: Option<&str>,
) -> Result<ForceReleased, BackendError> {
    let (nodes, majority) = (inner.nodes.len(), inner.majority());
    let command =
        |node: Arc<dyn ErasedNode>| node.force_release(key.clone(), holder.map(str::to_owned));
    // A lease on a minority holds no lock, so one node does not decide.
    let tally = inner.agree(command, ForceReleased::NotHeld).await;
    match tally.agreed(nodes) {
        Some(Agreed::NotHeld) => Ok(ForceReleased::NotHeld),
        _ if tally.done + tally.not_held >= majority => Ok(ForceReleased::Released),
        _ => Err(tally.no_majority(nodes, true)),
    }
}
