//! `LockManagerBuilder::runtime`: background work runs on the runtime of the user's choice.

use std::sync::mpsc;
use std::thread;

use futures_util::poll;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tower_lock::{ErrorKind, LockManager};

use super::super::stores::{Store, stores};
use super::stopped::{Fate, LATE, LEASE, Other, POLL, built, current_thread, queued};
use crate::support::engine::{MS, SECOND};
use crate::support::other_runtime::park_until_ready;
use crate::support::simulated::Simulated;

/// A runtime that a thread of its own drives until this is dropped.
struct Background {
    handle: Handle,
    over: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Background {
    fn start() -> Self {
        let (send, handle) = mpsc::channel();
        let (over, is_over) = tokio::sync::oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = current_thread();
            send.send(runtime.handle().clone()).unwrap();
            runtime.block_on(is_over).unwrap();
        });
        Self {
            handle: handle.recv().unwrap(),
            over: Some(over),
            thread: Some(thread),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let (Some(over), Some(thread)) = (self.over.take(), self.thread.take()) {
            let ends = over.send(());
            let ended = thread.join();
            assert!((ends.is_ok() && ended.is_ok()) || thread::panicking());
        }
    }
}

/// Runs the test on each store concurrently. The first manager runs its background work on a separate
/// thread. The second one represents another process.
fn on_each_store(test: impl Fn(&LockManager, &LockManager) + Sync) {
    thread::scope(|scope| {
        for Store {
            name,
            processes,
            kept,
        } in stores()
        {
            let case = thread::Builder::new().name(format!("on {name}"));
            let test = &test;
            let spawned = case.spawn_scoped(scope, move || {
                let background = Background::start();
                let [here, there] = processes;
                let here = built(here.runtime(background.handle.clone()));
                test(&here, &built(there));
                drop(kept);
            });
            spawned.unwrap();
        }
    });
}

/// As [`on_each_store`], with a background runtime that has stopped, for each way to stop. `test` also receives the name
/// of the store.
fn with_stopped_background(test: impl Fn(&str, &LockManager, &LockManager) + Sync) {
    thread::scope(|scope| {
        for fate in [Fate::Idles, Fate::Blocks, Fate::Ends, Fate::ThreadsEnd] {
            for Store {
                name,
                processes,
                kept,
            } in stores()
            {
                let case = thread::Builder::new().name(format!("{fate:?} on {name}"));
                let test = &test;
                let run = move || {
                    let (send, handle) = mpsc::channel();
                    let _stopped = Other::after(fate, async move {
                        send.send(Handle::current()).unwrap();
                    });
                    let [here, there] = processes;
                    let here = built(here.runtime(handle.recv().unwrap()));
                    test(name, &here, &built(there));
                    drop(kept);
                };
                case.spawn_scoped(scope, run).unwrap();
            }
        }
    });
}

fn several_threads() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime")
}

#[test]
fn blocking_handler_keeps_its_lock() {
    on_each_store(|here, there| {
        let guard = current_thread().block_on(async {
            let guard = here.acquire("k").await.unwrap();
            thread::sleep(5 * LEASE / 2);
            assert!(guard.is_held(), "lost while its handler blocked");
            guard
        });
        // The runtime that acquired the lock is dropped by now.
        thread::sleep(5 * LEASE / 2);
        assert!(guard.is_held(), "lost while its runtime was gone");
        current_thread().block_on(async {
            assert!(there.acquire("k").no_wait().await.unwrap_err().is_busy());
            guard.release().await.unwrap();
            drop(there.acquire("k").no_wait().await.unwrap());
        });
    });
}

#[test]
fn blocked_executor_keeps_all_its_locks() {
    on_each_store(|here, _| {
        current_thread().block_on(async {
            let mut guards = Vec::new();
            for n in 0..10 {
                guards.push(here.acquire(format!("k{n}")).await.unwrap());
            }
            let both = here.acquire(["a", "b"]).await.unwrap();
            thread::sleep(5 * LEASE / 2);
            assert!(guards.iter().all(|guard| guard.is_held()));
            assert!(both.is_held());
        });
    });
}

