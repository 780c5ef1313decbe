//! Managers over PostgreSQL: waiters, fences, shared locks.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tower_lock::{LockKeys, LockManager, PostgresBackend};

use super::support::postgres_server::PostgresServer;
use super::{LONG, backend};

async fn managers(server: &PostgresServer) -> [LockManager; 2] {
    let manager = async || LockManager::builder(backend(server).await).build().unwrap();
    [manager().await, manager().await]
}

#[tokio::test(flavor = "multi_thread")]
async fn increments_of_two_managers_are_counted() {
    let server = PostgresServer::start(&[]).await;
    let managers = managers(&server).await;
    server
        .run("CREATE TABLE balance (cents int); INSERT INTO balance VALUES (0)")
        .await;
    let mut tasks = Vec::new();
    for number in 0..8 {
        let locks = managers[number % 2].clone();
        let mut client = server.client().await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..25 {
                let guard = locks.acquire("balance").wait(LONG).await.unwrap();
                let transaction = client.transaction().await.unwrap();
                let (fence, keys, tokens) = guard.fence();
                transaction.execute(fence, &[&keys, &tokens]).await.unwrap();
                let row = transaction
                    .query_one("SELECT cents FROM balance", &[])
                    .await
                    .unwrap();
                let cents: i32 = row.get(0);
                let write = "UPDATE balance SET cents = $1";
                transaction.execute(write, &[&(cents + 1)]).await.unwrap();
                transaction.commit().await.unwrap();
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let row = server
        .client()
        .await
        .query_one("SELECT cents FROM balance", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i32>(0), 200);
}

#[tokio::test]
async fn lost_lock_of_several_keys_commits_nothing() {
    let server = PostgresServer::start(&[]).await;
    let [one, other] = managers(&server).await;
    let guard = one.acquire(LockKeys::from(["b", "a"])).await.unwrap();
    let (fence, keys, tokens) = guard.fence();
    let mut client = server.client().await;
    let transaction = client.transaction().await.unwrap();
    transaction.execute(fence, &[&keys, &tokens]).await.unwrap();
    transaction.commit().await.unwrap();
    // One of them.
    assert!(other.force_release("b").await.unwrap());
    let transaction = client.transaction().await.unwrap();
    let lost = transaction
        .execute(fence, &[&keys, &tokens])
        .await
        .unwrap_err();
    assert_eq!(lost.code().unwrap().code(), "TL001");
}

/// Without a notification, the attempt after the TTL of the holder would be the next one.
async fn is_served_soon([one, other]: [LockManager; 2]) -> Duration {
    let guard = one.acquire("queue").await.unwrap();
    let waiter = tokio::spawn(async move {
        let _guard = other.acquire("queue").wait(LONG).await.unwrap();
        Instant::now()
    });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!waiter.is_finished());
    let released = Instant::now();
    guard.release().await.unwrap();
    let granted = timeout(LONG, waiter).await.unwrap().unwrap();
    granted.saturating_duration_since(released)
}

#[tokio::test]
async fn release_wakes_waiter_of_other_manager() {
    let server = PostgresServer::start(&[]).await;
    let took = is_served_soon(managers(&server).await).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// A notification reaches only sessions in its database, as behind a proxy that delivers none.
#[tokio::test]
async fn waiter_without_echo_polls() {
    let server = PostgresServer::start(&[]).await;
    server.run("CREATE DATABASE elsewhere").await;
    let elsewhere = server.url_in("elsewhere");
    let deaf = PostgresBackend::builder(server.url())
        .listen(elsewhere)
        .connect()
        .await
        .unwrap();
    let [one, _] = managers(&server).await;
    let deaf = LockManager::builder(deaf).build().unwrap();
    let took = is_served_soon([one, deaf]).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn process_with_many_locks_has_three_connections() {
    let server = PostgresServer::start(&[]).await;
    let [locks, _] = managers(&server).await;
    let acquires = (0..1000).map(|number| locks.acquire(format!("lock:{number}")).into_future());
    let guards = futures_util::future::try_join_all(acquires).await.unwrap();
    let client = server.client().await;
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tower-lock'";
    let count: i64 = client.query_one(count, &[]).await.unwrap().get(0);
    // The second manager has two.
    assert!(count <= 5, "{count}");
    assert_eq!(guards.len(), 1000);
}
