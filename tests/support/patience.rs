//! Waiting for what servers do among themselves: not for ever, and with their logs when it is over.

use std::time::Duration;

use tokio::time::Instant;

/// How long servers may take for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// Asks until it is so, and does nothing else meanwhile.
pub(crate) fn wait_until(what: &str, logs: impl Fn() -> String, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert_in_time(start, what, &logs);
        std::thread::sleep(PAUSE);
    }
}

/// Asks until it is so, and lets the other tasks go on. Tells how long that took.
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
