//! The delays of this runtime and of the threads of the crate, which excuse delays of the crate.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

const PERIOD: Duration = Duration::from_millis(2);
/// Timers count in milliseconds, so a shorter delay is none.
const USUAL: Duration = Duration::from_millis(2);
/// The time between two looks at the threads.
const LOOK: Duration = Duration::from_millis(20);
/// The name of the threads of the crate, which end the waits.
const THREAD: &str = "tower-lock";

/// By thread: how long it has been without a core until each look. Linux counts that.
type Threads = HashMap<PathBuf, Vec<(Instant, Duration)>>;

fn look(threads: &mut Threads) {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    for folder in tasks.flatten().map(|task| task.path()) {
        let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
        let times = fs::read_to_string(folder.join("schedstat")).unwrap_or_default();
        let waited = times.split(' ').nth(1).and_then(|it| it.parse().ok());
        if let Some(waited) = waited.filter(|_| name.trim_end() == THREAD) {
            let look = (Instant::now(), Duration::from_nanos(waited));
            threads.entry(folder).or_default().push(look);
        }
    }
}

/// Returns how long the threads were without a core between two moments. A wait needs the thread of its manager and the one of
/// the connections, so the two longest times count.
fn without_core(threads: &Threads, from: Instant, to: Instant) -> Duration {
    let waits = threads.values().map(|looks| {
        let before = looks.partition_point(|look| look.0 <= from).max(1) - 1;
        let after = looks
            .partition_point(|look| look.0 < to)
            .min(looks.len() - 1);
        looks[after].1.saturating_sub(looks[before].1)
    });
    let mut waits: Vec<_> = waits.collect();
    waits.sort_unstable();
    waits.iter().rev().take(2).sum::<Duration>().min(to - from)
}

/// A task that sleeps for two milliseconds at a time, and the delays of its wake-ups.
#[derive(Clone, Default)]
pub(crate) struct StallDetector {
    /// The spans from a sleep to a late wake-up. The runtime may have stalled for any part of a span.
    late: Arc<Mutex<Vec<(Instant, Instant)>>>,
    threads: Arc<Mutex<Threads>>,
}

impl StallDetector {
    /// Starts the task in the current runtime, which also ends it.
    pub(crate) fn start() -> Self {
        let stall_detector = Self::default();
        let (late, threads) = (stall_detector.late.clone(), stall_detector.threads.clone());
        drop(tokio::spawn(async move {
            let mut looked = Instant::now();
            loop {
                if looked.elapsed() > LOOK {
                    look(&mut threads.lock().unwrap_or_else(PoisonError::into_inner));
                    looked = Instant::now();
                }
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

    /// Returns for how long between two moments due tasks may not have run. A task of this runtime can wait for a thread of
    /// the crate first.
    pub(crate) fn delay(&self, from: Instant, to: Instant) -> Duration {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        // The spans do not overlap, so no time counts twice.
        let parts = late.iter().map(|(asleep, woke)| {
            let (start, end) = ((*asleep).max(from), (*woke).min(to));
            end.saturating_duration_since(start)
        });
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        parts.sum::<Duration>() + without_core(&threads, from, to)
    }
}
