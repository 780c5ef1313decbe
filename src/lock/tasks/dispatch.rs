//! Sends events to lanes and carries out their effects: the only place that answers waiters, wakes loss futures, reports
//! releases and starts the background work of events. An event runs under the mutex of its lane, and its effects without it:
//! they run wakers and subscribers of the program.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::contender::AcquireLoop;
use super::first_attempt::FirstAttempt;
use super::{releaser, watchdog};
use crate::lock::clock::{Moment, Span};
use crate::lock::engine::unconfirmed::UnknownLease;
use crate::lock::engine::{Engine, Shutdown};
use crate::lock::lane::{Effects, Few, Lane, Loss, Outgoing, Work};
use crate::lock::lease::{Claim, Deadline, LeaseNumber};
use crate::task::until_false;
use crate::{Error, ErrorKind, LockKey};

impl Engine {
    /// Applies an event at `now` to the lane of `key`, and carries out its effects.
    pub(crate) fn event<R>(
        self: &Arc<Self>,
        key: &LockKey,
        now: Moment,
        event: impl FnOnce(&mut Lane, &mut Effects) -> R,
    ) -> R {
        let mut effects = ManuallyDrop::new(Effects::at(now));
        let result = self.lanes.with(key, &mut effects, event);
        // Most events have no effects, and most effects are of one kind. The drop of each empty list would cost
        // more than these checks.
        if !effects.is_empty() {
            self.carry_out(key, &mut effects);
        }
        result
    }

    /// Applies an event at the moment at which it has the mutex: a caller may have observed a loss before.
    pub(crate) fn event_now<R>(
        self: &Arc<Self>,
        key: &LockKey,
        event: impl FnOnce(&mut Lane, &mut Effects) -> R,
    ) -> R {
        self.event(key, Moment::FIRST, |lane, effects| {
            effects.now = self.now();
            event(lane, effects)
        })
    }

    /// Empties and frees the lists, the others too if code of the program panics in one.
    pub(crate) fn carry_out(self: &Arc<Self>, key: &LockKey, effects: &mut Effects) {
        until_false(|| {
            self.carry_out_lists(key, effects);
            false
        });
    }

    /// Carries out the lists in this order. Empty ones are not moved.
    fn carry_out_lists(self: &Arc<Self>, key: &LockKey, effects: &mut Effects) {
        each(&mut effects.rejections, |(waiter, error)| {
            // Its acquire may not be polled any more, and the backend may grant the attempt.
            if let Some(attempt) = waiter.take_attempt() {
                self.start(key, Work::FinishAttempt(Arc::clone(&waiter), attempt));
            }
            // The acquire may have been dropped.
            drop(waiter.answer(Err(error)));
        });
        each(&mut effects.losses, |Loss { grant, while_held }| {
            // Woken before the report, which may panic.
            grant.wake_listeners();
            if while_held {
                self.lost(&grant);
            }
        });
        each(&mut effects.grants, |(waiter, given)| {
            // The acquire was dropped concurrently. Released before the report, which may panic.
            if let Err(Ok(given)) = waiter.answer(Ok(given)) {
                let hold = waiter.claim.hold;
                self.release(&given.grant, hold, None, self.now());
                self.granted(&given.grant, hold);
            }
        });
        each(&mut effects.reports, |(report, outcome)| {
            // The `release` future may have been dropped.
            drop(report.send(outcome));
        });
        each(&mut effects.deadlines, |at| watchdog::set(self, at));
        each(&mut effects.work, |work| self.start(key, work));
        if std::mem::take(&mut effects.outlive_lane) {
            self.lanes.started();
        }
    }

    fn start(self: &Arc<Self>, key: &LockKey, work: Work) {
        match work {
            Work::Contend(wakeup, released_to) => {
                AcquireLoop::new(self, key, wakeup).spawn(released_to);
            }
            Work::FinishAttempt(waiter, attempt) => {
                let attempt = FirstAttempt::new(self, key, &waiter, attempt);
                self.home.spawn(attempt.run());
            }
            Work::Return => releaser::enqueue(self, key),
            Work::ReturnAgain(lease) => releaser::send_again(self, key, lease),
            Work::ReleaseGranted(Outgoing { lease, ttl }) => {
                self.add_unconfirmed(key, UnknownLease::granted(lease, self.now() + ttl));
            }
            Work::ReleaseUnknown { lease, ttl } => self.release_until_confirmed(key, lease, ttl),
        }
    }

    /// Releases a lease of unknown fate in the background, until the backend replies or the lease must have
    /// expired, at most `ttl` from now.
    ///
    /// The time counts from now because a resent attempt, or a renewal without a reply, may have set the
    /// expiry later than this process can determine.
    pub(crate) fn release_until_confirmed(
        self: &Arc<Self>,
        key: &LockKey,
        lease: LeaseNumber,
        ttl: Span,
    ) {
        self.add_unconfirmed(key, UnknownLease::attempted(lease, self.now() + ttl));
    }

    fn add_unconfirmed(self: &Arc<Self>, key: &LockKey, lease: UnknownLease) {
        let unconfirmed = &self.home.unconfirmed;
        unconfirmed.add(key.clone(), self.backend.group(key), lease);
        unconfirmed.keep(self);
        watchdog::wake(self);
    }

    /// Rejects new acquires, and the waiters of this stage of the shutdown.
    ///
    /// An acquire reads the stage under the mutex of its shard whenever it enters a lane or queues. This
    /// method lists the keys of each shard after it has set the stage, so the acquire sees the stage or its key is listed.
    pub(crate) fn close(self: &Arc<Self>, stage: Shutdown) {
        self.set_closing(stage);
        let error = Error::new(ErrorKind::ShuttingDown);
        let now = self.now();
        let is_rejected =
            |claim: &Claim| stage == Shutdown::Rejecting || claim.deadline == Deadline::Endless;
        for key in self.lanes.keys() {
            self.event(&key, now, |lane, effects| {
                lane.reject_if(effects, |_, _| error.clone(), is_rejected);
                lane.admit(&key, effects);
            });
        }
        self.end_keeps();
    }

    /// Leaves all kept leases to the releaser. No other one is kept: a shutdown has begun, or the watchdog does not run.
    pub(super) fn end_keeps(self: &Arc<Self>) {
        if self.recent.is_of_this_process() {
            let now = self.now();
            for key in self.lanes.keys() {
                self.event(&key, now, Lane::end_keep);
            }
        }
    }
}

/// Carries out the effects of one kind. Most lists have at most one, for which an iterator would cost more.
fn each<T>(effects: &mut Few<T>, mut carry_out: impl FnMut(T)) {
    if effects.is_empty() {
        return;
    }
    match std::mem::take(effects) {
        Few::Empty => {}
        Few::One(effect) => carry_out(effect),
        Few::Several(effects) => effects.into_iter().for_each(carry_out),
    }
}
