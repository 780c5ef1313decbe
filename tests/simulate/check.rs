//! Checks the invariants against what has been seen, after each step of a simulation.

use std::collections::BTreeMap;

use crate::plan::{Command, Step};
use crate::seen::{Guard, LONGEST_LEASE, Seen, Waiter};
use crate::store::Item;
use crate::time::{MS, RESPONSE_TIMEOUT, SECOND, Time, time};
use crate::violation::Invariant;
use crate::world::{Managers, World, number};

/// For timers, which fire at whole milliseconds, and for the order of tasks.
const SLACK: Time = 10 * MS;

/// For the first timers after a suspend, which do not follow its clock.
const AFTER_SUSPEND: Time = 100 * MS;

/// How long a lost notification may delay a waiter, jitter included.
const BACKSTOP: Time = 1_100 * MS;

/// How many attempts a second without a cause are no storm.
const CALM: usize = 12;

impl World {
    /// Looks at everything once.
    pub fn observe(&self, managers: &Managers) {
        let now = self.now();
        let mut seen = self.seen.lock().unwrap();
        let seen = &mut *seen;
        self.check_guards(seen, now);
        self.check_exclusion(seen);
        self.check_hold_counts(seen);
        self.check_deadlines(seen, now);
        self.check_keys(seen, now);
        self.check_bounds(seen, managers);
    }

    /// Since when the runtime of `manager` is polled, and timers are right.
    fn running_since(&self, seen: &Seen, manager: usize, runtime: usize) -> Option<Time> {
        let since = self.runtime(manager, runtime).running_since()?;
        let resumed = if seen.resumed == 0 {
            0
        } else {
            seen.resumed + AFTER_SUSPEND
        };
        Some(since.max(resumed))
    }

    /// The longest round trip of a command without trouble.
    fn round_trip(&self) -> Time {
        2 * MS * i64::try_from(self.plan.delay.1).unwrap()
    }

    fn shortest_lease(&self) -> Time {
        let managers = self.plan.managers.iter().map(|manager| manager.watchdog);
        let steps = self.plan.actors.iter().flat_map(|actor| &actor.steps);
        let leases = steps.filter_map(|step| match step {
            Step::Acquire(acquire) => acquire.lease,
            _ => None,
        });
        let shortest = managers.chain(leases).min().unwrap_or(1);
        MS * i64::try_from(shortest).unwrap()
    }

    fn watchdog(&self, manager: usize) -> Time {
        MS * i64::try_from(self.plan.managers[manager].watchdog).unwrap()
    }

    fn check_guards(&self, seen: &mut Seen, now: Time) {
        let mut lost = Vec::new();
        let mut guards = std::mem::take(&mut seen.guards);
        for (at, guard) in guards.iter_mut().enumerate() {
            if guard.held.is_held() {
                self.check_held(seen, guard, now);
            } else if guard.lost.is_none() {
                guard.lost = Some(now);
                self.trace(|| format!("g{} is not held any more", guard.id));
                lost.push(at);
            }
            self.check_report(seen, guard, now);
        }
        seen.guards = guards;
        for at in lost {
            self.check_lost_early(seen, &seen.guards[at], now);
        }
    }

    /// I2, and the terms.
    fn check_held(&self, seen: &Seen, guard: &mut Guard, now: Time) {
        let id = guard.id;
        if let Some(lost) = guard.lost {
            let lost = lost / MS;
            self.violate(Invariant::Loss, || {
                format!("g{id} is held, and was not at {lost} ms")
            });
        }
        guard.valid_until = now + time(guard.held.remaining());
        let store = self.store.lock().unwrap();
        for (key, lease) in guard.keys.iter().zip(&guard.leases) {
            let record = &store.records[lease];
            if guard.valid_until > record.valid_until {
                let (is, may) = (guard.valid_until, record.valid_until);
                self.violate(Invariant::Validity, || {
                    format!("g{id} is valid until {is} µs, its lease of k{key} until {may} µs")
                });
            }
            let holds = (store.holder(*key, now)).is_some_and(|(holder, _)| holder == *lease);
            if !holds && !record.broken {
                self.violate(Invariant::Validity, || {
                    format!("g{id} is held, and the store does not hold its lease of k{key}")
                });
            }
        }
        if let Some(max_hold) = guard.max_hold
            && !guard.reentrant
            && !guard.shares_owner
            && now > guard.granted + max_hold + SLACK
        {
            self.violate(Invariant::HeldTooLong, || {
                format!("g{id} is held for longer than its max_hold")
            });
        }
        for key in guard.group_keys() {
            let group = &seen.groups[&key];
            let troubled = seen.troubled[guard.manager] > guard.granted;
            let pending = seen.waiters.iter().any(|it| it.owner == Some(guard.owner));
            if group.renewed == 0 && !troubled && !pending && now > group.until + SLACK {
                self.violate(Invariant::HeldTooLong, || {
                    format!("g{id} is held for longer than the leases that were asked for")
                });
            }
        }
    }

