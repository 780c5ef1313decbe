//! Work at intervals.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower_lock::{Error, ErrorKind, LockManager, Memory};

use crate::support::engine::{MS, SECOND, manager_on};

/// The name and the time of each run, in milliseconds since the start.
type Runs = Arc<Mutex<Vec<(&'static str, u128)>>>;

/// Runs a job every 10 s, each run for as long as `work`.
fn job(
    locks: &LockManager,
    name: &'static str,
    work: Duration,
    runs: &Runs,
) -> JoinHandle<Result<(), Error>> {
    let (start, runs) = (Instant::now(), Arc::clone(runs));
    let job = locks.acquire("job").run_every(10 * SECOND, move |held| {
        assert!(held.is_held());
        let runs = Arc::clone(&runs);
        runs.lock()
            .unwrap()
            .push((name, start.elapsed().as_millis()));
        async move {
            sleep(work).await;
            runs.lock()
                .unwrap()
                .push((name, start.elapsed().as_millis()));
        }
    });
    tokio::spawn(job)
}

fn taken(runs: &Runs) -> Vec<(&'static str, u128)> {
    std::mem::take(&mut runs.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn runs_of_all_processes_are_one_period_apart() {
    let memory = Memory::new();
    let (here, there) = (manager_on(&memory), manager_on(&memory));
    let runs = Runs::default();
    let first = job(&here, "here", SECOND, &runs);
    sleep(MS).await;
    let second = job(&there, "there", SECOND, &runs);
    sleep(25 * SECOND).await;
    let expected = [10_000, 11_000, 20_000, 21_000].map(|at| ("here", at));
    assert_eq!(taken(&runs), expected);
    // Between two runs, the lock is held: the other process waits.
    assert!(here.is_locked("job").await.unwrap());
    let start = Instant::now();
    assert!(here.shutdown(60 * SECOND).await.is_idle());
    assert!(start.elapsed() < SECOND);
    first.await.unwrap().unwrap();
    sleep(12 * SECOND).await;
    let after = taken(&runs);
    let [("there", began), ("there", _)] = after[..] else {
        panic!("{after:?}");
    };
    // It acquired the lock after 25 s, and its first run came one period later.
    assert!((34_990..35_300).contains(&began), "{after:?}");
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn shutdown_lets_run_end_and_ends_waiter() {
    let memory = Memory::new();
    let (here, there) = (manager_on(&memory), manager_on(&memory));
    let runs = Runs::default();
    let holder = job(&here, "here", 3 * SECOND, &runs);
    sleep(MS).await;
    let waiter = job(&there, "there", SECOND, &runs);
    sleep(11 * SECOND).await;
    there.shutdown(SECOND).await;
    waiter.await.unwrap().unwrap();
    let start = Instant::now();
    assert!(here.shutdown(60 * SECOND).await.is_idle());
    assert_eq!(start.elapsed().as_secs(), 1);
    holder.await.unwrap().unwrap();
    assert_eq!(taken(&runs), [("here", 10_000), ("here", 13_000)]);
}

#[tokio::test(start_paused = true)]
async fn lost_lock_drops_run_and_job_goes_on() {
    let locks = LockManager::in_memory();
    let runs = Runs::default();
    let job = job(&locks, "here", 5 * SECOND, &runs);
    sleep(12 * SECOND).await;
    assert!(locks.force_release("job").await.unwrap());
    sleep(9 * SECOND).await;
    // The run did not end, and the next one comes one period after the loss.
    assert_eq!(taken(&runs), [("here", 10_000)]);
    sleep(2 * SECOND).await;
    let after = taken(&runs);
    assert_eq!(after.len(), 1);
    assert!((22_000..22_200).contains(&after[0].1), "{after:?}");
    job.abort();
}

#[tokio::test(start_paused = true)]
async fn long_run_delays_next_one() {
    let locks = LockManager::in_memory();
    let runs = Runs::default();
    let job = job(&locks, "here", 12 * SECOND, &runs);
    sleep(45 * SECOND).await;
    let began: Vec<_> = taken(&runs)
        .into_iter()
        .map(|run| run.1)
        .step_by(2)
        .collect();
    assert_eq!(began, [10_000, 22_000, 34_000]);
    job.abort();
}

#[tokio::test]
async fn period_of_zero_and_invalid_key_are_errors() {
    let locks = LockManager::in_memory();
    let none = locks.acquire("job").run_every(Duration::ZERO, |_| async {});
    let error = none.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    let invalid = locks.acquire("").run_every(SECOND, |_| async {});
    assert_eq!(invalid.await.unwrap_err().kind(), ErrorKind::InvalidKey);
}

/// What `Acquire::run` and the page `operations` say of a job that another program starts.
#[tokio::test(start_paused = true)]
async fn single_attempts_skip_only_overlapping_runs() {
    let memory = Memory::new();
    let (here, there) = (manager_on(&memory), manager_on(&memory));
    let run = |locks: &LockManager| {
        let job = locks.acquire("job").no_wait();
        job.run(|_| sleep(200 * MS))
    };
    let (first, second) = tokio::join!(run(&here), run(&there));
    first.unwrap();
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Busy);
    // Half a second apart.
    run(&here).await.unwrap();
    sleep(300 * MS).await;
    run(&there).await.unwrap();
}
