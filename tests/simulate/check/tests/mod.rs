//! Hand-made histories of two processes on one store. Each contains one fault, which the checker finds, and has a
//! twin without the fault, in which the checker finds nothing.

mod commands;
mod guards;
mod keys;
mod permits;
mod releases;
mod shared;
mod turns;
mod waiters;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tower_lock::backend::{LeaseId, Mode};
use tower_lock::{LockGuard, LockManager};
use uuid::Uuid;

use crate::environment::{Environment, Managers};
use crate::executor::Runtime;
use crate::plan::{Acquire, Command, Ms, Plan};
use crate::seen::{Seen, Waiter};
use crate::store::Item;
use crate::tests::{acquire, plan};
use crate::time::{MS, Time};
use crate::violation::Invariant;
use crate::wire::{Wire, key};

/// Two processes with one runtime.
struct History {
    environment: Arc<Environment>,
    managers: Managers,
    guards: Mutex<Vec<LockGuard>>,
}

/// Whether a history contains its fault.
type Fault = bool;

/// Checks that `act` violates the invariant with its fault, and nothing without it.
async fn assert_finds(invariant: Invariant, act: impl AsyncFn(&History, Fault)) {
    assert_finds_in(plan(), invariant, act).await;
}

async fn assert_finds_in(plan: Plan, invariant: Invariant, act: impl AsyncFn(&History, Fault)) {
    for (fault, expected) in [(true, Some(invariant)), (false, None)] {
        let history = History::new(plan.clone());
        act(&history, fault).await;
        history.observe();
        let violation = history.environment.violation();
        let found = violation.as_ref().map(|violation| violation.invariant);
        assert_eq!(found, expected, "fault: {fault}, {violation:?}");
    }
}

impl History {
    fn new(plan: Plan) -> Self {
        let environment = Environment::new(plan, false);
        let runtime = Runtime::new(1, 0, &environment.alarm);
        let runtimes = || vec![Arc::clone(&runtime); 2];
        *environment.runtimes.lock().unwrap() = vec![runtimes(), runtimes()];
        let manager = |manager| {
            let environment = Arc::clone(&environment);
            let wire = Wire {
                environment,
                manager,
            };
            LockManager::builder(wire).build().unwrap()
        };
        Self {
            managers: (0..2).map(manager).collect(),
            environment,
            guards: Mutex::default(),
        }
    }

    fn observe(&self) {
        self.environment.observe(&self.managers);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.environment.seen.lock().unwrap()
    }

    async fn advance(&self, time: Ms) {
        tokio::time::advance(Duration::from_millis(time)).await;
    }

    /// Drives the wires until the future is complete.
    async fn drive<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        loop {
            while self.environment.happen() {}
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
    }

    /// Sends a command of a process, and lets it take effect.
    async fn send(&self, manager: usize, command: Command, item: Item) {
        let _reply = self.environment.send(manager, command, vec![item]);
        self.advance(2).await;
        while self.environment.happen() {}
    }

    /// Acquires the key for this lease. The history shows what was `asked` instead.
    async fn acquire(
        &self,
        manager: usize,
        lease: Option<Ms>,
        asked: &Acquire,
    ) -> (Waiter, LockGuard) {
        let id = self.environment.acquire_starts(manager, 0, asked, None);
        let mut request = self.managers[manager].acquire(key(0));
        if !asked.shared.is_empty() {
            request = request.shared();
        }
        if let Some(limit) = asked.permits {
            request = request.permits(limit.into());
        }
        if let Some(lease) = lease {
            request = request.lease(Duration::from_millis(lease));
        }
        let guard = self.drive(request.into_future()).await.unwrap();
        let waiter = self.environment.acquire_ends(id, String::new).unwrap();
        (waiter, guard)
    }

    fn granted(&self, waiter: &Waiter, asked: &Acquire, guard: LockGuard) -> u64 {
        let id = self.environment.granted(waiter, asked, &guard);
        self.guards.lock().unwrap().push(guard);
        id
    }

    async fn guard(&self, manager: usize, lease: Option<Ms>, asked: &Acquire) -> u64 {
        let (waiter, guard) = self.acquire(manager, lease, asked).await;
        self.granted(&waiter, asked, guard)
    }

    /// Acquires the key until it is released.
    async fn renewed_guard(&self, manager: usize) -> u64 {
        self.guard(manager, None, &acquire()).await
    }

    /// The connection of a process.
    fn wire(&self, manager: usize) -> Wire {
        Wire {
            environment: Arc::clone(&self.environment),
            manager,
        }
    }

    /// Drops the guards. The history does not show it.
    fn drop_unseen(&self) {
        self.guards.lock().unwrap().clear();
    }

    /// The lease that holds the key.
    fn lease(&self) -> LeaseId {
        let store = self.environment.store.lock().unwrap();
        store.latest(0, self.environment.now()).unwrap().0
    }

    /// Frees the key in the store, without a notification.
    fn free(&self) {
        let (release, now) = (item(self.lease(), 0), self.environment.now());
        let mut store = self.environment.store.lock().unwrap();
        store.execute(Command::Release, &release, now, now);
    }
}

/// A lease that no engine knows.
fn lease(process: u128, number: u64) -> LeaseId {
    LeaseId::new(Uuid::from_u128(process), number)
}

fn item(lease: LeaseId, ttl: Ms) -> Item {
    Item {
        key: 0,
        lease: Some(lease),
        mode: Mode::Exclusive,
        limit: 0,
        ttl: MS * Time::try_from(ttl).unwrap(),
        listens: true,
        next: None,
        counters: 1,
    }
}
