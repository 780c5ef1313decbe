//! The memory backend behind a simulated connection: latency, injected faults, and a log of the
//! commands sent. It serves tests of faults and time; a real server has its own tests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;
use tower_lock::backend::Backend;
use tower_lock::backend::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, Capabilities, Contended, Downgraded,
    Fence, ForceReleased, HintSender, Hints, Holder, KeepRequest, LeaseId, Node, Release, Released,
    ReleasedOrKept, Renewal, Renewed,
};
use tower_lock::{LockKey, LockManager, Memory};
use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Acquire,
    Renew,
    Release,
    ReleaseOrKeep,
    Downgrade,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The command is rejected without effect.
    Refused,
    /// The command takes effect. Its reply is lost, which is detected after 500 ms.
    AnswerLost,
    /// The command is lost, which is detected after 500 ms.
    CommandLost,
    /// The server denies the client permission.
    Misconfigured,
    /// The command takes effect when the store is no longer down.
    Hung,
}

/// Clones share one connection and one store.
#[derive(Clone)]
pub(crate) struct Simulated {
    pub(crate) memory: Memory,
    pub(crate) latency: Duration,
    /// Whether releases notify subscribers.
    pub(crate) hints: bool,
    pub(crate) modes: Capabilities,
    wire: Arc<Mutex<Wire>>,
}

#[derive(Default)]
struct Wire {
    /// Faults of the next commands of a kind.
    faults: HashMap<&'static str, VecDeque<Fault>>,
    /// The fault of every command.
    down: Option<Fault>,
    log: Vec<(Command, LockKey, LeaseId)>,
    in_flight: HashMap<LockKey, usize>,
    most_in_flight: usize,
    batches: usize,
    /// The commands that keep leases.
    keeps: usize,
    renewing: usize,
    most_renewing: usize,
    /// Notified when the store is no longer down.
    recoveries: Vec<HintSender>,
}

impl Simulated {
    pub(crate) fn new(latency: Duration) -> Self {
        Self {
            memory: Memory::new(),
            latency,
            hints: true,
            modes: Capabilities::EXCLUSIVE.with_shared().with_permits(),
            wire: Arc::default(),
        }
    }

    pub(crate) fn without_hints(mut self) -> Self {
        self.hints = false;
        self
    }

    pub(crate) fn fail_next(&self, command: Command, fault: Fault) {
        let mut wire = self.wire.lock().unwrap();
        wire.faults
            .entry(name(command))
            .or_default()
            .push_back(fault);
    }

    pub(crate) fn down(&self, fault: Option<Fault>) {
        let mut wire = self.wire.lock().unwrap();
        wire.down = fault;
        if fault.is_none() {
            wire.recoveries.iter().for_each(HintSender::hint);
        }
    }

    pub(crate) fn log(&self) -> Vec<(Command, LockKey, LeaseId)> {
        self.wire.lock().unwrap().log.clone()
    }

    pub(crate) fn sent(&self, command: Command) -> usize {
        let log = self.log();
        log.iter().filter(|(sent, ..)| *sent == command).count()
    }

    fn send(&self, command: Command, key: &LockKey, lease: LeaseId) -> Option<Fault> {
        let mut wire = self.wire.lock().unwrap();
        wire.log.push((command, key.clone(), lease));
        let queued = wire.faults.get_mut(name(command));
        let queued = queued.and_then(VecDeque::pop_front);
        queued.or(wire.down)
    }

    fn enter(&self, key: &LockKey) -> InFlight {
        let mut wire = self.wire.lock().unwrap();
        let count = wire.in_flight.entry(key.clone()).or_default();
        *count += 1;
        let count = *count;
        wire.most_in_flight = wire.most_in_flight.max(count);
        InFlight(self.clone(), key.clone())
    }

    async fn meet<T>(
        &self,
        fault: Option<Fault>,
        effect: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        sleep(self.latency).await;
        match fault {
            None => {
                let outcome = effect.await;
                sleep(self.latency).await;
                outcome
            }
            Some(Fault::Refused) => Err(BackendError::refused(
                BackendErrorKind::Unavailable,
                "injected rejection",
            )),
            Some(Fault::Misconfigured) => Err(BackendError::refused(
                BackendErrorKind::Misconfigured,
                "injected permission error",
            )),
            Some(Fault::AnswerLost) => {
                drop(effect.await);
                sleep(Duration::from_millis(500)).await;
                Err(BackendError::unknown("injected loss of the reply"))
            }
            Some(Fault::Hung) => {
                while self.wire.lock().unwrap().down == fault {
                    sleep(Duration::from_millis(1)).await;
                }
                effect.await
            }
            Some(Fault::CommandLost) => {
                sleep(Duration::from_millis(500)).await;
                Err(BackendError::unknown("injected loss of the command"))
            }
        }
    }
}

impl Simulated {
    /// Returns another process on the same store, with its own connection.
    pub(crate) fn another_wire(&self) -> Self {
        Self {
            wire: Arc::default(),
            ..self.clone()
        }
    }

    /// Returns the most acquires, releases and passes of one key in flight at one time.
    pub(crate) fn most_in_flight(&self) -> usize {
        self.wire.lock().unwrap().most_in_flight
    }

    /// Returns the number of renew commands sent, each for many leases.
    pub(crate) fn renew_batches(&self) -> usize {
        self.wire.lock().unwrap().batches
    }

    /// Returns the number of commands sent that keep leases, each for some of them.
    pub(crate) fn keep_batches(&self) -> usize {
        self.wire.lock().unwrap().keeps
    }

    /// Returns the most renew commands in flight at one time.
    pub(crate) fn most_renewals_in_flight(&self) -> usize {
        self.wire.lock().unwrap().most_renewing
    }
}

