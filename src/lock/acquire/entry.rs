//! The entry of an acquire into the lane of one key: a grant, its own first attempt, or a place in the queue.

pub(in crate::lock) mod pending;

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Acquired, Mode};
use crate::lock::clock::Moment;
use crate::lock::engine::line::LONGEST_IN_LINE;
use crate::lock::engine::{Engine, Shutdown};
use crate::lock::lane::UNPOLLED;
use crate::lock::lane::contending::attempt::Attempt;
use crate::lock::lane::effect::Effects;
use crate::lock::lane::queue::waiter::Given;
use crate::lock::lane::{Entered, First, Lane, Seen, Waiter};
use crate::lock::lease::claim::Claim;
use crate::lock::lease::grant::Grant;
use crate::lock::lease::{Lease, LeaseNumber};
use crate::lock::tasks::command::request;
use crate::{Error, ErrorKind, LockKey};
use pending::PendingAcquire;

/// The result of one step of an acquire, which proceeds as far as possible without waiting.
pub(in crate::lock) enum Step {
    /// The caller creates the [`Hold`](super::guard::Hold) of a grant at once: without one, nothing releases it.
    Done(Result<Arc<Grant>, Error>),
    Slow(PendingAcquire),
}

/// Enters the lane or joins its queue. All steps without waiting share one reading of the clock, `now`.
pub(in crate::lock) fn enter(
    engine: &Arc<Engine>,
    key: &LockKey,
    claim: &Claim,
    now: Moment,
) -> Step {
    if !claim.is_owner_fresh
        && engine.has_permits()
        && let Some(outcome) = enter_other_mode(engine, key, claim, now)
    {
        return Step::Done(outcome);
    }
    // Outside of `Entered`, which is moved at each grant.
    let mut pending = None;
    let place = &mut pending;
    let entered = engine.event(key, move |lane, effects| {
        start(engine, lane, key, claim, place, now, effects)
    });
    match entered {
        Entered::Granted(grant) | Entered::Nested(grant) => {
            Step::Done(Ok(granted(engine, claim, grant)))
        }
        Entered::Rejected(error) => Step::Done(Err(rejection(engine, key, claim, error))),
        Entered::Idle | Entered::Occupied => match pending {
            Some(mut pending) => {
                pending.begin(now);
                Step::Slow(pending)
            }
            None => unreachable!("BUG: the acquire has just queued"),
        },
    }
}

/// Returns `true` for a permit without a first attempt: behind others of this process, it would fail. An acquire makes
/// one nevertheless unless its wait leaves time for a later attempt, which shows whether the backend replies.
#[inline(never)]
fn is_behind(engine: &Engine, key: &LockKey, claim: &Claim, now: Moment) -> bool {
    claim.deadline.outlasts(now + 2 * LONGEST_IN_LINE) && engine.seats.permit_waiters(key) > 0
}

/// Returns the error of a rejected acquire. A permit is free when the first lease ends, or when a holder releases it: each
/// is assumed to hold it for a second, and the waiters of this process are first. A lock of this process in another mode
/// has its own estimate.
pub(in crate::lock) fn rejection(
    engine: &Engine,
    key: &LockKey,
    claim: &Claim,
    error: Error,
) -> Error {
    let Some(limit) = claim.terms.limit else {
        return error;
    };
    let kind = match error.kind() {
        ErrorKind::Busy => ErrorKind::PermitsExhausted,
        ErrorKind::TooManyWaiters => ErrorKind::TooManyWaiters,
        _ => return error,
    };
    let waiters = u32::try_from(engine.seats.permit_waiters(key)).unwrap_or(u32::MAX);
    let turn = PERMIT_HOLD * waiters.saturating_add(1) / u32::from(limit.get());
    let turn = error.lease_left().map_or(turn, |left| left.min(turn));
    let now = engine.now();
    let excludes = |lane: &Lane| lane.free_at(now).since(now);
    let lock = engine.lanes.inspect(key.stored(), excludes);
    let turn = turn.max(lock.unwrap_or_default());
    error.into_kind(kind).with_retry_after(turn)
}

/// The assumed time for which a permit is held.
const PERMIT_HOLD: Duration = Duration::from_secs(1);

/// Enters an acquire whose owner holds the key in another mode, in another lane: a permit besides a lock, or a lock
/// besides a permit. Returns `None` if it does not. Two acquires of one owner at the same time may both find nothing.
#[cold]
fn enter_other_mode(
    engine: &Arc<Engine>,
    key: &LockKey,
    claim: &Claim,
    now: Moment,
) -> Option<Result<Arc<Grant>, Error>> {
    let owner = claim.owner;
    if claim.terms.mode != Mode::Permit {
        let has_permit = engine.event(&key.permit_of(owner), |lane, _| lane.is_held_by(owner, now));
        let kind = match claim.terms.mode {
            Mode::Shared => ErrorKind::KeyConflict,
            _ => ErrorKind::Upgrade,
        };
        return has_permit.then(|| Err(Error::new(kind)));
    }
    let lock = key.stored();
    let entered = engine.event(lock, |lane, _| {
        if !lane.is_held_by(owner, now) {
            return None;
        }
        match lane.mode() {
            Mode::Exclusive => lane.enter_held(lock, claim, now),
            _ => Some(Entered::Rejected(Error::new(ErrorKind::KeyConflict))),
        }
    });
    match entered? {
        Entered::Nested(grant) => Some(Ok(granted(engine, claim, grant))),
        Entered::Rejected(error) => Some(Err(error)),
        Entered::Granted(_) | Entered::Idle | Entered::Occupied => {
            unreachable!("BUG: the owner holds the lock")
        }
    }
}

