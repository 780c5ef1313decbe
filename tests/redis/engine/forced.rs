//! Forced releases of the holder that an operator has seen.

use std::future::IntoFuture as _;

use crate::support::engine::{SECOND, eventually, manager, nothing_is_left, subscribers};
use crate::support::redis_server::RedisServer;

/// A holder of Redisson: the id of its client, and that of its thread.
const THREAD: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:52";

/// A process that uses Redisson has no lane here, and may hold the key more than once.
#[tokio::test]
async fn holder_of_redisson_is_compared_and_released() {
    let server = RedisServer::start();
    let locks = manager(server.url(), 6 * SECOND).await;
    server.cli(&["HSET", "lock:k", THREAD, "2"]);
    server.cli(&["PEXPIRE", "lock:k", "30000"]);
    let owner = locks.inspect("k").await.unwrap().unwrap().owner;
    assert_eq!(owner, THREAD);

    let other_thread = THREAD.replace(":52", ":5");
    let foreign = [&other_thread, "", "8743c9c0-0795-4907-87fd-6c719a6b4586"];
    for other in foreign {
        let forced = locks.force_release_held_by("k", other).await;
        assert!(!forced.unwrap(), "{other}");
        assert_eq!(server.cli(&["HGET", "lock:k", THREAD]), "2");
    }
    assert!(locks.force_release_held_by("k", &owner).await.unwrap());
    assert_eq!(server.cli(&["EXISTS", "lock:k"]), "0");
    assert!(!locks.force_release_held_by("k", &owner).await.unwrap());
    locks
        .acquire("k")
        .no_wait()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

/// The message that Redisson waits for is on the channel of the key.
#[tokio::test]
async fn waiter_is_served_after_release_of_redisson_holder() {
    let server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), 6 * SECOND).await,
        manager(server.url(), 6 * SECOND).await,
    );
    server.cli(&["HSET", "lock:k", THREAD, "1"]);
    server.cli(&["PEXPIRE", "lock:k", "60000"]);
    let waiter = tokio::spawn(there.acquire("k").wait(20 * SECOND).into_future());
    eventually("a waiter", || subscribers(&server, "k") == 1).await;
    assert!(here.force_release_held_by("k", THREAD).await.unwrap());
    waiter.await.unwrap().unwrap().release().await.unwrap();
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}
