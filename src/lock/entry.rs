//! The entry of an acquire into the lane of one key: a grant, its own first attempt, or a place in the queue.

use std::sync::Arc;
use std::task::Waker;

use tokio::sync::oneshot;

use super::attempt::{Attempt, InFlight, Inline, InlineAttempt, Queued, unanswered};
use super::claim::{Claim, QueuePosition};
use super::clock::Moment;
use super::command::{Outcome, attempt_now, judge, send};
use super::contender::AcquireLoop;
use super::effect::{Effects, Work};
use super::engine::Engine;
use super::given::{Given, PickUp};
use super::grant::Grant;
use super::guard::Hold;
use super::lane::{Entered, Lane, Seen, Waiter};
use super::lease::LeaseNumber;
use super::yielded::Yielded;
use crate::{Error, ErrorKind, LockKey};

/// The result of one step of an acquire, which proceeds as far as possible without waiting.
pub(super) enum Step {
    Done(Result<Hold, Error>),
    Slow(Stage),
}

/// The event for which the acquire waits.
pub(super) enum Stage {
    /// The reply to its first attempt, which is in flight.
    Attempting(Arc<InlineAttempt>),
    /// A grant or a rejection as a waiter.
    Queued(Queued),
    Over,
}

impl Stage {
    pub(super) fn queue_position(&self) -> QueuePosition {
        match self {
            Self::Queued(queued) => queued.position,
            Self::Attempting(_) | Self::Over => None,
        }
    }
}

/// The result of the first event of an acquire.
enum Start {
    Granted(Arc<Grant>),
    Nested(Arc<Grant>),
    Queued(Queued),
    Rejected(Error),
    /// The lane was idle, and the caller has to send the attempt.
    Send(Arc<InlineAttempt>),
}

/// Enters the lane or joins its queue. All steps without waiting share one reading of the clock, `now`.
pub(super) fn enter(engine: &Arc<Engine>, key: &LockKey, claim: &Claim, now: Moment) -> Step {
    let start = engine.event(key, move |lane, effects| {
        start(engine, lane, key, claim, now, effects)
    });
    match start {
        Start::Granted(grant) => Step::Done(Ok(hold(engine, claim, grant))),
        Start::Nested(grant) => Step::Done(Ok(nested(engine, claim, grant))),
        Start::Queued(queued) => Step::Slow(Stage::Queued(queued)),
        Start::Rejected(error) => Step::Done(Err(error)),
        Start::Send(inline) => match engine.seat() {
            Ok(seat) => {
                let attempt = send(engine, key, engine.new_lease_id(), claim.terms, now);
                *inline.state() = Inline::InFlight(InFlight {
                    attempt,
                    claim: *claim,
                    seat,
                    waker: Waker::noop().clone(),
                });
                Step::Slow(Stage::Attempting(inline))
            }
            Err(overloaded) => {
                leave_inline(engine, key, claim, None, Seen::Nothing);
                Step::Done(Err(overloaded))
            }
        },
    }
}

/// Creates the hold of an immediate grant. A grouped grant is picked up later, with the others.
pub(super) fn hold(engine: &Arc<Engine>, claim: &Claim, grant: Arc<Grant>) -> Hold {
    if !claim.grouped {
        grant.pick_up();
    }
    engine.granted(&grant, claim.hold);
    Hold::new(Arc::clone(engine), grant, claim.hold)
}

fn nested(engine: &Arc<Engine>, claim: &Claim, grant: Arc<Grant>) -> Hold {
    engine.granted(&grant, claim.hold);
    Hold::new(Arc::clone(engine), grant, claim.hold)
}

/// Creates the hold of a waiter. Returns `None` if the grant was withdrawn.
pub(super) fn pick_up(engine: &Arc<Engine>, claim: &Claim, given: Given) -> Option<Hold> {
    let Given { grant, pick_up } = given;
    let picked_up = match pick_up {
        _ if claim.grouped => true,
        PickUp::Flag => grant.pick_up(),
        PickUp::Event => {
            let now = Moment::now();
            engine.event(grant.key(), |lane, _| lane.picked_up(&grant, claim, now))
        }
    };
    picked_up.then(|| Hold::new(Arc::clone(engine), grant, claim.hold))
}

