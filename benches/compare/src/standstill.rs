//! The time for which a runnable thread does not run. The machine ran another guest on its core, or, with
//! more threads than cores, another thread.

use std::thread::{available_parallelism, scope};
use std::time::Duration;

use tokio::time::Instant;

use crate::table::{Series, Table};

/// Threads that only read the clock. Their number is that of the workers of so many processes with one
/// worker per core.
pub(crate) struct Standstills {
    threads: usize,
    /// The longest step between two reads of the clock, in milliseconds.
    longest: Series,
}

impl Standstills {
    pub(crate) fn of(processes: usize) -> Self {
        Self {
            threads: processes * available_parallelism().map_or(1, usize::from),
            longest: Series::default(),
        }
    }

    /// Measures an otherwise idle machine.
    pub(crate) fn watch(&mut self, window: Duration) {
        let longest = scope(|scope| {
            let watch = |_| scope.spawn(|| longest_step(window));
            let watchers: Vec<_> = (0..self.threads).map(watch).collect();
            let longest = watchers.into_iter().map(|it| it.join().expect("a clock"));
            longest.max().unwrap_or_default()
        });
        self.longest.add(longest.as_secs_f64() * 1e3);
    }

    pub(crate) fn tell(&self, table: &mut Table, scenario: &str) {
        let who = format!("{} threads that only read the clock", self.threads);
        let longest = format!("longest standstill {}", self.longest.text(1, "ms"));
        table.row(scenario, &who, "", "", longest);
    }
}

fn longest_step(window: Duration) -> Duration {
    let start = Instant::now();
    let (mut last, mut longest) = (start, Duration::ZERO);
    while last - start < window {
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
    }
    longest
}
