//! Acquires of some hot keys by two managers, and some keys that are held for long.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_lock::{LockGuard, LockManager};

use crate::history::History;
use crate::support::engine::MS;

const HOT: &str = "hot";
const HELD: &str = "held";
const HOT_KEYS: usize = 3;
/// The workers of one manager.
const WORKERS: usize = 3;
const HOLDERS: usize = 3;

/// Less than the threshold of the alert for slow waits.
const WAIT: Duration = Duration::from_millis(800);

/// One acquire of this many has only one attempt, which mostly fails. Fewer than the alert for busy locks accepts.
const PER_ATTEMPT: usize = 50;
/// One acquire of this many is dropped after a while.
const PER_CANCELLATION: usize = 20;

pub(crate) struct Load {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

#[derive(Clone)]
struct Worker {
    locks: LockManager,
    history: History,
    stopped: watch::Receiver<bool>,
}

impl Load {
    pub(crate) fn start(managers: &[LockManager], history: &History) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for (number, locks) in managers.iter().enumerate() {
            let worker = Worker {
                locks: locks.clone(),
                history: history.clone(),
                stopped: stopped.clone(),
            };
            for n in 0..WORKERS {
                tasks.spawn(worker.clone().work(n));
            }
            for n in 0..HOLDERS {
                let key = format!("held:{number}:{n}");
                tasks.spawn(worker.clone().hold(key));
            }
        }
        Self { tasks, stop }
    }

    /// Completes when all guards have been released.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

impl Worker {
    async fn work(self, first: usize) {
        let mut closing = JoinSet::new();
        for turn in first.. {
            if *self.stopped.borrow() {
                break;
            }
            let acquire = self.locks.acquire(format!("hot:{}", turn % HOT_KEYS));
            let acquire = acquire.name(HOT).wait(WAIT);
            let acquire = match turn % PER_ATTEMPT {
                0 => acquire.no_wait(),
                _ => acquire,
            };
            let patience = match turn % PER_CANCELLATION {
                1 => 5 * MS,
                _ => 10 * WAIT,
            };
            match timeout(patience, acquire.into_future()).await {
                Err(_elapsed) => self.history.cancelled(HOT),
                Ok(Err(error)) => {
                    self.history.failed(&error, HOT);
                    sleep(20 * MS).await;
                }
                Ok(Ok(guard)) => {
                    self.history.granted(&guard, HOT);
                    tokio::select! {
                        () = guard.lost() => {}
                        () = sleep(10 * MS) => {}
                    }
                    // The next acquire does not wait for the release.
                    closing.spawn(end(guard, self.history.clone(), HOT));
                }
            }
            while closing.try_join_next().is_some_and(|ended| ended.is_ok()) {}
        }
        while let Some(ended) = closing.join_next().await {
            ended.unwrap();
        }
    }

    async fn hold(mut self, key: String) {
        while !*self.stopped.borrow() {
            let acquire = self.locks.acquire(&key).name(HELD).wait(WAIT);
            match acquire.await {
                Err(error) => {
                    self.history.failed(&error, HELD);
                    sleep(20 * MS).await;
                }
                Ok(guard) => {
                    self.history.granted(&guard, HELD);
                    tokio::select! {
                        () = guard.lost() => {}
                        stopped = self.stopped.wait_for(|stopped| *stopped) => drop(stopped),
                    }
                    end(guard, self.history.clone(), HELD).await;
                }
            }
        }
    }
}

async fn end(guard: LockGuard, history: History, layer: &str) {
    let held = guard.held();
    let released = guard.release().await;
    history.ended(&released, &held, layer);
}
