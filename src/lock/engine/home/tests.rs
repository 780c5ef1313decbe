use std::time::Duration;
use std::{panic, thread};

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Runtime as Tokio};

use super::*;
use crate::LockManager;
use crate::backend::Memory;
use crate::lock::tests::{MS, SECOND, Slow};

fn paused() -> Tokio {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build();
    runtime.expect("a runtime")
}

fn current_thread() -> Tokio {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

fn home(locks: &LockManager) -> &Kind {
    &locks.engine().home.kind
}

#[test]
fn home_is_thread_unless_clock_is_paused() {
    let build = || LockManager::in_memory();
    assert!(matches!(home(&build()), Kind::Own(_)));
    for (runtime, own) in [(paused(), false), (current_thread(), true)] {
        let locks = runtime.block_on(async { build() });
        assert_eq!(matches!(home(&locks), Kind::Own(_)), own);
    }
}

#[test]
fn idle_runtime_keeps_its_lock() {
    let locks = LockManager::builder(Slow::default())
        .watchdog_timeout(SECOND)
        .build();
    let locks = locks.expect("valid");
    let guard = current_thread().block_on(locks.acquire("k").into_future());
    let guard = guard.expect("free");
    thread::sleep(2 * SECOND);
    assert!(guard.is_held());
    // Dropped outside of any runtime.
    drop(guard);
    let next = current_thread().block_on(locks.acquire("k").wait(SECOND).into_future());
    assert!(next.is_ok(), "{next:?}");
}

#[test]
fn thread_ends_with_last_handle() {
    let locks = LockManager::in_memory();
    let (tell, told) = std::sync::mpsc::channel();
    struct Told(std::sync::mpsc::Sender<()>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _tested = self.0.send(());
        }
    }
    let told_at_end = Told(tell);
    locks.engine().home.spawn(async move {
        let _kept = told_at_end;
        std::future::pending::<()>().await;
    });
    let guard = locks.acquire("k").into_future().now_or_never();
    let guard = guard.expect("at once").expect("free");
    drop(locks);
    assert!(told.recv_timeout(100 * MS).is_err(), "a guard is left");
    drop(guard);
    assert!(told.recv_timeout(20 * SECOND).is_ok());
}

/// A manager in a static, and tests with paused clocks one after another.
#[test]
fn manager_moves_to_next_paused_runtime() {
    let first = paused();
    let locks = first.block_on(async {
        let locks = LockManager::builder(Slow::default()).build();
        let locks = locks.expect("defaults");
        drop(locks.acquire("k").await.expect("free"));
        locks
    });
    drop(first);
    for _ in 0..2 {
        let held = paused().block_on(async {
            let guard = locks.acquire("other").await.expect("free");
            tokio::time::sleep(Duration::from_secs(100)).await;
            let is_held = guard.is_held();
            guard.release().await.expect("held");
            is_held
        });
        assert!(held, "it is renewed");
    }
}

/// The first test ends in the middle of its work.
#[test]
fn paused_runtime_leaves_work_to_next_one() {
    let first = paused();
    let (locks, guard) = first.block_on(async {
        let backend = Slow {
            release_takes: SECOND / 4,
            ..Slow::default()
        };
        let locks = LockManager::builder(backend).build().expect("defaults");
        drop(locks.acquire("released").await.expect("free"));
        let guard = locks.acquire("kept").await.expect("free");
        (locks, guard)
    });
    drop(first);
    let left = paused().block_on(async {
        let other = locks.acquire("other").await.expect("free");
        tokio::time::sleep(100 * SECOND).await;
        assert!(guard.is_held(), "it is renewed");
        drop((guard, other));
        drop(locks.acquire("released").await.expect("released"));
        locks.shutdown(10 * SECOND).await
    });
    assert!(left.is_idle(), "{left:?}");
}