fn start(
    engine: &Arc<Engine>,
    lane: &mut Lane,
    key: &LockKey,
    claim: &Claim,
    now: Moment,
    effects: &mut Effects,
) -> Start {
    match admit(engine, lane, key, claim, now, effects) {
        Entered::Granted(grant) => Start::Granted(grant),
        Entered::Nested(grant) => Start::Nested(grant),
        Entered::Idle => attempt(engine, lane, key, claim, now, effects),
        Entered::Occupied => queue(engine, lane, claim, Seen::Nothing, now, effects),
        Entered::Rejected(error) => Start::Rejected(error),
    }
}

/// Makes the first attempt, in an idle lane.
fn attempt(
    engine: &Arc<Engine>,
    lane: &mut Lane,
    key: &LockKey,
    claim: &Claim,
    now: Moment,
    effects: &mut Effects,
) -> Start {
    let lease = engine.new_lease_id();
    // A backend in this process replies under the mutex of the lane, so no other event intervenes.
    let Some(replied) = attempt_now(engine, key, lease, claim.terms, now) else {
        let inline = Arc::<InlineAttempt>::default();
        lane.contend_inline(&inline, claim, now);
        return Start::Send(inline);
    };
    let (outcome, unresolved) = judge(engine, replied);
    if let Some((lease, ttl)) = unresolved {
        let (ttl, home) = (unanswered(ttl), claim.home);
        effects.work.push(Work::Resolve { lease, ttl, home });
    }
    match outcome {
        Outcome::Granted(lease) => {
            Start::Granted(lane.granted_inline(key, claim, lease, now, effects))
        }
        Outcome::NotYet(seen) if claim.deadline.is_one_attempt() => {
            Start::Rejected(seen.error(now))
        }
        Outcome::NotYet(seen) => queue(engine, lane, claim, seen, now, effects),
        Outcome::Never(error) => Start::Rejected(error),
    }
}

/// Joins the queue. `seen` is the reply to the acquire's own last attempt.
fn queue(
    engine: &Engine,
    lane: &mut Lane,
    claim: &Claim,
    seen: Seen,
    now: Moment,
    effects: &mut Effects,
) -> Start {
    // If both bounds are reached, this error is more precise.
    if lane.seats_taken() >= engine.options.max_waiters_per_key {
        let error = lane.why_not(now).into_kind(ErrorKind::TooManyWaiters);
        return Start::Rejected(error);
    }
    match engine.seat() {
        Ok(seat) => {
            let (reply, answer) = oneshot::channel();
            let waiter = Waiter {
                claim: *claim,
                reply,
                _seat: seat,
            };
            lane.enqueue(waiter, seen, now, effects);
            let position = lane.position(claim.ticket);
            Start::Queued(Queued { answer, position })
        }
        // The bound is of the manager, but a later acquire joins this queue.
        Err(overloaded) => Start::Rejected(overloaded.with_retry_after(lane.free_in(now))),
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
    // During a shutdown, an owner may re-enter its lock to finish its work.
    let holds =
        || (lane.holder()).is_some_and(|held| held.owner() == claim.owner && held.is_held(now));
    if engine.is_closing() && !holds() {
        return Entered::Rejected(Error::new(ErrorKind::ShuttingDown));
    }
    lane.enter(key, claim, now, effects)
}

/// Ends the inline acquire, after a rejected attempt with the reply `seen`, or with it in flight.
pub(super) fn leave_inline(
    engine: &Arc<Engine>,
    key: &LockKey,
    claim: &Claim,
    attempt: Option<Attempt>,
    seen: Seen,
) {
    let home = claim.home;
    let in_flight = attempt
        .as_ref()
        .map(|attempt| (LeaseNumber::of(attempt.lease), attempt.terms.ttl));
    let now = Moment::now();
    let wakeup = engine.event(key, |lane, effects| {
        lane.inline_leaves(in_flight, seen, home, now, engine.stuck_at(now), effects)
    });
    if let (Some(wakeup), Some(attempt)) = (wakeup, attempt) {
        AcquireLoop::new(engine, key, home, wakeup)
            .with_attempt(attempt)
            .spawn(Yielded::ToNobody);
    }
}

#[cfg(test)]
mod tests;
