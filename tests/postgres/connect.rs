//! Servers that do not serve this client.

use std::error::Error;
use std::net::TcpListener;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tower_lock::{ConnectError, LockManager, PostgresBackend};

use super::LONG;
use super::support::postgres_server::PostgresServer;
use super::support::process::free_port;

fn text(error: &(dyn Error + 'static)) -> String {
    let mut text = format!("{error:?}");
    let mut level = Some(error);
    while let Some(error) = level {
        text += &error.to_string();
        level = error.source();
    }
    text
}

#[tokio::test]
async fn wrong_password_is_refused_and_not_printed() {
    let server = PostgresServer::start(&[]).await;
    server.run("CREATE ROLE app LOGIN PASSWORD 'right'").await;
    let url = server.url_of("app", "a-wrong-one", "postgres");
    let error = LockManager::connect(&url).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let text = text(&error);
    assert!(text.contains("28P01"), "{text}");
    assert!(!text.contains("a-wrong-one"), "{text}");
    let url = server.url_in("missing");
    let error = LockManager::connect(&url).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn unreachable_server_is_reported() {
    let url = format!("postgresql://app:secret@127.0.0.1:{}/shop", free_port());
    let error = LockManager::connect(&url).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
    assert!(!text(&error).contains("secret"));
}

#[tokio::test]
async fn invalid_settings_are_reported() {
    let short = PostgresBackend::builder("postgres://localhost").response_timeout(Duration::ZERO);
    for (builder, field) in [
        (
            PostgresBackend::builder("postgres://app:secret@localhost?mode=1"),
            "url",
        ),
        (
            PostgresBackend::builder("postgres://one,two,three/shop?port=1,2"),
            "url",
        ),
        (
            PostgresBackend::builder("postgres://localhost").listen("localhost"),
            "listen",
        ),
        (short, "response_timeout"),
    ] {
        match builder.connect().await.unwrap_err() {
            ConnectError::Config(error) => {
                assert_eq!(error.field(), field);
                assert!(!text(&error).contains("secret"));
            }
            error => panic!("{error:?}"),
        }
    }
}

#[tokio::test]
async fn url_error_shows_remedy_and_no_secret() {
    for (url, remedy) in [
        ("postgres://app:p@secret@localhost/shop", "%40"),
        (
            "postgres://app:secret@localhost?sslmode=verify-full",
            "sslmode",
        ),
        ("postgres://app:secret@localhost?secret=1", "parameter"),
    ] {
        let error = LockManager::connect(url).await.unwrap_err();
        let text = text(&error);
        assert!(matches!(error, ConnectError::Config(_)), "{text}");
        assert!(text.contains(remedy) && !text.contains("secret"), "{text}");
    }
}

/// 53300 of the server.
#[tokio::test]
async fn full_server_is_unreachable() {
    let server = PostgresServer::start(&[
        "max_connections=5",
        "superuser_reserved_connections=0",
        "max_wal_senders=0",
    ])
    .await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(server.client().await);
    }
    let error = LockManager::connect(&server.url()).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
    assert!(text(&error).contains("53300"), "{error:?}");
}

/// Another session keeps a table, as `VACUUM FULL` does, or the server hangs.
#[tokio::test]
async fn connect_ends_without_reply() {
    let server = PostgresServer::start(&[]).await;
    server.run(PostgresBackend::MIGRATION).await;
    let client = server.client().await;
    let lock = "BEGIN; LOCK TABLE tower_lock.version IN ACCESS EXCLUSIVE MODE";
    client.batch_execute(lock).await.unwrap();
    let url = server.url();
    let connect = timeout(LONG, LockManager::connect(&url));
    let error = connect.await.expect("it ends").unwrap_err();
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
}

/// Returns the URL of the first of several servers that accepts writes.
fn url_of(ports: &[u16]) -> String {
    PostgresServer::url_of_hosts(ports) + "?target_session_attrs=read-write&connect_timeout=1"
}

#[tokio::test]
async fn hung_host_is_passed_over() {
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = PostgresServer::start(&[]).await;
    let url = url_of(&[hung.local_addr().unwrap().port(), server.port()]);
    let locks = LockManager::connect(&url).await.unwrap();
    locks.acquire("one").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn read_only_host_is_passed_over() {
    let server = PostgresServer::start(&[]).await;
    let standby = PostgresServer::start(&["default_transaction_read_only=on"]).await;
    let url = url_of(&[standby.port(), server.port()]);
    let locks = LockManager::connect(&url).await.unwrap();
    locks.acquire("one").await.unwrap().release().await.unwrap();
    let error = LockManager::connect(&url_of(&[standby.port()])).await;
    let error = error.unwrap_err();
    let is_expected = matches!(error, ConnectError::Unreachable { .. });
    assert!(is_expected, "{error:?}");
}

#[tokio::test]
async fn read_only_server_is_left_for_next_host() {
    let [first, second] = [
        PostgresServer::start(&[]).await,
        PostgresServer::start(&[]).await,
    ];
    let url = url_of(&[first.port(), second.port()]);
    for server in [&first, &second] {
        server.run(PostgresBackend::MIGRATION).await;
    }
    let locks = LockManager::connect(&url).await.unwrap();
    locks.acquire("one").await.unwrap().release().await.unwrap();
    first
        .run("ALTER SYSTEM SET default_transaction_read_only = on")
        .await;
    first.run("SELECT pg_reload_conf()").await;
    let begun = Instant::now();
    let count = "SELECT count(*) FROM tower_lock.lease";
    loop {
        let guard = locks.acquire("two").wait(Duration::from_secs(10)).await;
        let guard = guard.unwrap();
        let row = second.client().await.query_one(count, &[]).await.unwrap();
        // The first server may reject it from now on.
        drop(guard.release().await);
        if row.get::<_, i64>(0) == 1 {
            return;
        }
        // The sessions read the setting shortly after.
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

/// Their functions and row locks differ, so the schema of locks would fail with an error of one of its statements.
#[tokio::test]
async fn other_products_are_refused_by_name() {
    let server = PostgresServer::start(&[]).await;
    let products = [
        (
            "CockroachDB",
            "CockroachDB CCL v24.3.1 (x86_64-pc-linux-gnu, built 2024/12/06 15:12:53, go1.22.8)",
        ),
        (
            "YugabyteDB",
            "PostgreSQL 15.2-YB-2.25.0.0-b489 on x86_64-pc-linux-gnu, compiled by clang 17.0.6",
        ),
    ];
    server.run("CREATE SCHEMA other").await;
    let database = "ALTER DATABASE postgres SET search_path = other, pg_catalog";
    server.run(database).await;
    for (name, version) in products {
        let function = format!(
            "CREATE OR REPLACE FUNCTION other.version() RETURNS text LANGUAGE sql AS $$ SELECT '{version}' $$"
        );
        server.run(&function).await;
        let error = LockManager::connect(&server.url()).await.unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        let expected = format!("{name} is not supported; use PostgreSQL 13 or newer");
        assert!(text(&error).contains(&expected), "{error:?}");
        let schema = "SELECT FROM pg_namespace WHERE nspname = 'tower_lock'";
        let rows = server.client().await.query(schema, &[]).await.unwrap();
        assert!(rows.is_empty(), "nothing is created");
    }
    server.run("DROP FUNCTION other.version()").await;
    LockManager::connect(&server.url()).await.unwrap();
}