/// A test fails, and its runtime ends while its thread unwinds.
#[test]
fn panic_that_ends_paused_runtime_reaches_caller() {
    let test = || {
        let (mut kept, runtime) = (None, paused());
        let locks = LockManager::builder(Slow {
            release_takes: SECOND / 4,
            ..Slow::default()
        });
        runtime.block_on(async {
            let locks = locks.build().expect("defaults");
            drop(locks.acquire("released").await.expect("free"));
            kept = locks.acquire("kept").await.ok();
            tokio::task::yield_now().await;
            panic!("a test fails");
        });
    };
    let panic = panic::catch_unwind(test).expect_err("it fails");
    assert_eq!(panic.downcast_ref(), Some(&"a test fails"));
}

/// A subscriber, a waker or a backend of the program panics at home, which drops the task.
#[test]
fn home_continues_after_panic_of_program() {
    let locks = LockManager::builder(Slow::default()).watchdog_timeout(SECOND / 2);
    let locks = locks.build().expect("valid");
    let acquire = |key| current_thread().block_on(locks.acquire(key).into_future());
    let guard = acquire("k").expect("free");
    locks.engine().home.task_was_dropped();
    let other = acquire("other").expect("free");
    thread::sleep(SECOND);
    assert!(guard.is_held() && other.is_held());
}

#[test]
fn command_near_its_caller_has_timers() {
    for has_timers in [false, true] {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1);
        if has_timers {
            builder.enable_time();
        }
        let runtime = builder.build().expect("a runtime");
        let locks = LockManager::builder(Slow::default()).build();
        let locks = locks.expect("defaults");
        runtime.block_on(async {
            assert_eq!(locks.engine().home.near().is_some(), has_timers);
            let guard = locks.acquire("k").await.expect("free");
            guard.release().await.expect("held");
        });
    }
}

/// The process has no thread of its parent, in which the manager was built.
#[test]
fn forked_process_is_rejected() {
    let locks = LockManager::builder(Slow::default()).build();
    let locks = locks.expect("defaults");
    let acquire = || current_thread().block_on(locks.acquire("k").into_future());
    let guard = acquire().expect("free");
    current_thread().block_on(guard.release()).expect("held");
    let Kind::Own(thread) = home(&locks) else {
        panic!("no thread of its own");
    };
    thread.pretend_fork();
    // As long as a fork takes.
    thread::sleep(CHECKED.get());
    let error = acquire().expect_err("forked");
    assert!(error.is_unavailable(), "{error:?}");
    let error = current_thread().block_on(locks.is_locked("k"));
    assert!(error.expect_err("forked").is_unavailable());
}

/// The caller pauses its clock before or after the manager is built.
#[test]
fn paused_caller_follows_clock_of_manager() {
    for builds_inside in [false, true] {
        let build = || {
            let locks = LockManager::builder(Slow::default()).build();
            locks.expect("defaults")
        };
        let outside = build();
        current_thread().block_on(async {
            let locks = if builds_inside { build() } else { outside };
            tokio::time::pause();
            let guard = locks.acquire("k").lease(SECOND / 2).await.expect("free");
            tokio::time::advance(1_000 * SECOND).await;
            assert!(guard.is_held(), "half a second of the system");
            let began = Clock::System.now();
            let busy = locks.acquire("k").wait(100 * MS).await;
            assert!(busy.expect_err("held").is_busy());
            assert!(Clock::System.now().since(began) >= 100 * MS);
            guard.lost().await;
            assert!(!guard.is_held());
        });
    }
}

#[test]
fn ended_runtime_of_program_is_reported() {
    let given = current_thread();
    let locks = LockManager::builder(Memory::new()).runtime(given.handle().clone());
    let locks = locks.build().expect("a runtime with timers");
    drop(given);
    let guard = locks.acquire("k").into_future().now_or_never();
    drop(guard);
    let error = locks.acquire("k").into_future().now_or_never();
    let error = error.expect("at once").expect_err("ended");
    assert!(error.is_unavailable());
}