/// Reports a grant.
fn granted(engine: &Engine, claim: &Claim, grant: Arc<Grant>) -> Arc<Grant> {
    engine.granted(&grant, claim.hold);
    grant
}

/// Returns and reports the grant of a waiter, which creates its hold, or `None` if the grant was withdrawn.
pub(in crate::lock) fn pick_up(
    engine: &Arc<Engine>,
    claim: &Claim,
    given: Given,
) -> Option<Arc<Grant>> {
    let Given { grant, .. } = given;
    let picked_up = if claim.grouped {
        true
    } else if grant.first_hold() == claim.hold {
        // No other acquire shares the flag.
        grant.settle()
    } else {
        engine.event(grant.key(), |lane, _| lane.picked_up(&grant, claim.hold))
    };
    picked_up.then(|| granted(engine, claim, grant))
}

/// Enters the lane, or makes the first attempt, or joins the queue. Then the acquire is in `place`.
fn start(
    engine: &Arc<Engine>,
    lane: &mut Lane,
    key: &LockKey,
    claim: &Claim,
    place: &mut Option<PendingAcquire>,
    now: Moment,
    effects: &mut Effects,
) -> Entered {
    match admit(engine, lane, key, claim, now, effects) {
        Entered::Idle if claim.terms.mode == Mode::Permit && is_behind(engine, key, claim, now) => {
            let seen = Seen::Busy(now + PERMIT_HOLD);
            put(place, queue(engine, lane, key, claim, seen, now, effects))
        }
        Entered::Idle => attempt(engine, lane, key, claim, place, now, effects),
        Entered::Occupied => put(
            place,
            queue(engine, lane, key, claim, Seen::Nothing, now, effects),
        ),
        entered => entered,
    }
}

/// Makes the first attempt, in an idle lane.
fn attempt(
    engine: &Arc<Engine>,
    lane: &mut Lane,
    key: &LockKey,
    claim: &Claim,
    place: &mut Option<PendingAcquire>,
    now: Moment,
    effects: &mut Effects,
) -> Entered {
    let lease = engine.new_lease_id();
    let request = request(key, lease, claim.terms);
    let lease = LeaseNumber::of(lease);
    let Some(immediate) = engine.backend.immediate() else {
        let seat = match engine.reserve_seat(now) {
            Ok(seat) => seat,
            Err(overloaded) => return Entered::Rejected(overloaded),
        };
        let waiter = Waiter::new(*claim, seat);
        waiter.put_attempt(Attempt {
            lease,
            sent_at: now,
            reply: Arc::clone(&engine.backend).try_acquire(request),
        });
        let drives = engine.home.is_near_caller();
        let first = First {
            due: engine.unanswered_at(now),
            unpolled_at: drives.then(|| now + UNPOLLED),
        };
        lane.attempt_first(Arc::clone(&waiter), lease, first);
        *place = Some(PendingAcquire::new(engine, key, waiter, None, drives));
        return Entered::Occupied;
    };
    // It replies under the mutex of the lane, so no other event intervenes.
    match immediate.try_acquire(request, now.into()) {
        Acquired::Granted { counter } => {
            let per_counter = engine.capabilities.tokens_per_counter;
            let lease = Lease::new(lease, counter, per_counter, claim.terms, now);
            Entered::Granted(lane.granted_at_once(key, claim, lease, now))
        }
        Acquired::Busy { ttl } => {
            let seen = Seen::Busy(now + ttl);
            match claim.deadline.is_one_attempt() {
                true => Entered::Rejected(seen.error(now)),
                false => put(place, queue(engine, lane, key, claim, seen, now, effects)),
            }
        }
    }
}

fn put(place: &mut Option<PendingAcquire>, pending: Result<PendingAcquire, Error>) -> Entered {
    match pending {
        Ok(pending) => {
            *place = Some(pending);
            Entered::Occupied
        }
        Err(error) => Entered::Rejected(error),
    }
}

/// Joins the queue. `seen` is the reply to the acquire's own last attempt.
fn queue(
    engine: &Arc<Engine>,
    lane: &mut Lane,
    key: &LockKey,
    claim: &Claim,
    seen: Seen,
    now: Moment,
    effects: &mut Effects,
) -> Result<PendingAcquire, Error> {
    let limit = engine.options.max_waiters_per_key;
    // If both bounds are reached, this error is more precise.
    if lane.seats_taken() >= limit {
        let error = lane.why_not(now).into_kind(ErrorKind::TooManyWaiters);
        return Err(error);
    }
    match engine.reserve_queue_seat(key, limit, now) {
        Ok(seat) => {
            let waiter = Waiter::new(*claim, seat);
            lane.enqueue(Arc::clone(&waiter), seen, now, effects);
            let position = lane.position(claim.ticket);
            Ok(PendingAcquire::new(engine, key, waiter, position, false))
        }
        // The bound is of the manager, but a later acquire joins this queue.
        Err(overloaded) => Err(overloaded.with_retry_after(lane.free_in(now))),
    }
}

fn admit(
    engine: &Engine,
    lane: &mut Lane,
    key: &LockKey,
    claim: &Claim,
    now: Moment,
    effects: &mut Effects,
) -> Entered {
    // During a shutdown, an owner may re-enter its lock to finish its work, and a waiter may take its further keys.
    let is_served = || claim.is_waiter && !engine.has_reached(Shutdown::Rejecting);
    if engine.is_closing() && !is_served() && !lane.is_held_by(claim.owner, now) {
        return Entered::Rejected(Error::new(ErrorKind::ShuttingDown));
    }
    lane.enter(key, claim, now, effects)
}

#[cfg(test)]
mod tests;
