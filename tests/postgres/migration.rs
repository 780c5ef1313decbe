//! The schema of locks, and the rights of its users.

use std::error::Error as _;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;
use tower_lock::backend::Released;
use tower_lock::{ConnectError, LockKey, LockManager, PostgresBackend};

use super::support::postgres_server::PostgresServer;
use super::{LONG, acquire, lease, release};

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_migrations_at_once_succeed() {
    let server = PostgresServer::start(&[]).await;
    for round in 0..5 {
        let database = format!("round_{round}");
        server.run(&format!("CREATE DATABASE {database}")).await;
        let url = server.url_in(&database);
        // Sixteen sessions compile the functions at once.
        let patient = || PostgresBackend::builder(url.clone()).response_timeout(LONG);
        let backends = (0..16).map(|_| patient().connect());
        for backend in join_all(backends).await {
            let (backend, key, holder) = (backend.unwrap(), LockKey::new("k"), lease());
            acquire(&backend, &key, holder, LONG).await;
            assert_eq!(release(&backend, &key, holder).await, Released::Released);
        }
    }
}

/// After a crash, many processes connect at once. The first one begins the counter, and its commit may take longer than
/// a grant waits for a mutex.
#[tokio::test]
async fn connect_waits_for_begin_of_counter() {
    let server = PostgresServer::start(&[]).await;
    server.run(PostgresBackend::MIGRATION).await;
    let other = server.client().await;
    let begin = other.batch_execute("BEGIN; SELECT tower_lock.draw(0)");
    begin.await.unwrap();
    let builder = PostgresBackend::builder(server.url()).response_timeout(LONG);
    let commit = async {
        sleep(Duration::from_secs(1)).await;
        other.batch_execute("COMMIT").await.unwrap();
    };
    let (backend, ()) = tokio::join!(builder.connect(), commit);
    backend.unwrap();
}

/// The begin of the counter is written by a later durable grant as well.
#[tokio::test(flavor = "multi_thread")]
async fn relaxed_connect_after_crash_waits_for_no_standby() {
    let server = PostgresServer::start(&[]).await;
    server.run(PostgresBackend::MIGRATION).await;
    let client = server.client().await;
    for statement in [
        "ALTER SYSTEM SET synchronous_standby_names = 'absent'",
        "SELECT pg_reload_conf()",
        "SET synchronous_commit = off",
        "TRUNCATE tower_lock.era",
    ] {
        client.batch_execute(statement).await.unwrap();
    }
    let builder = PostgresBackend::builder(server.url()).relaxed();
    builder.response_timeout(LONG).connect().await.unwrap();
}

#[tokio::test]
async fn missing_schema_error_contains_its_sql() {
    let server = PostgresServer::start(&[]).await;
    let connect = async || {
        let builder = PostgresBackend::builder(server.url()).migrate(false);
        builder.connect().await
    };
    let error = connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let cause = error.source().unwrap().source().unwrap().to_string();
    assert!(cause.contains(PostgresBackend::MIGRATION), "{cause}");
    server.run(PostgresBackend::MIGRATION).await;
    server.run(PostgresBackend::MIGRATION).await;
    connect().await.unwrap();
    let version = server.client().await;
    let version = version
        .query_one("SELECT max(version) FROM tower_lock.version", &[])
        .await;
    assert_eq!(version.unwrap().get::<_, i32>(0), 2);
}

/// The rights that `guide::postgres` lists.
const RIGHTS: &str = "
    CREATE ROLE app LOGIN PASSWORD 'app';
    GRANT USAGE ON SCHEMA tower_lock TO app;
    GRANT SELECT ON tower_lock.version TO app;
    GRANT SELECT, INSERT, UPDATE, DELETE ON tower_lock.lease, tower_lock.watcher, tower_lock.waiter TO app;
    GRANT SELECT, INSERT ON tower_lock.era TO app;
    GRANT USAGE, UPDATE ON tower_lock.counter TO app;
    GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tower_lock TO app;
    CREATE ROLE writer LOGIN PASSWORD 'writer';
    GRANT USAGE ON SCHEMA tower_lock TO writer;
    GRANT EXECUTE ON FUNCTION tower_lock.fence(text[], bigint[]), tower_lock.fence(text, bigint) TO writer;
    CREATE ROLE other LOGIN PASSWORD 'other';";

#[tokio::test]
async fn least_rights_suffice() {
    let server = PostgresServer::start(&[]).await;
    server.run(PostgresBackend::MIGRATION).await;
    server.run(RIGHTS).await;
    let url_of_app = server.url_of("app", "app", "postgres");
    let locks = LockManager::connect(&url_of_app).await.unwrap();
    let guard = locks.acquire("account:7").await.unwrap();
    let (fence, keys, tokens) = guard.fence();
    let url = server.url_of("writer", "writer", "postgres");
    let (mut writer, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let transaction = writer.transaction().await.unwrap();
    transaction.execute(fence, &[&keys, &tokens]).await.unwrap();
    let one = "SELECT tower_lock.fence($1::text, $2::bigint)";
    transaction
        .execute(one, &[&keys[0], &tokens[0]])
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let (app, connection) = tokio_postgres::connect(&url_of_app, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(async move { drop(connection.await) });
    app.execute("SELECT tower_lock.sweep_2()", &[])
        .await
        .unwrap();
    let denied = writer
        .execute(
            "SELECT tower_lock.release_one_2('account:7', NULL, false)",
            &[],
        )
        .await;
    assert_eq!(denied.unwrap_err().code().unwrap().code(), "42501");
    guard.release().await.unwrap();
    let url = server.url_of("other", "other", "postgres");
    let error = LockManager::connect(&url).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

/// The counter continues beside a copy of the data from before.
#[tokio::test]
async fn emptied_era_moves_counter_to_clock() {
    let server = PostgresServer::start(&[]).await;
    let backend = super::backend(&server).await;
    let key = LockKey::new("era");
    let holder = lease();
    let first = acquire(&backend, &key, holder, LONG).await;
    release(&backend, &key, holder).await;
    // As after a crash that lost the end of the sequence.
    server
        .run("SELECT setval('tower_lock.counter', 1); TRUNCATE tower_lock.era")
        .await;
    let next = acquire(&backend, &key, lease(), LONG).await;
    assert!(next > first, "{next} follows {first}");
}
