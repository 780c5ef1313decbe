use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::LockManager;
use crate::backend::Memory;
use crate::lock::tests::{MS, SECOND, Slow};

/// Both runtimes run all the time, and each waits for less than the response timeout.
#[test]
fn attempt_of_running_task_is_not_replaced() {
    let backend = Slow {
        attempt_takes: 200 * MS,
        ..Slow::default()
    };
    let attempts = Arc::clone(&backend.attempts);
    let locks = LockManager::builder(backend).build().expect("defaults");
    let acquire = |locks: LockManager| {
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let guard = locks.acquire("k").await.expect("a turn");
                sleep(20 * MS).await;
                drop(guard);
            });
        })
    };
    let both = [acquire(locks.clone()), acquire(locks.clone())];
    for thread in both {
        thread.join().expect("both have their turn");
    }
    // One attempt for the first acquire, and at most one for the second.
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(attempts <= 2, "{attempts} attempts");
}

#[tokio::test(start_paused = true)]
async fn waiter_acquires_after_other_process_releases() {
    let memory = Memory::new();
    let [one, other] = [memory.clone(), memory].map(|memory| {
        let locks = LockManager::builder(memory).build();
        locks.expect("defaults")
    });
    let guard = one.acquire("k").await.expect("free");
    let release = async {
        sleep(SECOND).await;
        drop(guard);
    };
    let (next, ()) = tokio::join!(other.acquire("k"), release);
    assert!(next.expect("released").is_held());
}

#[tokio::test(start_paused = true)]
async fn waiter_deadlines_cause_no_attempts_in_outage() {
    let backend = Slow {
        is_down: true,
        ..Slow::default()
    };
    let attempts = Arc::clone(&backend.attempts);
    let locks = LockManager::builder(backend).build().expect("defaults");
    // The deadlines are 50 ms apart, the attempts up to 1 s.
    let waits = (1..100).map(|nth| 50 * nth * MS);
    let acquires = waits.map(|wait| locks.acquire("k").wait(wait).into_future());
    for outcome in join_all(acquires).await {
        assert!(outcome.expect_err("an outage").is_unavailable());
    }
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(attempts <= 20, "{attempts} attempts");
}
