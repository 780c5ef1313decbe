//! For how long the machine takes a core away from a thread that would use it: no wait can be shorter.

use std::thread::{available_parallelism, scope};
use std::time::Duration;

use tokio::time::Instant;

/// The longest that any of so many threads as there are cores saw no time pass, though they do nothing
/// but look.
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
