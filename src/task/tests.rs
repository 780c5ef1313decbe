//! Tasks and timers in a process that cannot start threads.

#![cfg(target_os = "linux")]

use std::pin::{Pin, pin};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tokio::time::Instant;

use super::*;

/// The variable by which Rust sets the stack of new threads. No address space has room for this one.
const STACK: (&str, &str) = ("RUST_MIN_STACK", "1000000000000000000");

/// Calls `body` in a process of its own, which cannot start threads. `test` is the name of the calling test.
fn without_threads(test: &str, body: impl FnOnce()) {
    if std::env::var(STACK.0).is_ok_and(|stack| stack == STACK.1) {
        let thread = std::thread::Builder::new().spawn(|| {});
        assert!(thread.is_err(), "a thread has started");
        return body();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    child.args(["--exact", &name, "--test-threads=1", "--nocapture"]);
    let output = child.env(STACK.0, STACK.1).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let ok = output.status.success() && text.contains("1 passed");
    assert!(ok, "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn poll<F: Future>(future: Pin<&mut F>, woken: &Arc<Woken>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

#[test]
fn timer_without_threads_fires_in_time() {
    const SLEEP: Duration = Duration::from_millis(500);
    without_threads("timer_without_threads_fires_in_time", || {
        let start = Instant::now();
        let mut timer = pin!(Timer::at(start + SLEEP));
        let woken = Arc::<Woken>::default();
        let mut polls = 0;
        while poll(timer.as_mut(), &woken).is_pending() {
            polls += 1;
            assert!(woken.0.swap(false, Ordering::SeqCst), "never polled again");
        }
        assert!(start.elapsed() >= SLEEP);
        // Other futures of the thread are polled in between, but not all the time.
        assert!((2..=600).contains(&polls), "{polls}");
    });
}

#[cfg(feature = "redis")]
#[test]
fn task_without_threads_runs_at_caller() {
    without_threads("task_without_threads_runs_at_caller", || {
        let run = || Background.run(async { 7 });
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        assert_eq!(runtime.unwrap().block_on(run()), Some(7));
        let polled = poll(pin!(run()), &Arc::default());
        assert_eq!(polled, Poll::Ready(None));
    });
}
