//! How late the machine makes a task of this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::support::engine::MS;

const PERIOD: Duration = Duration::from_millis(5);
/// How much later than another task the watchdog may run. It runs on the thread of its manager, which a busy machine delays
/// at other moments than the thread that is measured: 0.5 s was seen at a load of 20.
const TURN: Duration = Duration::from_secs(1);

/// The longest delay of a task that only sleeps, in milliseconds.
pub(crate) struct Stall(Arc<AtomicU64>);

impl Stall {
    /// Starts to watch.
    pub(crate) fn watch() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let watched = Arc::clone(&longest);
        tokio::spawn(async move {
            loop {
                let due = Instant::now() + PERIOD;
                sleep(PERIOD).await;
                let late = due.elapsed().as_millis();
                watched.fetch_max(u64::try_from(late).unwrap(), Relaxed);
            }
        });
        Self(longest)
    }

    /// Expects that the watchdog was late only when the whole process was.
    pub(crate) fn expect_no_later(&self, watchdog: Duration) {
        let longest = u32::try_from(self.0.load(Relaxed)).unwrap() * MS;
        assert!(
            watchdog < longest + TURN,
            "the watchdog was late by {watchdog:?}, and other tasks by {longest:?}"
        );
    }
}
