//! What may be sent to the store, and how often.

use crate::environment::{Environment, number};
use crate::plan::Command;
use crate::store::Item;
use crate::time::{SECOND, Time};
use crate::violation::Invariant;

/// How many attempts a second without a cause are no storm.
const CALM: usize = 12;

/// How many attempts a second a waiter without messages makes at one place of the queue, first every 3 ms and then
/// after each tenth of its wait.
const POLLS: usize = 60;

impl Environment {
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
            Command::Acquire | Command::Contend => {
                let recent = |times: &mut std::collections::VecDeque<Time>, span| {
                    while times.front().is_some_and(|at| *at < now - span) {
                        times.pop_front();
                    }
                    times.len()
                };
                let key = (manager, item.key);
                let causes = recent(seen.causes.entry(key).or_default(), 3 * SECOND / 2);
                let places = seen.polled.entry(key).or_default();
                let places = recent(&mut places.since, 3 * SECOND / 2);
                let attempts = seen.attempts.entry(key).or_default();
                attempts.push_back(now);
                let attempts = recent(attempts, SECOND);
                // A holder in another process may have expired as often.
                let expired = usize::try_from(SECOND / self.shortest_lease()).unwrap_or(0);
                if attempts > CALM + expired + 4 * causes + POLLS * places {
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
