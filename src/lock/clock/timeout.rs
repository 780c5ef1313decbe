//! Timeouts on the clock of the engine.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use super::{Clock, Moment};
use crate::task::Timer;

/// The longest sleep between two readings of the clock, because timers do not advance during a suspend.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Returns when a timer for `until` has to read the clock again.
fn next_wake(until: Moment, now: Moment) -> Moment {
    until.min(now + LONGEST_SLEEP)
}

/// Completes with the output of `future`, or with `None` at `until`. Works outside any runtime.
///
/// `now` is a moment before the call. The clock is read again only when a timer fires.
pub(in crate::lock) async fn by<F: Future>(
    clock: Clock,
    until: Moment,
    mut now: Moment,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut timer = pin!(Timer::at(next_wake(until, now).into()));
    loop {
        tokio::select! {
            biased;
            output = &mut future => return Some(output),
            () = timer.as_mut() => now = clock.now(),
        }
        if now >= until {
            return None;
        }
        timer.as_mut().reset(next_wake(until, now).into());
    }
}
