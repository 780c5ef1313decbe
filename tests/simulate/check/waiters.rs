//! What a waiter can expect: its deadline, its turn, and the locks of its owner.

use tower_lock::backend::Mode;

use super::SLACK;
use crate::environment::{Environment, Managers};
use crate::seen::{LONGEST_LEASE, Seen, Waiter};
use crate::time::{MS, RESPONSE_TIMEOUT, SECOND, Time};
use crate::violation::Invariant;

impl Environment {
    pub(super) fn check_deadlines(&self, seen: &Seen, now: Time) {
        for waiter in &seen.waiters {
            let since = self.polled_since(seen, waiter.manager, waiter.runtime);
            let (Some(since), Some(attentive), Some(deadline)) =
                (since, waiter.attentive, waiter.deadline)
            else {
                continue;
            };
            let deadline = deadline + now - self.awake();
            if now > deadline.max(since).max(attentive) + SLACK + MS {
                let id = waiter.id;
                self.violate(Invariant::Deadline, || {
                    format!("w{id} waits beyond its deadline at {} ms", deadline / MS)
                });
            }
        }
        self.check_reentry(seen, now);
        for waiter in &seen.waiters {
            let since = self.running_since(seen, waiter.manager, waiter.runtime);
            let is_polled = waiter.attentive == Some(waiter.started)
                && since.is_some_and(|since| since <= waiter.started);
            // It was served as well, but lost the lease before it was polled.
            let is_forced = |at: &Time| {
                let forced = waiter.keys.iter().filter_map(|key| seen.forced.get(key));
                forced.max().is_some_and(|forced| forced >= at)
            };
            if let Some(at) = seen.overtaken.get(&waiter.id)
                && is_polled
                && !is_forced(at)
                && now > *at + SLACK
            {
                let id = waiter.id;
                self.violate(Invariant::Order, || {
                    format!("w{id} waits, and a later one shares the key")
                });
            }
        }
        for release in &seen.releases {
            let Some(since) = self.polled_since(seen, release.manager, release.runtime) else {
                continue;
            };
            // The background work notices a suspend once it runs. Without it, the caller reads the clock each second.
            let by_caller = seen.resumed + SECOND;
            let worked = self.worked_since(seen, release.manager);
            let noticed = match worked {
                _ if seen.resumed <= release.started => 0,
                Some(worked) => worked.min(by_caller),
                None => by_caller,
            };
            let due = release.until.max(release.started) + RESPONSE_TIMEOUT + 200 * MS;
            if now > due.max(since.max(noticed) + SLACK) {
                let id = release.id;
                self.violate(Invariant::ReleaseEnds, || {
                    format!("release r{id} goes on after the end of its lease")
                });
            }
        }
    }

    /// An owner that waits beside its own guard.
    fn check_reentry(&self, seen: &Seen, now: Time) {
        for waiter in &seen.waiters {
            let since = self.running_since(seen, waiter.manager, waiter.runtime);
            let (Some(since), Some(attentive), Some(owner)) =
                (since, waiter.attentive, waiter.owner)
            else {
                continue;
            };
            let own = seen.guards.iter().find(|guard| {
                let modes = waiter.keys.iter().map(|key| waiter.mode(*key));
                let mut modes = modes.zip(waiter.keys.iter().map(|key| guard.mode_of(*key)));
                // Acquires of a lock and of a permit at the same time do not know of each other.
                let of_both = modes.any(|(asked, held)| {
                    held != Some(asked) && [Some(asked), held].contains(&Some(Mode::Permit))
                });
                guard.owner == owner
                    && !(of_both && waiter.started <= guard.granted)
                    && waiter.keys.iter().all(|key| guard.keys.contains(key))
                    && guard.held.is_held()
                    && now > guard.granted.max(since).max(attentive) + SLACK + MS
            });
            if let Some(guard) = own {
                let (guard, waiter) = (guard.id, waiter.id);
                self.violate(Invariant::Reentry, || {
                    format!("w{waiter} waits, and its owner holds all its keys as g{guard}")
                });
            }
        }
    }

