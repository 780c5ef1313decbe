//! Carries out the effects of lane events: the only place that resolves waiters, wakes loss futures,
//! resolves releases and starts background work. No mutex is held here.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::clock::{Moment, Span};
use super::contender::AcquireLoop;
use super::effect::{Effects, Granted, Loss, Outgoing, Work};
use super::engine::Engine;
use super::few::Few;
use super::home::Home;
use super::lane::Lane;
use super::lease::LeaseNumber;
use super::take_over::take_over;
use super::unresolved::UnknownLease;
use super::{releaser, resolver, watchdog};
use crate::task::RuntimeId;
use crate::{Error, ErrorKind, LockKey};

impl Engine {
    /// Applies one event to the lane of `key`, and carries out its effects.
    pub(super) fn event<R>(
        self: &Arc<Self>,
        key: &LockKey,
        event: impl FnOnce(&mut Lane, &mut Effects) -> R,
    ) -> R {
        let mut effects = ManuallyDrop::new(Effects::default());
        let result = self.lanes.with(key, &mut effects, event);
        // Most events have no effects, and most effects are of one kind. The drop of each empty list would cost
        // more than these checks.
        if !effects.is_empty() {
            self.carry_out(key, &mut effects);
        }
        result
    }

    /// Empties and frees the lists in this order. Empty ones are not moved.
    pub(super) fn carry_out(self: &Arc<Self>, key: &LockKey, effects: &mut Effects) {
        let Effects {
            grants,
            rejections,
            losses,
            reports,
            deadlines,
            work,
            outlive_lane,
        } = effects;
        each(rejections, |(reply, error)| {
            // The acquire may have been dropped.
            drop(reply.send(Err(error)));
        });
        each(losses, |Loss { grant, while_held }| {
            if while_held {
                self.lost(&grant);
            }
            grant.wake_listeners();
        });
        each(grants, |Granted { reply, hold, given }| {
            self.granted(&given.grant, hold);
            // The acquire was dropped concurrently.
            if let Err(Ok(given)) = reply.send(Ok(given)) {
                let home = self.release_home();
                self.release(&given.grant, hold, home, None, Moment::now());
            }
        });
        each(reports, |(report, outcome)| {
            // The `release` future may have been dropped.
            drop(report.reply.send(outcome));
        });
        each(deadlines, |(home, at)| watchdog::set(self, home, at));
        each(work, |work| self.start(key, work));
        if std::mem::take(outlive_lane) {
            self.lanes.started();
        }
    }

    /// Carries out the effects of events in several lanes.
    pub(super) fn carry_out_all(self: &Arc<Self>, all: Vec<(LockKey, Effects)>) {
        for (key, mut effects) in all {
            self.carry_out(&key, &mut effects);
        }
    }

    fn start(self: &Arc<Self>, key: &LockKey, work: Work) {
        match work {
            Work::Contend {
                home,
                wakeup,
                yielded,
            } => AcquireLoop::new(self, key, home, wakeup).spawn(yielded),
            Work::TakeOver { attempt, home } => take_over(self, key, &attempt, home),
            Work::Return(home) => releaser::enqueue(self, key, home),
            Work::ReturnAgain(lease, home) => releaser::send_again(self, key, lease, home),
            Work::ResolveGranted(outgoing, home) => self.resolve_granted(key, outgoing, home),
            Work::Resolve { lease, ttl, home } => self.resolve(key, lease, ttl, home),
        }
    }

    /// Releases a lease of unknown fate in the background, until the backend replies or the lease must have
    /// expired, at most `ttl` from now.
    ///
    /// The time counts from now because a resent attempt, or a renewal without a reply, may have set the
    /// expiry later than this process can determine.
    pub(super) fn resolve(
        self: &Arc<Self>,
        key: &LockKey,
        lease: LeaseNumber,
        ttl: Span,
        home: RuntimeId,
    ) {
        let lease = UnknownLease::attempted(lease, Moment::now() + ttl);
        self.resolve_lease(key, lease, home);
    }

    /// As [`resolve`](Self::resolve), for a lease that was granted before. If a task releases it already, in whichever
    /// runtime, no other task has to.
    fn resolve_granted(self: &Arc<Self>, key: &LockKey, outgoing: Outgoing, home: RuntimeId) {
        let Outgoing { lease, ttl } = outgoing;
        let unknown = UnknownLease::granted(lease, Moment::now() + ttl);
        let homes = self.homes.all();
        match homes.iter().find(|home| home.unresolved.has(key, lease)) {
            Some(home) => resolver::add(self, home, key, unknown),
            None => self.resolve_lease(key, unknown, home),
        }
    }

    pub(super) fn resolve_lease(
        self: &Arc<Self>,
        key: &LockKey,
        lease: UnknownLease,
        home: RuntimeId,
    ) {
        match self.home(home) {
            Some(home) => resolver::add(self, &home, key, lease),
            // The runtime that was set has ended, and no other one follows: the leases expire.
            None if self.homes.is_fixed() => {}
            None => {
                self.homes.unresolved.add(key.clone(), lease);
                // A runtime that came since has not seen it.
                if let Some(home) = self.homes.any() {
                    self.resolve_kept(&home);
                }
            }
        }
    }

    /// Resolves in `home` what was kept while no runtime was left.
    pub(super) fn resolve_kept(self: &Arc<Self>, home: &Arc<Home>) {
        for (key, lease) in self.homes.unresolved.abandon() {
            resolver::add(self, home, &key, lease);
        }
    }

    /// Drops the expired leases that no runtime is left to return.
    pub(super) fn forget_expired(self: &Arc<Self>) {
        let now = Moment::now();
        // Few lanes are expired.
        let mut expired = Vec::new();
        self.lanes.inspect_all(|key, lane| {
            if lane.is_return_over(now) {
                expired.push(key.clone());
            }
        });
        self.forget(&expired, now);
    }

    /// As [`forget_expired`](Self::forget_expired), for these lanes.
    pub(super) fn forget(self: &Arc<Self>, expired: &[LockKey], now: Moment) {
        self.homes.unresolved.forget_expired(now);
        for key in expired {
            self.event(key, |lane, effects| lane.forget_if_expired(now, effects));
        }
    }

    /// Rejects new acquires and all waiters.
    ///
    /// An acquire reads the flag under the mutex of its shard whenever it enters a lane or queues. This
    /// method locks each shard after it has set the flag, so the acquire sees the flag or is in the queue.
    pub(super) fn close(self: &Arc<Self>) {
        self.set_closing();
        let error = Error::new(ErrorKind::ShuttingDown);
        let all = self
            .lanes
            .for_each(|_, lane, effects| lane.dismiss(&error, effects));
        self.carry_out_all(all);
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
