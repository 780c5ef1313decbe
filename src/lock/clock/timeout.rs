//! Timeouts on the clock of the engine.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use super::{Clock, Moment};
use crate::task::Timer;

/// The longest sleep between two readings of the clock, because timers do not advance during a suspend.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Returns when a timer for `until` has to read the clock again.
pub(in crate::lock) fn next_wake(until: Moment, now: Moment) -> Moment {
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
    if let Some(output) = poll_once(future.as_mut()).await {
        return Some(output);
    }
    let mut timer = pin!(Timer::at(next_wake(until, now).into()));
    while now < until {
        timer.as_mut().reset(next_wake(until, now).into());
        tokio::select! {
            biased;
            output = &mut future => return Some(output),
            () = timer.as_mut() => now = clock.now(),
        }
    }
    None
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
