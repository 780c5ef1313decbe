//! The queue of notifications of the server, which one listener can fill for all.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::{LockManager, PostgresBackend};

use super::LONG;
use super::support::postgres_server::PostgresServer;

const MS: Duration = Duration::from_millis(1);

async fn manager(server: &PostgresServer) -> LockManager {
    let builder = PostgresBackend::builder(server.url()).response_timeout(LONG / 10);
    let backend = builder.connect().await.unwrap();
    LockManager::builder(backend)
        .watchdog_timeout(LONG)
        .build()
        .unwrap()
}

#[tokio::test]
async fn full_notify_queue_fails_no_release() {
    let Some(server) = PostgresServer::start_with_small_notify_queue().await else {
        return;
    };
    let [one, other] = [manager(&server).await, manager(&server).await];
    let guard = one.acquire("full").await.unwrap();
    let waiter = tokio::spawn(other.acquire("full").wait(LONG).into_future());
    let alone = tokio::spawn(other.acquire("full").wait(LONG).into_future());
    let client = server.client().await;
    let listens = "SELECT count(*) FROM tower_lock.waiter WHERE channel IS NOT NULL";
    while client
        .query_one(listens, &[])
        .await
        .unwrap()
        .get::<_, i64>(0)
        == 0
    {
        sleep(5 * MS).await;
    }
    let _stopped = server.fill_notify_queue().await;
    let begun = Instant::now();
    guard.release().await.unwrap();
    let first = waiter.await.unwrap().unwrap();
    let took = begun.elapsed();
    // The transfer without a notification is found by the next refresh of the place.
    assert!(took < 10 * 1_000 * MS, "{took:?}");
    first.release().await.unwrap();
    alone.await.unwrap().unwrap().release().await.unwrap();
    // A waiter that came after.
    let guard = one.acquire("full").await.unwrap();
    let waiter = tokio::spawn(other.acquire("full").wait(LONG).into_future());
    sleep(100 * MS).await;
    let begun = Instant::now();
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    let took = begun.elapsed();
    assert!(took < 10 * 1_000 * MS, "{took:?}");
}
