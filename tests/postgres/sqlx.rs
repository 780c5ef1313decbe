//! The fence in transactions of sqlx, as the guide shows it.

use std::future::Future as _;
use std::pin::pin;
use std::task::Context;

use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Postgres, Transaction};
use tower_lock::{Held, LockManager};

use super::support::postgres_server::PostgresServer;
use super::{LONG, backend};

async fn pool(server: &PostgresServer) -> PgPool {
    let options = PgPoolOptions::new().max_connections(8);
    options.connect(&server.url()).await.unwrap()
}

async fn fence(
    transaction: &mut Transaction<'static, Postgres>,
    held: &Held,
) -> Result<(), sqlx::Error> {
    let (fence, keys, tokens) = held.fence();
    let statement = sqlx::query(fence).bind(keys).bind(tokens);
    statement.execute(&mut **transaction).await.map(drop)
}

#[tokio::test]
async fn lost_lock_commits_nothing_in_sqlx() {
    let server = PostgresServer::start(&[]).await;
    let locks = LockManager::builder(backend(&server).await)
        .build()
        .unwrap();
    let pool = pool(&server).await;
    let guard = locks.acquire(["b", "a"]).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    fence(&mut transaction, &guard.held()).await.unwrap();
    transaction.commit().await.unwrap();
    server.run("SELECT tower_lock.release_one('b', NULL)").await;
    let mut transaction = pool.begin().await.unwrap();
    let lost = fence(&mut transaction, &guard.held()).await.unwrap_err();
    let lost = lost.as_database_error().unwrap();
    assert_eq!(lost.code().unwrap(), "TL001");
}

/// A commit takes effect even if its future is dropped, after the next owner in this process has acquired the lock.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_commit_of_sqlx_loses_no_update() {
    let server = PostgresServer::start(&[]).await;
    let locks = LockManager::builder(backend(&server).await)
        .build()
        .unwrap();
    server
        .run("CREATE TABLE entry (n int); INSERT INTO entry VALUES (0)")
        .await;
    let pool = pool(&server).await;
    let tasks = (0..6).map(|_| {
        let (locks, pool) = (locks.clone(), pool.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                let guard = locks.acquire("entries").wait(LONG).await.unwrap();
                let mut transaction = pool.begin().await.unwrap();
                fence(&mut transaction, &guard.held()).await.unwrap();
                let last = sqlx::query_scalar("SELECT max(n) FROM entry");
                let last: i32 = last.fetch_one(&mut *transaction).await.unwrap();
                let write = sqlx::query("INSERT INTO entry VALUES ($1)").bind(last + 1);
                write.execute(&mut *transaction).await.unwrap();
                let mut commit = pin!(transaction.commit());
                let cx = &mut Context::from_waker(std::task::Waker::noop());
                let _may_be_pending = commit.as_mut().poll(cx);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    pool.close().await;
    let client = server.client().await;
    let counts = "SELECT count(*), count(DISTINCT n) FROM entry";
    let row = client.query_one(counts, &[]).await.unwrap();
    let (rows, distinct): (i64, i64) = (row.get(0), row.get(1));
    assert!(rows > 1);
    assert_eq!(rows, distinct, "an owner read what another one overwrote");
}
