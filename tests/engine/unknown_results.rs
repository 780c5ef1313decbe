//! Acquires with unknown results on a third-party backend are released without a retry storm.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;
use tower_lock::backend::Backend;
use tower_lock::backend::{
    AcquireRequest, Acquired, BackendError, ForceReleased, Hints, Holder, LeaseId, Release,
    Released, Renewal, Renewed,
};
use tower_lock::{ErrorKind, LockKey, LockManager};
use uuid::Uuid;

use crate::support::engine::{MS, SECOND};
use crate::support::other_runtime::current_thread;

const ACQUIRES: usize = 10_000;
/// The length of the store's outage.
const OUTAGE: Duration = Duration::from_secs(10);
/// The maximum number of backoff steps in an outage: 50 ms, doubled up to 1 s, with jitter.
const STEPS: usize = 20;
/// The maximum number of tasks and commands in flight, however many results are unknown.
const AT_A_TIME: usize = 64;

/// A backend that loses the reply of each acquire at once, and those of releases after 1 ms until it
/// recovers.
#[derive(Clone, Default)]
struct Unanswering(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    recovered: bool,
    acquired: BTreeSet<LeaseId>,
    released: BTreeSet<LeaseId>,
    /// The release commands that named a key.
    commands: BTreeMap<LockKey, usize>,
    in_flight: usize,
    most_in_flight: usize,
}

impl Unanswering {
    fn seen<R>(&self, look: impl FnOnce(&mut Seen) -> R) -> R {
        look(&mut self.0.lock().unwrap())
    }
}

impl Backend for Unanswering {
    fn try_acquire(
        &self,
        request: &AcquireRequest,
    ) -> impl Future<Output = Result<Acquired, BackendError>> + Send {
        self.seen(|seen| seen.acquired.insert(request.lease));
        ready(Err(BackendError::unknown("reply lost")))
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        let keys: BTreeSet<_> = leases.iter().map(|release| &release.key).collect();
        self.seen(|seen| {
            for key in keys {
                *seen.commands.entry(key.clone()).or_default() += 1;
            }
            seen.in_flight += 1;
            seen.most_in_flight = seen.most_in_flight.max(seen.in_flight);
        });
        sleep(MS).await;
        self.seen(|seen| {
            seen.in_flight -= 1;
            let outcome = |release: &Release| {
                if !seen.recovered {
                    return Err(BackendError::unknown("reply lost"));
                }
                seen.released.insert(release.lease);
                Ok(Released::Released)
            };
            leases.iter().map(outcome).collect()
        })
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        renewals.iter().map(|_| Ok(Renewed::NotHeld)).collect()
    }

    fn watch(&self, _key: &LockKey, _manager: Uuid) -> Hints {
        Hints::channel().1
    }

    async fn inspect(&self, _key: &LockKey) -> Result<Option<Holder>, BackendError> {
        Ok(None)
    }

    async fn force_release(
        &self,
        _key: &LockKey,
        _: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        Ok(ForceReleased::NotHeld)
    }
}

/// Makes acquires with unknown results, and waits for the end of the outage.
async fn clean_up_is_bounded(key: impl Fn(usize) -> String) {
    let store = Unanswering::default();
    let locks = LockManager::builder(store.clone()).build().unwrap();
    for n in 0..ACQUIRES {
        let error = locks.acquire(key(n)).no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    assert_eq!(store.seen(|seen| seen.acquired.len()), ACQUIRES);
    let mut most_tasks = 0;
    for _ in 0..OUTAGE.as_millis() / 10 {
        most_tasks = most_tasks.max(Handle::current().metrics().num_alive_tasks());
        sleep(10 * MS).await;
    }
    store.seen(|seen| {
        let most = seen.commands.values().max();
        assert!(most <= Some(&STEPS), "{most:?} release commands on one key");
        assert!(most > Some(&5), "{most:?} release commands in {OUTAGE:?}");
        let in_flight = seen.most_in_flight;
        assert!(in_flight <= AT_A_TIME, "{in_flight} releases in flight");
        seen.recovered = true;
    });
    assert!(most_tasks <= AT_A_TIME, "{most_tasks} tasks");
    assert!(locks.snapshot().unreleased > 0);
    // Leaves time for one backoff step with jitter and the commands.
    sleep(2 * SECOND).await;
    store.seen(|seen| assert!(seen.released == seen.acquired));
    assert!(locks.snapshot().is_idle());
}

#[tokio::test(start_paused = true)]
async fn unknown_acquires_of_one_key_cause_no_storm() {
    clean_up_is_bounded(|_| "k".to_owned()).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_acquires_of_many_keys_cause_no_storm() {
    clean_up_is_bounded(|n| format!("k{n}")).await;
}

/// The outage is longer than the lease. A server that was stopped executes the commands in its buffers when it
/// continues.
#[tokio::test(start_paused = true)]
async fn unknown_acquire_is_released_after_long_outage() {
    let store = Unanswering::default();
    let locks = LockManager::builder(store.clone()).watchdog_timeout(SECOND);
    let locks = locks.build().unwrap();
    locks.acquire("k").no_wait().await.unwrap_err();
    sleep(OUTAGE).await;
    store.seen(|seen| seen.recovered = true);
    sleep(2 * SECOND).await;
    store.seen(|seen| assert_eq!((seen.acquired.len(), seen.released.len()), (1, 1)));
}

/// The acquires come from several runtimes.
#[test]
fn key_is_retried_once_per_backoff_step() {
    // Six steps are due by then: at once, and after 50, 150, 350, 750 and 1,550 ms, less a tenth.
    let (time, most) = (1500 * MS, 6);
    let store = Unanswering::default();
    let locks = LockManager::builder(store.clone()).build().unwrap();
    for _ in 0..3 {
        current_thread().block_on(async {
            for _ in 0..10 {
                let error = locks.acquire("k").no_wait().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable);
            }
        });
    }
    thread::sleep(time);
    let commands = store.seen(|seen| seen.commands[&LockKey::new("k")]);
    assert!(commands <= most, "{commands} release commands");
    // Four of the steps are due in the first half second.
    assert!(commands > most / 2, "{commands} release commands");
}
