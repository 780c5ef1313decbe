//! The entry of an acquire into the lane of one key: a grant, its own first attempt, or a place in the queue.

pub(crate) mod pending;

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Acquired, Mode};
use crate::lock::clock::Moment;
use crate::lock::engine::home::Forked;
use crate::lock::engine::{Engine, Shutdown};
use crate::lock::lane::{
    Attempt, Effects, Entered, First, Lane, LastReply, OWN_TIMEOUT, UNPOLLED, Waiter,
};
use crate::lock::lease::{Claim, Grant, Lease, LeaseNumber, QueuePosition};
use crate::lock::tasks::command::request;
use crate::lock::tasks::contender::LONGEST_FOR_SLOT;
use crate::observe::Via;
use crate::{Error, ErrorKind, LockKey};
use pending::PendingAcquire;

/// The result of one step of an acquire, which proceeds as far as possible without waiting.
pub(crate) enum Step {
    /// The caller creates the [`LockGuard`](super::guard::LockGuard) of a grant at once: without one, nothing releases it.
    Done(Result<Arc<Grant>, Error>),
    Slow(PendingAcquire),
}

/// Enters the lane or joins its queue. All steps without waiting share one reading of the clock, `now`.
pub(crate) fn enter(engine: &Arc<Engine>, key: &LockKey, claim: &Claim, now: Moment) -> Step {
    if !claim.is_owner_fresh
        && engine.has_permits()
        && let Some(outcome) = enter_other_mode(engine, key, claim, now)
    {
        return Step::Done(outcome);
    }
    if claim.terms.mode == Mode::Permit && engine.recent.is_of_this_process() {
        engine.event(key.stored(), now, Lane::end_keep);
    }
    let mut entry = Entry {
        engine,
        key,
        claim,
        pending: None,
    };
    match engine.event(key, now, |lane, effects| entry.start(lane, effects)) {
        Ok(Some(grant)) => Step::Done(Ok(grant)),
        Err(error) => Step::Done(Err(rejection(engine, key, claim, error))),
        Ok(None) => {
            let Some(mut pending) = entry.pending else {
                unreachable!("BUG: the acquire has just queued");
            };
            pending.begin(now);
            Step::Slow(pending)
        }
    }
}

/// Returns the error of a rejected acquire. A permit is free when the first lease ends, or when a holder releases it: each
/// is assumed to hold it for a second, and the waiters of this process are first. A lock of this process in another mode
/// has its own estimate.
pub(crate) fn rejection(engine: &Engine, key: &LockKey, claim: &Claim, error: Error) -> Error {
    let Some(limit) = claim.terms.limit else {
        return error;
    };
    let kind = match error.kind() {
        ErrorKind::Busy => ErrorKind::PermitsExhausted,
        ErrorKind::TooManyWaiters => ErrorKind::TooManyWaiters,
        _ => return error,
    };
    let waiters = u32::try_from(engine.seats.permit_waiters(key)).unwrap_or(u32::MAX);
    let free_in = PERMIT_HOLD * waiters.saturating_add(1) / u32::from(limit.get());
    let free_in = error.lease_left().map_or(free_in, |left| left.min(free_in));
    let now = engine.now();
    let excludes = |lane: &Lane| lane.free_at(now).since(now);
    let lock = engine.lanes.inspect(key.stored(), excludes);
    let free_in = free_in.max(lock.unwrap_or_default());
    error.into_kind(kind).with_retry_after(free_in)
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
        let has_permit = engine.event(&key.permit_of(owner), now, |lane, _| {
            lane.is_held_by(owner, now)
        });
        let kind = match claim.terms.mode {
            Mode::Shared => ErrorKind::KeyConflict,
            _ => ErrorKind::Upgrade,
        };
        return has_permit.then(|| Err(Error::new(kind)));
    }
    let lock = key.stored();
    engine.event(lock, now, |lane, _| {
        if !lane.is_held_by(owner, now) {
            return None;
        }
        match lane.mode() {
            Mode::Exclusive => lane.enter_held(lock, claim, now),
            _ => Some(Err(Error::new(ErrorKind::KeyConflict))),
        }
    })
}

/// The entry of one acquire, under the mutex of its lane.
struct Entry<'a> {
    engine: &'a Arc<Engine>,
    key: &'a LockKey,
    claim: &'a Claim,
    /// The acquire once it waits. Outside of the result, which is moved at each grant.
    pending: Option<PendingAcquire>,
}

/// The grant of an acquire, or `None` if it waits.
type Start = Result<Option<Arc<Grant>>, Error>;

