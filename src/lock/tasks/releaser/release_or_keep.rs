//! The return of leases for which this process has waiters, or whose keys come back: one command that keeps or releases
//! them.
//!
//! A release enters the waiters of this process in the queue of the backend, in the same command.

use std::sync::Arc;

use super::{count, release};
use crate::LockKey;
use crate::backend::{BackendError, KeepRequest, Mode, Released, ReleasedOrKept};
use crate::lock::clock::Moment;
use crate::lock::engine::Engine;
use crate::lock::lane::{ReleaseOrKeep, unanswered};
use crate::lock::lease::{Kept, LeaseNumber, PLACE, QueuePlace, ReleasedTo};

/// Returns the lease of `key` by a task of its own.
pub(super) fn start_release_or_keep(engine: &Arc<Engine>, key: LockKey, order: ReleaseOrKeep) {
    let command = release_or_keep(Arc::clone(engine), vec![(key, order)]);
    engine.home.spawn_near(command);
}

/// A place that a command without a reply may have entered. It is left if its runtime drops the command.
struct Entering {
    engine: Arc<Engine>,
    key: LockKey,
    place: LeaseNumber,
    may_wait: bool,
}

impl Drop for Entering {
    fn drop(&mut self) {
        if self.may_wait {
            (self.engine).release_until_confirmed(&self.key, self.place, unanswered(PLACE));
        }
    }
}

/// Keeps each lease if no other process waits for its key, and releases it otherwise.
pub(super) async fn release_or_keep(engine: Arc<Engine>, orders: Vec<(LockKey, ReleaseOrKeep)>) {
    let sent_at = engine.now();
    let mut requests = Vec::with_capacity(orders.len());
    let sent = orders.into_iter().map(|(key, order)| {
        // The waiters of this process wait behind all others, in the same command.
        let place = LeaseNumber::of(engine.new_lease_id());
        let lease = engine.lease_id(order.outgoing.lease);
        let mut request =
            KeepRequest::new(key.clone(), lease, order.ttl.get()).with_counters(order.counters);
        if order.has_waiters {
            request = request.with_next(engine.lease_id(place), true);
        }
        requests.push(request);
        let entering = Entering {
            engine: Arc::clone(&engine),
            key,
            place,
            may_wait: order.has_waiters,
        };
        (order, entering)
    });
    let sent: Vec<_> = sent.collect();
    let outcomes = Arc::clone(&engine.backend).release_or_keep(requests).await;
    let mut unkept = Vec::new();
    for ((order, mut entering), outcome) in sent.into_iter().zip(outcomes) {
        let is_unknown = matches!(&outcome, Err(error) if error.may_have_taken_effect());
        entering.may_wait &= is_unknown;
        if !apply(&engine, &entering, order, outcome, sent_at) {
            unkept.push((entering.key.clone(), order.outgoing));
        }
    }
    if !unkept.is_empty() {
        release(engine, unkept).await;
    }
}

/// Applies the reply to one lease. Returns `false` if a plain release follows.
fn apply(
    engine: &Arc<Engine>,
    entering: &Entering,
    order: ReleaseOrKeep,
    outcome: Result<ReleasedOrKept, BackendError>,
    sent_at: Moment,
) -> bool {
    let Entering { key, place, .. } = entering;
    let (number, now) = (order.outgoing.lease, engine.now());
    if let Ok(ReleasedOrKept::Released { .. } | ReleasedOrKept::NotHeld) = outcome {
        (engine.home.unconfirmed).released_elsewhere(key, number);
    }
    match outcome {
        Ok(ReleasedOrKept::Kept { counter: None }) if order.needs_counter => return false,
        Ok(ReleasedOrKept::Kept { counter }) => {
            let kept = Kept {
                counter,
                counters: order.counters,
                ttl: order.ttl,
                sent_at,
            };
            engine.event(key, now, |lane, effects| {
                lane.kept(key, number, kept, effects);
            });
        }
        Ok(ReleasedOrKept::Released {
            released,
            watchers,
            queued,
            listens,
        }) => {
            count(engine, &Ok(released));
            let released_to = match ReleasedTo::by(released) {
                _ if queued => {
                    let place = QueuePlace {
                        lease: *place,
                        mode: Mode::Exclusive,
                        limit: None,
                    };
                    // After a release to clients outside the queue, an attempt ends their turn.
                    let is_notified = listens && released == Released::Transferred;
                    ReleasedTo::Queue {
                        place: Some(place),
                        notified_behind: is_notified.then_some(watchers),
                    }
                }
                ReleasedTo::Nobody => ReleasedTo::WithoutQueue,
                released_to => released_to,
            };
            engine.event(key, now, |lane, effects| {
                lane.returned(number, Ok(()), released_to, effects);
            });
        }
        Ok(ReleasedOrKept::NotHeld) => {
            count(engine, &Ok(Released::NotHeld));
            engine.event(key, now, |lane, effects| {
                let outcome = lane.returned_absent(number, now);
                let nobody = ReleasedTo::Nobody;
                lane.returned(number, outcome, nobody, effects);
            });
        }
        // The lease may be kept or released; a plain release resolves both.
        Err(error) => {
            if error.may_have_taken_effect() {
                engine.event(key, now, |lane, _| lane.return_is_resent(number));
            }
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests;
