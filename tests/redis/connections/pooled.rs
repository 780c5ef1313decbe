//! Connections of the program's pool on which it selected another database.

use std::num::NonZero;
use std::time::Duration;

use deadpool_redis::{Config, Pool, Runtime};
use tower_lock::RedisBackend;

use crate::support::engine::{SECOND, eventually, manager_from};
use crate::support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);

fn pool(url: &str) -> Pool {
    let pool = Config::from_url(url).create_pool(Some(Runtime::Tokio1));
    pool.unwrap()
}

/// Selects a database on every idle connection.
async fn select(pool: &Pool, database: i64) {
    let mut connections = Vec::new();
    for _ in 0..pool.status().available.max(1) {
        let mut connection = pool.get().await.unwrap();
        let mut select = redis::cmd("SELECT");
        select
            .arg(database)
            .exec_async(&mut connection)
            .await
            .unwrap();
        connections.push(connection);
    }
}

/// Returns the databases that have a lock or a counter.
fn databases(server: &RedisServer) -> Vec<String> {
    let keyspace = server.cli(&["INFO", "keyspace"]);
    let lines = keyspace.lines().filter_map(|line| line.split_once(':'));
    let databases = lines.filter(|(name, _)| name.starts_with("db"));
    databases.map(|(name, _)| name.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_locks_in_its_configured_database() {
    for configured in [0, 2] {
        let server = RedisServer::start();
        let pool = pool(&format!("{}/{configured}", server.url()));
        select(&pool, 5).await;
        let locks = manager_from(RedisBackend::from_pool(pool), LEASE).await;
        let guard = locks.acquire("k").await.unwrap();
        assert_eq!(databases(&server), [format!("db{configured}")]);
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkout_locks_in_its_configured_database() {
    let server = RedisServer::start();
    let replica = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    replica.cli(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    eventually("a replica", || {
        server
            .cli(&["INFO", "replication"])
            .contains("state=online")
    })
    .await;
    let pool = pool(&server.url());
    let one = NonZero::new(1).unwrap();
    let builder = RedisBackend::from_pool(pool.clone()).min_replicas(one, SECOND);
    let locks = manager_from(builder, LEASE).await;
    locks.acquire("k").await.unwrap().release().await.unwrap();
    select(&pool, 5).await;
    let guard = locks.acquire("k").await.unwrap();
    assert_eq!(databases(&server), ["db0"]);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_of_user_without_select_connects() {
    let server = RedisServer::start();
    server.cli(&[
        "ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", "-select",
    ]);
    let pool = pool(&server.url_of("u", "p"));
    let locks = manager_from(RedisBackend::from_pool(pool), LEASE).await;
    locks.acquire("k").await.unwrap().release().await.unwrap();
}
