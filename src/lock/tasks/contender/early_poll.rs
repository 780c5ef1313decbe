//! The task of an acquire loop, which the reader of a message polls as well.
//!
//! A message that a key is free reaches every client at once, and clients outside the queue attempt at once. Until the task
//! at home has run, a client without a change of threads would have the key. So the thread that read the message polls the
//! loop, which sends its attempt. That is an early poll and no more: home polls the loop as well, and carries it on.

use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use tokio::sync::Mutex;

use crate::backend::{BoxFuture, PollEarly};
use crate::lock::engine::Engine;

/// The loop. The task at home owns it, and the subscription only refers to it.
pub(super) struct LoopTask {
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "Redis only"))]
    engine: Arc<Engine>,
    /// Locked during a poll. The reader of a message does not wait for that.
    state: Mutex<LoopState>,
}

struct LoopState {
    /// `None` once it is over.
    polled: Option<BoxFuture<()>>,
    /// The waker of the task at home: timers and wake-ups stay there.
    waker: Waker,
}

impl LoopTask {
    /// Creates the task of the loop that `begin` returns, which receives a handle to its own task.
    pub(super) fn new(
        engine: &Arc<Engine>,
        begin: impl FnOnce(Weak<Self>) -> BoxFuture<()>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|task| Self {
            engine: Arc::clone(engine),
            state: Mutex::new(LoopState {
                polled: Some(begin(Weak::clone(task))),
                waker: Waker::noop().clone(),
            }),
        })
    }

    /// Runs the loop at home. If dropped, the loop ends as well.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            // A wake-up during an early poll causes a poll after it.
            let mut state = self.state.lock().await;
            let poll = |cx: &mut Context<'_>| {
                state.waker.clone_from(cx.waker());
                Poll::Ready(state.poll())
            };
            if poll_fn(poll).await {
                return;
            }
            drop(state);
            let mut is_woken = false;
            let next_poll = |_: &mut Context<'_>| match mem::replace(&mut is_woken, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            };
            poll_fn(next_poll).await;
        }
    }
}

impl LoopState {
    /// Polls the loop. Returns `true` once it is over.
    fn poll(&mut self) -> bool {
        let mut cx = Context::from_waker(&self.waker);
        let polled = self.polled.as_mut();
        let is_over = polled.is_none_or(|polled| polled.as_mut().poll(&mut cx).is_ready());
        if is_over {
            self.polled = None;
        }
        is_over
    }
}

impl PollEarly for LoopTask {
    fn poll_early(&self) -> bool {
        let Some(_home) = self.engine.home.enter() else {
            return false;
        };
        let Ok(mut state) = self.state.try_lock() else {
            return false;
        };
        let is_over = catch_unwind(AssertUnwindSafe(|| state.poll()));
        // A panic ends the task, as it does at home, and not the connection of the reader.
        if is_over.unwrap_or(true) {
            state.polled = None;
            state.waker.wake_by_ref();
        }
        true
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
            Box::pin(async move {
                waits.send(()).expect("it is awaited");
                hints.next().await;
                run().await;
            })
        });
        engine.home.spawn(async move {
            task.run().await;
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
