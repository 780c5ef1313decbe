//! The end of a run, after which nothing may be left.

use std::sync::Arc;

use tower_lock::manager::Snapshot;

use super::Simulation;
use crate::environment::{OUTSIDE, number};
use crate::executor::{Mode, Origin, Runtime};
use crate::time::{MS, SECOND, Time, duration};
use crate::violation::Invariant;
use crate::wire::key;

/// More than any lease, and than the retries after it.
const CLEAN_UP: Time = 10 * SECOND;

impl Simulation {
    /// I10: lets every caller go, heals the store, and looks at what is left.
    pub(super) async fn clean_up(&mut self) {
        let environment = Arc::clone(&self.environment);
        environment.trace(|| "CLEAN UP".to_owned());
        self.events.clear();
        environment.heal();
        let now = environment.now();
        let mut rescued = Vec::new();
        for manager in 0..self.managers.len() {
            if environment.seen.lock().unwrap().killed[manager] {
                continue;
            }
            let runtimes = environment.runtimes.lock().unwrap()[manager].clone();
            for (n, runtime) in runtimes.iter().enumerate() {
                environment.set_current(manager, n);
                runtime.resume(now);
                match runtime.mode() {
                    Mode::Stopped => runtime.end(true),
                    _ => runtime.drop_actors(),
                }
            }
            environment.set_current(OUTSIDE, OUTSIDE);
            // The engine does not know a runtime in which no actor has acquired.
            let known = environment.seen.lock().unwrap().runtimes.clone();
            let fixed = environment.plan.managers[manager].fixed;
            let knows = |n| fixed.map_or_else(|| known.contains(&(manager, n)), |fixed| fixed == n);
            let mut runtimes = runtimes.iter().enumerate();
            if runtimes.all(|(n, runtime)| runtime.mode() == Mode::Ended || !knows(n)) {
                rescued.push(manager);
            }
        }
        for manager in rescued {
            self.rescue(manager);
        }
        let start = environment.awake();
        while environment.awake() < start + CLEAN_UP && !self.is_clean() {
            let step = (environment.awake() + 100 * MS).min(start + CLEAN_UP);
            self.run_until(step).await;
            if environment.violation().is_some() {
                return;
            }
        }
        self.check_clean();
    }

    /// Gives a process a runtime that runs, and lets the engine know of it.
    fn rescue(&self, manager: usize) {
        let id = 1_000 + u64::try_from(manager).unwrap();
        let runtime = Runtime::new(id, self.environment.now(), &self.environment.alarm);
        self.environment.runtimes.lock().unwrap()[manager].push(Arc::clone(&runtime));
        let locks = self.managers[manager].clone();
        let keys = self.environment.plan.keys;
        let task = async move {
            // One that is shut down refuses acquires, and takes up its work here.
            drop(locks.acquire(key(keys)).no_wait().await);
            if locks.snapshot() != Snapshot::default() {
                locks.shutdown(duration(MS)).await;
            }
        };
        runtime.start(Box::pin(task), Origin::Simulation);
    }

    fn is_clean(&self) -> bool {
        self.left().is_empty()
    }

    /// What is left behind, in words.
    fn left(&self) -> Vec<String> {
        let environment = &self.environment;
        let killed = environment.seen.lock().unwrap().killed.clone();
        let mut left = Vec::new();
        for (manager, locks) in self.managers.iter().enumerate() {
            if killed[manager] {
                continue;
            }
            let snapshot = locks.snapshot();
            if !snapshot.is_idle() {
                left.push(format!("m{manager} is not idle: {snapshot:?}"));
            }
            let runtimes = environment.runtimes.lock().unwrap()[manager].clone();
            let tasks: usize = runtimes.iter().map(|it| it.engine_tasks()).sum();
            if tasks > 0 {
                left.push(format!("m{manager} has {tasks} tasks"));
            }
        }
        let mut store = environment.store.lock().unwrap();
        for (key, lease) in store.held(environment.now()) {
            let number = number(lease);
            let manager = store.records.get(&lease).map(|record| record.manager);
            left.push(format!("k{key} is held by lease {number} of m{manager:?}"));
        }
        for key in 0..environment.plan.keys {
            let queued = store.queued(key, environment.now()).into_iter();
            for place in queued.filter(|place| !killed[place.manager]) {
                let (lease, manager) = (number(place.lease), place.manager);
                left.push(format!("lease {lease} of m{manager} queues for k{key}"));
            }
        }
        if killed.iter().all(|killed| !killed) {
            let subscriptions = store.subscriptions();
            if subscriptions > 0 {
                left.push(format!("{subscriptions} subscriptions"));
            }
        }
        left
    }

    fn check_clean(&self) {
        let left = self.left();
        if !left.is_empty() {
            self.environment
                .violate(Invariant::LeftBehind, || left.join("; "));
        }
    }
}
