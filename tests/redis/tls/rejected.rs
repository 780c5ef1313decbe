//! Certificates and ports that a connect rejects.

use tokio::time::timeout;
use tower_lock::{ConnectError, ErrorKind, LockManager, RedisBackend};

use super::{SHORT, at, builder, refusal};
use crate::support::engine::{PATIENCE, SECOND, manager_from};
use crate::support::errors::chain;
use crate::support::redis_server::RedisServer;
use crate::support::tls::{Authority, TlsServer};

#[tokio::test]
async fn server_of_other_ca_is_rejected() {
    let server = TlsServer::start();
    let other = Authority::new();
    let story = refusal(at(server.url()).ca_certificate(other.ca())).await;
    assert!(story.contains("invalid peer certificate"), "{story}");
}

#[tokio::test]
async fn default_trust_rejects_private_ca() {
    let server = TlsServer::start();
    let story = refusal(at(server.url())).await;
    assert!(story.contains("invalid peer certificate"), "{story}");
    let error = LockManager::connect(&server.url()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn mutual_tls_rejects_missing_or_foreign_certificate() {
    let options = ["--tls-auth-clients", "yes", "--tls-protocols"];
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server = TlsServer::start_with(&[&options[..], &[version]].concat());
        let other = Authority::new().issue();
        for stranger in [
            builder(&server),
            builder(&server).client_certificate(other.certificate, other.key),
        ] {
            let error = stranger.connect().await.unwrap_err();
            match &error {
                ConnectError::Refused { .. } => {
                    assert!(chain(&error).contains("received fatal alert"), "{error:?}");
                }
                // In TLS 1.3 the client finishes before the server checks its certificate. It may
                // find the connection closed before it reads the reason.
                ConnectError::Unreachable { .. } if version == "TLSv1.3" => {}
                error => panic!("{version}: {error:?}"),
            }
        }
        let good = server.authority().issue();
        let good = builder(&server).client_certificate(good.certificate, good.key);
        good.connect().await.unwrap();
    }
}

/// Random bytes in the greeting decide how the server parses it: as a partial command, which times
/// out, or as an invalid one.
#[tokio::test]
async fn tls_connect_to_plain_server_fails() {
    let server = RedisServer::start();
    let url = server.url().replace("redis://", "rediss://");
    let builder = RedisBackend::builder(url).connect_timeout(SECOND / 2);
    let error = builder.connect().await.unwrap_err();
    assert!(!matches!(error, ConnectError::Config(_)), "{error:?}");
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn plain_connect_to_tls_port_fails() {
    let server = TlsServer::start();
    let url = server.url().replace("rediss://", "redis://");
    let error = at(url).connect().await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn invalid_certificate_is_reported_until_replaced() {
    let server = TlsServer::start();
    let locks = manager_from(builder(&server), SHORT).await;
    server.show(&Authority::new().issue());
    server.server().cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let error = locks.acquire("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(chain(&error).contains("certificate"), "{}", chain(&error));
    server.show(&server.authority().issue());
    let granted = async { while locks.acquire("a").await.is_err() {} };
    timeout(PATIENCE, granted).await.expect("a lock again");
}
