//! Work at intervals, in one process at a time.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Acquire;
use crate::lock::engine::Engine;
use crate::{ConfigError, Error, ErrorKind, Held};

impl Acquire {
    /// Runs the work once per period, in one process at a time of all that call it with this key, until the manager
    /// [shuts down](crate::LockManager::shutdown).
    ///
    /// The process that acquires the lock holds it also between two runs, and the others wait for it without a deadline,
    /// whatever [`wait`](Self::wait) says. Its first run begins one period after it acquired the lock, so two runs are at
    /// least one period apart, also when the lock goes to another process. If a run takes longer than the period, the
    /// next one begins at its end. The period is counted by a timer of Tokio and survives no restart of all processes: it
    /// is for intervals of minutes, and not for a time of day.
    ///
    /// If the lock is lost, the run is dropped at its next await, and the process waits for the lock again. At a shutdown,
    /// a run that has begun ends before its lock is released.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidOption`](ErrorKind::InvalidOption) for a period of zero, and the errors of the acquire for which
    /// waiting does not help, such as [`Refused`](ErrorKind::Refused). An outage of the backend is none: the
    /// acquire waits.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the run is dropped first, and then the lock is released.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tower_lock::Error> {
    /// use std::time::Duration;
    /// use tower_lock::LockManager;
    ///
    /// let locks = LockManager::in_memory();
    /// let job = locks.acquire("job:clean-up").run_every(Duration::from_secs(60), |held| async move {
    ///     println!("run with token {}", held.fencing_token());
    /// });
    /// let stop = async {
    ///     tokio::time::sleep(Duration::from_secs(150)).await; // Two runs.
    ///     locks.shutdown(Duration::from_secs(10)).await
    /// };
    /// let (ended, left) = tokio::join!(job, stop);
    /// assert!(ended.is_ok() && left.is_idle());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_every<F, W>(self, period: Duration, mut work: F) -> Result<(), Error>
    where
        F: FnMut(Held) -> W,
        W: Future<Output = ()>,
    {
        let engine = Arc::clone(&self.engine);
        let acquire = self.wait_forever();
        let mut next = acquire.clone();
        if period.is_zero() {
            let invalid = ConfigError::new("run_every", "the period is zero");
            return Err(Error::new(ErrorKind::InvalidOption).with_source(invalid));
        }
        loop {
            let ended = next
                .run(|held| runs(&engine, period, held, &mut work))
                .await;
            match ended {
                Ok(()) => return Ok(()),
                Err(error) if error.is_shutting_down() => return Ok(()),
                Err(error) if error.is_lost() => next = acquire.clone(),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Runs the work under one lock, until the manager shuts down.
async fn runs<F, W>(engine: &Engine, period: Duration, held: Held, work: &mut F)
where
    F: FnMut(Held) -> W,
    W: Future<Output = ()>,
{
    let mut due = Instant::now() + period;
    loop {
        let mut closed = pin!(engine.closed.notified());
        closed.as_mut().enable();
        if engine.is_closing() {
            return;
        }
        // A run is not in the `select!`, so a shutdown does not cut it short.
        tokio::select! {
            biased;
            () = closed => return,
            () = sleep_until(due) => {}
        }
        work(held.clone()).await;
        due = (due + period).max(Instant::now());
    }
}
