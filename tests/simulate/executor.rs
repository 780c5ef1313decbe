//! A runtime whose tasks the simulation polls, pauses and drops.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use tokio::task::coop::unconstrained;
use tower_lock::test_util::{SimulatedRuntime, enter, leave};

use crate::time::Time;

pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Running { since: Time },
    Paused { until: Time },
    Stopped,
    Ended,
}

pub struct Runtime {
    id: u64,
    state: Mutex<State>,
    ready: Arc<Ready>,
}

struct State {
    mode: Mode,
    tasks: BTreeMap<u64, (Task, Origin)>,
    next: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Engine,
    Simulation,
}

/// Wakes the simulation.
#[derive(Default)]
pub struct Alarm {
    waker: Mutex<Option<Waker>>,
}

/// The tasks that have been woken, in that order.
struct Ready {
    tasks: Mutex<VecDeque<u64>>,
    alarm: Arc<Alarm>,
}

struct TaskWaker {
    ready: Arc<Ready>,
    task: u64,
}

impl Alarm {
    pub fn set(&self, waker: &Waker) {
        *self.waker.lock().unwrap() = Some(waker.clone());
    }

    fn ring(&self) {
        let waker = self.waker.lock().unwrap().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut tasks = self.ready.tasks.lock().unwrap();
        if !tasks.contains(&self.task) {
            tasks.push_back(self.task);
        }
        drop(tasks);
        self.ready.alarm.ring();
    }
}

impl Runtime {
    pub fn new(id: u64, now: Time, alarm: &Arc<Alarm>) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: Mutex::new(State {
                mode: Mode::Running { since: now },
                tasks: BTreeMap::new(),
                next: 0,
            }),
            ready: Arc::new(Ready {
                tasks: Mutex::default(),
                alarm: Arc::clone(alarm),
            }),
        })
    }

    pub fn mode(&self) -> Mode {
        self.state.lock().unwrap().mode
    }

    /// Since when it has been polled without a break, if it is.
    pub fn running_since(&self) -> Option<Time> {
        match self.mode() {
            Mode::Running { since } => Some(since),
            _ => None,
        }
    }

    /// Pauses a runtime that runs.
    pub fn pause(&self, until: Time) {
        let mut state = self.state.lock().unwrap();
        match &mut state.mode {
            Mode::Paused { until: earlier } => *earlier = until.max(*earlier),
            Mode::Running { .. } => state.mode = Mode::Paused { until },
            Mode::Stopped | Mode::Ended => {}
        }
    }

    pub fn resume(&self, now: Time) {
        let mut state = self.state.lock().unwrap();
        if matches!(state.mode, Mode::Paused { .. }) {
            state.mode = Mode::Running { since: now };
        }
    }

    pub fn stop(&self) {
        let mut state = self.state.lock().unwrap();
        if state.mode != Mode::Ended {
            state.mode = Mode::Stopped;
        }
    }

    /// Drops all tasks and accepts none.
    pub fn end(self: &Arc<Self>, outside: bool) {
        drop_tasks(self.kill(), || {
            if outside {
                leave()
            } else {
                enter(Arc::clone(self) as Arc<dyn SimulatedRuntime>)
            }
        });
    }

    /// Accepts no task, and returns all it has.
    pub fn kill(&self) -> Vec<Task> {
        let mut state = self.state.lock().unwrap();
        state.mode = Mode::Ended;
        let tasks = std::mem::take(&mut state.tasks);
        tasks.into_values().map(|(task, _)| task).collect()
    }

    /// Drops the tasks of the simulation.
    pub fn drop_actors(self: &Arc<Self>) {
        let mut state = self.state.lock().unwrap();
        let ids: Vec<u64> = (state.tasks.iter())
            .filter(|(_, (_, origin))| *origin == Origin::Simulation)
            .map(|(id, _)| *id)
            .collect();
        let tasks = ids.iter().filter_map(|id| state.tasks.remove(id));
        let tasks = tasks.map(|(task, _)| task).collect();
        drop(state);
        drop_tasks(tasks, || {
            enter(Arc::clone(self) as Arc<dyn SimulatedRuntime>)
        });
    }

    pub fn start(&self, task: Task, origin: Origin) {
        let mut state = self.state.lock().unwrap();
        if state.mode == Mode::Ended {
            drop(state);
            return;
        }
        let id = state.next;
        state.next += 1;
        state.tasks.insert(id, (task, origin));
        drop(state);
        self.waker(id).wake();
    }

    pub fn engine_tasks(&self) -> usize {
        let state = self.state.lock().unwrap();
        let tasks = state.tasks.values();
        tasks
            .filter(|(_, origin)| *origin == Origin::Engine)
            .count()
    }

    pub fn is_ready(&self) -> bool {
        self.running_since().is_some() && !self.ready.tasks.lock().unwrap().is_empty()
    }

    /// Polls the `n`-th of the tasks that are ready.
    pub fn poll_one(self: &Arc<Self>, n: usize) {
        let id = {
            let mut ready = self.ready.tasks.lock().unwrap();
            let n = n % ready.len().max(1);
            ready.remove(n)
        };
        let Some(id) = id else { return };
        // Woken after its end.
        let Some((mut task, origin)) = self.state.lock().unwrap().tasks.remove(&id) else {
            return;
        };
        let _entered = enter(Arc::clone(self) as Arc<dyn SimulatedRuntime>);
        let waker = self.waker(id);
        let mut context = Context::from_waker(&waker);
        let polled = Pin::new(&mut unconstrained(task.as_mut())).poll(&mut context);
        match polled {
            Poll::Ready(()) => drop(task),
            Poll::Pending => {
                let mut state = self.state.lock().unwrap();
                if state.mode == Mode::Ended {
                    drop(state);
                } else {
                    state.tasks.insert(id, (task, origin));
                }
            }
        }
    }

    fn waker(&self, task: u64) -> Waker {
        let ready = Arc::clone(&self.ready);
        Arc::new(TaskWaker { ready, task }).into()
    }
}

/// Drops tasks where `place` says.
fn drop_tasks<E>(tasks: Vec<Task>, place: impl FnOnce() -> E) {
    let _place = place();
    drop(tasks);
}

impl SimulatedRuntime for Runtime {
    fn id(&self) -> u64 {
        self.id
    }

    fn spawn(&self, task: Task) {
        self.start(task, Origin::Engine);
    }
}