fn name(command: Command) -> &'static str {
    match command {
        Command::Acquire => "acquire",
        Command::Renew => "renew",
        Command::Release => "release",
        Command::ReleaseOrKeep => "release_or_keep",
        Command::Downgrade => "downgrade",
    }
}

impl Simulated {
    /// Sends one command that ends leases. Its items share one result and one delay.
    async fn end<F>(
        &self,
        leases: &[Release],
        end: impl Fn(Release) -> F,
    ) -> Vec<Result<Released, BackendError>>
    where
        F: Future<Output = Result<Released, BackendError>>,
    {
        let in_flight: Vec<_> = leases.iter().map(|it| self.enter(&it.key)).collect();
        let faults: Vec<_> = leases
            .iter()
            .map(|it| self.send(Command::Release, &it.key, it.lease))
            .collect();
        sleep(self.latency).await;
        let outcomes = leases.iter().zip(faults).map(async |(lease, fault)| {
            let effect = end(lease.clone());
            match fault {
                None => effect.await,
                fault => self.meet(fault, effect).await,
            }
        });
        let outcomes = join_all(outcomes).await;
        sleep(self.latency).await;
        drop(in_flight);
        outcomes
    }
}

/// Creates a store whose connection loses each release for the first minute.
pub(crate) fn unreleasing() -> Simulated {
    let wire = Simulated::new(Duration::ZERO);
    (0..120).for_each(|_| wire.fail_next(Command::Release, Fault::CommandLost));
    wire
}

/// Returns `true` if the store has no holder of the key.
pub(crate) async fn is_free(wire: &Simulated, key: &str) -> bool {
    let holder = wire.memory.inspect(&LockKey::new(key)).await;
    holder.unwrap().is_none()
}

struct InFlight(Simulated, LockKey);

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut wire = self.0.wire.lock().unwrap();
        *wire.in_flight.get_mut(&self.1).unwrap() -= 1;
    }
}

impl Backend for Simulated {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        let _in_flight = self.enter(&request.key);
        let fault = self.send(Command::Acquire, &request.key, request.lease);
        self.meet(fault, self.memory.try_acquire(request)).await
    }

    /// Counts as an acquire.
    async fn contend(&self, request: &AcquireRequest) -> Result<Contended, BackendError> {
        let _in_flight = self.enter(&request.key);
        let fault = self.send(Command::Acquire, &request.key, request.lease);
        self.meet(fault, self.memory.contend(request)).await
    }

    /// Counts as a release.
    async fn leave(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        let leave = async |lease: Release| self.memory.leave(&[lease]).await.remove(0);
        self.end(leases, leave).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        {
            let mut wire = self.wire.lock().unwrap();
            wire.batches += 1;
            wire.renewing += 1;
            wire.most_renewing = wire.most_renewing.max(wire.renewing);
        }
        let faults: Vec<_> = renewals
            .iter()
            .map(|renewal| self.send(Command::Renew, &renewal.key, renewal.lease))
            .collect();
        sleep(self.latency).await;
        // The items of one command share one result and one delay.
        let outcomes = renewals.iter().zip(faults).map(async |(renewal, fault)| {
            let effect = async {
                let mut one = self.memory.renew(std::slice::from_ref(renewal)).await;
                one.remove(0)
            };
            match fault {
                None => effect.await,
                fault => self.meet(fault, effect).await,
            }
        });
        let outcomes = join_all(outcomes).await;
        sleep(self.latency).await;
        self.wire.lock().unwrap().renewing -= 1;
        outcomes
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        let release = async |lease: Release| self.memory.release(&[lease]).await.remove(0);
        self.end(leases, release).await
    }

    async fn release_or_keep(
        &self,
        leases: &[KeepRequest],
    ) -> Vec<Result<ReleasedOrKept, BackendError>> {
        self.wire.lock().unwrap().keeps += 1;
        let outcomes = leases.iter().map(async |lease| {
            let _in_flight = self.enter(&lease.key);
            let fault = self.send(Command::ReleaseOrKeep, &lease.key, lease.lease);
            let effect = async {
                let mut one = self
                    .memory
                    .release_or_keep(std::slice::from_ref(lease))
                    .await;
                one.remove(0)
            };
            self.meet(fault, effect).await
        });
        join_all(outcomes).await
    }

    async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        let fault = self.send(Command::Downgrade, &lease.key, lease.lease);
        self.meet(fault, self.memory.downgrade(lease)).await
    }

    fn capabilities(&self) -> Capabilities {
        self.modes
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        if self.hints {
            self.memory.watch(key, manager)
        } else {
            Hints::channel().1
        }
    }

    fn recoveries(&self) -> Hints {
        let (sender, hints) = Hints::channel();
        self.wire.lock().unwrap().recoveries.push(sender);
        hints
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        let down = self.wire.lock().unwrap().down;
        self.meet(down, self.memory.inspect(key)).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        let down = self.wire.lock().unwrap().down;
        self.meet(down, self.memory.force_release(key, holder))
            .await
    }
}

impl Node for Simulated {
    async fn vote(&self, request: &AcquireRequest, fence: Fence) -> Result<Acquired, BackendError> {
        let _in_flight = self.enter(&request.key);
        let fault = self.send(Command::Acquire, &request.key, request.lease);
        self.meet(fault, self.memory.vote(request, fence)).await
    }
}

/// Returns a manager in memory and one over a connection with latency.
pub(crate) fn managers(watchdog_timeout: Duration) -> [LockManager; 2] {
    let in_memory = LockManager::builder(Memory::new());
    let remote = LockManager::builder(Simulated::new(Duration::from_millis(1)));
    [in_memory, remote].map(|builder| builder.watchdog_timeout(watchdog_timeout).build().unwrap())
}
