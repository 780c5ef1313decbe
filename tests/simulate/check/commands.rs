//! What may be sent to the store, and how often.

use std::collections::{BTreeMap, VecDeque};

use tower_lock::backend::{LeaseId, Mode};

use crate::environment::{Environment, number};
use crate::plan::Command;
use crate::seen::{LONGEST_LEASE, Repeat, Seen, Waiter};
use crate::store::{Item, Record};
use crate::time::{RESPONSE_TIMEOUT, SECOND, Time};
use crate::violation::Invariant;

/// How many attempts a second without a cause are no storm.
const CALM: usize = 12;

/// How many attempts a second a waiter without messages makes at one place of the queue, first every 3 ms and then
/// after each tenth of its wait.
const POLLS: usize = 60;

/// How long an event may cause attempts.
const CAUSED: Time = 3 * SECOND / 2;

/// Counts what happened since `start`, and drops what happened before.
fn count_since(start: Time, times: &mut VecDeque<Time>) -> usize {
    while times.front().is_some_and(|at| *at < start) {
        times.pop_front();
    }
    times.len()
}

impl Environment {
    /// I8, I9, I11, I14, I15: before a command is sent for one key.
    pub fn check_command(&self, manager: usize, command: Command, item: &Item, now: Time) {
        let mut seen = self.seen.lock().unwrap();
        let seen = &mut *seen;
        if command == Command::Force {
            seen.forced.insert(item.key, now);
        }
        let Some(lease) = item.lease else { return };
        let record = self.store.lock().unwrap().records.get(&lease).cloned();
        self.check_mode(command, item, record.as_ref());
        // A message of an earlier transfer may lead to a leave at any time.
        let ends = matches!(command, Command::Release | Command::Pass);
        // Two tasks that receive a failure and an answer at one time may run in either order.
        let has_ended = |record: &Record| {
            record.granted && record.ended.is_some() && record.failed != Some(now)
        };
        // One task may read a late reply when another one repeats the release.
        let is_repeat = |record: &Record| {
            record.ended == Some(now)
                && (record.end_sent).is_some_and(|sent| now >= sent + RESPONSE_TIMEOUT)
        };
        if ends && (record.as_ref()).is_some_and(|it| has_ended(it) && !is_repeat(it)) {
            self.violate(Invariant::ReleasedTwice, || {
                let (key, lease) = (item.key, number(lease));
                format!("{command:?} of lease {lease} of k{key}, which has ended")
            });
        }
        match command {
            Command::Renew | Command::Downgrade => {
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
            Command::Leave if record.as_ref().is_some_and(|it| it.mode == Mode::Permit) => {}
            Command::Leave => self.check_place(seen, manager, item.key, &|it| it == lease, now),
            Command::Acquire | Command::Contend => {
                if item.mode != Mode::Permit {
                    self.check_place(seen, manager, item.key, &|it| it != lease, now);
                    self.check_yielded(seen, manager, command, item.key, now);
                }
                let key = (manager, item.key);
                let causes = count_since(now - CAUSED, seen.causes.entry(key).or_default());
                let places = seen.polled.entry(key).or_default();
                let places = count_since(now - CAUSED, &mut places.since);
                let attempts = seen.attempts.entry(key).or_default();
                attempts.push_back(now);
                let attempts = count_since(now - SECOND, attempts);
                // A holder in another process may have expired as often.
                let expired = usize::try_from(SECOND / self.shortest_lease()).unwrap_or(0);
                let permits = seen.waiters.iter().filter(|it| {
                    it.manager == manager && it.keys.contains(&item.key) && it.permits.is_some()
                });
                let calm = CALM * (1 + permits.count());
                if attempts > calm + expired + 4 * causes + POLLS * places {
                    self.violate(Invariant::Bounds, || {
                        let key = item.key;
                        format!("m{manager} made {attempts} attempts at k{key} in a second")
                    });
                }
            }
            _ => {}
        }
    }

    /// I15: before a command is sent, which may repeat one that failed.
    pub fn check_repeats(&self, manager: usize, command: Command, items: &[Item], now: Time) {
        let repeat = match command {
            Command::Release | Command::Leave => Repeat::End,
            Command::Renew => Repeat::Renewal,
            _ => return,
        };
        let runtime = self.current_runtime(manager);
        let store = self.store.lock().unwrap();
        let has_failed = |lease| {
            store
                .records
                .get(&lease)
                .is_some_and(|it| it.failed.is_some())
        };
        let failed = items
            .iter()
            .filter(|item| item.lease.is_some_and(has_failed));
        // One command has several leases of a key.
        let keys: BTreeMap<usize, Time> = failed.map(|item| (item.key, item.ttl)).collect();
        drop(store);
        let mut seen = self.seen.lock().unwrap();
        for (key, ttl) in keys {
            let causes = seen.causes.entry((manager, key)).or_default();
            let causes = count_since(now - CAUSED, causes);
            let repeats = seen.repeats.entry((manager, runtime, key, repeat));
            let repeats = repeats.or_default();
            repeats.push_back(now);
            let repeats = count_since(now - SECOND, repeats);
            // A renewal is repeated after at least a thirtieth of its lease.
            let renewals = match repeat {
                Repeat::End => 0,
                Repeat::Renewal => usize::try_from(30 * SECOND / ttl).unwrap(),
            };
            // Each permit is a lease of its own.
            let permits = seen
                .guards
                .iter()
                .filter(|it| it.manager == manager && it.mode_of(key) == Some(Mode::Permit));
            let leases = 1 + permits.count();
            if repeats > leases * (CALM + renewals) + 4 * causes {
                self.violate(Invariant::Bounds, || {
                    format!("m{manager} repeated {repeats} times {command:?} of k{key} in a second")
                });
            }
        }
    }

    /// I11: a process that waits all the time keeps its place in the queue of the store. `left` selects the leases
    /// that the process waits under no more.
    fn check_place(
        &self,
        seen: &Seen,
        manager: usize,
        key: usize,
        left: &dyn Fn(LeaseId) -> bool,
        now: Time,
    ) {
        let store = self.store.lock().unwrap();
        let broken_at = store.broken_at.get(&key).copied();
        let places = store.queued(key, now).into_iter();
        drop(store);
        // A process has places for permits beside this one.
        let places = places.filter(|place| place.mode != Mode::Permit);
        for place in places.filter(|place| place.manager == manager && left(place.lease)) {
            let Some(running) = self.all_running_since(seen, manager) else {
                return;
            };
            let broken = broken_at.map_or(0, |at| at + LONGEST_LEASE);
            let calm_since = running.max(seen.troubled[manager]).max(broken);
            // It keeps no place for the first waiter of the other mode.
            let mut waiters = seen.waiters.iter();
            let of_other = |it: &Waiter| it.keys.contains(&key) && it.mode(key) != place.mode;
            if waiters.any(|it| it.manager == manager && of_other(it)) {
                continue;
            }
            let waits = seen.waiters.iter().find(|waiter| {
                let suspended = now - self.awake();
                waiter.manager == manager
                    && waiter.keys == [key]
                    && !waiter.single_try
                    && waiter.attentive == Some(waiter.started)
                    && (calm_since..place.entered).contains(&waiter.started)
                    && (waiter.deadline).is_none_or(|deadline| deadline + suspended > now)
            });
            if let Some(waiter) = waits.filter(|_| !seen.closing[manager]) {
                let (lease, id) = (number(place.lease), waiter.id);
                self.violate(Invariant::Order, || {
                    format!(
                        "w{id} waits, and m{manager} leaves lease {lease} in the queue of k{key}"
                    )
                });
            }
        }
    }
}
