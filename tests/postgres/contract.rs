//! The contract of a backend, and what its commands cost the server.

use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tokio_postgres::NoTls;
use tower_lock::backend::{Backend, Released, conformance};
use tower_lock::{LockKey, PostgresBackend};
use uuid::Uuid;

use super::support::postgres_server::PostgresServer;
use super::{LONG, acquire, backend, is_busy, lease, release, try_acquire};

#[tokio::test(flavor = "multi_thread")]
async fn two_backends_pass_conformance() {
    let server = PostgresServer::start(&[]).await;
    let [one, other] = [backend(&server).await, backend(&server).await];
    conformance::all(&one, &other).await;
}

#[tokio::test]
async fn relaxed_backend_passes_conformance() {
    let server = PostgresServer::start(&[]).await;
    let builder = PostgresBackend::builder(server.url()).relaxed();
    let one = builder.response_timeout(LONG / 10).connect().await.unwrap();
    conformance::all(&one, &backend(&server).await).await;
}

/// A snapshot from before the mutex would show the last holder.
#[tokio::test]
async fn serializable_default_passes_conformance() {
    let server = PostgresServer::start(&["default_transaction_isolation=serializable"]).await;
    let [one, other] = [backend(&server).await, backend(&server).await];
    conformance::all(&one, &other).await;
}

fn pool(server: &PostgresServer) -> Pool {
    let manager = Manager::new(server.url().parse().unwrap(), NoTls);
    Pool::builder(manager).max_size(2).build().unwrap()
}

#[tokio::test]
async fn pool_without_listener_passes_conformance() {
    let server = PostgresServer::start(&[]).await;
    let pools = [pool(&server), pool(&server)];
    let [one, other] = pools.each_ref().map(|pool| {
        let builder = PostgresBackend::from_pool(pool.clone());
        builder.response_timeout(LONG / 10).connect()
    });
    conformance::all(&one.await.unwrap(), &other.await.unwrap()).await;
    assert_eq!(pools[0].status().size, 0, "the pool has room again");
}

/// Parsing and planning takes longer than running it.
#[tokio::test]
async fn commands_for_one_key_are_prepared() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    for number in 0..2 {
        let (key, lease) = (LockKey::new("x'; \\ 'ü"), lease());
        acquire(&backend, &key, lease, LONG).await;
        assert!(is_busy(&backend, &key).await, "{number}");
        assert_eq!(release(&backend, &key, lease).await, Released::Released);
    }
    assert_eq!(server.sessions("EXECUTE tower_lock_").await.len(), 2);
}

/// A row without its waiter would make other processes release the lock at each hand-off.
#[tokio::test]
async fn dropped_subscription_removes_its_row() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let mut hints = backend.watch(&LockKey::new("row"), Uuid::new_v4());
    hints.next().await;
    let client = server.client().await;
    let rows = async || {
        let rows = client.query_one("SELECT count(*) FROM tower_lock.watcher", &[]);
        rows.await.unwrap().get::<_, i64>(0)
    };
    assert_eq!(rows().await, 1);
    drop(hints);
    let begun = Instant::now();
    while rows().await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn busy_attempt_writes_no_wal() {
    let settings = [
        "autovacuum=off",
        "wal_level=minimal",
        "max_wal_senders=0",
        "bgwriter_lru_maxpages=0",
    ];
    let server = PostgresServer::start(&settings).await;
    let backend = backend(&server).await;
    let key = LockKey::new("busy");
    acquire(&backend, &key, lease(), LONG).await;
    assert!(is_busy(&backend, &key).await);
    let client = server.client().await;
    let position = async || {
        let row = client
            .query_one("SELECT pg_current_wal_insert_lsn()::text", &[])
            .await;
        row.unwrap().get::<_, String>(0)
    };
    let before = position().await;
    for _ in 0..100 {
        assert!(is_busy(&backend, &key).await);
    }
    let together = (0..100).map(|_| is_busy(&backend, &key));
    assert!(join_all(together).await.into_iter().all(|is_busy| is_busy));
    assert_eq!(position().await, before);
    // A grant is written.
    acquire(&backend, &LockKey::new("free"), lease(), LONG).await;
    assert_ne!(position().await, before);
}

/// A database of another encoding than UTF-8 has some keys only.
#[tokio::test]
async fn key_outside_of_encoding_fails_alone() {
    let server = PostgresServer::start(&[]).await;
    let create = "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1'";
    server.run(create).await;
    let builder = PostgresBackend::builder(server.url_in("latin"));
    let backend = builder.response_timeout(LONG / 10).connect().await.unwrap();
    for _ in 0..5 {
        let names = (0..20).map(|n| {
            if n == 10 {
                "鍵".into()
            } else {
                format!("clé {n}")
            }
        });
        let keys: Vec<_> = names.map(LockKey::new).collect();
        let holder = lease();
        let attempts = keys
            .iter()
            .map(|key| try_acquire(&backend, key, holder, LONG));
        for (n, outcome) in join_all(attempts).await.iter().enumerate() {
            assert_eq!(outcome.is_ok(), n != 10, "{n}: {outcome:?}");
        }
        for (_, key) in keys.iter().enumerate().filter(|(n, _)| *n != 10) {
            assert_eq!(release(&backend, key, holder).await, Released::Released);
        }
    }
}
