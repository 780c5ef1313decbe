//! Permits in Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::Mode;
use tower_lock::{ErrorKind, LockManager};

use crate::support::engine::{MS, Monitor, SECOND, manager, managers, within};
use crate::support::redis_server::RedisServer;

async fn two_processes(server: &RedisServer) -> (LockManager, LockManager) {
    managers(server.url(), 30 * SECOND).await
}

#[tokio::test]
async fn permits_above_limit_are_full_in_all_processes() {
    let server = RedisServer::start();
    let (here, there) = two_processes(&server).await;
    let first = here.acquire("k").permits(2).no_wait().await.unwrap();
    let second = there.acquire("k").permits(2).no_wait().await.unwrap();
    assert!(second.fencing_token() > first.fencing_token());
    for locks in [&here, &there] {
        let error = locks.acquire("k").permits(2).no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermitsExhausted);
        let error = locks.acquire("k").shared().no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let error = locks.acquire("k").no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
    }
    let third = here.acquire("k").permits(3).no_wait().await.unwrap();
    first.release().await.unwrap();
    third.release().await.unwrap();
    let again = there.acquire("k").permits(2).no_wait().await.unwrap();
    second.release().await.unwrap();
    again.release().await.unwrap();
    assert_eq!(server.cli(&["exists", "lock:k"]), "0");
    assert!(here.acquire("k").no_wait().await.is_ok());
}

#[tokio::test]
async fn permit_of_ended_lease_is_free() {
    let server = RedisServer::start();
    let (here, there) = two_processes(&server).await;
    let renewed = here.acquire("k").permits(2).await.unwrap();
    let fixed = there.acquire("k").permits(2).lease(300 * MS).await.unwrap();
    let start = Instant::now();
    let waited = here.acquire("k").permits(2).await.unwrap();
    assert!((250 * MS..SECOND).contains(&start.elapsed()));
    drop((renewed, waited, fixed));
}

#[tokio::test]
async fn writer_waits_for_permits_and_they_for_it() {
    let server = RedisServer::start();
    let (here, there) = two_processes(&server).await;
    let permit = here.acquire("k").permits(5).await.unwrap();
    let writer = tokio::spawn(there.acquire("k").into_future());
    sleep(100 * MS).await;
    let later = tokio::spawn(here.acquire("k").permits(5).into_future());
    sleep(100 * MS).await;
    assert!(!writer.is_finished() && !later.is_finished());
    drop(permit);
    let writer = timeout(SECOND, writer).await.unwrap().unwrap().unwrap();
    assert!(!later.is_finished());
    drop(writer);
    let later = timeout(SECOND, later).await.unwrap().unwrap().unwrap();
    assert_eq!(later.mode(), Mode::Permit);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_four_processes_share_permits() {
    const LIMIT: u32 = 10;
    let server = RedisServer::start();
    let held = Arc::new(AtomicU32::new(0));
    // None has a head start.
    let mut processes = Vec::new();
    for process in 0..4 {
        processes.push((process, manager(server.url(), 30 * SECOND).await));
    }
    let end = Instant::now() + 3 * SECOND;
    let mut tasks = Vec::new();
    for (process, locks) in processes {
        for _ in 0..16 {
            let (locks, held) = (locks.clone(), Arc::clone(&held));
            tasks.push(tokio::spawn(async move {
                let (mut grants, mut most) = (0, 0);
                while Instant::now() < end {
                    let acquire = locks.acquire("k").permits(LIMIT).wait(10 * SECOND);
                    let guard = acquire.await.unwrap();
                    grants += 1;
                    most = most.max(held.fetch_add(1, Ordering::SeqCst) + 1);
                    sleep(5 * MS).await;
                    held.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
                (process, grants, most)
            }));
        }
    }
    let mut shares = [0; 4];
    let mut most = 0;
    for task in tasks {
        let (process, grants, held) = task.await.unwrap();
        shares[process] += grants;
        most = most.max(held);
    }
    assert!(most <= LIMIT, "{most}");
    let all: u32 = shares.iter().sum();
    println!("grants {all} shares {shares:?}");
    assert!(
        shares.iter().all(|share| *share >= all * 15 / 100),
        "{shares:?}"
    );
    let quiet = Instant::now() + SECOND;
    while server.cli(&["exists", "lock:k"]) != "0" {
        assert!(Instant::now() < quiet, "all permits are released");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Its place then costs one command. The first waiter has subscribed to the key.
#[tokio::test]
async fn second_waiter_listens_from_its_first_place() {
    let server = RedisServer::start();
    let locks = manager(server.url(), 30 * SECOND).await;
    let held = locks.acquire("k").permits(1).await.unwrap();
    let acquire = || tokio::spawn(locks.acquire("k").permits(1).into_future());
    let places = || server.cli(&["zrange", "lock:{lock:k}%queue", "0", "-1"]);
    let first = acquire();
    within(5 * SECOND, "a listener", || places().contains('!')).await;
    let monitor = Monitor::start(&server);
    let second = acquire();
    within(5 * SECOND, "two listeners", || {
        places().matches('!').count() == 2
    })
    .await;
    let lines = monitor.lines_until_now(&server).await;
    assert!(
        !lines.iter().any(|line| line.contains("\"?\"")),
        "{lines:?}"
    );
    drop(held);
    drop(first.await.unwrap().unwrap());
    drop(second.await.unwrap().unwrap());
}
