//! Shared locks in Redis.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::{ErrorKind, LockKeys, LockManager};

use crate::support::cluster::Cluster;
use crate::support::engine::{MS, PATIENCE, SECOND, manager, managers, scripts_called, within};
use crate::support::redis_server::RedisServer;

/// The time by which holders may exceed their sleeps on a busy machine, all in all.
const LATE: Duration = SECOND;

#[tokio::test]
async fn readers_of_two_processes_exclude_writer() {
    let server = RedisServer::start();
    let (here, there) = managers(server.url(), 30 * SECOND).await;
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
    let locks = manager(server.url(), 30 * SECOND).await;
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
    let mut processes = Vec::new();
    for n in 0..4 {
        processes.push((n, manager(server.url(), 30 * SECOND).await));
    }
    let end = Instant::now() + 3 * SECOND;
    let mut tasks = Vec::new();
    for (n, locks) in processes {
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
    let (here, there) = managers(server.url(), 30 * SECOND).await;
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

#[tokio::test]
async fn mixed_keys_exclude_by_mode_or_are_not_held() {
    let server = RedisServer::start();
    mixed_keys_are_all_or_none(server.url()).await;
    let keys = || server.cli(&["exists", "lock:prices", "lock:order", "lock:stock"]);
    within(PATIENCE, "released", || keys() == "0").await;
}

/// The keys are in slots of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_keys_in_cluster_are_all_or_none() {
    let cluster = Cluster::start();
    let slots = ["prices", "order", "stock"].map(|key| cluster.slot(&format!("lock:{key}")));
    assert!(slots[0] != slots[1] && slots[1] != slots[2], "{slots:?}");
    mixed_keys_are_all_or_none(cluster.url()).await;
}

async fn mixed_keys_are_all_or_none(url: String) {
    let (here, there) = managers(url, 30 * SECOND).await;
    let all = || {
        LockKeys::new()
            .shared("prices")
            .exclusive("order")
            .shared("stock")
    };
    for (key, is_shared, is_rejected) in [
        ("prices", false, true),
        ("order", false, true),
        ("order", true, true),
        ("stock", false, true),
        ("prices", true, false),
        ("stock", true, false),
    ] {
        let case = format!("beside {key}, shared: {is_shared}");
        let acquire = there.acquire(key);
        let other = if is_shared { acquire.shared() } else { acquire };
        let other = other.no_wait().await.expect(&case);
        match here.acquire(all()).no_wait().await {
            Err(error) => {
                assert!(is_rejected, "{case}");
                assert_eq!(error.kind(), ErrorKind::Busy, "{case}");
                // At once, because the engine later ends a hold that has no guard.
                assert_eq!(here.snapshot().held, 0, "{case}");
            }
            Ok(guard) => {
                assert!(!is_rejected, "{case}");
                guard.release().await.unwrap();
            }
        }
        other.release().await.unwrap();
        // None of the rejected acquire is left, long before a lease expires.
        let exclusive = LockKeys::from_iter(["prices", "order", "stock"]);
        let none = there.acquire(exclusive).wait(PATIENCE).await.expect(&case);
        none.release().await.unwrap();
    }
    let guard = here.acquire(all()).no_wait().await.unwrap();
    for (key, is_shared) in [("prices", true), ("order", false), ("stock", true)] {
        let reader = there.acquire(key).shared().no_wait().await;
        assert_eq!(reader.is_ok(), is_shared, "{key}");
        let writer = there.acquire(key).no_wait().await;
        assert_eq!(writer.unwrap_err().kind(), ErrorKind::Busy, "{key}");
    }
    guard.release().await.unwrap();
}
