//! Connections over TLS, and the certificates that a connect rejects.

use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use tokio::time::timeout;
use tokio_postgres::NoTls;
use tower_lock::backend::Backend as _;
use tower_lock::backend::conformance;
use tower_lock::backend::postgres::PostgresBackendBuilder;
use tower_lock::{ConnectError, LockKey, PostgresBackend};
use uuid::Uuid;

use super::LONG;
use super::support::errors::chain;
use super::support::postgres_server::PostgresServer;
use super::support::tls::{Authority, Identity};

async fn server_of(identity: &Identity) -> PostgresServer {
    let files = [
        ("server.crt", &*identity.certificate),
        ("server.key", &*identity.key),
    ];
    PostgresServer::start_with_files(&["ssl=on"], &files).await
}

fn builder(server: &PostgresServer) -> PostgresBackendBuilder {
    let builder = PostgresBackend::builder(format!("{}?sslmode=require", server.url()));
    builder.response_timeout(LONG / 10)
}

#[tokio::test]
async fn postgres_over_tls_passes_conformance() {
    let authority = Authority::new();
    let server = server_of(&authority.issue()).await;
    let connect = async || {
        let builder = builder(&server).ca_certificate(authority.ca());
        builder.connect().await.unwrap()
    };
    let [one, other] = [connect().await, connect().await];
    conformance::all(&one, &other).await;
}

#[tokio::test]
async fn all_connections_use_tls() {
    let authority = Authority::new();
    let server = server_of(&authority.issue()).await;
    let connect = builder(&server).ca_certificate(authority.ca()).connect();
    let backend = connect.await.unwrap();
    let mut hints = backend.watch(&LockKey::new("k"), Uuid::new_v4());
    timeout(LONG, hints.next()).await.unwrap();
    let client = server.client().await;
    let count = "SELECT count(*) FILTER (WHERE ssl), count(*) FROM pg_stat_ssl
        JOIN pg_stat_activity USING (pid) WHERE application_name = 'tower-lock'";
    let row = client.query_one(count, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (3, 3));
}

#[tokio::test]
async fn untrusted_certificate_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = server_of(&authority.issue()).await;
    let named = server_of(&authority.issue_for(&["elsewhere.example"])).await;
    for (server, trusted) in [
        (&server, None),
        (&server, Some(other.ca())),
        (&named, Some(authority.ca())),
    ] {
        let builder = match trusted {
            Some(ca) => builder(server).ca_certificate(ca),
            None => builder(server),
        };
        let error = builder.connect().await.unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        let story = chain(&error);
        assert!(story.contains("invalid peer certificate"), "{story}");
    }
}

#[tokio::test]
async fn plain_server_is_refused() {
    let server = PostgresServer::start(&[]).await;
    let error = builder(&server).connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn unusable_ca_returns_config_error() {
    let authority = Authority::new();
    let ca = String::from_utf8(authority.ca().to_vec()).unwrap();
    let identity = authority.issue();
    const PLAIN: &str = "postgres://127.0.0.1:1";
    const TLS: &str = "postgres://127.0.0.1:1?sslmode=require";
    let tls = || PostgresBackend::builder(TLS);
    let mut unusable = Vec::new();
    for pem in ["", "no PEM", &identity.key, &ca.replace("MII", "MIJ")] {
        unusable.push(tls().ca_certificate(pem));
    }
    let pool = Pool::builder(Manager::new(PLAIN.parse().unwrap(), NoTls));
    // These connections would ignore it.
    for builder in [
        PostgresBackend::builder(PLAIN),
        tls().listen(PLAIN),
        PostgresBackend::from_pool(pool.build().unwrap()).listen(TLS),
    ] {
        unusable.push(builder.ca_certificate(&*ca));
    }
    for (index, builder) in unusable.into_iter().enumerate() {
        match timeout(Duration::from_secs(5), builder.connect()).await {
            Ok(Err(ConnectError::Config(error))) => assert_eq!(error.field(), "ca_certificate"),
            outcome => panic!("{index}: {outcome:?}"),
        }
    }
}
