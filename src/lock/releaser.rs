//! Finishes what a dropped guard started: off the request's path, in batches, until it is done or
//! the lease has run out by itself.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::engine::Engine;
use super::lane::Return;
use super::lease::Lease;
use crate::backend::{LeaseId, Passed, Released};
use crate::jitter::jittered;
use crate::{Error, ErrorKind, LockKey};

/// The most keys of one command.
const BATCH: usize = 100;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// The keys whose leases are to go back, and whether a task is at it.
#[derive(Debug, Default)]
pub(super) struct Releaser {
    queue: Mutex<Vec<LockKey>>,
    running: AtomicBool,
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

/// Leases that are on the wire. Dropped with the runtime before the answer, the lanes go on without
/// them, and they run out by themselves.
struct Outgoing {
    engine: Arc<Engine>,
    leases: Vec<(LockKey, Lease)>,
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        for (key, _lease) in std::mem::take(&mut self.leases) {
            let outcome = Err(Error::new(ErrorKind::Unavailable));
            returned(&self.engine, &key, outcome, false);
        }
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
    fn queue(&self) -> std::sync::MutexGuard<'_, Vec<LockKey>> {
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
        self.queue().push(key);
        self.start(engine);
    }

    fn start(&self, engine: &Arc<Engine>) {
        if !self.running.swap(true, Ordering::SeqCst) {
            let running = Running(Arc::clone(engine));
            engine.spawner.spawn(run(running));
        }
    }

    /// Releases a lease that may have been granted by a command without an answer.
    pub(super) fn give_back(
        &self,
        engine: &Arc<Engine>,
        key: LockKey,
        lease: LeaseId,
        until: Instant,
    ) {
        let unfinished = Unfinished::new(engine);
        engine.spawner.spawn(retry(unfinished, key, lease, until));
    }
}

async fn run(running: Running) {
    let engine = Arc::clone(&running.0);
    loop {
        let mut keys = std::mem::take(&mut *engine.releaser.queue());
        if keys.is_empty() {
            drop(running);
            // What came between the look and the flag found the flag set and started nobody.
            if !engine.releaser.queue().is_empty() {
                engine.releaser.start(&engine);
            }
            return;
        }
        while !keys.is_empty() {
            let batch = keys.drain(..keys.len().min(BATCH));
            let mut releases = Outgoing {
                engine: Arc::clone(&engine),
                leases: Vec::with_capacity(batch.len()),
            };
            for key in batch {
                let now = Instant::now();
                match engine.lanes.with(&key, |lane| lane.take_return(now)) {
                    Some(Return::Release(lease)) => releases.leases.push((key, lease)),
                    Some(Return::Pass(lease)) => {
                        engine.spawner.spawn(pass(Outgoing {
                            engine: Arc::clone(&engine),
                            leases: vec![(key, lease)],
                        }));
                    }
                    // Taken back, or waiting for the answer to a renewal.
                    None => {}
                }
            }
            release(releases).await;
        }
    }
}

/// Sends one batch. Whatever the answer, each lane goes on: what failed is tried again beside it.
async fn release(mut outgoing: Outgoing) {
    if outgoing.leases.is_empty() {
        return;
    }
    let engine = &Arc::clone(&outgoing.engine);
    let ids: Vec<_> = (outgoing.leases)
        .iter()
        .map(|(key, lease)| (key.clone(), lease.id()))
        .collect();
    // Dropped here only with the runtime; then the leases run out.
    let outcomes = Arc::clone(&engine.backend).release(ids).await;
    let leases = std::mem::take(&mut outgoing.leases);
    for ((key, lease), outcome) in leases.into_iter().zip(outcomes) {
        match outcome {
            Ok(Released::Released) => returned(engine, &key, Ok(()), false),
            Ok(Released::NotHeld) => {
                returned(engine, &key, Err(Error::new(ErrorKind::Lost)), false);
            }
            Err(error) => {
                let unfinished = Unfinished::new(engine);
                let until = lease.expires_at();
                let retry = retry(unfinished, key.clone(), lease.id(), until);
                engine.spawner.spawn(retry);
                returned(engine, &key, Err(error.into()), false);
            }
        }
    }
}

fn returned(engine: &Arc<Engine>, key: &LockKey, outcome: Result<(), Error>, polite: bool) {
    let next = engine
        .lanes
        .with(key, |lane| lane.returned(outcome, polite));
    engine.follow(key, next);
}

/// The hand-off budget is spent: asks whether another process wants the key.
async fn pass(mut outgoing: Outgoing) {
    let Some((key, lease)) = outgoing.leases.first() else {
        return;
    };
    let engine = Arc::clone(&outgoing.engine);
    let sent_at = Instant::now();
    let backend = Arc::clone(&engine.backend);
    let outcome = backend.pass(key.clone(), lease.id(), lease.ttl()).await;
    // It may have been renewed or released; the plain release settles it either way.
    let Ok(passed) = outcome else {
        return release(outgoing).await;
    };
    let Some((key, mut lease)) = outgoing.leases.pop() else {
        return;
    };
    match passed {
        Passed::Kept { counter } => {
            lease.keep(counter, sent_at);
            let now = Instant::now();
            let next = engine.lanes.with(&key, |lane| lane.kept(&key, lease, now));
            engine.follow(&key, next);
        }
        Passed::Released => returned(&engine, &key, Ok(()), true),
        Passed::NotHeld => {
            returned(&engine, &key, Err(Error::new(ErrorKind::Lost)), false);
        }
    }
}

/// Tries again until the backend answers or the lease must have run out.
async fn retry(unfinished: Unfinished, key: LockKey, lease: LeaseId, until: Instant) {
    let engine = &unfinished.0;
    let mut backoff = FIRST_BACKOFF;
    loop {
        let release = vec![(key.clone(), lease)];
        let outcomes = Arc::clone(&engine.backend).release(release).await;
        if outcomes.iter().all(Result::is_ok) || Instant::now() >= until {
            return;
        }
        sleep(jittered(backoff)).await;
        backoff = (backoff * 2).min(LAST_BACKOFF);
    }
}
