//! Locks over TLS, and the certificates that it accepts.

use std::future::IntoFuture as _;
use std::time::Duration;

use deadpool_redis::{Config, Runtime};
use tokio::time::{sleep, timeout};
use tower_lock::backend::redis::{RedisBackend, RedisBackendBuilder};
use tower_lock::backend::{AcquireRequest, Hints, LeaseId, Release, conformance};
use tower_lock::{Backend as _, ConnectError, ErrorKind, LockKey, LockManager};
use uuid::Uuid;

use crate::support::cluster::add_all_slots;
use crate::support::engine::{PATIENCE, SECOND, eventually, nothing_is_left, subscribers};
use crate::support::errors::chain;
use crate::support::redis_server::RedisServer;
use crate::support::tls::{Authority, TlsServer};

/// For locks with frequent renewals.
const SHORT: Duration = Duration::from_millis(1_500);

/// Creates a builder with long timeouts for a busy machine.
fn at(url: impl Into<String>) -> RedisBackendBuilder {
    let builder = RedisBackend::builder(url).connect_timeout(PATIENCE);
    builder.response_timeout(PATIENCE)
}

/// Creates a builder that trusts the server.
fn builder(server: &TlsServer) -> RedisBackendBuilder {
    at(server.url()).ca_certificate(server.ca())
}

async fn keeps_the_contract(builder: impl Fn() -> RedisBackendBuilder) {
    let (one, other) = (
        builder().connect().await.unwrap(),
        builder().connect().await.unwrap(),
    );
    conformance::all(&one, &other).await;
}

async fn manager(builder: RedisBackendBuilder) -> LockManager {
    let backend = builder.connect().await.unwrap();
    let builder = LockManager::builder(backend).watchdog_timeout(SHORT);
    builder.build().unwrap()
}

async fn hinted(hints: &mut Hints) {
    timeout(PATIENCE, hints.next()).await.expect("a hint");
}

/// Returns the causes of a rejected connect.
async fn refusal(builder: RedisBackendBuilder) -> String {
    let error = builder.connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    chain(&error)
}

// ---- what works ----

#[tokio::test]
async fn redis_over_tls_passes_conformance() {
    let server = TlsServer::start();
    keeps_the_contract(|| builder(&server)).await;
}

#[tokio::test]
async fn redis_with_mutual_tls_passes_conformance() {
    let server = TlsServer::start_mutual();
    let shown = server.authority().issue();
    keeps_the_contract(|| {
        builder(&server).client_certificate(shown.certificate.as_str(), shown.key.as_str())
    })
    .await;
}