#[test]
fn background_runtime_releases_dropped_guard() {
    on_each_store(|here, there| {
        let guard = current_thread().block_on(here.acquire("k").into_future());
        // Outside of any runtime.
        drop(guard.unwrap());
        let start = Instant::now();
        let driven = current_thread();
        drop(driven.block_on(there.acquire("k").into_future()).unwrap());
        assert!(start.elapsed() <= LATE);
    });
}

#[test]
fn release_in_third_runtime_resolves() {
    on_each_store(|here, _| {
        let guard = current_thread().block_on(here.acquire("k").into_future());
        let guard = guard.unwrap();
        let (send, receive) = mpsc::channel();
        let (released, is_released) = (guard.release(), Background::start());
        is_released.handle.spawn(async move {
            send.send(timeout(LEASE, released).await).unwrap();
        });
        let outcome = receive.recv_timeout(2 * LEASE).unwrap();
        outcome.expect("in time").unwrap();
    });
}

#[test]
fn background_runtime_contends_for_waiter() {
    on_each_store(|here, there| {
        let third = current_thread();
        let held = third.block_on(there.acquire("k").into_future()).unwrap();
        // The task that contends for the first waiter does not depend on that waiter's runtime.
        let (idle, driven) = (current_thread(), current_thread());
        let first = idle.block_on(queued(here.acquire("k").wait(LEASE / 2)));
        let start = Instant::now();
        let (waits, is_waiting) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                is_waiting.recv().unwrap();
                third.block_on(held.release()).unwrap();
            });
            let second = driven.block_on(async {
                let mut second = Box::pin(here.acquire("k").into_future());
                assert!(poll!(&mut second).is_pending());
                waits.send(()).unwrap();
                second.await.unwrap()
            });
            assert!(second.is_held());
        });
        // The first waiter is served first, and keeps the key until its deadline.
        assert!(start.elapsed() <= LEASE / 2 + LATE);
        drop(first);
    });
}

/// A store that does not reply at once has no releaser then, so its lease expires.
#[test]
fn stopped_background_ends_release_by_expiry() {
    with_stopped_background(|store, here, there| {
        let driven = current_thread();
        let start = Instant::now();
        let guard = several_threads().block_on(here.acquire("k").into_future());
        let guard = guard.unwrap();
        let outcome = driven.block_on(guard.release());
        let took = start.elapsed();
        assert!(took <= LEASE + LATE, "took {took:?}");
        match store {
            "memory" => outcome.unwrap(),
            _ => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable),
        }
        let guard = driven.block_on(there.acquire("k").into_future()).unwrap();
        assert!(guard.is_held());
        let took = start.elapsed();
        assert!(took <= LEASE + POLL + LATE, "took {took:?}");
    });
}

/// Nothing renews them.
#[test]
fn stopped_background_loses_guards_at_their_deadlines() {
    with_stopped_background(|_, locks, _| {
        let start = Instant::now();
        let guard = several_threads().block_on(locks.acquire("k").into_future());
        let guard = guard.unwrap();
        assert!(guard.is_held());
        while guard.is_held() {
            assert!(start.elapsed() <= LEASE + LATE);
            thread::sleep(10 * MS);
        }
    });
}

