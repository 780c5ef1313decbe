//! Random work of callers, which uses all ways to acquire and to release.

use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tower_lock::{LockGuard, LockManager};

use crate::how::How;
use crate::referee::{CheckedGuard, Referee};
use crate::run::PROCESSES;

/// The contended keys. Each process has a worker for each key, so some worker always wants it.
const HOT: usize = 3;
/// Keys that are only acquired in pairs: the owner holds the first one while it waits for the second.
const PAIRED: u64 = 3;

pub(crate) fn hot() -> Vec<String> {
    (0..HOT).map(|n| format!("hot:{n}")).collect()
}

/// The key that a process holds for as long as it can.
pub(crate) fn kept(process: usize) -> String {
    format!("own:{process}")
}

/// The key that some workers read and others write.
pub(crate) const SHARED: &str = "shared:mixed";
/// The key of which some workers acquire permits.
pub(crate) const PERMITS: &str = "permits:mixed";
/// The key that all processes read for as long as they can.
pub(crate) const READ: &str = "shared:read";
/// The key of which each process holds a permit for as long as it can.
pub(crate) const PERMITTED: &str = "permits:kept";
/// More than there are processes.
const ENOUGH: u32 = 8;

fn repeated(process: usize) -> String {
    format!("repeated:{process}")
}

fn leased(process: usize) -> String {
    format!("leased:{process}")
}

pub(crate) fn random(bound: u64) -> u64 {
    RandomState::new().hash_one(0) % bound
}

pub(crate) fn millis(range: Range<u64>) -> Duration {
    Duration::from_micros(range.start * 1_000 + random((range.end - range.start) * 1_000))
}

/// The workers of all processes until they are stopped.
pub(crate) struct Load {
    workers: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    permits: bool,
    repeats: bool,
}

impl Load {
    /// `permits`: the store has them. `repeats`: processes also repeat keys, whose leases may be kept.
    pub(crate) fn new(permits: bool, repeats: bool) -> Self {
        Self {
            permits,
            repeats,
            workers: Vec::new(),
            stop: watch::channel(false).0,
        }
    }

    /// Returns the keys that a process holds for as long as it can.
    pub(crate) fn kept(&self, process: usize) -> Vec<String> {
        let permitted = self.permits.then(|| PERMITTED.to_owned());
        let keys = [kept(process), READ.to_owned()];
        keys.into_iter().chain(permitted).collect()
    }

    /// Returns the keys that several leases hold at times.
    pub(crate) fn mixed(&self) -> Vec<String> {
        let permits = self.permits.then(|| PERMITS.to_owned());
        [SHARED.to_owned()].into_iter().chain(permits).collect()
    }

    /// Runs all workers of one process.
    pub(crate) fn add(
        &mut self,
        referee: &Arc<Referee>,
        locks: &LockManager,
        process: usize,
        lease: Duration,
    ) {
        let worker = || Worker {
            referee: Arc::clone(referee),
            locks: locks.clone(),
            process,
            lease,
            stop: self.stop.subscribe(),
        };
        let mut workers = Vec::new();
        for key in hot() {
            workers.push(tokio::spawn(worker().on_a_hot_key(key)));
        }
        workers.push(tokio::spawn(worker().on_pairs()));
        for key in self.kept(process) {
            workers.push(tokio::spawn(worker().for_good(key)));
        }
        for _ in 0..2 {
            workers.push(tokio::spawn(worker().on_shared_key()));
            if self.permits {
                workers.push(tokio::spawn(worker().on_permits()));
            }
        }
        workers.push(tokio::spawn(
            worker().about_a_third(format!("third:{process}")),
        ));
        workers.push(tokio::spawn(worker().without_renewal(leased(process))));
        // The owner of a lost lock has a rival in another process at once.
        let other = (process + 1) % PROCESSES;
        workers.push(tokio::spawn(worker().in_turn(kept(other))));
        workers.push(tokio::spawn(worker().in_turn(leased(other))));
        if self.repeats {
            let keys = [repeated(process), repeated(other)];
            for (key, pause) in keys.into_iter().zip([0..20, 100..500]) {
                workers.push(tokio::spawn(worker().repeats(key, pause)));
            }
        }
        self.workers.append(&mut workers);
    }

