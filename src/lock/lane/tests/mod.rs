//! The transitions of the table in `lock/mod.rs`.

mod checks;
mod contending;
mod downgrading;
mod entering;
mod held;
mod held_lease;
mod joining;
mod offered;
mod pace;
mod permits;
mod queued;
mod renewing;
mod returning;
mod shared;

use futures_util::FutureExt as _;
use tokio::sync::oneshot::{self, error::TryRecvError};

use std::sync::Arc;
use std::time::Duration;

use super::effect::{Effects, Wakeup, Work};
use super::holding::held_lease::HeldLease;
use super::state::*;
use super::*;
use crate::backend::{BackendError, Mode, Renewal, Renewed};
use crate::lock::clock::{Moment, Span};
use crate::lock::lease::{
    Claim, Deadline, Grant, HoldId, Kept, Lease, PLACE, QueuePlace, ReleasedTo, Terms, Ticket,
};
use crate::lock::tests::*;
use crate::observe::Via;
use crate::{Error, ErrorKind, FencingToken};

/// A lane with its clock.
#[derive(Debug)]
struct TestLane {
    lane: Lane,
    now: Moment,
    /// The number of first attempts that were replaced.
    left_attempts: usize,
}

/// Returns a claim of the first claim's owner.
fn again(hold: HoldId, terms: Terms) -> Claim {
    Claim {
        hold,
        ..claim(1, terms)
    }
}

/// Returns a claim that waits for one attempt.
fn once(ticket: Ticket, lane: &TestLane) -> Claim {
    Claim {
        deadline: Deadline::OneAttempt(lane.now + SECOND),
        ..claim(ticket, RENEWED)
    }
}

/// The receiver of a release report.
type Reported = oneshot::Receiver<Result<(), Error>>;

impl TestLane {
    fn idle() -> Self {
        Self {
            lane: Lane::default(),
            now: Moment::now(),
            left_attempts: 0,
        }
    }

    /// Returns a lane in which a task makes the first attempt of this claim, under lease 1.
    fn attempting(claim: Claim) -> (Self, Arc<Waiter>) {
        let mut lane = Self::idle();
        assert!(matches!(lane.enter(claim), Entered::Idle));
        let (waiter, answer) = waiter(claim);
        let first = lane.first(None);
        lane.lane.attempt_first(waiter, number(1), first);
        (lane, answer)
    }

    /// Returns a first attempt that begins.
    fn first(&self, unpolled_at: Option<Moment>) -> First {
        First {
            due: self.now + RESPONSE_TIMEOUT,
            unpolled_at,
        }
    }

    /// Applies the rejection of the first attempt of the claim with this ticket, under lease 1.
    fn refuse_first(&mut self, ticket: Ticket, seen: LastReply) -> Effects {
        let attempt = (ticket, number(1));
        let ((), effects) = self.event(|lane, effects| {
            lane.rejected_first(attempt, seen, effects, || true);
        });
        effects
    }

    /// Returns a lane in which the first claim holds lease 1 with counter 100.
    fn held(terms: Terms) -> (Self, Arc<Grant>) {
        Self::held_by(claim(1, terms))
    }

    fn held_by(claim: Claim) -> (Self, Arc<Grant>) {
        let mut lane = Self::idle();
        assert!(matches!(lane.enter(claim), Entered::Idle));
        let lease = lane.lease(1, 100, claim.terms);
        let now = lane.now;
        let grant = lane.lane.hold(&key(), lease, Via::Backend, &claim, now);
        (lane, grant)
    }

    /// Returns a lane in which an acquire loop serves the first claim.
    fn looping(claim: Claim) -> (Self, Wakeup, Arc<Waiter>) {
        let mut lane = Self::idle();
        let (waiter, answer) = waiter(claim);
        let ((), mut effects) = lane.event(|lane, effects| {
            lane.enqueue(waiter, LastReply::Nothing, effects);
        });
        let wakeup = contends(&mut effects);
        (lane, wakeup, answer)
    }

    /// Returns a lease with this number, granted now.
    fn lease(&self, lease: u64, counter: u64, terms: Terms) -> Lease {
        Lease::new(number(lease), counter, TOKENS, terms, self.now)
    }

