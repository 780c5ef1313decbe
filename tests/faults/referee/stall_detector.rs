//! The delays of this runtime, which excuse delays of the crate.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

const PERIOD: Duration = Duration::from_millis(2);
/// Timers count in milliseconds, so a shorter delay is none.
const USUAL: Duration = Duration::from_millis(2);

/// A task that sleeps for two milliseconds at a time, and the delays of its wake-ups.
#[derive(Clone, Default)]
pub(crate) struct StallDetector {
    /// The spans from a sleep to a late wake-up. The runtime may have stalled for any part of a span.
    late: Arc<Mutex<Vec<(Instant, Instant)>>>,
}

impl StallDetector {
    /// Starts the task in the current runtime, which also ends it.
    pub(crate) fn start() -> Self {
        let stall_detector = Self::default();
        let late = Arc::clone(&stall_detector.late);
        drop(tokio::spawn(async move {
            loop {
                let asleep = Instant::now();
                sleep_until(asleep + PERIOD).await;
                let woke = Instant::now();
                if woke > asleep + PERIOD + USUAL {
                    let mut late = late.lock().unwrap_or_else(PoisonError::into_inner);
                    late.push((asleep, woke));
                }
            }
        }));
        stall_detector
    }

    /// Returns for how long between two moments due tasks may not have run.
    pub(crate) fn delay(&self, from: Instant, to: Instant) -> Duration {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        // The spans do not overlap, so no time counts twice.
        let parts = late.iter().map(|(asleep, woke)| {
            let (start, end) = ((*asleep).max(from), (*woke).min(to));
            end.saturating_duration_since(start)
        });
        parts.sum()
    }
}
