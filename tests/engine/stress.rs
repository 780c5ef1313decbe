//! Many tasks on few keys, on all cores, with random calls at random times.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_lock::{Backend, LockKey, LockManager, Memory};

const KEYS: usize = 4;

/// State that only the current holder may enter.
#[derive(Default)]
struct Protected {
    inside: AtomicBool,
    last_token: AtomicI64,
}

impl Protected {
    fn enter(&self, token: i64) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two holders");
        let last = self.last_token.swap(token, Ordering::SeqCst);
        assert!(token > last, "token {token} after {last}");
    }

    fn leave(&self) {
        assert!(self.inside.swap(false, Ordering::SeqCst));
    }
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
    protected[n].enter(guard.fencing_token().get());
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
    protected[n].leave();
    match random(3) {
        0 => drop(timeout(Duration::from_micros(random(50)), guard.release()).await),
        _ => drop(guard),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_load_never_overlaps_and_leaves_nothing() {
    let memory = Memory::new();
    let managers: Vec<_> = (0..3)
        .map(|_| LockManager::builder(memory.clone()).build().unwrap())
        .collect();
    let protected: Arc<Vec<Protected>> =
        Arc::new((0..KEYS).map(|_| Protected::default()).collect());
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
