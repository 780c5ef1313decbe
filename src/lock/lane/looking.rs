//! The events of the watchdogs: due and overdue work.

use std::sync::Arc;
use std::time::Duration;

use super::state::{Contender, Contending, InlineAcquire, Lane, Phase, Returning};
use super::tenure::{OWN_FIRST, TAKE_OVER};
use crate::backend::Mode;
use crate::lock::clock::Moment;
use crate::lock::effect::{Effects, Work};
use crate::lock::lease::LeaseNumber;
use crate::task::RuntimeId;

/// One check of a lane by a watchdog.
#[derive(Debug, Clone, Copy)]
pub(in crate::lock) struct Look {
    /// The runtime of the watchdog.
    pub(in crate::lock) home: RuntimeId,
    pub(in crate::lock) now: Moment,
    /// The longest time that one command of the backend takes.
    pub(in crate::lock) response_timeout: Duration,
}

impl Lane {
    /// Returns when the watchdog of the lane's home has to check it.
    #[inline(always)]
    pub(in crate::lock) fn next_look(&self) -> Option<(RuntimeId, Moment)> {
        let at = match &self.phase {
            Phase::Idle => return None,
            Phase::Yielding { until } => *until,
            Phase::Held(tenure) => match tenure.lease.mode() {
                Mode::Shared => self.admits_by(tenure.next_look()),
                Mode::Exclusive | Mode::Permit => tenure.next_look(),
            },
            Phase::Returning(returning) => match returning.lease.reply_due() {
                Some(due) => due.min(returning.next_end()),
                None => returning.next_end(),
            },
            Phase::Contending(Contending {
                contender: Contender::Inline(InlineAcquire { deadline, .. }),
                due,
                ..
            }) => match deadline {
                _ if !self.queue.is_empty() => *due,
                Some(deadline) => *deadline.max(due),
                None => return None,
            },
            // The loop runs in the same runtime, so a check from there cannot help.
            Phase::Contending(_) => return None,
        };
        self.home.map(|home| (home, at))
    }

    /// Returns `at`, or the deadline of an exclusive acquire if that is earlier and others wait behind it to share the
    /// lease. Its future may not be polled.
    fn admits_by(&self, at: Moment) -> Moment {
        let mut waiters = self.queue.iter().map(|waiter| &waiter.claim);
        match waiters
            .next()
            .map(|first| (first.terms.mode, first.deadline.moment()))
        {
            Some((Mode::Exclusive, Some(deadline))) if waiters.next().is_some() => at.min(deadline),
            _ => at,
        }
    }

    /// Returns the next look, unless the index has an entry for it.
    #[inline]
    pub(in crate::lock) fn unscheduled_look(&self) -> Option<(RuntimeId, Moment)> {
        let next = self.next_look();
        next.filter(|(_, at)| !self.is_scheduled_by(*at))
    }

    /// Returns `true` if a waiter, or a nested hold, is in another runtime than the lane's own.
    pub(in crate::lock) fn is_awaited_elsewhere(&self) -> bool {
        self.queue.elsewhere().is_some()
    }

    /// Returns when the watchdogs of the waiters' other runtimes have to check the lane, unless they were
    /// last notified of the same time.
    pub(in crate::lock) fn looks_from_elsewhere(
        &mut self,
        response_timeout: Duration,
    ) -> Option<(Moment, Vec<RuntimeId>)> {
        let not_before = self.queue.elsewhere()?.not_before;
        let at = match &self.phase {
            Phase::Idle | Phase::Yielding { .. } => return None,
            Phase::Held(tenure) if tenure.homes().is_empty() => tenure.ends_by(),
            Phase::Held(tenure) => tenure
                .ends_by()
                .min(tenure.renewal_overdue(response_timeout)),
            Phase::Returning(returning) if self.queue.is_empty() => returning.next_end(),
            Phase::Returning(returning) => returning.overdue(response_timeout),
            // The runtime of the acquire takes over first, if it runs.
            Phase::Contending(Contending {
                contender: Contender::Inline(_),
                due,
                ..
            }) => *due + OWN_FIRST,
            Phase::Contending(contending) => contending.due,
        };
        let at = not_before.map_or(at, |not_before| at.max(not_before));
        let elsewhere = self.queue.elsewhere_mut()?;
        if elsewhere.announced.replace(at) == Some(at) {
            return None;
        }
        Some((at, self.other_homes()))
    }

    /// Returns `true` if the watchdogs of other runtimes were last notified of this time.
    pub(in crate::lock) fn is_announced(&self, at: Moment) -> bool {
        let elsewhere = self.queue.elsewhere();
        elsewhere.is_some_and(|elsewhere| elsewhere.announced == Some(at))
    }

    /// Returns `true` if a renewal that is due later may join one that is sent now.
    pub(in crate::lock) fn renews_early(&self, now: Moment) -> bool {
        matches!(&self.phase, Phase::Held(tenure) if tenure.lease.renews_early(now))
    }

