//! The start and the end of an acquire loop.

use std::sync::Arc;

use tokio::sync::Notify;

use super::state::{Contender, Contending, Lane, Phase, Seen, YIELDING};
use super::tenure::TAKE_OVER;
use crate::Error;
use crate::lock::attempt::unanswered;
use crate::lock::clock::Moment;
use crate::lock::effect::{Effects, Wakeup, Work};
use crate::lock::lease::Lease;
use crate::lock::place::QueuePlace;
use crate::lock::yielded::Yielded;
use crate::task::RuntimeId;

impl Contending {
    pub(super) fn wake(&self) {
        if let Contender::Loop { wakeup, .. } = &self.contender {
            wakeup.notify_one();
        }
    }

    fn is_driven_by(&self, own: &Wakeup) -> bool {
        matches!(&self.contender, Contender::Loop { wakeup, .. } if Arc::ptr_eq(wakeup, own))
    }
}

impl Lane {
    /// Begins to contend by a task in `home`.
    pub(super) fn contend(
        &mut self,
        seen: Seen,
        yielded: Yielded,
        home: RuntimeId,
        now: Moment,
        effects: &mut Effects,
    ) {
        let wakeup = self.contend_by_task(seen, yielded, now);
        self.move_to(home);
        effects.work.push(Work::Contend {
            home,
            wakeup,
            yielded,
        });
    }

    pub(super) fn contend_by_task(&mut self, seen: Seen, yielded: Yielded, now: Moment) -> Wakeup {
        let wakeup = Arc::new(Notify::new());
        let others_wait = match yielded {
            Yielded::To(_) | Yielded::ToQueue { .. } => true,
            Yielded::ToUnknown => false,
            Yielded::ToNobody => matches!(seen, Seen::Busy(_)),
        };
        let yields_until = match (&self.phase, yielded) {
            (Phase::Yielding { until }, _) => Some(*until),
            (Phase::Contending(contending), Yielded::ToNobody) => contending.yields_until,
            (_, Yielded::ToQueue { .. }) => Some(now + YIELDING),
            _ => None,
        };
        self.phase = Phase::Contending(Contending {
            contender: Contender::Loop {
                wakeup: Arc::clone(&wakeup),
                attempt: None,
            },
            seen,
            others_wait,
            yields_until,
            place: yielded.place(),
            suspect: false,
            due: now + TAKE_OVER,
        });
        wakeup
    }

    /// Begins to contend for the next waiter, or becomes idle. The lane holds no lease any more.
    pub(super) fn contend_or_idle(&mut self, yielded: Yielded, now: Moment, effects: &mut Effects) {
        let own = self.home;
        match self.first(now, effects) {
            None => {
                if let Some((place, home)) = yielded.place().zip(own) {
                    effects.leave(place.lease, home);
                }
                self.phase = match yielded {
                    Yielded::ToQueue { .. } => Phase::Yielding {
                        until: now + YIELDING,
                    },
                    Yielded::ToNobody | Yielded::To(_) | Yielded::ToUnknown => Phase::Idle,
                };
            }
            Some(claim) => {
                // The runtime of this event runs, but that of the waiter may not.
                let home = own.unwrap_or(claim.home);
                let yielded = yielded.for_mode(claim.terms.mode);
                self.contend(Seen::Busy(now), yielded, home, now, effects);
            }
        }
    }

    pub(super) fn driven_by(&mut self, wakeup: &Wakeup) -> Option<&mut Contending> {
        match &mut self.phase {
            Phase::Contending(contending) if contending.is_driven_by(wakeup) => Some(contending),
            _ => None,
        }
    }

    /// Rejects all waiters.
    pub(in crate::lock) fn dismiss(&mut self, error: &Error, effects: &mut Effects) {
        match &mut self.phase {
            Phase::Contending(contending) => {
                contending.yields_until = None;
                contending.wake();
            }
            Phase::Yielding { .. } => self.phase = Phase::Idle,
            Phase::Idle | Phase::Held(_) | Phase::Returning(_) => {}
        }
        for waiter in self.queue.take() {
            effects.reject(waiter.reply, error.clone());
        }
        if self.holder_homes().is_empty() {
            self.queue.forget_elsewhere();
        }
    }

    /// Applies the drop of the task with its runtime, which has ended. Rejects the waiters of that runtime,
    /// and contends for the others. Returns `false` if another task has replaced this one.
    pub(in crate::lock) fn abandon(
        &mut self,
        wakeup: &Wakeup,
        ended: RuntimeId,
        error: &Error,
        now: Moment,
        effects: &mut Effects,
    ) -> bool {
        if self.driven_by(wakeup).is_none() {
            return false;
        }
        for waiter in self.queue.take() {
            if waiter.claim.home == ended {
                effects.reject(waiter.reply, error.clone());
            } else {
                self.queue.insert(waiter);
            }
        }
        let place = self.end_task(effects);
        if self.first(now, effects).is_none() {
            if let Some(place) = place {
                effects.leave(place.lease, ended);
            }
            self.stop_contending(now);
            return true;
        }
        self.set_home(None);
        self.contend_or_idle(Yielded::behind(place), now, effects);
        true
    }

    /// Replaces a task that does not run by one in `home`.
    pub(super) fn replace_task(&mut self, home: RuntimeId, now: Moment, effects: &mut Effects) {
        self.set_home(Some(home));
        let place = self.end_task(effects);
        let Phase::Contending(contending) = &mut self.phase else {
            unreachable!("BUG: only a task that contends is replaced");
        };
        let seen = std::mem::replace(&mut contending.seen, Seen::Nothing);
        self.contend(seen, Yielded::behind(place), home, now, effects);
    }

    /// Ends a task that another one replaces. Returns the place in the queue of the backend, for the other one.
    ///
    /// If an attempt is in flight, its lease is released instead: the ended task may yet receive the grant.
    fn end_task(&mut self, effects: &mut Effects) -> Option<QueuePlace> {
        let Phase::Contending(contending) = &mut self.phase else {
            return None;
        };
        let place = contending.place.take();
        if let Contender::Loop { attempt, .. } = &mut contending.contender
            && let Some((lease, ttl)) = attempt.take()
            && let Some(home) = self.home
        {
            let ttl = unanswered(ttl);
            effects.work.push(Work::Resolve { lease, ttl, home });
            return None;
        }
        place
    }

    /// Leaves the queue of the backend.
    pub(super) fn leave_place(&mut self, effects: &mut Effects) {
        if let Phase::Contending(contending) = &mut self.phase
            && let Some(place) = contending.place.take()
            && let Some(home) = self.home
        {
            effects.leave(place.lease, home);
        }
    }

    pub(super) fn is_suspect(&self) -> bool {
        matches!(&self.phase, Phase::Contending(contending) if contending.suspect)
    }

    pub(super) fn pass_suspicion_on(&self, lease: &mut Lease, now: Moment) {
        if self.is_suspect() {
            lease.mark_suspect(now);
        }
    }
}
