//! A runtime that stops does not affect the guards and releases of another runtime.

use std::sync::mpsc;
use std::thread;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::stopped::{
    LATE, LEASE, Other, POLL, current_thread, in_each_case, is_served, on_each_store,
};
use crate::support::engine::MS;
use crate::support::other_runtime::park_until_ready;

/// All threads of a runtime block for twice the lease.
#[test]
fn blocking_handlers_lose_no_guard() {
    const HANDLERS: usize = 2;
    on_each_store(|here, there| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(HANDLERS).enable_all().build();
        let runtime = runtime.unwrap();
        let handlers = [0, 1].map(|handler| {
            let locks = here.clone();
            runtime.spawn(async move {
                let mut guards = Vec::new();
                for n in 0..5 {
                    guards.push(locks.acquire(format!("{handler}:{n}")).await.unwrap());
                }
                thread::sleep(2 * LEASE);
                assert!(guards.iter().all(|guard| guard.is_held()), "lost");
                guards
            })
        });
        for handler in handlers {
            for guard in runtime.block_on(handler).unwrap() {
                runtime.block_on(guard.release()).unwrap();
            }
        }
        is_served(there, "0:0", POLL);
    });
}

/// Synchronous code calls `block_on` on a runtime that idles in between.
#[test]
fn synchronous_code_keeps_its_lock_between_calls() {
    on_each_store(|here, there| {
        let runtime = current_thread();
        let guard = runtime.block_on(here.acquire("k").into_future()).unwrap();
        let dropped = runtime.block_on(here.acquire("dropped").into_future());
        thread::sleep(2 * LEASE);
        assert!(guard.is_held(), "lost while its runtime idled");
        drop(dropped.unwrap());
        is_served(there, "dropped", POLL);
        assert!(guard.is_held());
        runtime.block_on(guard.release()).unwrap();
        is_served(there, "k", POLL);
    });
}

/// A static manager in tests that run at the same time, each in a runtime that ends.
#[test]
fn manager_of_parallel_runtimes_keeps_locks() {
    on_each_store(|here, _| {
        thread::scope(|scope| {
            for n in 0..4 {
                scope.spawn(move || {
                    for round in 0..3 {
                        current_thread().block_on(async {
                            let own = here.acquire(format!("{n}")).await.unwrap();
                            let shared = here.acquire("all").wait(10 * LEASE).await.unwrap();
                            sleep(LEASE / 8 * (n + round)).await;
                            assert!(own.is_held() && shared.is_held());
                        });
                    }
                });
            }
        });
    });
}

/// The watchdog started in the other runtime, which then stopped.
#[test]
fn guard_outlives_stop_of_first_runtime() {
    in_each_case(|fate, here, there| {
        let driven = current_thread();
        let (used, is_used) = oneshot::channel();
        let (granted, is_granted) = oneshot::channel::<()>();
        let locks = here.clone();
        let other = thread::spawn(move || {
            Other::after(fate, async move {
                let kept = locks.acquire("first").await.unwrap();
                // Waits until the background tasks have started.
                sleep(10 * MS).await;
                used.send(()).unwrap();
                is_granted.await.unwrap();
                kept
            })
        });
        let guard = driven.block_on(async {
            is_used.await.unwrap();
            here.acquire("k").await.unwrap()
        });
        granted.send(()).unwrap();
        let _other = other.join().unwrap();
        driven.block_on(async {
            let end = Instant::now() + 5 * LEASE / 2;
            while Instant::now() < end {
                sleep(50 * MS).await;
                assert!(guard.is_held(), "lost with a healthy store");
            }
            assert!(there.acquire("k").no_wait().await.unwrap_err().is_busy());
        });
    });
}

/// The other runtime was used before the guard was acquired.
#[test]
fn later_guard_outlives_stop_of_first_runtime() {
    in_each_case(|fate, here, _| {
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            let kept = locks.acquire("first").await.unwrap();
            sleep(10 * MS).await;
            kept
        });
        current_thread().block_on(async {
            let guard = here.acquire("k").await.unwrap();
            let lost = timeout(5 * LEASE / 2, guard.lost()).await;
            assert!(
                lost.is_err() && guard.is_held(),
                "lost with a healthy store"
            );
        });
    });
}

/// The end of a fixed lease is reported, although it has no renewals.
#[test]
fn fixed_lease_ends_after_stop_of_first_runtime() {
    in_each_case(|fate, here, there| {
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            let kept = locks.acquire("first").await.unwrap();
            sleep(10 * MS).await;
            kept
        });
        current_thread().block_on(async {
            let guard = here.acquire("k").lease(200 * MS).await.unwrap();
            let lost = timeout(200 * MS + LATE, guard.lost()).await;
            lost.expect("the loss is reported");
        });
        is_served(here, "k", POLL);
        is_served(there, "k", POLL);
    });
}

/// The releaser started in the other runtime.
#[test]
fn release_resolves_after_stop_of_first_runtime() {
    in_each_case(|fate, here, there| {
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            drop(locks.acquire("first").await.unwrap());
        });
        let driven = current_thread();
        driven.block_on(async {
            let guard = here.acquire("k").await.unwrap();
            let released = timeout(LEASE + LATE, guard.release()).await;
            released
                .expect("resolves when the lease has expired")
                .unwrap();
        });
        is_served(there, "k", POLL);
    });
}

/// The guard's own runtime stopped, and the release is awaited in another one.
#[test]
fn release_elsewhere_resolves_after_runtime_stop() {
    in_each_case(|fate, here, _| {
        let (send, receive) = mpsc::channel();
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            send.send(locks.acquire("k").await.unwrap()).unwrap();
            sleep(10 * MS).await;
        });
        let guard = receive.recv().unwrap();
        current_thread().block_on(async {
            let released = timeout(LEASE + LATE, guard.release()).await;
            // Any outcome is valid.
            drop(released.expect("resolves when the lease has expired"));
        });
        is_served(here, "k", POLL);
    });
}

/// The only runtime of the manager stopped.
#[test]
fn release_outside_resolves_after_runtime_stop() {
    in_each_case(|fate, here, there| {
        let (send, receive) = mpsc::channel();
        let locks = here.clone();
        let _other = Other::after(fate, async move {
            send.send(locks.acquire("k").await.unwrap()).unwrap();
            sleep(10 * MS).await;
        });
        let guard = receive.recv().unwrap();
        // Any outcome is valid.
        drop(park_until_ready(LEASE + LATE, guard.release()));
        is_served(there, "k", LEASE + POLL);
    });
}
