//! Tasks that panic, or whose runtime ends, start again once, on the thread of this crate.

use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, pending};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use super::*;
use crate::backend::Hints;
use crate::backend::redis::command::{Cause, unavailable};
use crate::backend::redis::connection::{Locate, Target};
use crate::backend::redis::notify::Recovery;
use crate::mutex::Mutex;
use crate::task::Background;

const NEAR: &str = "near";
const THREAD: &str = "tower-lock";

/// The timeout for changes on other threads.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that no task finds. It records the threads of the tasks that look for it.
#[derive(Default)]
struct Nowhere {
    panics: bool,
    threads: Mutex<Vec<String>>,
}

impl Nowhere {
    fn threads(&self) -> Vec<String> {
        self.threads.lock().clone()
    }
}

impl Locate for Nowhere {
    fn address(&self) -> &str {
        "nowhere"
    }

    fn locate(&self) -> BoxFuture<'_, Result<Target, BackendError>> {
        let name = thread::current().name().unwrap_or_default().to_owned();
        self.threads.lock().push(name);
        assert!(!self.panics, "a task that panics");
        pending().boxed()
    }
}

fn notifier(server: &Arc<Nowhere>) -> Notifier {
    let context = ClientContext {
        near: Mutex::default(),
        connect_timeout: PATIENCE,
        response_timeout: PATIENCE,
        recovery: Recovery::default(),
        longest_lease: AtomicU64::default(),
    };
    let server = Arc::clone(server) as _;
    Notifier::new(Arc::new(context), Some(server), &[PubSub::Plain])
}

/// Returns a runtime with threads of its own.
fn near() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).thread_name(NEAR).enable_all();
    runtime.build().expect("a runtime")
}

fn watch(notifier: &Notifier) -> Hints {
    let (sender, hints) = Hints::channel();
    let manager = None;
    notifier.watch("k".to_owned(), vec![Watcher { manager, sender }]);
    hints
}

#[track_caller]
fn eventually(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "too late");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn panicking_task_restarts_once_on_thread() {
    let server = Arc::new(Nowhere {
        panics: true,
        ..Nowhere::default()
    });
    let (near, notifier) = (near(), notifier(&server));
    let mut expected = Vec::new();
    // The next watch starts a task again.
    for _ in 0..2 {
        let _hints = near.block_on(async { watch(&notifier) });
        eventually(|| !notifier.shared.topics.lock().running);
        expected.extend([NEAR, THREAD]);
        assert_eq!(server.threads(), expected);
    }
}

#[test]
fn task_of_ended_runtime_restarts_on_thread() {
    let server = Arc::new(Nowhere::default());
    let (near, notifier) = (near(), notifier(&server));
    let _hints = near.block_on(async { watch(&notifier) });
    eventually(|| server.threads() == [NEAR]);
    drop(near);
    eventually(|| server.threads() == [NEAR, THREAD]);
    assert!(notifier.shared.topics.lock().running);
}

/// Acquire loops watch, on the thread of their manager. The attempt after a message is sent where the message is read.
#[test]
fn task_of_other_thread_begins_beside_commands() {
    let server = Arc::new(Nowhere::default());
    let (near, notifier) = (near(), notifier(&server));
    let context = &notifier.shared.context;
    let drives = near.block_on(async { Background.spawn_io_near(async {}) });
    *context.near.lock() = Some(drives.expect("a runtime with threads of its own"));
    let _hints = watch(&notifier);
    eventually(|| server.threads() == [NEAR]);
    drop(near);
    eventually(|| server.threads() == [NEAR, THREAD]);
}

/// Without a task, no attempt would show that the server is reached again.
#[test]
fn outage_without_waiters_outlives_its_runtime() {
    let server = Arc::new(Nowhere::default());
    let (near, notifier) = (near(), notifier(&server));
    let hints = near.block_on(async { watch(&notifier) });
    eventually(|| server.threads() == [NEAR]);
    let shared = &notifier.shared;
    shared.outage.begin(&unavailable(Cause::HungUp));
    drop(hints);
    let now = Instant::now();
    for swept in [now, now + PATIENCE] {
        shared.topics.lock().sweep(swept);
    }
    assert!(shared.topics.lock().is_empty());
    drop(near);
    eventually(|| server.threads() == [NEAR, THREAD]);
    assert!(shared.topics.lock().running);
}