#[tokio::test]
async fn cluster_over_tls_passes_conformance() {
    let options = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let options = [&options[..], &["--tls-auth-clients", "no"]].concat();
    // One node is enough: like every node, it reports its own address.
    let server = TlsServer::start_with(&options);
    add_all_slots(server.server());
    eventually("a ready cluster", || {
        let info = server.server().cli(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok")
    })
    .await;
    let url = server.url().replace("rediss://", "rediss+cluster://");
    let of_cluster = || at(&url).ca_certificate(server.ca());
    keeps_the_contract(of_cluster).await;
    let other = at(&url).ca_certificate(Authority::new().ca());
    assert!(refusal(other).await.contains("certificate"));
}

/// Starts a sentinel of this primary. Returns it, and the URL of the locks.
fn sentinel_of(primary: &TlsServer) -> (TlsServer, String) {
    let port = primary.port();
    let configuration = format!("sentinel monitor locks 127.0.0.1 {port} 1\n");
    let options = ["--sentinel", "--tls-replication", "yes"];
    let options = [&options[..], &["--tls-auth-clients", "no"]].concat();
    let sentinel = primary.start_beside(&configuration, &options);
    let url = sentinel.url().replace("rediss://", "rediss+sentinel://") + "/locks";
    (sentinel, url)
}

#[tokio::test]
async fn sentinel_over_tls_finds_primary() {
    let primary = TlsServer::start();
    let (_sentinel, url) = sentinel_of(&primary);
    let locks = manager(at(&url).ca_certificate(primary.ca())).await;
    let guard = locks.acquire("a").await.unwrap();
    assert_eq!(primary.server().cli(&["EXISTS", "lock:a"]), "1");
    guard.release().await.unwrap();
    let other = at(&url).ca_certificate(Authority::new().ca());
    assert!(refusal(other).await.contains("certificate"));
}

#[tokio::test]
async fn locks_over_tls_use_no_plain_connection() {
    let server = TlsServer::start();
    let (here, there) = (
        manager(builder(&server)).await,
        manager(builder(&server)).await,
    );
    let guard = here.acquire("a").await.unwrap();
    let waiting = tokio::spawn(there.acquire("a").wait_forever().into_future());
    eventually("it subscribes", || subscribers(server.server(), "a") > 0).await;
    sleep(2 * SHORT).await;
    assert!(guard.is_held() && !waiting.is_finished(), "renewed");

    let local = format!("laddr=127.0.0.1:{} ", server.port());
    for kind in ["normal", "pubsub"] {
        let clients = server.server().clients(kind);
        assert!(!clients.is_empty(), "{kind}");
        assert!(clients.iter().all(|it| it.contains(&local)), "{clients:?}");
    }
    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    next.release().await.unwrap();
    nothing_is_left(server.server(), &[&here, &there], PATIENCE, "the end").await;
}

#[tokio::test]
async fn notifications_arrive_over_tls() {
    let server = TlsServer::start_mutual();
    let shown = server.authority().issue();
    let config = Config::from_url(server.server().url());
    let pool = config.create_pool(Some(Runtime::Tokio1)).unwrap();
    let with = |builder: RedisBackendBuilder| {
        let builder = builder.client_certificate(shown.certificate.as_str(), shown.key.as_str());
        builder.connect()
    };
    for backend in [
        with(builder(&server)).await.unwrap(),
        // The pool sends the commands. The notifier uses a TLS connection of its own.
        with(
            RedisBackend::from_pool(pool)
                .notify(server.url())
                .ca_certificate(server.ca()),
        )
        .await
        .unwrap(),
    ] {
        let (key, lease) = (LockKey::new("a"), LeaseId::new(Uuid::new_v4(), 1));
        let granted = backend
            .try_acquire(&AcquireRequest::new(key.clone(), lease, 10 * SECOND))
            .await;
        granted.unwrap();
        let mut hints = backend.watch(&key, Uuid::new_v4());
        hinted(&mut hints).await;
        for released in backend.release(&[Release::new(key, lease)]).await {
            released.unwrap();
        }
        hinted(&mut hints).await;
    }
}

#[tokio::test]
async fn tls_1_2_server_accepts_connection() {
    let options = ["--tls-auth-clients", "no", "--tls-protocols", "TLSv1.2"];
    let server = TlsServer::start_with(&options);
    builder(&server).connect().await.unwrap();
}

#[tokio::test]
async fn ca_bundle_with_one_matching_ca_is_accepted() {
    let server = TlsServer::start();
    let bundle = [Authority::new().ca(), server.ca()].concat();
    let builder = at(server.url()).ca_certificate(bundle);
    builder.connect().await.unwrap();
}

// ---- rejected peers ----

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
async fn server_of_other_name_is_rejected() {
    let server = TlsServer::start();
    server.show(&server.authority().issue_for(&["elsewhere.example"]));
    let story = refusal(builder(&server)).await;
    assert!(story.contains("not valid for name"), "{story}");
    server.show(&server.authority().issue_for(&["localhost"]));
    refusal(builder(&server)).await;
    let by_name = server.url().replace("127.0.0.1", "localhost");
    let by_name = at(by_name).ca_certificate(server.ca());
    by_name.connect().await.unwrap();
}

#[tokio::test]
async fn server_name_replaces_host_in_certificate() {
    let server = TlsServer::start();
    server.show(&server.authority().issue_for(&["locks.example"]));
    let story = refusal(builder(&server)).await;
    assert!(story.contains("not valid for name"), "{story}");
    let named = || builder(&server).tls_server_name("locks.example");
    let (here, there) = (manager(named()).await, manager(named()).await);
    let guard = here.acquire("a").await.unwrap();
    let waiting = tokio::spawn(there.acquire("a").wait_forever().into_future());
    eventually("it subscribes", || subscribers(server.server(), "a") > 0).await;
    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    next.release().await.unwrap();
    let wrong = builder(&server).tls_server_name("elsewhere.example");
    let story = refusal(wrong).await;
    assert!(story.contains("not valid for name"), "{story}");
}

#[tokio::test]
async fn server_name_reaches_sentinel_and_primary() {
    let primary = TlsServer::start();
    let (_sentinel, url) = sentinel_of(&primary);
    primary.show(&primary.authority().issue_for(&["localhost"]));
    let builder = || at(&url).ca_certificate(primary.ca());
    let story = refusal(builder()).await;
    assert!(story.contains("primary"), "{story}");
    let locks = manager(builder().tls_server_name("localhost")).await;
    locks.acquire("a").await.unwrap().release().await.unwrap();
    let story = refusal(builder().tls_server_name("locks.example")).await;
    assert!(story.contains("no sentinel could be asked"), "{story}");
}

#[tokio::test]
async fn server_name_reaches_cluster_nodes() {
    let options = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let options = [&options[..], &["--tls-auth-clients", "no"]].concat();
    let server = TlsServer::start_with(&options);
    let all = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    server.server().cli(&all);
    let info = || server.server().cli(&["CLUSTER", "INFO"]);
    eventually("a ready cluster", || info().contains("state:ok")).await;
    server.show(&server.authority().issue_for(&["locks.example"]));
    let url = server.url().replace("rediss://", "rediss+cluster://");
    let builder = || at(&url).ca_certificate(server.ca());
    refusal(builder()).await;
    let locks = manager(builder().tls_server_name("locks.example")).await;
    locks.acquire("a").await.unwrap().release().await.unwrap();
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
    let locks = manager(builder(&server)).await;
    server.show(&Authority::new().issue());
    server.server().cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let error = locks.acquire("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(chain(&error).contains("certificate"), "{}", chain(&error));
    server.show(&server.authority().issue());
    let granted = async { while locks.acquire("a").await.is_err() {} };
    timeout(PATIENCE, granted).await.expect("a lock again");
}

// ---- unusable settings ----

#[tokio::test]
async fn unusable_certificates_return_config_error() {
    let authority = Authority::new();
    let (good, other) = (authority.issue(), authority.issue());
    let ca = String::from_utf8(authority.ca().to_vec()).unwrap();
    let cut = &good.key[..good.key.len() / 2];
    let tls = || RedisBackend::builder("rediss://127.0.0.1:1");
    let pool = || {
        let config = Config::from_url("redis://127.0.0.1:1");
        RedisBackend::from_pool(config.create_pool(Some(Runtime::Tokio1)).unwrap())
    };
    let mut unusable = Vec::new();
    for pem in ["", "no PEM", &good.key, cut, &ca.replace("MII", "MIJ")] {
        unusable.push(("ca_certificate", tls().ca_certificate(pem)));
    }
    for (certificate, key) in [
        ("", &*good.key),
        (&good.certificate, ""),
        (&good.certificate, cut),
        (&good.certificate, &other.key),
        (&good.certificate, &good.certificate),
        (&good.key, &good.certificate),
    ] {
        let builder = tls().client_certificate(certificate, key);
        unusable.push(("client_certificate", builder));
    }
    // These connections would ignore a CA certificate.
    for builder in [
        RedisBackend::builder("redis://127.0.0.1:1"),
        RedisBackend::builder("redis+unix:///nowhere"),
        RedisBackend::builder("redis+sentinel://127.0.0.1:1/locks"),
        RedisBackend::builder("redis+cluster://127.0.0.1:1"),
        tls().notify("redis://127.0.0.1:1"),
        pool(),
        pool().notify("redis://127.0.0.1:1"),
    ] {
        unusable.push(("ca_certificate", builder.ca_certificate(&*ca)));
    }
    for builder in [
        tls().tls_server_name(""),
        tls().tls_server_name("no name"),
        RedisBackend::builder("redis://127.0.0.1:1").tls_server_name("locks.example"),
        pool().tls_server_name("locks.example"),
    ] {
        unusable.push(("tls_server_name", builder));
    }
    let plain = RedisBackend::builder("redis://127.0.0.1:1");
    let plain = plain.client_certificate(&*good.certificate, &*good.key);
    unusable.push(("client_certificate", plain));

    let secret = &good.key.lines().nth(1).unwrap()[..20];
    for (index, (field, builder)) in unusable.into_iter().enumerate() {
        assert!(!format!("{builder:?}").contains(secret));
        match builder.connect().await {
            Err(ConnectError::Config(error)) => {
                assert_eq!(error.field(), field, "{index}: {error}");
                assert!(!format!("{error} {error:?}").contains(secret));
            }
            outcome => panic!("{index}: {outcome:?}"),
        }
    }
}
