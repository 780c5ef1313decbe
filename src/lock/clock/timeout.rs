//! Waits: for a condition, and with a deadline on the clock of the engine.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;

use super::{Clock, Moment};
use crate::task::Timer;

/// The longest sleep between two readings of the clock, because timers do not advance during a suspend.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Completes with the output of `future`, or with `None` at `until`. Works outside any runtime.
///
/// `now` is a moment before the call. The clock is read again only when a timer fires.
pub(crate) async fn by<F: Future>(
    clock: Clock,
    until: Moment,
    mut now: Moment,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    loop {
        tokio::select! {
            biased;
            output = &mut future => return Some(output),
            () = Timer::at(until.min(now + LONGEST_SLEEP).into()) => now = clock.now(),
        }
        if now >= until {
            return None;
        }
    }
}

/// Completes when `is_over` returns `true`. Each change after which it may do so calls `notify_waiters`.
pub(crate) async fn until(changed: &Notify, is_over: impl Fn() -> bool) {
    loop {
        let mut changed = pin!(changed.notified());
        // Registers before it checks, so a change in between is not missed.
        changed.as_mut().enable();
        if is_over() {
            return;
        }
        changed.await;
    }
}