    /// Checks the lane. Returns the lease to renew and its TTL.
    pub(in crate::lock) fn look(
        &mut self,
        look: Look,
        effects: &mut Effects,
    ) -> Option<(LeaseNumber, Duration)> {
        let Look { home, now, .. } = look;
        self.expire(home, now, effects);
        self.reject_if(now, effects, |claim| claim.deadline.has_passed(now));
        let own = self.home == Some(home);
        if !own && let Some(elsewhere) = self.queue.elsewhere_mut() {
            elsewhere.not_before = Some(now + TAKE_OVER);
        }
        self.end_overdue(home, now, effects);
        match &mut self.phase {
            Phase::Held(tenure) => {
                if !own {
                    let overdue = tenure.renewal_overdue(look.response_timeout);
                    if now < overdue || !tenure.homes().contains(&home) {
                        return None;
                    }
                    tenure.lease.give_up_renewal(now);
                }
                let ttl = tenure.lease.start_renewal(now)?;
                if !own {
                    // This runtime may stop as well.
                    tenure.lease.expect_reply_within(look.response_timeout, now);
                }
                Some((tenure.lease.number(), ttl))
            }
            Phase::Returning(returning)
                if !own
                    && !self.queue.is_empty()
                    && returning.overdue(look.response_timeout) <= now =>
            {
                self.give_up_renewal(now);
                self.send_return_again(home, now, now + look.response_timeout, effects);
                None
            }
            // Another runtime sent the renewal for whose reply the release waits.
            Phase::Returning(Returning { lease, .. })
                if lease.reply_due().is_some_and(|due| due <= now) =>
            {
                self.give_up_renewal(now);
                self.move_to(home);
                effects.work.push(Work::Return(home));
                None
            }
            Phase::Contending(contending) if contending.due <= now => {
                let awaited = !self.queue.is_empty();
                let is_first = own || contending.due + OWN_FIRST <= now;
                match &contending.contender {
                    Contender::Inline(InlineAcquire { attempt, deadline })
                        if is_first
                            && (awaited || deadline.is_some_and(|deadline| deadline <= now)) =>
                    {
                        let attempt = Arc::clone(attempt);
                        contending.due = now + TAKE_OVER;
                        effects.work.push(Work::TakeOver { attempt, home });
                    }
                    Contender::Loop { .. } if awaited && !own => {
                        self.replace_task(home, now, effects);
                    }
                    _ => {}
                }
                None
            }
            _ => None,
        }
    }

    /// Rejects waiters whose deadline has passed. After a suspend of the machine, their own timers are late.
    pub(in crate::lock) fn reject_late(&mut self, now: Moment, effects: &mut Effects) {
        self.reject_if(now, effects, |claim| claim.deadline.has_passed(now));
    }

    /// Moves the background work of the ended runtime `ended` to `home`.
    pub(in crate::lock) fn adopt(
        &mut self,
        ended: RuntimeId,
        home: RuntimeId,
        now: Moment,
        effects: &mut Effects,
    ) {
        match &mut self.phase {
            Phase::Held(tenure) => tenure.remove_home(ended),
            Phase::Returning(returning) => returning.leave_future(ended),
            Phase::Idle | Phase::Yielding { .. } | Phase::Contending(_) => {}
        }
        if self.home != Some(ended) {
            return;
        }
        self.set_home(Some(home));
        match &mut self.phase {
            // The acquire that has yet to pick up the grant runs in another runtime.
            Phase::Held(tenure) if tenure.grant().is_offered() => tenure.lease.give_up_renewal(now),
            Phase::Held(tenure) => {
                // It waits for no renewal any more.
                tenure.first.notify_downgrade();
                match tenure.homes().first() {
                    Some(other) => {
                        let other = *other;
                        tenure.lease.give_up_renewal(now);
                        self.set_home(Some(other));
                    }
                    None => tenure.lease.leave_to_expire(now),
                }
            }
            Phase::Returning(returning) if !returning.sent => {
                self.give_up_renewal(now);
                effects.work.push(Work::Return(home));
            }
            Phase::Returning(returning) => {
                returning.sent_again = true;
                let outgoing = returning.outgoing(now);
                effects.work.push(Work::ReturnAgain(outgoing, home));
            }
            Phase::Contending(Contending {
                contender: Contender::Loop { .. },
                ..
            }) => self.replace_task(home, now, effects),
            _ => {}
        }
    }
}

impl Returning {
    /// Returns when the task that returns the lease counts as stuck.
    fn overdue(&self, response_timeout: Duration) -> Moment {
        match self.lease.in_flight_since() {
            // A release waits for the reply to a renewal.
            Some(since) => self.due.max(since + response_timeout + TAKE_OVER),
            None => self.due,
        }
    }
}
