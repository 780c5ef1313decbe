//! The task of an acquire loop, which the reader of a message polls as well.
//!
//! A message that a key is free reaches every client at once, and clients outside the queue attempt at once. Until the task
//! at home has run, a client without a change of threads would have the key. So the thread that read the message polls the
//! loop, which sends its attempt. That is an early poll and no more: home polls the loop as well, and carries it on.

use std::fmt;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use crate::backend::{BoxFuture, PollEarly};
use crate::lock::engine::Engine;
use crate::mutex::Mutex;

/// The loop, and the task at home that waits for its end.
pub(super) struct LoopTask {
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "Redis only"))]
    engine: Arc<Engine>,
    /// The mutex is held only to move the future.
    state: Mutex<LoopState>,
}

struct LoopState {
    /// `None` while it is being polled, and once it is over.
    polled: Option<BoxFuture<()>>,
    is_over: bool,
    /// The waker of the task at home.
    waker: Option<Waker>,
    /// Whether the task at home was polled while a reader polled the loop.
    was_woken: bool,
}

impl LoopTask {
    /// Creates the task of the loop that `begin` returns, which receives a handle to its own task.
    pub(super) fn new<F>(engine: &Arc<Engine>, begin: impl FnOnce(Weak<Self>) -> F) -> Arc<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Arc::new_cyclic(|task: &Weak<Self>| Self {
            engine: Arc::clone(engine),
            state: Mutex::new(LoopState {
                polled: Some(Box::pin(begin(task.clone()))),
                is_over: false,
                waker: None,
                was_woken: false,
            }),
        })
    }

    /// Puts the future back after a poll. Returns the waker of the task at home if that has to run.
    fn put(&self, polled: BoxFuture<()>, is_over: bool) -> Option<Waker> {
        let mut state = self.state.lock();
        if is_over {
            state.is_over = true;
        } else {
            state.polled = Some(polled);
        }
        let runs = mem::take(&mut state.was_woken) || is_over;
        state.waker.clone().filter(|_| runs)
    }
}

/// The part of the task at home, which drops the loop with it.
pub(super) struct AtHome(pub(super) Arc<LoopTask>);

impl Future for AtHome {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.state.lock();
        if state.is_over {
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            waker => *waker = Some(cx.waker().clone()),
        }
        let Some(mut polled) = state.polled.take() else {
            state.was_woken = true;
            return Poll::Pending;
        };
        drop(state);
        let is_over = polled.as_mut().poll(cx).is_ready();
        self.0.put(polled, is_over);
        match is_over {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// Its home drops the task early if it has ended. The loop must then end as well, although a subscription may know it.
impl Drop for AtHome {
    fn drop(&mut self) {
        let polled = {
            let mut state = self.0.state.lock();
            state.is_over = true;
            state.polled.take()
        };
        drop(polled);
    }
}

impl PollEarly for LoopTask {
    fn poll_early(&self) -> bool {
        let Some(home) = self.engine.home.enter() else {
            return false;
        };
        let mut state = self.state.lock();
        // Timers and wake-ups stay at home.
        let Some(waker) = state.waker.clone() else {
            return false;
        };
        let Some(mut polled) = state.polled.take() else {
            return false;
        };
        drop(state);
        let polling = || polled.as_mut().poll(&mut Context::from_waker(&waker));
        // A panic ends the task, as it does at home, and not the connection of the reader.
        let is_over = match catch_unwind(AssertUnwindSafe(polling)) {
            Ok(polled) => polled.is_ready(),
            Err(_) => true,
        };
        if let Some(waker) = self.put(polled, is_over) {
            waker.wake();
        }
        drop(home);
        true
    }
}

impl fmt::Debug for LoopTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopTask").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;
    use crate::backend::{Erased, Hint, HintSender, Hints, Memory};
    use crate::lock::engine::options::Options;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Starts a task at a home of its own. It waits for a hint, and then calls `run`. Returns once it waits.
    fn start<F>(run: impl FnOnce() -> F + Send + 'static) -> (Arc<Engine>, HintSender, Receiver<()>)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let engine = Engine::new(Erased::new(Memory::new()), Options::default(), None);
        let engine = Arc::new(engine);
        let (sender, mut hints) = Hints::channel();
        let (waits, is_waiting) = channel();
        let (over, is_over) = channel();
        let task = LoopTask::new(&engine, |task| {
            hints.poll_early(Weak::clone(&task) as _);
            async move {
                waits.send(()).expect("it is awaited");
                hints.next().await;
                run().await;
            }
        });
        engine.home.spawn(async move {
            AtHome(task).await;
            // The test may be over.
            let _sent = over.send(());
        });
        is_waiting.recv_timeout(PATIENCE).expect("it runs at home");
        // Its poll has ended once the thread runs another task.
        let (ran, runs) = channel();
        engine
            .home
            .spawn(async move { ran.send(()).expect("it is awaited") });
        runs.recv_timeout(PATIENCE).expect("it runs at home");
        (engine, sender, is_over)
    }

    /// The reader of the message has no runtime: timers of the task belong to its home.
    #[test]
    fn message_is_served_while_home_is_busy() {
        let (ran, runs) = channel();
        let (engine, sender, is_over) = start(move || async move {
            ran.send(thread::current().id()).expect("it is awaited");
            sleep(Duration::from_millis(1)).await;
            ran.send(thread::current().id()).expect("it is awaited");
        });
        let (blocks, is_blocked) = channel();
        let (unblock, is_unblocked) = channel::<()>();
        engine.home.spawn(async move {
            blocks.send(()).expect("it is awaited");
            is_unblocked.recv().expect_err("dropped");
        });
        is_blocked.recv_timeout(PATIENCE).expect("it runs at home");
        sender.send_and_poll(Hint::Released);
        let here = thread::current().id();
        assert_eq!(runs.try_recv(), Ok(here));
        drop(unblock);
        let at_home = runs.recv_timeout(PATIENCE).expect("it goes on");
        assert_ne!(at_home, here);
        is_over.recv_timeout(PATIENCE).expect("it ends");
    }

    #[test]
    fn task_that_ends_in_early_poll_ends_at_home() {
        for panics in [false, true] {
            let (_engine, sender, is_over) = start(move || async move {
                assert!(!panics, "a task that panics");
            });
            sender.send_and_poll(Hint::Released);
            is_over.recv_timeout(PATIENCE).expect("it ends");
        }
    }
}
