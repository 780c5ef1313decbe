//! Shared locks in Redis.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::{ErrorKind, LockManager};

use crate::support::engine::{MS, SECOND, scripts_called};
use crate::support::redis_server::RedisServer;

/// The time by which a holder may exceed its sleep on a busy machine.
const LATE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn readers_of_two_processes_exclude_writer() {
    let server = RedisServer::start();
    let here = LockManager::connect(&server.url()).await.unwrap();
    let there = LockManager::connect(&server.url()).await.unwrap();
    let first = here.acquire("k").shared().await.unwrap();
    let second = there.acquire("k").shared().await.unwrap();
    let third = there.acquire("k").shared().await.unwrap();
    assert_eq!(second.fencing_token(), third.fencing_token());
    let error = here.acquire("k").no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    first.release().await.unwrap();
    second.release().await.unwrap();
    let error = here.acquire("k").no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let token = third.fencing_token();
    third.release().await.unwrap();
    let writer = here.acquire("k").no_wait().await.unwrap();
    assert!(writer.fencing_token() > token);
    writer.release().await.unwrap();
    assert_eq!(server.cli(&["exists", "lock:k"]), "0");
}

/// A renewal is due when the last reply is older than 50 ms.
#[tokio::test]
async fn readers_of_process_join_without_command() {
    const TIMES: usize = 1_000;
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let first = locks.acquire("k").shared().await.unwrap();
    let (before, start) = (scripts_called(&server), Instant::now());
    for _ in 0..TIMES {
        let joined = locks.acquire("k").shared().await.unwrap();
        assert_eq!(joined.fencing_token(), first.fencing_token());
        joined.release().await.unwrap();
    }
    let renewals = start.elapsed().as_millis() as u64 / 50;
    let sent = scripts_called(&server) - before;
    assert!(sent <= 1 + renewals, "{sent} commands, {renewals} due");
    first.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_and_readers_of_four_processes_take_turns() {
    let server = RedisServer::start();
    // Negative while a writer holds the lock, otherwise the number of readers.
    let holders = Arc::new(AtomicI32::new(0));
    let end = Instant::now() + 3 * SECOND;
    let mut tasks = Vec::new();
    for n in 0..4 {
        let locks = LockManager::connect(&server.url()).await.unwrap();
        for reader in 0..3 {
            let (locks, holders) = (locks.clone(), Arc::clone(&holders));
            tasks.push(tokio::spawn(async move {
                let (mut longest, mut grants) = (Duration::ZERO, 0);
                while Instant::now() < end {
                    let is_writer = is_writer(n, reader);
                    let start = Instant::now();
                    let acquire = locks.acquire("k").wait(10 * SECOND);
                    let guard = match is_writer {
                        true => acquire.await.unwrap(),
                        false => acquire.shared().await.unwrap(),
                    };
                    longest = longest.max(start.elapsed());
                    grants += 1;
                    let change = if is_writer { -100 } else { 1 };
                    let before = holders.fetch_add(change, Ordering::SeqCst);
                    let fits = if is_writer { before == 0 } else { before >= 0 };
                    assert!(fits, "{:?} beside {before}", guard.mode());
                    sleep(25 * MS + 10 * MS * reader).await;
                    holders.fetch_sub(change, Ordering::SeqCst);
                    drop(guard);
                    if is_writer {
                        sleep(20 * MS).await;
                    }
                }
                (is_writer(n, reader), longest, grants)
            }));
        }
    }
    for task in tasks {
        let (is_writer, longest, grants) = task.await.unwrap();
        let kind = if is_writer { "a writer" } else { "a reader" };
        // Each waits for the turns of two writers, and for the longest reads between them.
        assert!(
            longest <= 3 * (45 * MS + 120 * MS) + LATE,
            "{kind} waited {longest:?}"
        );
        assert!(grants >= 5, "{kind} had {grants} grants");
    }
}

/// Two of the processes write.
fn is_writer(process: u32, client: u32) -> bool {
    client == 0 && process < 2
}

/// The waiters are in the queue of Redis, and those of the same process in its lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downgrade_admits_waiting_readers_and_no_writer() {
    let server = RedisServer::start();
    let here = LockManager::connect(&server.url()).await.unwrap();
    let there = LockManager::connect(&server.url()).await.unwrap();
    let mut guard = here.acquire("k").await.unwrap();
    let exclusive = guard.fencing_token();
    let waiting = async |locks: &LockManager, waiters| {
        while locks.snapshot().waiting < waiters {
            sleep(MS).await;
        }
        // In the queue of Redis.
        sleep(100 * MS).await;
    };
    let readers =
        [&here, &there].map(|locks| tokio::spawn(locks.acquire("k").shared().into_future()));
    waiting(&there, 1).await;
    let writer = tokio::spawn(there.acquire("k").wait(10 * SECOND).into_future());
    waiting(&there, 2).await;
    guard.downgrade().await.unwrap();
    assert!(guard.fencing_token() > exclusive);
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.await.unwrap().unwrap());
    }
    assert!(guards[1].fencing_token() > guard.fencing_token());
    guard.release().await.unwrap();
    sleep(100 * MS).await;
    assert!(!writer.is_finished());
    drop(guards);
    let writer = writer.await.unwrap().unwrap();
    writer.release().await.unwrap();
    assert_eq!(server.cli(&["exists", "lock:k"]), "0");
}
