//! Servers that do not serve this client.

use std::error::Error;
use std::time::Duration;

use tower_lock::{ConnectError, LockManager, PostgresBackend};

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
