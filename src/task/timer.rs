//! Timers of futures that a caller may poll in one runtime and then in another.

use std::future::Future;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::own_thread::shared_thread;
use super::{Runtime, RuntimeId, sleep_here};

/// The sleep of a poll if the system allows no further thread.
const POLL_SLEEP: Duration = Duration::from_millis(1);

pin_project! {
    /// A timer of the runtime that polls it. Works outside of runtimes with timers too, by the thread of this crate.
    ///
    /// A `Sleep` fires only while the runtime that created it is driven, and panics after the end of that runtime.
    /// A poll in another runtime therefore replaces it.
    ///
    /// Without a runtime and without a thread, each poll sleeps for a millisecond at most and requests the next one: a
    /// timer that completed early, or was not polled again, would break its caller.
    #[derive(Debug)]
    pub(crate) struct Timer {
        at: Instant,
        // Created by a poll.
        #[pin]
        sleep: Option<Sleep>,
        // The runtime that created it, or `None` for the thread.
        home: Option<RuntimeId>,
    }
}

impl Timer {
    /// Creates a timer that starts when it is polled.
    pub(crate) fn at(at: Instant) -> Self {
        Self {
            at,
            sleep: None,
            home: None,
        }
    }

    /// Changes when the timer fires.
    pub(crate) fn reset(self: Pin<&mut Self>, until: Instant) {
        let mut this = self.project();
        if std::mem::replace(this.at, until) == until {
            return;
        }
        match (this.home, this.sleep.as_mut().as_pin_mut()) {
            (Some(_), Some(sleep)) => sleep.reset(until),
            _ => this.sleep.set(None),
        }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let here = Runtime::current().map(|runtime| runtime.id());
        if this.sleep.is_none() || (this.home.is_some() && *this.home != here) {
            let own = here.and_then(|_| catch_unwind(|| sleep_until(*this.at)).ok());
            *this.home = here.filter(|_| own.is_some());
            this.sleep.set(own.or_else(|| sleep_on_thread(*this.at)));
        }
        match this.sleep.as_pin_mut() {
            Some(sleep) => sleep.poll(cx),
            None if Instant::now() >= *this.at => Poll::Ready(()),
            None => {
                sleep_here(POLL_SLEEP);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

fn sleep_on_thread(at: Instant) -> Option<Sleep> {
    // By the clock of the caller, which may be paused.
    let left = at.saturating_duration_since(Instant::now());
    let thread = shared_thread()?;
    let _entered = thread.enter();
    Some(sleep(left))
}

/// The limit of a [`timeout`] has passed.
#[cfg(any(feature = "postgres", feature = "redis"))]
#[derive(Debug)]
pub(crate) struct Elapsed;

/// Completes with the output of `future`, or with an error after `limit`, on a [`Timer`].
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn timeout<F: Future>(
    limit: Duration,
    future: F,
) -> impl Future<Output = Result<F::Output, Elapsed>> {
    timeout_at(Instant::now() + limit, future)
}

/// Completes with the output of `future`, or with an error at `deadline`, on a [`Timer`].
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) async fn timeout_at<F: Future>(
    deadline: Instant,
    future: F,
) -> Result<F::Output, Elapsed> {
    tokio::select! {
        biased;
        // An output that is ready counts, however late it is polled.
        output = future => Ok(output),
        () = Timer::at(deadline) => Err(Elapsed),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SHORT: Duration = Duration::from_millis(50);
    /// The tolerance for a busy machine.
    const LATE: Duration = Duration::from_secs(2);

    fn without_timers() -> Runtime {
        Builder::new_current_thread().build().expect("a runtime")
    }

    fn with_timers() -> Runtime {
        let runtime = Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime")
    }

    fn poll(timer: Pin<&mut Timer>) -> Poll<()> {
        timer.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn timer_without_runtime_fires() {
        let start = Instant::now();
        without_timers().block_on(Timer::at(start + 20 * MS));
        assert!(start.elapsed() >= 20 * MS);
    }

    #[test]
    fn timer_without_runtime_can_be_postponed() {
        let start = Instant::now();
        let mut timer = pin!(Timer::at(start + 5 * MS));
        assert!(poll(timer.as_mut()).is_pending());
        timer.as_mut().reset(start + 40 * MS);
        without_timers().block_on(timer);
        assert!(start.elapsed() >= 40 * MS);
    }

    /// The first runtime idles, or has ended.
    #[test]
    fn timer_of_stopped_runtime_fires_in_next() {
        for ends in [false, true] {
            let first = with_timers();
            let start = Instant::now();
            let mut timer = pin!(Timer::at(start + SHORT));
            first.block_on(async { assert!(poll(timer.as_mut()).is_pending()) });
            let _idle = (!ends).then_some(first);
            timer.as_mut().reset(start + 2 * SHORT);
            with_timers().block_on(async {
                let late = tokio::time::timeout(LATE, timer).await;
                late.expect("the timer moves to the second runtime");
            });
            assert!(start.elapsed() >= 2 * SHORT);
        }
    }

    /// The second poll is outside of runtimes.
    #[test]
    fn timer_of_stopped_runtime_fires_outside() {
        let first = with_timers();
        let start = Instant::now();
        let mut timer = pin!(Timer::at(start + SHORT));
        first.block_on(async { assert!(poll(timer.as_mut()).is_pending()) });
        assert!(poll(timer.as_mut()).is_pending());
        std::thread::sleep(SHORT + LATE / 10);
        assert!(poll(timer).is_ready());
    }
}
