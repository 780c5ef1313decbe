//! For how long the machine takes a core away from a thread that would use it.

use std::thread::{available_parallelism, scope};
use std::time::Duration;

use tokio::time::Instant;

/// The longest step between two looks at the clock, of a thread for each core that does nothing else.
pub(crate) fn longest(window: Duration) -> Duration {
    let cores = available_parallelism().map_or(1, usize::from);
    scope(|scope| {
        let watchers: Vec<_> = (0..cores).map(|_| scope.spawn(|| watch(window))).collect();
        let longest = watchers.into_iter().map(|it| it.join().expect("a clock"));
        longest.max().unwrap_or_default()
    })
}

fn watch(window: Duration) -> Duration {
    let start = Instant::now();
    let (mut last, mut longest) = (start, Duration::ZERO);
    while last - start < window {
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
    }
    longest
}
