//! Finishes what a dropped guard started: off the request's path, in batches, until it is done or
//! the lease has run out by itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout_at};

use super::engine::Engine;
use super::moment::Moment;
use super::order::{Report, Return, Surrender};
use crate::backend::{BackendError, Immediate, LeaseId, Passed, Released};
use crate::jitter::jittered;
use crate::{Error, ErrorKind, LockKey};

/// The most keys of one command.
const BATCH: usize = 100;

/// The most commands at a time. With fewer, releases would fall behind the acquires of a busy
/// process, and keys stay taken that nobody holds.
const IN_FLIGHT: usize = 8;

/// How long a batch may hold up the next one.
const PATIENCE: Duration = Duration::from_millis(20);

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// The keys whose leases are to go back, and whether a task is at it.
///
/// By itself: each release writes it, and what lies on the same cache line would be fetched anew by
/// all other cores.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Releaser {
    queue: Mutex<VecDeque<LockKey>>,
    running: AtomicBool,
    /// Told that there is something in the queue.
    enqueued: Notify,
    /// Releases that failed at first and are tried again, and leases nobody knows the fate of.
    unfinished: AtomicUsize,
    /// Told when one of them is finished.
    finished: Notify,
}

/// Says that the task is gone, also when its runtime drops it.
struct Running(Arc<Engine>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.releaser.running.store(false, Ordering::SeqCst);
    }
}

/// Counts a release that goes on in the background.
struct Unfinished(Arc<Engine>);

impl Unfinished {
    fn new(engine: &Arc<Engine>) -> Self {
        engine.releaser.unfinished.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(engine))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let releaser = &self.0.releaser;
        releaser.unfinished.fetch_sub(1, Ordering::SeqCst);
        releaser.finished.notify_waiters();
    }
}

impl Releaser {
    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<LockKey>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many releases go on beside their lanes.
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished.load(Ordering::SeqCst)
    }

    /// Waits until none does.
    pub(super) async fn finished(&self) {
        loop {
            let finished = self.finished.notified();
            tokio::pin!(finished);
            // Listen first, then look.
            finished.as_mut().enable();
            if self.unfinished() == 0 {
                return;
            }
            finished.await;
        }
    }

    /// The lane of `key` has a lease to return. Never blocks, and needs no runtime to be called.
    pub(super) fn enqueue(&self, engine: &Arc<Engine>, key: LockKey) {
        if let Some(backend) = engine.backend.immediate() {
            let now = Moment::now();
            let order = engine.lanes.with(&key, |lane| lane.take_return(now));
            if let Some(order) = order {
                carry_out(engine, backend, &key, order, now);
            }
        } else {
            let first = {
                let mut queue = self.queue();
                queue.push_back(key);
                queue.len() == 1
            };
            // The task takes along those behind the first.
            if first {
                self.enqueued.notify_one();
            }
            self.start(engine);
        }
    }

    /// Goes on with what a runtime that is gone has left in the queue.
    pub(super) fn resume(&self, engine: &Arc<Engine>) {
        if !self.queue().is_empty() {
            self.start(engine);
        }
    }

    /// The next keys from the queue, as many as go at a time.
    fn next_round(&self) -> Vec<LockKey> {
        const ROUND: usize = IN_FLIGHT * BATCH;
        let mut queue = self.queue();
        let size = queue.len().min(ROUND);
        // The queue keeps its room for those who come next; not that of a burst.
        let round = queue.drain(..size).collect();
        if queue.is_empty() {
            queue.shrink_to(ROUND);
        }
        round
    }

    /// Waits until there is something in the queue.
    async fn has_more(&self) {
        while self.queue().is_empty() {
            self.enqueued.notified().await;
        }
    }

    fn start(&self, engine: &Arc<Engine>) {
        // It mostly runs, and to look costs less than to write.
        if self.running.load(Ordering::SeqCst) || self.running.swap(true, Ordering::SeqCst) {
            return;
        }
        let running = Running(Arc::clone(engine));
        engine.spawner.spawn(run(running));
    }

    /// Releases a lease whose fate is not known, beside its lane: tries again until the backend
    /// answers or the lease must have run out, which is after `ttl` at the latest.
    ///
    /// That is counted from now: a try that was sent again, or a renewal without an answer, armed it
    /// later than anybody here knows.
    pub(super) fn give_back(
        &self,
        engine: &Arc<Engine>,
        key: LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) {
        let until = Moment::now() + ttl;
        let unfinished = Unfinished::new(engine);
        engine.spawner.spawn(retry(unfinished, key, lease, until));
    }
}

/// What the releaser does for a lane whose backend answers at once.
pub(super) fn carry_out(
    engine: &Arc<Engine>,
    backend: &dyn Immediate,
    key: &LockKey,
    order: Return,
    now: Moment,
) {
    match order {
        Return::Release(surrender) => {
            let id = engine.lease_id(surrender.lease.number());
            let outcome = backend.release(key, id, now.into());
            settle(engine, key, surrender, outcome);
        }
        Return::Pass(surrender) => start_pass(engine, key.clone(), surrender),
    }
}

fn start_pass(engine: &Arc<Engine>, key: LockKey, surrender: Surrender) {
    let pass = pass(Arc::clone(engine), key, surrender);
    engine.spawner.spawn(pass);
}

async fn run(running: Running) {
    let engine = Arc::clone(&running.0);
    loop {
        let round = engine.releaser.next_round();
        if round.is_empty() {
            drop(running);
            // What came between the look and the flag found the flag set and started nobody.
            engine.releaser.resume(&engine);
            return;
        }
        let mut releases = Vec::with_capacity(round.len());
        let now = Moment::now();
        for key in round {
            match engine.lanes.with(&key, |lane| lane.take_return(now)) {
                Some(Return::Release(surrender)) => releases.push((key, surrender)),
                Some(Return::Pass(surrender)) => start_pass(&engine, key, surrender),
                // Taken back, or waiting for the answer to a renewal.
                None => {}
            }
        }
        send(&engine, releases).await;
    }
}