    fn check_lost_early(&self, seen: &Seen, guard: &Guard, now: Time) {
        let store = self.store.lock().unwrap();
        let broken = guard.leases.iter().any(|it| store.records[it].broken);
        drop(store);
        let suspended = seen.resumed > guard.granted - self.round_trip();
        if seen.closing[guard.manager] || broken || suspended {
            return;
        }
        let id = guard.id;
        let Some(lease) = guard.lease else {
            let mut members = seen.guards.iter().filter(|it| it.shares_grant(guard));
            let running = members
                .clone()
                .map(|member| self.running_since(seen, member.manager, member.runtime))
                .all(|since| since.is_some_and(|since| since <= guard.granted));
            let calm = running && seen.troubled[guard.manager] <= guard.granted;
            let watchdog = self.watchdog(guard.manager);
            let quick = self.round_trip() * 6 <= watchdog && guard.granted_for >= watchdog / 4;
            // The limit of the oldest hold applies, which a waiter may have without a poll.
            let pending = seen.waiters.iter().any(|it| it.owner == Some(guard.owner));
            let endless = !pending && members.all(|member| member.max_hold.is_none());
            let early = match guard.max_hold {
                Some(max_hold) if !guard.reentrant => now < guard.started + max_hold - SLACK,
                _ => !guard.reentrant && !guard.shares_owner || endless,
            };
            if calm && quick && early {
                self.violate(Invariant::LostEarly, || {
                    format!("g{id} is lost, although its runtime runs and the store is well")
                });
            }
            return;
        };
        // More is left where it entered a longer hold, which may end before. I2 allows for the drift.
        let own = lease - lease / 100 - 2 * MS;
        let promised = guard.granted + guard.granted_for.min(own) - MS;
        let troubled = seen.troubled[guard.manager] > guard.granted;
        let calm = !troubled && guard.keys.len() == 1 && !guard.reentrant;
        let running = self
            .running_since(seen, guard.manager, guard.runtime)
            .is_some_and(|since| since <= guard.granted - self.round_trip());
        let max_hold = guard.max_hold.unwrap_or(Time::MAX / 4);
        if calm && running && now < promised.min(guard.started + max_hold - SLACK) {
            self.violate(Invariant::LostEarly, || {
                format!("g{id} is lost before the end of its lease")
            });
        }
    }

    /// I3.
    fn check_report(&self, seen: &Seen, guard: &Guard, now: Time) {
        let Some(lost) = guard.lost else { return };
        let Some(since) = self.running_since(seen, guard.manager, guard.runtime) else {
            return;
        };
        let due = lost.min(guard.valid_until).max(since).max(guard.granted) + SLACK;
        let at = guard.reported.unwrap_or(now);
        // What was reported before the runtime was paused is no concern of its resumption.
        if at > due {
            self.violate(Invariant::Loss, || {
                let (id, due) = (guard.id, due / MS);
                format!("the loss of g{id} was not reported by {due} ms")
            });
        }
    }

    /// I1. Called after each step, so that no overlap goes unseen: what is held changes in steps,
    /// and ends between them.
    pub fn check_exclusion(&self, seen: &Seen) {
        let store = self.store.lock().unwrap();
        let mut holders = BTreeMap::<usize, &Guard>::new();
        for guard in seen.guards.iter().filter(|guard| guard.held.is_held()) {
            for key in &guard.keys {
                let Some(other) = holders.insert(*key, guard) else {
                    continue;
                };
                let same =
                    other.owner == guard.owner && other.token_of(*key) == guard.token_of(*key);
                let mut leases = [other, guard]
                    .into_iter()
                    .filter_map(|it| it.lease_of(*key));
                let broken = leases.any(|lease| store.records[&lease].broken);
                if !same && !broken {
                    let (one, two) = (other.id, guard.id);
                    self.violate(Invariant::Exclusion, || {
                        format!("g{one} and g{two} hold k{key} at the same time")
                    });
                }
            }
        }
    }

