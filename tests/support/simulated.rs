//! The memory backend behind a simulated wire: latency, faults on order, and a log of what was
//! sent. For faults and time only; what a real server does is tested on a real server.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;
use tower_lock::backend::{
    Acquired, BackendError, BackendErrorKind, Extended, Fence, ForceReleased, HintSender, Hints,
    Holder, LeaseId, Node, Passed, Released, Renewal, Renewed,
};
use tower_lock::{Backend, LockKey, Memory};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Acquire,
    Renew,
    Release,
    Pass,
    Extend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Refused, without effect.
    Refused,
    /// Took effect; the answer was lost, and that is known after 500 ms.
    AnswerLost,
    /// Never arrived, and that is known after 500 ms.
    CommandLost,
    /// The server does not like this client.
    Misconfigured,
    /// Stands still until it is no longer down, and takes effect then.
    Hung,
}

/// Clones share their wire and their store.
#[derive(Clone)]
pub struct Simulated {
    pub memory: Memory,
    pub latency: Duration,
    /// Whether anybody is told of releases.
    pub hints: bool,
    wire: Arc<Mutex<Wire>>,
}

#[derive(Default)]
struct Wire {
    /// The next commands of a kind meet these.
    faults: HashMap<&'static str, VecDeque<Fault>>,
    /// Every command meets this.
    down: Option<Fault>,
    log: Vec<(Command, LockKey, LeaseId)>,
    in_flight: HashMap<LockKey, usize>,
    most_in_flight: usize,
    batches: usize,
    renewing: usize,
    most_renewing: usize,
    /// Who is told that it is no longer down.
    recoveries: Vec<HintSender>,
}

impl Simulated {
    pub fn new(latency: Duration) -> Self {
        Self {
            memory: Memory::new(),
            latency,
            hints: true,
            wire: Arc::default(),
        }
    }

    /// Another process on the same store, over a wire of its own.
    pub fn another_wire(&self) -> Self {
        Self {
            wire: Arc::default(),
            ..self.clone()
        }
    }

    pub fn without_hints(mut self) -> Self {
        self.hints = false;
        self
    }

    pub fn fail_next(&self, command: Command, fault: Fault) {
        let mut wire = self.wire.lock().unwrap();
        wire.faults
            .entry(name(command))
            .or_default()
            .push_back(fault);
    }

    pub fn down(&self, fault: Option<Fault>) {
        let mut wire = self.wire.lock().unwrap();
        wire.down = fault;
        if fault.is_none() {
            wire.recoveries.iter().for_each(HintSender::hint);
        }
    }

    pub fn log(&self) -> Vec<(Command, LockKey, LeaseId)> {
        self.wire.lock().unwrap().log.clone()
    }

    pub fn sent(&self, command: Command) -> usize {
        let log = self.log();
        log.iter().filter(|(sent, ..)| *sent == command).count()
    }

    /// The most acquires, releases and passes of one key that were under way at one time.
    pub fn most_in_flight(&self) -> usize {
        self.wire.lock().unwrap().most_in_flight
    }

    /// How many renew commands, each of many leases, were sent.
    pub fn renew_batches(&self) -> usize {
        self.wire.lock().unwrap().batches
    }

    /// The most renew commands that were under way at one time.
    pub fn most_renewals_in_flight(&self) -> usize {
        self.wire.lock().unwrap().most_renewing
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
                "refused on order",
            )),
            Some(Fault::Misconfigured) => Err(BackendError::refused(
                BackendErrorKind::Misconfigured,
                "no permission, on order",
            )),
            Some(Fault::AnswerLost) => {
                drop(effect.await);
                sleep(Duration::from_millis(500)).await;
                Err(BackendError::unknown("answer lost on order"))
            }
            Some(Fault::Hung) => {
                while self.wire.lock().unwrap().down == fault {
                    sleep(Duration::from_millis(1)).await;
                }
                effect.await
            }
            Some(Fault::CommandLost) => {
                sleep(Duration::from_millis(500)).await;
                Err(BackendError::unknown("command lost on order"))
            }
        }
    }
}

fn name(command: Command) -> &'static str {
    match command {
        Command::Acquire => "acquire",
        Command::Renew => "renew",
        Command::Release => "release",
        Command::Pass => "pass",
        Command::Extend => "extend",
    }
}

struct InFlight(Simulated, LockKey);

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut wire = self.0.wire.lock().unwrap();
        *wire.in_flight.get_mut(&self.1).unwrap() -= 1;
    }
}

impl Backend for Simulated {
    async fn try_acquire(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Acquired, BackendError> {
        let _in_flight = self.enter(key);
        let fault = self.send(Command::Acquire, key, lease);
        self.meet(fault, self.memory.try_acquire(key, lease, ttl))
            .await
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
        let mut outcomes = Vec::new();
        for (renewal, fault) in renewals.iter().zip(faults) {
            let effect = async {
                let mut one = self.memory.renew(std::slice::from_ref(renewal)).await;
                one.remove(0)
            };
            outcomes.push(match fault {
                None => effect.await,
                fault => self.meet(fault, effect).await,
            });
        }
        sleep(self.latency).await;
        self.wire.lock().unwrap().renewing -= 1;
        outcomes
    }

    async fn release(&self, leases: &[(LockKey, LeaseId)]) -> Vec<Result<Released, BackendError>> {
        let mut outcomes = Vec::new();
        let in_flight: Vec<_> = leases.iter().map(|(key, _)| self.enter(key)).collect();
        let faults: Vec<_> = leases
            .iter()
            .map(|(key, lease)| self.send(Command::Release, key, *lease))
            .collect();
        sleep(self.latency).await;
        for (lease, fault) in leases.iter().zip(faults) {
            let effect = async {
                let mut one = self.memory.release(std::slice::from_ref(lease)).await;
                one.remove(0)
            };
            outcomes.push(match fault {
                None => effect.await,
                fault => self.meet(fault, effect).await,
            });
        }
        sleep(self.latency).await;
        drop(in_flight);
        outcomes
    }

    async fn pass(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Passed, BackendError> {
        let _in_flight = self.enter(key);
        let fault = self.send(Command::Pass, key, lease);
        self.meet(fault, self.memory.pass(key, lease, ttl)).await
    }

    async fn extend(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Extended, BackendError> {
        let fault = self.send(Command::Extend, key, lease);
        self.meet(fault, self.memory.extend(key, lease, ttl)).await
    }

    fn watch(&self, key: &LockKey) -> Hints {
        if self.hints {
            self.memory.watch(key)
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

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        let down = self.wire.lock().unwrap().down;
        self.meet(down, self.memory.force_release(key)).await
    }
}

impl Node for Simulated {
    async fn vote(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
        fence: Fence,
    ) -> Result<Acquired, BackendError> {
        let _in_flight = self.enter(key);
        let fault = self.send(Command::Acquire, key, lease);
        self.meet(fault, self.memory.vote(key, lease, ttl, fence))
            .await
    }
}