    /// Waits until all workers have ended. A panic of a worker continues here.
    pub(crate) async fn stop(&mut self) -> Vec<String> {
        self.stop.send_replace(true);
        let mut panics = Vec::new();
        for worker in self.workers.drain(..) {
            if let Err(error) = worker.await {
                panics.push(error.to_string());
            }
        }
        panics
    }
}

struct Worker {
    referee: Arc<Referee>,
    locks: LockManager,
    process: usize,
    lease: Duration,
    stop: watch::Receiver<bool>,
}

impl Worker {
    fn is_over(&self) -> bool {
        *self.stop.borrow()
    }

    /// A longer wait ends with the load.
    async fn until_stopped<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            outcome = work => Some(outcome),
            _ = self.stop.wait_for(|stop| *stop) => None,
        }
    }

    async fn on_a_hot_key(mut self, key: String) {
        while !self.is_over() {
            let patience = match random(5) {
                0 => Some(millis(0..30)),
                _ => None,
            };
            let how = How::at_random(self.lease);
            if let Some(mut checked) = self.take(&key, how, patience).await {
                if random(4) == 0 {
                    self.again(&mut checked, &key).await;
                }
                let time = if random(10) == 0 {
                    millis(40..120)
                } else {
                    millis(0..30)
                };
                checked.keep(time).await;
                self.let_go(checked).await;
            }
            sleep(millis(1..25)).await;
        }
    }

    async fn on_shared_key(mut self) {
        while !self.is_over() {
            let how = How {
                shared: random(4) > 0,
                ..How::at_random(self.lease)
            };
            if let Some(checked) = self.take(SHARED, how, None).await {
                checked.keep(millis(5..60)).await;
                self.let_go(checked).await;
            }
            sleep(millis(1..25)).await;
        }
    }

    async fn on_permits(mut self) {
        while !self.is_over() {
            // As processes of two versions.
            let limit = if random(4) == 0 { 2 } else { 3 };
            let how = How {
                permits: limit,
                ..How::at_random(self.lease)
            };
            if let Some(checked) = self.take(PERMITS, how, None).await {
                checked.keep(millis(5..60)).await;
                self.let_go(checked).await;
            }
            sleep(millis(1..25)).await;
        }
    }

    async fn on_pairs(mut self) {
        while !self.is_over() {
            let (a, b) = (random(PAIRED), 1 + random(PAIRED - 1));
            let pair = [format!("pair:{a}"), format!("pair:{}", (a + b) % PAIRED)];
            let asked = self.referee.asks();
            let acquire = self.locks.acquire(pair).wait(millis(250..1_500));
            let outcome = self.until_stopped(acquire.into_future()).await;
            match outcome {
                Some(Ok(guard)) => {
                    let terms = (self.lease, true);
                    let checked = self.referee.granted(guard, self.process, asked, terms);
                    checked.keep(millis(0..60)).await;
                    self.let_go(checked).await;
                }
                Some(Err(error)) => self.referee.shows_error(&error),
                None => {}
            }
            sleep(millis(20..80)).await;
        }
    }

    /// Holds the key until it is lost, and then acquires it again.
    async fn for_good(mut self, key: String) {
        while !self.is_over() {
            let how = How {
                shared: key == READ,
                permits: if key == PERMITTED { ENOUGH } else { 0 },
                ..How::renewed(self.lease, Some(Duration::from_secs(3)))
            };
            if let Some(checked) = self.take(&key, how, None).await {
                let for_good = checked.keep(Duration::from_secs(3_600));
                self.until_stopped(for_good).await;
                self.let_go(checked).await;
            }
        }
    }

    /// Releases just when the first renewal is due.
    async fn about_a_third(mut self, key: String) {
        while !self.is_over() {
            let how = How::renewed(self.lease, Some(Duration::from_secs(3)));
            if let Some(checked) = self.take(&key, how, None).await {
                let third = (self.lease / 3 + millis(0..8)).saturating_sub(millis(3..6));
                self.until_stopped(checked.keep(third)).await;
                self.let_go(checked).await;
            }
        }
    }

    /// Keeps the guard beyond the end of its lease.
    async fn without_renewal(mut self, key: String) {
        while !self.is_over() {
            let how = How::leased(millis(200..400));
            let time = how.lease.mul_f64(1.2);
            if let Some(checked) = self.take(&key, how, None).await {
                self.until_stopped(checked.keep(time)).await;
                self.let_go(checked).await;
            }
            sleep(millis(1..40)).await;
        }
    }

    /// Waits for a key that another owner holds, and releases it soon.
    async fn in_turn(mut self, key: String) {
        while !self.is_over() {
            let how = How::renewed(self.lease, Some(Duration::from_secs(3)));
            if let Some(checked) = self.take(&key, how, None).await {
                checked.keep(millis(10..60)).await;
                self.let_go(checked).await;
                sleep(millis(10..40)).await;
            }
        }
    }

    /// Acquires the key again and again. After a short pause, its lease is kept here.
    async fn repeats(mut self, key: String, pause: Range<u64>) {
        while !self.is_over() {
            let how = How::renewed(self.lease, Some(Duration::from_secs(3)));
            if let Some(checked) = self.take(&key, how, None).await {
                checked.keep(millis(0..5)).await;
                self.let_go(checked).await;
            }
            sleep(millis(pause.clone())).await;
        }
    }

    async fn take(
        &mut self,
        key: &str,
        how: How,
        patience: Option<Duration>,
    ) -> Option<CheckedGuard> {
        let asked = self.referee.asks();
        let acquire = how.applied_to(self.locks.acquire(key)).into_future();
        let patient = async {
            match patience {
                Some(patience) => timeout(patience, acquire).await.ok(),
                None => Some(acquire.await),
            }
        };
        match self.until_stopped(patient).await.flatten()? {
            Ok(guard) => {
                let terms = (how.lease, how.renewed);
                let checked = self.referee.granted(guard, self.process, asked, terms);
                Some(checked.below(how.permits))
            }
            Err(error) => {
                let terms = (how.wait, asked);
                self.referee.refused(key, self.process, terms, &error);
                if !error.is_busy() {
                    sleep(millis(10..40)).await;
                }
                None
            }
        }
    }

    /// I4, I5: the same owner acquires the lock again, and drops one of the two guards.
    async fn again(&mut self, checked: &mut CheckedGuard, key: &str) {
        let acquire = self.locks.acquire(key).owner(checked.owner()).no_wait();
        let outcome = acquire.await;
        let is_held = checked.look();
        let same = |again: &LockGuard| again.fencing_token() == checked.fencing_token();
        match outcome {
            Ok(again) if same(&again) => {
                let counts = (again.hold_count(), checked.hold_count());
                self.referee.expect(counts == (2, 2), "I5", || {
                    format!("{key}: held twice, counted {counts:?}")
                });
                if random(2) == 0 {
                    drop(again);
                } else {
                    checked.pass_to(again);
                }
                let count = checked.hold_count();
                self.referee.expect(count == 1, "I5", || {
                    format!("{key}: held once, counted {count}")
                });
            }
            // The owner may have lost the lock and acquired a fresh one.
            Ok(stranger) => {
                self.referee.expect(!is_held, "I4", || {
                    format!("{key}: another token for the same owner")
                });
                drop(stranger);
            }
            Err(error) => self.referee.expect(!is_held, "I5", || {
                format!("{key}: rejected its own owner: {error}")
            }),
        }
    }

    async fn let_go(&mut self, checked: CheckedGuard) {
        match random(4) {
            0 => drop(checked.release().await),
            1 => drop(timeout(millis(0..2), checked.release()).await),
            _ => drop(checked),
        }
    }
}