/// Sends one round, each group of keys by itself, and waits for the end of one of its batches, while
/// others gather for the next round; but not for long: one that hangs delays no other.
async fn send(engine: &Arc<Engine>, leases: Vec<(LockKey, Surrender)>) {
    let mut batches = Vec::new();
    for mut group in engine.in_groups(leases, |(key, _)| key) {
        while !group.is_empty() {
            let batch = group.drain(..group.len().min(BATCH)).collect();
            batches.push(release(Arc::clone(engine), batch, false));
        }
    }
    let Some(last) = batches.pop() else { return };
    for batch in batches {
        engine.spawner.spawn(batch);
    }
    // Mostly the only one: a task of its own would cost as much as all the rest.
    let mut last = Box::pin(last);
    let patience_ends = Moment::now() + PATIENCE;
    // No timer while nobody waits for this one to end: it would mostly be the first to fire, and then
    // the thread that waits for I/O is woken to learn of it. At each release, that is the most
    // expensive part.
    tokio::select! {
        biased;
        () = &mut last => return,
        () = engine.releaser.has_more() => {}
    }
    if timeout_at(patience_ends.into(), &mut last).await.is_err() {
        engine.spawner.spawn(last);
    }
}

/// Releases one batch. Whatever the answer, each lane goes on: what failed is tried again beside it.
///
/// `again`: an earlier command may have released them already, which is as good.
async fn release(engine: Arc<Engine>, leases: Vec<(LockKey, Surrender)>, again: bool) {
    let ids: Vec<_> = leases
        .iter()
        .map(|(key, surrender)| (key.clone(), engine.lease_id(surrender.lease.number())))
        .collect();
    // Dropped here only with the runtime; then the leases run out.
    let outcomes = Arc::clone(&engine.backend).release(ids).await;
    for ((key, surrender), mut outcome) in leases.into_iter().zip(outcomes) {
        if again && outcome.is_ok() && Moment::now() < surrender.lease.valid_until() {
            outcome = Ok(Released::Released);
        }
        settle(&engine, &key, surrender, outcome);
    }
}

fn settle(
    engine: &Arc<Engine>,
    key: &LockKey,
    surrender: Surrender,
    outcome: Result<Released, BackendError>,
) {
    let outcome = match outcome {
        Ok(Released::Released) => Ok(()),
        Ok(Released::NotHeld) => Err(Error::new(ErrorKind::Lost)),
        Err(error) => {
            let id = engine.lease_id(surrender.lease.number());
            let longest = surrender.lease.longest();
            engine.releaser.give_back(engine, key.clone(), id, longest);
            Err(error.into())
        }
    };
    returned(engine, key, surrender, outcome, None);
}

fn returned(
    engine: &Arc<Engine>,
    key: &LockKey,
    surrender: Surrender,
    outcome: Result<(), Error>,
    passed: Option<u32>,
) {
    let number = surrender.lease.number();
    let next = (engine.lanes).with(key, |lane| lane.returned(number, passed));
    engine.follow(key, next);
    tell(surrender.report, outcome);
}

/// Answers whoever awaits a release.
pub(super) fn tell(report: Option<Report>, outcome: Result<(), Error>) {
    if let Some(report) = report {
        // It may have stopped waiting.
        drop(report.send(outcome));
    }
}

/// The hand-off budget is spent: asks whether another process wants the key.
async fn pass(engine: Arc<Engine>, key: LockKey, mut surrender: Surrender) {
    let sent_at = Moment::now();
    let id = engine.lease_id(surrender.lease.number());
    let ttl = surrender.lease.ttl();
    let backend = Arc::clone(&engine.backend);
    match backend.pass(key.clone(), id, ttl).await {
        Ok(Passed::Kept { counter }) => {
            surrender.lease.keep(counter, sent_at, ttl);
            let now = Moment::now();
            match (engine.lanes).with(&key, |lane| lane.kept(&key, surrender, now)) {
                Ok((report, next)) => {
                    engine.follow(&key, next);
                    tell(report, Ok(()));
                }
                Err(lease) => engine.releaser.give_back(&engine, key, id, lease.longest()),
            }
        }
        Ok(Passed::Released { watchers }) => {
            returned(&engine, &key, surrender, Ok(()), Some(watchers));
        }
        Ok(Passed::NotHeld) => {
            let lost = Err(Error::new(ErrorKind::Lost));
            returned(&engine, &key, surrender, lost, None);
        }
        // It may have been renewed or released; the plain release settles it either way.
        Err(_) => release(engine, vec![(key, surrender)], true).await,
    }
}

/// The task of a lease whose fate is not known.
async fn retry(unfinished: Unfinished, key: LockKey, lease: LeaseId, until: Moment) {
    let engine = &unfinished.0;
    let mut backoff = FIRST_BACKOFF;
    // Before the first try: what comes back after it is not missed.
    let mut recoveries = engine.backend.recoveries();
    loop {
        let release = vec![(key.clone(), lease)];
        let outcomes = Arc::clone(&engine.backend).release(release).await;
        if outcomes.iter().all(Result::is_ok) || Moment::now() >= until {
            return;
        }
        // Others wait for this key: as soon as the backend can be reached again, they need not.
        tokio::select! {
            () = sleep(jittered(backoff)) => backoff = (backoff * 2).min(LAST_BACKOFF),
            () = recoveries.next() => {}
        }
    }
}
