//! What the parts of one simulation share: time, the store and its wires, what has been seen.

mod messages;
mod outsiders;
mod wires;

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tower_lock::backend::LeaseId;
use tower_lock::{LockManager, test_util};

use crate::executor::{Alarm, Runtime};
use crate::plan::Plan;
use crate::seen::Seen;
use crate::store::Store;
use crate::time::{MS, Time, duration, time};
use crate::violation::{Invariant, Violation};

use outsiders::Client;
use wires::Wires;
pub use wires::{Failure, Weather};

pub const OUTSIDE: usize = usize::MAX;

pub struct Environment {
    pub plan: Plan,
    origin: Instant,
    suspended: AtomicI64,
    pub alarm: Arc<Alarm>,
    /// By manager.
    pub runtimes: Mutex<Vec<Vec<Arc<Runtime>>>>,
    /// The manager and the runtime whose task is polled now.
    running: (AtomicUsize, AtomicUsize),
    pub store: Mutex<Store>,
    wires: Mutex<Wires>,
    outsiders: Mutex<Vec<Client>>,
    pub seen: Mutex<Seen>,
    violation: Mutex<Option<Violation>>,
    trace: Option<Mutex<Vec<String>>>,
}

impl Environment {
    pub fn new(plan: Plan, traced: bool) -> Arc<Self> {
        Arc::new(Self {
            origin: Instant::now(),
            suspended: AtomicI64::new(0),
            alarm: Arc::default(),
            runtimes: Mutex::default(),
            running: (AtomicUsize::new(OUTSIDE), AtomicUsize::new(OUTSIDE)),
            store: Mutex::new(Store::new(
                plan.queue,
                MS * i64::try_from(plan.transfer_ttl).unwrap(),
                plan.lingers,
            )),
            wires: Mutex::new(Wires::of(&plan)),
            outsiders: Mutex::new(plan.outsiders.iter().map(Client::new).collect()),
            seen: Mutex::new(Seen::new(&plan)),
            violation: Mutex::default(),
            trace: traced.then(Mutex::default),
            plan,
        })
    }

    // ---- time -----------------------------------------------------------------------------

    /// The time that the machine has been awake: timers follow it.
    pub fn awake(&self) -> Time {
        time(self.origin.elapsed())
    }

    pub fn now(&self) -> Time {
        self.awake() + self.suspended.load(Ordering::Relaxed)
    }

    pub fn instant(&self, awake: Time) -> Instant {
        self.origin + duration(awake)
    }

    pub fn suspend(&self, pause: Time) {
        test_util::suspend(duration(pause));
        self.suspended.fetch_add(pause, Ordering::Relaxed);
    }

    // ---- runtimes -------------------------------------------------------------------------

    pub fn runtime(&self, manager: usize, runtime: usize) -> Arc<Runtime> {
        Arc::clone(&self.runtimes.lock().unwrap()[manager][runtime])
    }

    pub fn set_current(&self, manager: usize, runtime: usize) {
        self.running.0.store(manager, Ordering::Relaxed);
        self.running.1.store(runtime, Ordering::Relaxed);
    }

    /// The runtime whose task is polled now, if it is one of this manager.
    pub fn current_runtime(&self, manager: usize) -> Option<usize> {
        let of = self.running.0.load(Ordering::Relaxed);
        let runtime = self.running.1.load(Ordering::Relaxed);
        (of == manager).then_some(runtime)
    }

    pub fn random(&self, number: u64) -> fastrand::Rng {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        fastrand::Rng::with_seed(self.plan.seed ^ mixed)
    }

    // ---- reports --------------------------------------------------------------------------

    pub fn trace(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            let now = self.now();
            let line = format!("{:>9}.{:03} {}", now / MS, now % MS, line());
            trace.lock().unwrap().push(line);
        }
    }

    pub fn violate(&self, invariant: Invariant, what: impl FnOnce() -> String) {
        let mut violation = self.violation.lock().unwrap();
        if violation.is_none() {
            let what = what();
            self.trace(|| format!("VIOLATION of {invariant:?}: {what}"));
            *violation = Some(Violation { invariant, what });
        }
    }

    pub fn violation(&self) -> Option<Violation> {
        self.violation.lock().unwrap().clone()
    }

    pub fn take_trace(&self) -> Vec<String> {
        let trace = self.trace.as_ref();
        trace.map_or_else(Vec::new, |trace| std::mem::take(&mut trace.lock().unwrap()))
    }
}

/// The name of a lease without the random part.
pub fn number(lease: LeaseId) -> u64 {
    let text = lease.to_string();
    let (_, number) = text.rsplit_once(':').unwrap();
    number.parse().unwrap()
}

/// The processes of one simulation.
pub type Managers = Vec<LockManager>;
