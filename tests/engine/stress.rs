//! Many tasks on few keys, on all cores, with random calls at random times: in one runtime, and in several
//! that block and end.

use std::hash::{BuildHasher, RandomState};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::Backend;
use tower_lock::{LockKey, LockManager, Memory};

use crate::support::engine::MS;
use crate::support::other_runtime::current_thread;
use crate::support::panics::Panics;
use crate::support::protected::Protected;
use crate::support::simulated::Simulated;

const KEYS: usize = 4;

fn protected() -> Arc<Vec<Protected>> {
    Arc::new((0..KEYS).map(|_| Protected::default()).collect())
}

fn random(bound: u64) -> u64 {
    RandomState::new().hash_one(0) % bound
}

async fn one_round(locks: &LockManager, protected: &[Protected]) {
    let n = usize::try_from(random(KEYS as u64)).unwrap();
    let acquire = locks.acquire(format!("key:{n}"));
    let acquire = match random(4) {
        0 => acquire.no_wait(),
        1 => acquire.wait(Duration::from_millis(random(5))),
        2 => acquire.lease(Duration::from_secs(20)),
        _ => acquire.wait_forever(),
    };
    let patience = Duration::from_micros(random(3000));
    let Ok(Ok(guard)) = timeout(patience, acquire).await else {
        return;
    };
    let inside = protected[n].enter(&guard);
    assert!(guard.is_held());
    match random(4) {
        0 => tokio::task::yield_now().await,
        1 => {
            let again = locks.acquire(guard.key()).owner(guard.owner());
            assert_eq!(again.await.unwrap().hold_count(), 2);
        }
        2 => sleep(Duration::from_micros(random(200))).await,
        _ => {}
    }
    drop(inside);
    match random(3) {
        0 => drop(timeout(Duration::from_micros(random(50)), guard.release()).await),
        _ => drop(guard),
    }
}

#[test]
fn random_load_never_overlaps_and_leaves_nothing() {
    let panics = Panics::watch();
    panics.watched_runtime(4).block_on(random_load());
    assert_eq!(panics.count(), 0);
}

async fn random_load() {
    let memory = Memory::new();
    let managers: Vec<_> = (0..3)
        .map(|_| LockManager::builder(memory.clone()).build().unwrap())
        .collect();
    let protected = protected();
    let end = Instant::now() + Duration::from_secs(3);
    let tasks: Vec<_> = (0..60)
        .map(|n| {
            let locks = managers[n % managers.len()].clone();
            let protected = Arc::clone(&protected);
            tokio::spawn(async move {
                while Instant::now() < end {
                    one_round(&locks, &protected).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let start = Instant::now();
    while !managers.iter().all(|locks| locks.snapshot().is_idle()) {
        assert!(start.elapsed() < Duration::from_secs(2), "{managers:?}");
        sleep(Duration::from_millis(1)).await;
    }
    for n in 0..KEYS {
        let holder = memory.inspect(&LockKey::new(format!("key:{n}"))).await;
        assert_eq!(holder.unwrap(), None);
    }
}

/// Repeats the panic of a task whose runtime has ended.
fn repeat_panic(task: JoinHandle<()>) {
    let ended = task.now_or_never().expect("ended with its runtime");
    if let Err(Ok(panic)) = ended.map_err(tokio::task::JoinError::try_into_panic) {
        resume_unwind(panic);
    }
}

/// Drives runtimes of this thread, one after the other, until `end`.
fn drive_runtimes(locks: &LockManager, protected: &Arc<Vec<Protected>>, end: Instant) {
    let mut runtime = current_thread();
    while Instant::now() < end {
        match random(8) {
            0 => thread::sleep(Duration::from_micros(random(5_000))),
            // A runtime ends with acquires, guards and releases in its tasks.
            1 => {
                let spawn = |_| {
                    let (locks, protected) = (locks.clone(), Arc::clone(protected));
                    runtime.spawn(async move { one_round(&locks, &protected).await })
                };
                let rounds: Vec<_> = (0..8).map(spawn).collect();
                let time = Duration::from_micros(random(2_000));
                runtime.block_on(async { sleep(time).await });
                runtime = current_thread();
                rounds.into_iter().for_each(repeat_panic);
            }
            // A guard is dropped outside any runtime.
            2 => {
                let acquire = locks.acquire("key:0").no_wait().into_future();
                if let Ok(guard) = runtime.block_on(acquire) {
                    drop(protected[0].enter(&guard));
                }
            }
            _ => runtime.block_on(one_round(locks, protected)),
        }
    }
}

#[test]
fn random_load_in_ending_runtimes_never_overlaps() {
    let (memory, wire) = (Memory::new(), Simulated::new(MS));
    let in_memory = LockManager::builder(memory).build().unwrap();
    let [one, other] =
        [wire.another_wire(), wire].map(|it| LockManager::builder(it).build().unwrap());
    let stores = [
        ([&in_memory, &in_memory], protected()),
        ([&one, &other], protected()),
    ];
    let end = Instant::now() + Duration::from_secs(3);
    thread::scope(|scope| {
        for (managers, protected) in &stores {
            for locks in managers.iter().cycle().take(4) {
                scope.spawn(move || drive_runtimes(locks, protected, end));
            }
        }
    });
    // What the last runtimes have left is released in the next one that a manager is used in.
    current_thread().block_on(async {
        for locks in [&in_memory, &one, &other] {
            drop(locks.acquire("another").await.unwrap());
        }
        for locks in [&in_memory, &one, &other] {
            for n in 0..KEYS {
                drop(locks.acquire(format!("key:{n}")).await.unwrap());
            }
        }
        let start = Instant::now();
        while ![&in_memory, &one, &other]
            .iter()
            .all(|it| it.snapshot().is_idle())
        {
            assert!(start.elapsed() < Duration::from_secs(2));
            sleep(MS).await;
        }
    });
}
