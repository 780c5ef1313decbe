//! Checks the invariants against what has been seen, after each step of a simulation.

mod commands;
mod guards;
mod keys;
mod permits;
mod shared;
#[cfg(test)]
mod tests;
mod turns;
mod waiters;

use crate::environment::{Environment, Managers};
use crate::plan::Step;
use crate::seen::Seen;
use crate::time::{MS, Time};

/// For timers, which fire at whole milliseconds, and for the order of tasks.
const SLACK: Time = 10 * MS;

/// For the first timers after a suspend, which do not follow its clock.
const AFTER_SUSPEND: Time = 100 * MS;

impl Environment {
    /// Looks at everything once.
    pub fn observe(&self, managers: &Managers) {
        let now = self.now();
        let mut seen = self.seen.lock().unwrap();
        let seen = &mut *seen;
        self.settle_downgrades(seen);
        self.check_guards(seen, now);
        self.check_exclusion(seen);
        self.check_hold_counts(seen);
        self.check_deadlines(seen, now);
        self.check_keys(seen, now);
        self.check_shared(seen, now);
        self.check_permits(seen, now);
        self.check_bounds(seen, managers);
    }

    /// Since when callers in the runtime of `manager` are polled, the background work for them runs, and timers are
    /// right.
    fn running_since(&self, seen: &Seen, manager: usize, runtime: usize) -> Option<Time> {
        let worked = self.worked_since(seen, manager)?;
        Some(worked.max(self.polled_since(seen, manager, runtime)?))
    }

    /// Since when the background work runs, and timers are right.
    fn worked_since(&self, seen: &Seen, manager: usize) -> Option<Time> {
        self.polled_since(seen, manager, self.plan.managers[manager].home())
    }

    /// Since when the tasks of the runtime are polled, and timers are right.
    fn polled_since(&self, seen: &Seen, manager: usize, runtime: usize) -> Option<Time> {
        let since = self.runtime(manager, runtime).running_since()?;
        let resumed = if seen.resumed == 0 {
            0
        } else {
            seen.resumed + AFTER_SUSPEND
        };
        Some(since.max(resumed))
    }

    /// Since when all runtimes of `manager` are polled.
    fn all_running_since(&self, seen: &Seen, manager: usize) -> Option<Time> {
        let mut latest = 0;
        for runtime in 0..self.plan.managers[manager].runtimes {
            latest = latest.max(self.running_since(seen, manager, runtime)?);
        }
        Some(latest)
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

    /// How long a process keeps a lease after its last guard.
    fn keep(&self, manager: usize) -> Time {
        MS * i64::try_from(self.plan.managers[manager].keep).unwrap()
    }

    fn watchdog(&self, manager: usize) -> Time {
        MS * i64::try_from(self.plan.managers[manager].watchdog).unwrap()
    }
}
