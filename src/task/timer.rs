//! Timers of futures that a caller may poll in one runtime and then in another.

use std::future::Future;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Runtime, RuntimeId, sleep_here, sleep_on_thread};

/// The longest sleep of one thread, which can outlive a dropped timer.
const THREAD_SLEEP: Duration = Duration::from_secs(1);

/// The sleep of a poll if the system allows no further thread.
const POLL_SLEEP: Duration = Duration::from_millis(1);

pin_project! {
    /// A timer of the runtime that polls it. Works outside of runtimes with timers too.
    ///
    /// A `Sleep` fires only while the runtime that created it is driven, and panics after the end of that runtime.
    /// A poll in another runtime therefore replaces it.
    ///
    /// Without a runtime and without a thread, each poll sleeps for a millisecond at most and requests the next one: a
    /// timer that completed early, or was not polled again, would break its caller.
    #[derive(Debug)]
    pub(crate) struct Timer {
        #[pin]
        source: TimerSource,
    }
}

pin_project! {
    #[project = SourceProjected]
    #[derive(Debug)]
    enum TimerSource {
        Unpolled {
            at: Instant,
        },
        Runtime {
            #[pin]
            sleep: Sleep,
            home: RuntimeId,
        },
        /// Threads that sleep, one after another.
        Threads {
            at: Instant,
            slept: Option<oneshot::Receiver<()>>,
        },
    }
}

impl Timer {
    /// Creates a timer that starts when it is polled.
    pub(crate) fn at(at: Instant) -> Self {
        Self {
            source: TimerSource::Unpolled { at },
        }
    }

    /// Changes when the timer fires.
    pub(crate) fn reset(self: Pin<&mut Self>, until: Instant) {
        match self.project().source.project() {
            SourceProjected::Runtime { sleep, .. } if sleep.deadline() == until => {}
            SourceProjected::Runtime { sleep, .. } => sleep.reset(until),
            SourceProjected::Unpolled { at } | SourceProjected::Threads { at, .. } => *at = until,
        }
    }
}

impl TimerSource {
    fn new(at: Instant, runtime: Option<RuntimeId>) -> Self {
        if let Some(home) = runtime
            && let Ok(sleep) = catch_unwind(|| sleep_until(at))
        {
            return Self::Runtime { sleep, home };
        }
        Self::Threads { at, slept: None }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut source = self.project().source;
        let runtime = || Runtime::current().map(|runtime| runtime.id());
        let replaced = match source.as_mut().project() {
            SourceProjected::Unpolled { at } => Some(TimerSource::new(*at, runtime())),
            SourceProjected::Runtime { sleep, home } => {
                let moved = Some(runtime()).filter(|runtime| *runtime != Some(*home));
                moved.map(|runtime| TimerSource::new(sleep.deadline(), runtime))
            }
            SourceProjected::Threads { .. } => None,
        };
        if let Some(replaced) = replaced {
            source.set(replaced);
        }
        let (at, slept) = match source.project() {
            SourceProjected::Runtime { sleep, .. } => return sleep.poll(cx),
            SourceProjected::Threads { at, slept } => (at, slept),
            SourceProjected::Unpolled { .. } => unreachable!("BUG: the poll started the timer"),
        };
        loop {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Poll::Ready(());
            }
            let sleeping = match slept {
                Some(sleeping) => sleeping,
                None => match sleep_on_thread(left.min(THREAD_SLEEP)) {
                    Ok(sleeping) => slept.insert(sleeping),
                    Err(_) => {
                        sleep_here(left.min(POLL_SLEEP));
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                },
            };
            // The thread sends before it ends.
            let _sent = ready!(Pin::new(sleeping).poll(cx));
            *slept = None;
        }
    }
}

/// The limit of a [`timeout`] has passed.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct Elapsed;

#[cfg(feature = "redis")]
pin_project! {
    struct Timeout<F> {
        #[pin]
        future: F,
        #[pin]
        timer: Timer,
    }
}

/// Completes with the output of `future`, or with an error after `limit`, on a [`Timer`].
#[cfg(feature = "redis")]
pub(crate) fn timeout<F: Future>(
    limit: Duration,
    future: F,
) -> impl Future<Output = Result<F::Output, Elapsed>> {
    timeout_at(Instant::now() + limit, future)
}

/// Completes with the output of `future`, or with an error at `deadline`, on a [`Timer`].
#[cfg(feature = "redis")]
pub(crate) fn timeout_at<F: Future>(
    deadline: Instant,
    future: F,
) -> impl Future<Output = Result<F::Output, Elapsed>> {
    let timer = Timer::at(deadline);
    Timeout { future, timer }
}

#[cfg(feature = "redis")]
impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // An output that is ready counts, however late it is polled.
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        this.timer.poll(cx).map(|()| Err(Elapsed))
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