    /// I5.
    fn check_hold_counts(&self, seen: &Seen) {
        for guard in seen.guards.iter().filter(|guard| guard.held.is_held()) {
            let live = |key| seen.groups[&key].live;
            let fewest = guard.group_keys().map(live).min().unwrap_or(0);
            let pending = seen.waiters.iter().filter(|waiter| {
                waiter.owner == Some(guard.owner)
                    && waiter.keys.iter().any(|key| guard.keys.contains(key))
            });
            let most = fewest + pending.count();
            let count = guard.held.hold_count() as usize;
            if count < fewest || count > most && guard.keys.len() == 1 {
                let id = guard.id;
                self.violate(Invariant::HoldCount, || {
                    format!("g{id} counts {count} holds, and there are {fewest} to {most}")
                });
            }
        }
    }

    fn check_deadlines(&self, seen: &Seen, now: Time) {
        for waiter in &seen.waiters {
            let since = self.running_since(seen, waiter.manager, waiter.runtime);
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
        for release in &seen.releases {
            let Some(since) = self.running_since(seen, release.manager, release.runtime) else {
                continue;
            };
            let due = release.until.max(release.started) + RESPONSE_TIMEOUT + 200 * MS;
            if now > due.max(since + SLACK) {
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
                guard.owner == owner
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

    /// I6, I7, I13.
    fn check_keys(&self, seen: &mut Seen, now: Time) {
        let limit = BACKSTOP + 2 * self.round_trip() + 150 * MS;
        for key in 0..self.plan.keys {
            let holder = self.store.lock().unwrap().holder(key, now);
            let Some((lease, _)) = holder else {
                seen.unowned.remove(&key);
                // The store has lost a lease, and its guard does not know. A fixed lease is not renewed.
                let holds =
                    (seen.guards.iter()).any(|it| it.keys.contains(&key) && it.held.is_held());
                let unpolled = (seen.waiters.iter().filter(|it| !it.renewed))
                    .any(|it| self.may_hold_unpolled(seen, it, key, now));
                if holds || unpolled {
                    seen.free_since.remove(&key);
                    continue;
                }
                let free_since = *seen.free_since.entry(key).or_insert(now);
                for waiter in &seen.waiters {
                    self.check_progress(seen, waiter, key, free_since, now, limit);
                }
                continue;
            };
            seen.free_since.remove(&key);
            let owned = (seen.guards.iter()).any(|guard| guard.lease_of(key) == Some(lease));
            let Some(record) = self.store.lock().unwrap().records.get(&lease).cloned() else {
                continue;
            };
            let waiters = &seen.waiters;
            let unpolled = (waiters.iter().filter(|it| it.manager == record.manager))
                .any(|waiter| self.may_hold_unpolled(seen, waiter, key, now));
            if owned || unpolled || seen.killed[record.manager] {
                seen.unowned.remove(&key);
                continue;
            }
            let (unowned, since) = *seen.unowned.entry(key).or_insert((lease, now));
            if unowned != lease {
                seen.unowned.insert(key, (lease, now));
                continue;
            }
            let home = record.home;
            let running = home.and_then(|home| self.running_since(seen, record.manager, home));
            let Some(running) = running else { continue };
            let since = since.max(running).max(seen.troubled[record.manager]);
            if now > since + limit {
                let (lease, manager) = (number(lease), record.manager);
                self.violate(Invariant::CleanUp, || {
                    format!("lease {lease} of m{manager} holds k{key}, and no guard does")
                });
            }
        }
    }

    /// A waiter that is not polled may have been served, until its deadline.
    fn may_hold_unpolled(&self, seen: &Seen, waiter: &Waiter, key: usize, now: Time) -> bool {
        let suspended = now - self.awake();
        let running = self.running_since(seen, waiter.manager, waiter.runtime);
        let polled = waiter.attentive.is_some() && running.is_some();
        waiter.keys.contains(&key)
            && (!polled || waiter.keys.len() > 1)
            && waiter.deadline.is_none_or(|at| now <= at + suspended)
    }

    fn check_progress(
        &self,
        seen: &Seen,
        waiter: &Waiter,
        key: usize,
        free_since: Time,
        now: Time,
        limit: Time,
    ) {
        let manager = waiter.manager;
        if waiter.keys != [key] || waiter.single_try || seen.closing[manager] {
            return;
        }
        let running = self.running_since(seen, manager, waiter.runtime);
        let (Some(running), Some(attentive)) = (running, waiter.attentive) else {
            return;
        };
        let since = free_since.max(running).max(attentive);
        if now > since.max(seen.troubled[manager]) + limit {
            let (id, since) = (waiter.id, since / MS);
            self.violate(Invariant::Progress, || {
                format!("w{id} waits, and k{key} is free since {since} ms")
            });
        }
    }

    /// I11: those that came before and could have been served.
    pub fn check_order(&self, seen: &Seen, granted: &Waiter, now: Time) {
        let plain = |waiter: &Waiter| {
            waiter.keys.len() == 1 && waiter.owner.is_none() && waiter.renewed && !waiter.single_try
        };
        if !plain(granted) {
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
        let passed_over = seen.waiters.iter().find(|waiter| {
            let running = self.running_since(seen, waiter.manager, waiter.runtime);
            let suspended = now - self.awake();
            plain(waiter)
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
            self.violate(Invariant::Order, || {
                format!("w{two} is served before w{one}, which came first")
            });
        }
    }

    /// I15.
    fn check_bounds(&self, seen: &Seen, managers: &Managers) {
        for (manager, locks) in managers.iter().enumerate() {
            let limit = self.plan.managers[manager].max_waiters;
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

    /// I8, I9, I15: before a command is sent for one key.
    pub fn check_command(&self, manager: usize, command: Command, item: &Item, now: Time) {
        let mut seen = self.seen.lock().unwrap();
        let seen = &mut *seen;
        let Some(lease) = item.lease else { return };
        match command {
            Command::Renew | Command::Extend => {
                let record = self.store.lock().unwrap().records.get(&lease).cloned();
                if record.is_some_and(|record| record.release_sent) {
                    self.violate(Invariant::RenewedAfterRelease, || {
                        let (key, lease) = (item.key, number(lease));
                        format!("lease {lease} of k{key} is renewed after its release")
                    });
                }
                let mut guards = (seen.guards.iter())
                    .filter(|guard| guard.lease_of(item.key) == Some(lease))
                    .peekable();
                // One that waits may have been served, and was not polled since.
                let waited_for = (seen.waiters.iter())
                    .any(|it| it.manager == manager && it.keys.contains(&item.key));
                let known = guards.peek().is_some() && !waited_for;
                if known && guards.all(|guard| guard.is_lost_by(now)) {
                    self.violate(Invariant::RenewedAfterLoss, || {
                        let (key, lease) = (item.key, number(lease));
                        format!("lease {lease} of k{key} is renewed after its loss")
                    });
                }
            }
            Command::Acquire => {
                let recent = |times: &mut std::collections::VecDeque<Time>, span| {
                    while times.front().is_some_and(|at| *at < now - span) {
                        times.pop_front();
                    }
                    times.len()
                };
                let key = (manager, item.key);
                let causes = recent(seen.causes.entry(key).or_default(), 3 * SECOND / 2);
                let attempts = seen.attempts.entry(key).or_default();
                attempts.push_back(now);
                let attempts = recent(attempts, SECOND);
                // A holder in another process may have expired as often.
                let expired = usize::try_from(SECOND / self.shortest_lease()).unwrap_or(0);
                if attempts > CALM + expired + 4 * causes {
                    self.violate(Invariant::Bounds, || {
                        let key = item.key;
                        format!("m{manager} made {attempts} attempts at k{key} in a second")
                    });
                }
            }
            _ => {}
        }
    }
}

impl Guard {
    pub fn lease_of(&self, key: usize) -> Option<tower_lock::backend::LeaseId> {
        let at = self.keys.iter().position(|of| *of == key)?;
        self.leases.get(at).copied()
    }

    pub fn token_of(&self, key: usize) -> Option<i64> {
        let at = self.keys.iter().position(|of| *of == key)?;
        self.tokens.get(at).copied()
    }

    fn shares_grant(&self, other: &Self) -> bool {
        (self.group_keys()).any(|group| other.group_keys().any(|of| of == group))
    }

    fn is_lost_by(&self, now: Time) -> bool {
        self.keys.len() == 1 && !self.held.is_held() && self.valid_until <= now
    }
}