#[test]
fn acquire_outside_runtimes_is_served_in_time() {
    on_each_store(|here, there| {
        let acquire = |locks: &LockManager, wait| {
            park_until_ready(SECOND, locks.acquire("k").wait(wait).into_future())
        };
        let guard = acquire(here, LEASE).unwrap();
        assert!(acquire(here, LEASE / 4).unwrap_err().is_busy());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| acquire(here, SECOND));
            thread::sleep(20 * MS);
            park_until_ready(SECOND, guard.release()).unwrap();
            drop(waiter.join().unwrap().unwrap());
        });
        let theirs = current_thread().block_on(async { there.acquire("k").lease(SECOND).await });
        assert!(acquire(here, LEASE / 4).unwrap_err().is_busy());
        let no_wait = here.acquire("k").no_wait().into_future();
        assert!(park_until_ready(SECOND, no_wait).unwrap_err().is_busy());
        assert!(park_until_ready(SECOND, here.is_locked("k")).unwrap());
        assert!(park_until_ready(SECOND, here.force_release("k")).unwrap());
        drop(theirs.unwrap());
    });
}

#[test]
fn stopped_background_delays_no_timeout() {
    with_stopped_background(|_, locks, _| {
        let guard = several_threads().block_on(locks.acquire("k").into_future());
        let _guard = guard.unwrap();
        current_thread().block_on(async {
            for _ in 0..2 {
                let waits = locks.acquire("k").wait(20 * MS).into_future();
                let error = timeout(SECOND, waits).await.expect("in time").unwrap_err();
                // A background runtime that has ended serves no acquire.
                assert!(error.is_busy() || error.is_unavailable(), "{error:?}");
            }
        });
    });
}

/// The runtime of the caller may idle, so the attempt is made in the background.
#[test]
fn acquire_without_background_ends_in_time() {
    with_stopped_background(|store, locks, _| {
        let acquire = locks.acquire("k").wait(LEASE / 4).into_future();
        let outcome = current_thread().block_on(async { timeout(LEASE / 4 + LATE, acquire).await });
        let outcome = outcome.expect("in time");
        assert_eq!(outcome.is_ok(), store == "memory", "{outcome:?}");
        assert!(outcome.is_ok() || outcome.is_err_and(|error| error.is_unavailable()));
    });
}

/// A caller outside all runtimes, and one in a runtime without timers.
fn from_callers_without_timers(call: impl Fn(&dyn Fn(Work) -> Output)) {
    call(&|work| park_until_ready(SECOND, work));
    let without_timers = tokio::runtime::Builder::new_current_thread().build();
    let without_timers = without_timers.unwrap();
    call(&|work| without_timers.block_on(work));
}

type Output = Result<(), tower_lock::Error>;
type Work = std::pin::Pin<Box<dyn Future<Output = Output>>>;

#[test]
fn background_runtime_serves_callers_without_timers() {
    on_each_store(|locks, _| {
        from_callers_without_timers(|block_on| {
            let work = locks.clone();
            let ran = block_on(Box::pin(async move {
                let (held, other) = (work.acquire("k").await?, work.clone());
                // Waits until the other guard is dropped.
                let waits = async { other.acquire("k").run(async |_| ()).await };
                let drops = async {
                    tokio::task::yield_now().await;
                    drop(held);
                };
                futures_util::join!(waits, drops).0
            }));
            ran.unwrap();
        });
    });
}

#[test]
fn loss_reaches_callers_without_timers() {
    on_each_store(|locks, _| {
        from_callers_without_timers(|block_on| {
            let work = locks.clone();
            let lost = block_on(Box::pin(async move {
                let acquire = work.acquire("k").lease(100 * MS);
                acquire.run(|_| std::future::pending::<()>()).await
            }));
            assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
        });
    });
}

#[test]
fn stalled_background_extends_no_wait() {
    let background = current_thread();
    let locks = LockManager::builder(Simulated::new(60 * SECOND));
    let locks = built(locks.runtime(background.handle().clone()));
    current_thread().block_on(async {
        let (start, wait) = (Instant::now(), LEASE / 4);
        let acquire = locks.acquire("k").wait(wait).into_future();
        let ended = timeout(wait + 2 * LATE, acquire).await;
        let error = ended.expect("ends after its wait").unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
        // The limit also polls the acquire.
        assert!(start.elapsed() < wait + LATE);
    });
}
