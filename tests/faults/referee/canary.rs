//! How late this runtime itself is: what a promise about time cannot be blamed for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

const PERIOD: Duration = Duration::from_millis(2);
/// Timers count in milliseconds: no delay.
const USUAL: Duration = Duration::from_millis(2);

/// A task that wants to wake every two milliseconds, and when it could not.
#[derive(Clone, Default)]
pub(crate) struct Canary {
    /// From when it went to sleep to when it woke, where that was late: nobody knows how much of it
    /// the runtime stood still.
    late: Arc<Mutex<Vec<(Instant, Instant)>>>,
}

impl Canary {
    /// Starts it in the runtime that is to be watched; it ends with that.
    pub(crate) fn start() -> Self {
        let canary = Self::default();
        let late = Arc::clone(&canary.late);
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
        canary
    }

    /// For how long, between these two moments, tasks that were due may not have run.
    pub(crate) fn delay(&self, from: Instant, to: Instant) -> Duration {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        // One behind the other, so none is counted twice.
        let parts = late.iter().map(|(asleep, woke)| {
            let (start, end) = ((*asleep).max(from), (*woke).min(to));
            end.saturating_duration_since(start)
        });
        parts.sum()
    }
}
