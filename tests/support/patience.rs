//! Waits for the state of servers, with a timeout that prints their logs.

use std::time::Duration;

use tokio::time::Instant;

/// The timeout for any change of the servers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// Blocks the thread until the condition is true.
pub(crate) fn wait_until(what: &str, logs: impl Fn() -> String, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert_in_time(start, what, &logs);
        std::thread::sleep(PAUSE);
    }
}

/// Waits until the condition is true, while other tasks run. Returns the time that it took.
pub(crate) async fn until(
    what: &str,
    logs: impl Fn() -> String,
    mut is_so: impl FnMut() -> bool,
) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert_in_time(start, what, &logs);
        tokio::time::sleep(PAUSE).await;
    }
    start.elapsed()
}

fn assert_in_time(start: Instant, what: &str, logs: impl Fn() -> String) {
    let late = start.elapsed() > PATIENCE;
    assert!(!late, "not within {PATIENCE:?}: {what}\n{}", logs());
}