    /// I11: waiters that came before and could have been served.
    ///
    /// Waiters that share a lease are served together, and polled in any order.
    pub fn check_order(&self, seen: &mut Seen, granted: &Waiter, now: Time) {
        let plain = |waiter: &Waiter| {
            waiter.keys.len() == 1 && waiter.owner.is_none() && waiter.renewed && !waiter.single_try
        };
        // Each permit of a process waits alone.
        if !plain(granted) || granted.permits.is_some() {
            return;
        }
        // A waiter that was handed a broken lease queues again.
        let broken_at = |key| self.store.lock().unwrap().broken_at.get(key).copied();
        let broken_at = granted
            .keys
            .iter()
            .filter_map(broken_at)
            .max()
            .unwrap_or(-LONGEST_LEASE - 1);
        let mut waiters = seen.waiters.iter();
        let passed_over = waiters.find(|waiter| {
            let running = self.running_since(seen, waiter.manager, waiter.runtime);
            let suspended = now - self.awake();
            // A shutdown rejects those without a deadline.
            let is_rejected = seen.closing[waiter.manager] && waiter.deadline.is_none();
            plain(waiter)
                && !is_rejected
                && waiter.permits.is_none()
                && waiter.manager == granted.manager
                && waiter.keys == granted.keys
                && waiter.id < granted.id
                && waiter.started > broken_at + LONGEST_LEASE
                && waiter.attentive == Some(waiter.started)
                && running.is_some_and(|since| since <= waiter.started)
                && (waiter.deadline).is_none_or(|deadline| deadline + suspended > now)
        });
        if let Some(waiter) = passed_over {
            let (one, two) = (waiter.id, granted.id);
            let key = granted.keys[0];
            let mut both = [waiter, granted].into_iter();
            if both.all(|it| it.mode(key) == Mode::Shared) {
                seen.overtaken.entry(one).or_insert(now);
                return;
            }
            self.violate(Invariant::Order, || {
                format!("w{two} is served before w{one}, which came first")
            });
        }
    }

    /// I15, when each task that was woken has been polled: an acquire of a lock that has started waits. Those of
    /// permits are not checked: they may wait after a first attempt, or without one.
    pub fn check_waiters(&self) {
        let seen = self.seen.lock().unwrap();
        for (manager, settings) in self.plan.managers.iter().enumerate() {
            let limit = settings.max_waiters_per_key;
            if limit > self.plan.actors.len() {
                continue;
            }
            for key in 0..self.plan.keys {
                let waiters = seen.waiters.iter().filter(|it| {
                    it.manager == manager
                        && it.permits.is_none()
                        && it.keys == [key]
                        && it.owner.is_none()
                        && it.attentive.is_some()
                        && self.polled_since(&seen, manager, it.runtime).is_some()
                });
                let waiting = waiters.count();
                if waiting > limit {
                    self.violate(Invariant::Bounds, || {
                        format!("{waiting} wait for k{key} in m{manager}, and {limit} may")
                    });
                }
            }
        }
    }

    /// I15.
    pub(super) fn check_bounds(&self, seen: &Seen, managers: &Managers) {
        for (manager, locks) in managers.iter().enumerate() {
            let settings = &self.plan.managers[manager];
            // The first attempt of an acquire that is not polled goes on as a waiter, beyond the bound of its key.
            let waiters = seen.waiters.iter().filter(|it| it.manager == manager);
            let unpolled = waiters.filter(|it| {
                let since = self.polled_since(seen, manager, it.runtime);
                it.attentive != Some(it.started)
                    || since.is_none_or(|since| since > it.started)
                    || it.deadline.is_some_and(|at| at <= self.awake())
            });
            // With one key, the bound of a key is that of the manager. Permits have one of their own.
            let limit = match self.plan.keys {
                1 => {
                    (2 * settings.max_waiters_per_key + unpolled.count()).min(settings.max_waiters)
                }
                _ => settings.max_waiters,
            };
            // Most plans have room for all actors.
            if seen.killed[manager] || limit > self.plan.actors.len() {
                continue;
            }
            let waiting = locks.snapshot().waiting;
            if waiting > limit {
                self.violate(Invariant::Bounds, || {
                    format!("{waiting} wait in m{manager}, and {limit} may")
                });
            }
        }
    }
}
