//! A runtime on a thread of its own that stops after its work.

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

/// The way in which a runtime stops after its work.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    /// A `current_thread` runtime is outside `block_on`.
    Idles,
    /// A handler blocks its thread.
    Blocks,
    Ends,
    /// A multi-thread runtime ends.
    ThreadsEnd,
}

/// A runtime on a separate thread that stopped after its work, kept until this is dropped.
pub(crate) struct Other {
    over: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn current_thread() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

impl Other {
    /// Returns when the runtime has stopped. The output of the work is kept, and not polled.
    pub(crate) fn after<W>(fate: Fate, work: W) -> Self
    where
        W: Future<Output: 'static> + Send + 'static,
    {
        let (begun, has_begun) = mpsc::channel();
        let (over, is_over) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = match fate {
                Fate::ThreadsEnd => Runtime::new().expect("a runtime"),
                Fate::Idles | Fate::Blocks | Fate::Ends => current_thread(),
            };
            let until_over = || {
                begun.send(()).expect("the test waits");
                // The receive ends with an error when the sender is dropped.
                is_over.recv().expect_err("nothing is sent");
            };
            match fate {
                Fate::Idles => {
                    let _kept = runtime.block_on(work);
                    until_over();
                }
                Fate::Blocks => runtime.block_on(async {
                    let _kept = work.await;
                    until_over();
                }),
                Fate::Ends | Fate::ThreadsEnd => {
                    let _kept = runtime.block_on(work);
                    drop(runtime);
                    until_over();
                }
            }
        });
        has_begun.recv().expect("the work is done");
        Self {
            over: Some(over),
            thread: Some(thread),
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future on this thread, outside any runtime, until it is ready.
pub(crate) fn park_until_ready<F: Future>(limit: Duration, future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let end = Instant::now() + limit;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "pending after {limit:?}");
        thread::park_timeout(left);
    }
}
