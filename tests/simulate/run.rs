//! Runs one plan in virtual time.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::sleep_until;
use tower_lock::{LockManager, test_util};

use crate::actor::Actor;
use crate::environment::{Environment, Managers, OUTSIDE, Weather};
use crate::executor::{Mode, Origin, Runtime, Task};
use crate::plan::{Event, Ms, Plan, What};
use crate::time::{MS, SECOND, Time, duration};
use crate::violation::{Invariant, Violation};
use crate::wire::{Wire, key};

/// More polls than any plan takes.
const MOST_POLLS: usize = 500_000;

/// More than any lease, and than the retries after it.
const CLEAN_UP: Time = 10 * SECOND;

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
            let runtimes = (0..manager.runtimes).map(|_| {
                ids += 1;
                Runtime::new(ids, 0, &environment.alarm)
            });
            let runtimes = runtimes.collect();
            environment.runtimes.lock().unwrap().push(runtimes);
        }
        let managers: Managers = (plan.managers.iter().enumerate())
            .map(|(manager, settings)| {
                let environment = Arc::clone(&environment);
                LockManager::builder(Wire {
                    environment,
                    manager,
                })
                .watchdog_timeout(duration(ms(settings.watchdog)))
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

    fn happen(&mut self, what: What) {
        let environment = Arc::clone(&self.environment);
        environment.trace(|| format!("EVENT {what:?}"));
        let (awake, now) = (environment.awake(), environment.now());
        match what {
            What::Idle {
                manager,
                runtime,
                pause,
            } => environment
                .runtime(manager, runtime)
                .pause(awake + ms(pause)),
            What::Stop { manager, runtime } => environment.runtime(manager, runtime).stop(),
            What::End {
                manager,
                runtime,
                outside,
            } => {
                environment.set_current(manager, runtime);
                environment.runtime(manager, runtime).end(outside);
                environment.set_current(OUTSIDE, OUTSIDE);
            }
            What::Kill { manager } => {
                environment.seen.lock().unwrap().kill(manager);
                let runtimes = environment.runtimes.lock().unwrap()[manager].clone();
                for runtime in runtimes {
                    self.graves.extend(runtime.kill());
                }
            }
            What::Suspend(pause) => {
                environment.suspend(ms(pause));
                environment.seen.lock().unwrap().resumed = environment.now();
            }
            What::StepForward(step) => environment.store.lock().unwrap().step(ms(step), now),
            What::StepBack(step) => environment.store.lock().unwrap().step(-ms(step), now),
            What::EmptyRestart => environment.store.lock().unwrap().restart(now),
            What::Recovery { manager } => environment.store.lock().unwrap().recovered(manager),
            What::NoHints { pause } => environment.drop_hints_until(awake + ms(pause)),
            What::Trouble {
                manager,
                key,
                command,
                pause,
                share,
                kind,
            } => environment.add_weather(Weather {
                from: awake,
                until: awake + ms(pause),
                manager,
                key,
                command,
                share,
                kind,
            }),
        }
    }

    /// I10: lets every caller go, heals the store, and looks at what is left.
    async fn clean_up(&mut self) {
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
            // The engine does not know a runtime in which no actor ran.
            let has_actors = |n| {
                let mut actors = environment.plan.actors.iter();
                actors.any(|actor| (actor.manager, actor.runtime) == (manager, n))
            };
            let mut runtimes = runtimes.iter().enumerate();
            if runtimes.all(|(n, runtime)| runtime.mode() == Mode::Ended || !has_actors(n)) {
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
            if locks.snapshot() != tower_lock::Snapshot::default() {
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
            let number = crate::environment::number(lease);
            let manager = store.records.get(&lease).map(|record| record.manager);
            left.push(format!("k{key} is held by lease {number} of m{manager:?}"));
        }
        for key in 0..environment.plan.keys {
            let queued = store.queued(key, environment.now()).into_iter();
            for place in queued.filter(|place| !killed[place.manager]) {
                let (lease, manager) = (crate::environment::number(place.lease), place.manager);
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