impl Entry<'_> {
    /// Enters the lane, or makes the first attempt, or joins the queue.
    fn start(&mut self, lane: &mut Lane, effects: &mut Effects) -> Start {
        match self.admit(lane, effects) {
            Entered::Granted(grant) => Ok(Some(grant)),
            Entered::Rejected(error) => Err(error),
            Entered::Idle
                if self.claim.terms.mode == Mode::Permit && self.is_behind(effects.now) =>
            {
                self.queue(lane, LastReply::Busy(effects.now + PERMIT_HOLD), effects)
            }
            Entered::Idle => self.attempt(lane, effects),
            Entered::Occupied => self.queue(lane, LastReply::Nothing, effects),
        }
    }

    /// Returns `true` for a permit without a first attempt: behind others of this process, it would fail. An acquire
    /// makes one nevertheless unless its wait leaves time for a later attempt, which shows whether the backend replies.
    #[inline(never)]
    fn is_behind(&self, now: Moment) -> bool {
        let has_time = (self.claim.deadline).outlasts(now + 2 * LONGEST_FOR_SLOT);
        has_time && self.engine.seats.permit_waiters(self.key) > 0
    }

    /// Makes the first attempt, in an idle lane.
    fn attempt(&mut self, lane: &mut Lane, effects: &mut Effects) -> Start {
        let (engine, now, terms) = (self.engine, effects.now, self.claim.terms);
        let lease = engine.new_lease_id();
        let request = request(self.key, lease, terms);
        let lease = LeaseNumber::of(lease);
        let Some(immediate) = engine.backend.immediate() else {
            let waiter = Waiter::new(*self.claim, engine.reserve_seat(now)?);
            waiter.put_attempt(Attempt {
                lease,
                sent_at: now,
                reply: Arc::clone(&engine.backend).try_acquire(request),
            });
            let drives = engine.home.near().is_some();
            let first = First {
                due: engine.stuck_at(now) + OWN_TIMEOUT,
                unpolled_at: drives.then(|| now + UNPOLLED),
            };
            lane.attempt_first(Arc::clone(&waiter), lease, first);
            self.wait(waiter, None, drives);
            return Ok(None);
        };
        // It replies under the mutex of the lane, so no other event intervenes.
        match immediate.try_acquire(request, now.into()) {
            Acquired::Granted { counter } => {
                let per_counter = engine.capabilities.tokens_per_counter;
                let lease = Lease::new(lease, counter, per_counter, terms, now);
                Ok(Some(lane.hold(
                    self.key,
                    lease,
                    Via::Backend,
                    self.claim,
                    now,
                )))
            }
            Acquired::Busy { ttl } => {
                let seen = LastReply::Busy(now + ttl);
                match self.claim.deadline.is_one_attempt() {
                    true => Err(seen.error(now)),
                    false => self.queue(lane, seen, effects),
                }
            }
        }
    }

    /// Joins the queue. `seen` is the reply to the acquire's own last attempt.
    fn queue(&mut self, lane: &mut Lane, seen: LastReply, effects: &mut Effects) -> Start {
        let (engine, now) = (self.engine, effects.now);
        let limit = engine.options.max_waiters_per_key;
        // If both bounds are reached, this error is more precise.
        if lane.seats_taken() >= limit {
            return Err(lane.why_not(now).into_kind(ErrorKind::TooManyWaiters));
        }
        let seat = engine.reserve_seat(now).and_then(|seat| {
            let seat = engine.add_permit_seat(seat, self.key, limit);
            seat.ok_or_else(|| Error::new(ErrorKind::TooManyWaiters))
        });
        // The bound is of the manager, but a later acquire joins this queue.
        let seat = seat.map_err(|full| full.with_retry_after(lane.free_in(now)))?;
        let waiter = Waiter::new(*self.claim, seat);
        lane.enqueue(Arc::clone(&waiter), seen, effects);
        self.wait(waiter, lane.position(self.claim.ticket), false);
        Ok(None)
    }

    /// Creates the acquire that waits. Under the mutex of its lane, so it runs no other code.
    fn wait(&mut self, waiter: Arc<Waiter>, queue_position: QueuePosition, drives: bool) {
        self.pending = Some(PendingAcquire {
            engine: Arc::clone(self.engine),
            key: self.key.clone(),
            waiter,
            timer: None,
            queue_position,
            drives,
            is_over: false,
        });
    }

    fn admit(&self, lane: &mut Lane, effects: &mut Effects) -> Entered {
        let (engine, claim, now) = (self.engine, self.claim, effects.now);
        // During a shutdown, an owner may re-enter its lock to finish its work, and a waiter may take its further keys.
        let is_served = || claim.served_at_shutdown && !engine.has_reached(Shutdown::Rejecting);
        if engine.is_closing() && !is_served() && !lane.is_held_by(claim.owner, now) {
            return Entered::Rejected(Error::new(ErrorKind::ShuttingDown));
        }
        // A fork has a copy of the lanes, and its parent the leases.
        if lane.is_returning() && lane.kept_lease().is_some() && !engine.recent.is_of_this_process()
        {
            let forked = Error::new(ErrorKind::Unavailable).with_source(Forked);
            return Entered::Rejected(forked);
        }
        lane.enter(self.key, claim, effects)
    }
}

#[cfg(test)]
mod tests;
