//! Runs one plan in virtual time.

mod clean_up;
mod events;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::sleep_until;
use tower_lock::{LockManager, test_util};

use crate::actor::Actor;
use crate::environment::{Environment, Managers, OUTSIDE};
use crate::executor::{Mode, Origin, Runtime, Task};
use crate::plan::{Event, Ms, Plan};
use crate::time::{MS, Time, duration};
use crate::violation::{Invariant, Violation};
use crate::wire::Wire;

/// More polls than any plan takes.
const MOST_POLLS: usize = 500_000;

pub struct Ran {
    pub violation: Option<Violation>,
    pub trace: Vec<String>,
    pub polls: usize,
}

pub fn run(plan: &Plan, traced: bool) -> Ran {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    test_util::seed(plan.seed);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async { Simulation::new(plan.clone(), traced).run().await })
    }));
    ran.unwrap_or_else(|panic| {
        let what = (panic.downcast_ref::<String>().cloned())
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Ran {
            violation: Some(Violation {
                invariant: Invariant::Panic,
                what: what.unwrap_or_default(),
            }),
            trace: Vec::new(),
            polls: 0,
        }
    })
}

struct Simulation {
    environment: Arc<Environment>,
    managers: Managers,
    /// The events to come, the next one last.
    events: Vec<Event>,
    random: fastrand::Rng,
    polls: usize,
    /// What killed processes have left. Dropped at the end.
    graves: Vec<Task>,
}

fn ms(time: Ms) -> Time {
    MS * i64::try_from(time).unwrap()
}

impl Simulation {
    fn new(plan: Plan, traced: bool) -> Self {
        let environment = Environment::new(plan, traced);
        let plan = &environment.plan;
        let mut ids = 0;
        for manager in &plan.managers {
            let runtimes = (0..=manager.runtimes).map(|_| {
                ids += 1;
                Runtime::new(ids, 0, &environment.alarm)
            });
            let runtimes = runtimes.collect();
            environment.runtimes.lock().unwrap().push(runtimes);
        }
        let managers: Managers = (plan.managers.iter().enumerate())
            .map(|(manager, settings)| {
                let home = environment.runtime(manager, settings.home());
                let environment = Arc::clone(&environment);
                LockManager::builder(Wire {
                    environment,
                    manager,
                })
                .simulated_runtime(home)
                .watchdog_timeout(duration(ms(settings.watchdog)))
                .keep_released(duration(ms(settings.keep)))
                .max_waiters(settings.max_waiters)
                .max_waiters_per_key(settings.max_waiters_per_key)
                .build()
                .unwrap()
            })
            .collect();
        let owners: Vec<Vec<_>> = (managers.iter())
            .map(|locks| (0..2).map(|_| locks.new_owner()).collect())
            .collect();
        for plan in &plan.actors {
            let actor = Actor {
                environment: Arc::clone(&environment),
                locks: managers[plan.manager].clone(),
                owners: owners[plan.manager].clone(),
                manager: plan.manager,
                runtime: plan.runtime,
            };
            let (start, steps) = (duration(ms(plan.start)), plan.steps.clone());
            let task = async move {
                tokio::time::sleep(start).await;
                actor.run(steps).await;
            };
            let runtime = environment.runtime(plan.manager, plan.runtime);
            runtime.start(Box::pin(task), Origin::Simulation);
        }
        environment.start_outsiders();
        let mut events = plan.events.clone();
        events.sort_by_key(|event| std::cmp::Reverse(event.at));
        Self {
            random: environment.random(1 << 60),
            managers,
            events,
            polls: 0,
            graves: Vec::new(),
            environment,
        }
    }

    async fn run(mut self) -> Ran {
        self.run_until(ms(self.environment.plan.length)).await;
        if self.environment.violation().is_none() {
            self.clean_up().await;
        }
        let violation = self.environment.violation();
        let trace = self.environment.take_trace();
        self.tear_down();
        Ran {
            violation,
            trace,
            polls: self.polls,
        }
    }

    /// Runs until that time, or the first violation.
    async fn run_until(&mut self, end: Time) {
        loop {
            self.environment.observe(&self.managers);
            if self.environment.violation().is_some() {
                return;
            }
            if self.resume_or_happen() {
                continue;
            }
            if self.poll_one() {
                continue;
            }
            if self.environment.awake() >= end {
                return;
            }
            self.environment.check_waiters();
            self.wait(end).await;
        }
    }

    fn resume_or_happen(&mut self) -> bool {
        let (awake, now) = (self.environment.awake(), self.environment.now());
        for runtime in self.runtimes() {
            if let Mode::Paused { until } = runtime.mode()
                && until <= awake
            {
                runtime.resume(now);
                return true;
            }
        }
        if self.environment.happen() {
            return true;
        }
        let due = (self.events.last()).is_some_and(|event| ms(event.at) <= awake);
        if due && let Some(event) = self.events.pop() {
            self.happen(event.what);
        }
        due
    }

    fn runtimes(&self) -> Vec<Arc<Runtime>> {
        let runtimes = self.environment.runtimes.lock().unwrap();
        runtimes.iter().flatten().map(Arc::clone).collect()
    }

    /// Polls one of the tasks that are ready.
    fn poll_one(&mut self) -> bool {
        let ready: Vec<(usize, usize, Arc<Runtime>)> = {
            let runtimes = self.environment.runtimes.lock().unwrap();
            let all = runtimes.iter().enumerate().flat_map(|(manager, of)| {
                let of = of.iter().enumerate();
                of.map(move |(n, runtime)| (manager, n, Arc::clone(runtime)))
            });
            all.filter(|(_, _, runtime)| runtime.is_ready()).collect()
        };
        if ready.is_empty() {
            return false;
        }
        let (manager, n, runtime) = &ready[self.random.usize(..ready.len())];
        // Mostly in the order in which they were woken.
        let task = if self.random.u8(..4) == 0 {
            self.random.usize(..8)
        } else {
            0
        };
        self.environment.set_current(*manager, *n);
        runtime.poll_one(task);
        self.environment.set_current(OUTSIDE, OUTSIDE);
        self.polls += 1;
        if self.polls > MOST_POLLS {
            let polls = self.polls;
            self.environment
                .violate(Invariant::Livelock, || format!("{polls} polls"));
        }
        true
    }

    /// Waits until a task is ready, or something is due.
    async fn wait(&self, end: Time) {
        let resumes = self
            .runtimes()
            .into_iter()
            .filter_map(|it| match it.mode() {
                Mode::Paused { until } => Some(until),
                _ => None,
            });
        let next = (resumes.chain(self.environment.next_event()))
            .chain(self.events.last().map(|event| ms(event.at)))
            .fold(end, Time::min);
        let runtimes = self.runtimes();
        let mut timer = pin!(sleep_until(self.environment.instant(next)));
        poll_fn(|context| {
            self.environment.alarm.set(context.waker());
            if runtimes.iter().any(|runtime| runtime.is_ready()) {
                return Poll::Ready(());
            }
            timer.as_mut().poll(context)
        })
        .await;
    }

    fn tear_down(&mut self) {
        for runtime in self.runtimes() {
            runtime.end(true);
        }
        let _outside = test_util::leave();
        self.graves.clear();
        self.environment.runtimes.lock().unwrap().clear();
        self.managers.clear();
    }
}
