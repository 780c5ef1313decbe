//! What a guard promises: exclusion, validity, its loss and its count.

use std::collections::BTreeMap;

use tower_lock::backend::{LeaseId, Mode};
use tower_lock::{ErrorKind, Held};

use super::SLACK;
use crate::environment::Environment;
use crate::seen::{Guard, Releasing, Seen, Waiter};
use crate::time::{MS, Time, time};
use crate::violation::Invariant;

impl Environment {
    pub(super) fn check_guards(&self, seen: &mut Seen, now: Time) {
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
            // The reply to a downgrade decides, which may have come before the renewal.
            if record.gone && !guard.is_downgrading {
                self.violate(Invariant::Loss, || {
                    format!("g{id} is held, and a renewal did not find its lease of k{key}")
                });
            }
            let holds = store.holds(*key, *lease, now);
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

    /// A guard is held when its acquire receives it.
    pub fn check_grant(
        &self,
        seen: &Seen,
        waiter: &Waiter,
        held: &Held,
        leases: &[LeaseId],
        reentrant: bool,
    ) {
        let since = self.running_since(seen, waiter.manager, waiter.runtime);
        let running = since.is_some_and(|since| since <= waiter.started)
            && waiter.attentive == Some(waiter.started);
        let store = self.store.lock().unwrap();
        let broken = leases.iter().any(|it| store.records[it].broken);
        drop(store);
        let at_once = self.now() == waiter.started;
        if at_once && !broken && waiter.keys.len() == 1 && !held.is_held() {
            let id = waiter.id;
            self.violate(Invariant::LostEarly, || {
                format!("w{id} receives a guard at once, and it is lost")
            });
        }
        let calm = running
            && !broken
            && !reentrant
            && waiter.owner.is_none()
            && waiter.keys.len() == 1
            && seen.troubled[waiter.manager] <= waiter.started;
        if calm && !held.is_held() {
            let id = waiter.id;
            self.violate(Invariant::LostEarly, || {
                format!("w{id} receives a guard that is lost")
            });
        }
    }

    /// A guard is lost when `force_release` of its own process returns, which started at `start`.
    pub fn check_forced(&self, manager: usize, key: usize, start: Time) {
        let seen = self.seen.lock().unwrap();
        let mut held = seen.guards.iter().filter(|guard| {
            guard.manager == manager
                && guard.keys.contains(&key)
                && guard.granted < start
                && guard.held.is_held()
        });
        if let Some(guard) = held.next() {
            let id = guard.id;
            self.violate(Invariant::Loss, || {
                format!("g{id} is held, and k{key} was released by force")
            });
        }
    }

    /// I12: `release` reports a loss, and only a loss.
    pub fn check_release(
        &self,
        seen: &Seen,
        release: &Releasing,
        outcome: &Result<(), ErrorKind>,
        now: Time,
    ) {
        let id = release.id;
        if !release.was_held && outcome.is_ok() {
            self.violate(Invariant::ReleaseEnds, || {
                format!("release r{id} of a lost guard succeeds")
            });
        }
        let store = self.store.lock().unwrap();
        let records = release.leases.iter().map(|lease| &store.records[lease]);
        let absent = (records.clone()).any(|it| it.found_absent && it.released.is_none());
        let released = (records.clone())
            .all(|it| !it.broken && it.released.is_some_and(|at| at >= release.started));
        drop(store);
        if absent && !release.handed_off && outcome.is_ok() {
            self.violate(Invariant::ReleaseEnds, || {
                format!("release r{id} succeeds, and the store did not hold its lease")
            });
        }
        // A concurrent release by force found no lease, or the same one.
        let forced = (release.keys.iter()).any(|key| {
            seen.forced
                .get(key)
                .is_some_and(|at| *at >= release.started)
        });
        let in_time = release.was_held && !forced && now < release.valid_until;
        if released && in_time && *outcome == Err(ErrorKind::Lost) {
            self.violate(Invariant::ReleaseEnds, || {
                format!("release r{id} reports a loss, and the store released its lease")
            });
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
            let running = self.worked_since(seen, guard.manager);
            let running = running.is_some_and(|since| since <= guard.granted);
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
        // The background work notices a suspend. Otherwise the timer of the caller's runtime is enough.
        let since = match seen.resumed > guard.granted {
            true => self.running_since(seen, guard.manager, guard.runtime),
            false => self.polled_since(seen, guard.manager, guard.runtime),
        };
        let Some(since) = since else { return };
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

    /// I1, S1, S6. Permits are counted when they are granted. Called after each step, so that no overlap goes unseen: what
    /// is held changes in steps, and ends between them.
    pub fn check_exclusion(&self, seen: &Seen) {
        let store = self.store.lock().unwrap();
        let mut holders = BTreeMap::<usize, Vec<&Guard>>::new();
        for guard in seen.guards.iter().filter(|guard| guard.held.is_held()) {
            for key in &guard.keys {
                let others = holders.entry(*key).or_default();
                for other in &*others {
                    let pair = [*other, guard];
                    let same =
                        other.owner == guard.owner && other.token_of(*key) == guard.token_of(*key);
                    // During a downgrade, the store may have shared leases beside a guard that is still exclusive.
                    let mode = |it: &Guard| match it.is_downgrading {
                        true => Some(Mode::Shared),
                        false => it.mode_of(*key),
                    };
                    let modes = pair.map(mode);
                    let together = modes[0] == modes[1] && modes[0] != Some(Mode::Exclusive);
                    let leases = pair.map(|it| it.lease_of(*key));
                    let mut known = leases.iter().flatten();
                    let broken = known.any(|lease| store.records[lease].broken);
                    let (one, two) = (other.id, guard.id);
                    if !same && !together && !broken {
                        self.violate(Invariant::Exclusion, || {
                            format!("g{one} and g{two} hold k{key} at the same time")
                        });
                    }
                    let one_token = other.token_of(*key) == guard.token_of(*key);
                    if leases[0] == leases[1] && !one_token && !broken {
                        self.violate(Invariant::Fencing, || {
                            format!("g{one} and g{two} share a lease of k{key}, and no token")
                        });
                    }
                }
                others.push(guard);
            }
        }
    }

    /// I5.
    pub(super) fn check_hold_counts(&self, seen: &Seen) {
        for guard in seen.guards.iter().filter(|guard| guard.held.is_held()) {
            // A guard of several keys that has lost all of them is not known to have ended.
            let ended = |key| {
                let all = seen
                    .guards
                    .iter()
                    .filter(|it| it.group_keys().any(|of| of == key));
                all.filter(|it| it.keys.len() > 1 && !it.held.is_held())
                    .count()
            };
            let live = |key| seen.groups[&key].live;
            let sure = |key| live(key) - ended(key);
            let all = guard.group_keys().map(live).min().unwrap_or(0);
            let fewest = guard.group_keys().map(sure).min().unwrap_or(0);
            let pending = seen.waiters.iter().filter(|waiter| {
                waiter.owner == Some(guard.owner)
                    && waiter.keys.iter().any(|key| guard.keys.contains(key))
            });
            let most = all + pending.count();
            let mut fellows = seen.guards.iter().filter(|it| it.owner == guard.owner);
            if fellows.any(|it| it.is_downgrading) {
                continue;
            }
            let count = guard.held.hold_count() as usize;
            if count < fewest || count > most && guard.keys.len() == 1 {
                let id = guard.id;
                self.violate(Invariant::HoldCount, || {
                    format!("g{id} counts {count} holds, and there are {fewest} to {most}")
                });
            }
        }
    }
}

impl Guard {
    pub fn lease_of(&self, key: usize) -> Option<LeaseId> {
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

    pub(super) fn is_lost_by(&self, now: Time) -> bool {
        self.keys.len() == 1 && !self.held.is_held() && self.valid_until <= now
    }
}
