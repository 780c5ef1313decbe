//! The return of a lease for which this process has waiters, or whose key comes back: one command that keeps or releases
//! it.
//!
//! A release enters the waiters of this process in the queue of the backend, in the same command.

use std::sync::Arc;

use super::{count, release};
use crate::LockKey;
use crate::backend::{KeepRequest, Mode, Released, ReleasedOrKept};
use crate::lock::engine::Engine;
use crate::lock::lane::{ReleaseOrKeep, unanswered};
use crate::lock::lease::{Kept, LeaseNumber, PLACE, QueuePlace, ReleasedTo};

/// Returns the lease of `key` by a task of its own.
pub(super) fn start_release_or_keep(engine: &Arc<Engine>, key: LockKey, order: ReleaseOrKeep) {
    engine
        .home
        .spawn_near(release_or_keep(Arc::clone(engine), key, order));
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

/// Keeps the lease if no other process waits for the key, and releases it otherwise.
pub(super) async fn release_or_keep(engine: Arc<Engine>, key: LockKey, order: ReleaseOrKeep) {
    let ReleaseOrKeep {
        outgoing,
        ttl,
        counters,
        needs_counter,
        has_waiters,
    } = order;
    let number = outgoing.lease;
    let sent_at = engine.now();
    // The waiters of this process wait behind all others, in the same command.
    let place = LeaseNumber::of(engine.new_lease_id());
    let mut request =
        KeepRequest::new(key.clone(), engine.lease_id(number), ttl.get()).with_counters(counters);
    if has_waiters {
        request = request.with_next(engine.lease_id(place), true);
    }
    let mut entering = Entering {
        engine: Arc::clone(&engine),
        key: key.clone(),
        place,
        may_wait: has_waiters,
    };
    let backend = Arc::clone(&engine.backend);
    let outcome = backend.release_or_keep(request).await;
    entering.may_wait &= matches!(&outcome, Err(error) if error.may_have_taken_effect());
    drop(entering);
    let now = engine.now();
    if let Ok(ReleasedOrKept::Released { .. } | ReleasedOrKept::NotHeld) = outcome {
        (engine.home.unconfirmed).released_elsewhere(&key, number);
    }
    match outcome {
        Ok(ReleasedOrKept::Kept { counter: None }) if needs_counter => {
            release(engine, vec![(key, outgoing)]).await;
        }
        Ok(ReleasedOrKept::Kept { counter }) => {
            let kept = Kept {
                counter,
                counters,
                ttl,
                sent_at,
            };
            engine.event(&key, now, |lane, effects| {
                lane.kept(&key, number, kept, effects);
            });
        }
        Ok(ReleasedOrKept::Released {
            released,
            watchers,
            queued,
            listens,
        }) => {
            count(&engine, &Ok(released));
            let released_to = match ReleasedTo::by(released) {
                _ if queued => {
                    let place = QueuePlace {
                        lease: place,
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
            engine.event(&key, now, |lane, effects| {
                lane.returned(number, Ok(()), released_to, effects);
            });
        }
        Ok(ReleasedOrKept::NotHeld) => {
            count(&engine, &Ok(Released::NotHeld));
            engine.event(&key, now, |lane, effects| {
                let outcome = lane.returned_absent(number, now);
                let nobody = ReleasedTo::Nobody;
                lane.returned(number, outcome, nobody, effects);
            });
        }
        // The lease may be kept or released; a plain release resolves both.
        Err(error) => {
            if error.may_have_taken_effect() {
                engine.event(&key, now, |lane, _| lane.return_is_resent(number));
            }
            release(engine, vec![(key, outgoing)]).await;
        }
    }
}

#[cfg(test)]
mod tests;