    fn event<R>(&mut self, event: impl FnOnce(&mut Lane, &mut Effects) -> R) -> (R, Effects) {
        let mut effects = Effects::at(self.now);
        let result = event(&mut self.lane, &mut effects);
        (result, effects)
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    #[track_caller]
    fn enter(&mut self, claim: Claim) -> Entered {
        let (entered, effects) = self.event(|lane, effects| lane.enter(&key(), &claim, effects));
        assert!(effects.is_empty(), "{effects:?}");
        entered
    }

    /// Adds a hold of the first claim's owner.
    #[track_caller]
    fn nest(&mut self, hold: HoldId, terms: Terms) {
        let entered = self.enter(again(hold, terms));
        let Entered::Granted(grant) = entered else {
            panic!("{entered:?}");
        };
        assert!(grant.holds() > 1);
    }

    #[track_caller]
    fn enqueue(&mut self, claim: Claim) -> Arc<Waiter> {
        let (waiter, answer) = waiter(claim);
        let ((), effects) = self.event(|lane, effects| {
            lane.enqueue(waiter, LastReply::Nothing, effects);
        });
        assert!(effects.is_empty(), "{effects:?}");
        answer
    }

    /// Adds a waiter without a deadline, whose reply is not read.
    #[track_caller]
    fn queue(&mut self, ticket: Ticket, terms: Terms) {
        drop(self.enqueue(claim(ticket, terms)));
    }

    fn release(&mut self, grant: &Arc<Grant>) -> Effects {
        self.release_hold(grant, 1, None)
    }

    fn release_hold(
        &mut self,
        grant: &Arc<Grant>,
        hold: u64,
        report: Option<oneshot::Sender<Result<(), Error>>>,
    ) -> Effects {
        let (_until, effects) =
            self.event(|lane, effects| lane.release(grant, hold, report, effects));
        effects
    }

    fn take_return(&mut self) -> Option<Order> {
        let due = self.now + RESPONSE_TIMEOUT;
        self.lane.take_return(self.now, due)
    }

    fn returned(&mut self, lease: u64) -> Effects {
        let ((), effects) = self.event(|lane, effects| {
            lane.returned(number(lease), Ok(()), ReleasedTo::Nobody, effects);
        });
        effects
    }

    fn kept(&mut self, lease: u64, counter: impl Into<Option<u64>>) -> Effects {
        let kept = Kept {
            counter: counter.into(),
            counters: 1,
            ttl: RENEWED.ttl,
            sent_at: self.now,
        };
        let ((), effects) = self.event(|lane, effects| {
            lane.kept(&key(), number(lease), kept, effects);
        });
        effects
    }

    fn forced(&mut self, seen: Option<u64>) -> Effects {
        let seen = seen.map(number);
        let ((), effects) = self.event(|lane, effects| lane.released_by_force(seen, effects));
        effects
    }

    fn check(&mut self) -> (Option<Renewal>, Effects) {
        let (due, effects) = self.event(Lane::check);
        let mode = self.lane.mode();
        let renewal = due.map(|(lease, ttl)| renewal(lease.get(), ttl).with_mode(mode));
        self.left_attempts += usize::from(effects.left_attempt);
        (renewal, effects)
    }

    /// Returns the due renewal, and puts it in flight.
    #[track_caller]
    fn start_renewal(&mut self) -> Renewal {
        let (due, effects) = self.check();
        assert!(effects.is_empty(), "{effects:?}");
        due.expect("a renewal")
    }

    /// Returns `true` if a renewal is sent that waited for a slot until `now`.
    fn still_wants(&mut self, renewal: &Renewal, now: Moment) -> bool {
        (self.lane).still_wants(renewal, &mut Effects::at(now))
    }

    fn renewed(
        &mut self,
        renewal: &Renewal,
        sent_at: Moment,
        outcome: Result<Renewed, BackendError>,
    ) -> Effects {
        let ((), effects) = self.event(|lane, effects| {
            lane.renewed(renewal, sent_at, &outcome, effects);
        });
        effects
    }

    /// Returns when the watchdog checks the lane.
    #[track_caller]
    fn next_check(&self) -> Moment {
        self.lane.next_check().expect("a check")
    }

    fn is_held(&self) -> bool {
        self.lane.is_held()
    }
}

/// Returns `true` if the loop was notified since the last call.
fn is_woken(wakeup: &Wakeup) -> bool {
    wakeup.notified().now_or_never().is_some()
}
