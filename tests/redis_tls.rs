//! Locks through TLS, and whom it trusts.
// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::error::Error;
use std::future::IntoFuture as _;
use std::time::Duration;

use deadpool_redis::{Config, Runtime};
use tokio::time::{sleep, timeout};
use tower_lock::backend::redis::{RedisBackend, RedisBackendBuilder};
use tower_lock::backend::{AcquireRequest, Hints, LeaseId, Release, conformance};
use tower_lock::{Backend as _, ConnectError, ErrorKind, LockKey, LockManager};
use uuid::Uuid;

use support::engine::{PATIENCE, SECOND, eventually, nothing_is_left, subscribers};
use support::redis_server::RedisServer;
use support::tls::{Authority, TlsServer};

/// For locks that are to be renewed often.
const SHORT: Duration = Duration::from_millis(1_500);

/// A client that is patient with a busy machine.
fn at(url: impl Into<String>) -> RedisBackendBuilder {
    let builder = RedisBackend::builder(url).connect_timeout(PATIENCE);
    builder.response_timeout(PATIENCE)
}

/// And trusts the server.
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

/// An error and all its causes.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// The whole story of a client that is refused.
async fn refusal(builder: RedisBackendBuilder) -> String {
    let error = builder.connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    chain(&error)
}

// ---- what works ----

#[tokio::test]
async fn redis_through_tls_keeps_the_contract() {
    let server = TlsServer::start();
    keeps_the_contract(|| builder(&server)).await;
}

#[tokio::test]
async fn redis_with_client_certificates_keeps_the_contract() {
    let server = TlsServer::start_mutual();
    let shown = server.authority().issue();
    keeps_the_contract(|| {
        builder(&server).client_certificate(shown.certificate.as_str(), shown.key.as_str())
    })
    .await;
}

#[tokio::test]
async fn a_cluster_through_tls_keeps_the_contract() {
    let options = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let options = [&options[..], &["--tls-auth-clients", "no"]].concat();
    // One node is enough: it tells its own address, as all do.
    let server = TlsServer::start_with(&options);
    server
        .server()
        .cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("a cluster in order", || {
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

#[tokio::test]
async fn a_primary_is_found_and_used_through_tls() {
    let primary = TlsServer::start();
    let port = primary.port();
    let configuration = format!("sentinel monitor locks 127.0.0.1 {port} 1\n");
    let options = ["--sentinel", "--tls-replication", "yes"];
    let options = [&options[..], &["--tls-auth-clients", "no"]].concat();
    let sentinel = primary.start_beside(&configuration, &options);
    let url = sentinel.url().replace("rediss://", "rediss+sentinel://") + "/locks";
    let locks = manager(at(&url).ca_certificate(primary.ca())).await;
    let guard = locks.acquire("a").await.unwrap();
    assert_eq!(primary.server().cli(&["EXISTS", "lock:a"]), "1");
    guard.release().await.unwrap();
    let other = at(&url).ca_certificate(Authority::new().ca());
    assert!(refusal(other).await.contains("certificate"));
}

#[tokio::test]
async fn locks_are_granted_renewed_and_handed_on_and_nothing_goes_in_the_clear() {
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
async fn messages_come_through_tls() {
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
        // Commands are the pool's business, messages are not.
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
        let mut hints = backend.watch(&key);
        hinted(&mut hints).await;
        for released in backend.release(&[Release::new(key, lease)]).await {
            released.unwrap();
        }
        hinted(&mut hints).await;
    }
}

#[tokio::test]
async fn older_servers_are_spoken_to_in_tls_1_2() {
    let options = ["--tls-auth-clients", "no", "--tls-protocols", "TLSv1.2"];
    let server = TlsServer::start_with(&options);
    builder(&server).connect().await.unwrap();
}

#[tokio::test]
async fn of_several_authorities_one_is_enough() {
    let server = TlsServer::start();
    let bundle = [Authority::new().ca(), server.ca()].concat();
    let builder = at(server.url()).ca_certificate(bundle);
    builder.connect().await.unwrap();
}

// ---- who is not trusted ----

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let server = TlsServer::start();
    let other = Authority::new();
    let story = refusal(at(server.url()).ca_certificate(other.ca())).await;
    assert!(story.contains("invalid peer certificate"), "{story}");
}

#[tokio::test]
async fn by_default_only_public_authorities_are_trusted() {
    let server = TlsServer::start();
    let story = refusal(at(server.url())).await;
    assert!(story.contains("invalid peer certificate"), "{story}");
    let error = LockManager::connect(&server.url()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_of_another_name_is_refused() {
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
    let port = primary.port();
    let configuration = format!("sentinel monitor locks 127.0.0.1 {port} 1\n");
    let options = ["--sentinel", "--tls-replication", "yes"];
    let options = [&options[..], &["--tls-auth-clients", "no"]].concat();
    let sentinel = primary.start_beside(&configuration, &options);
    primary.show(&primary.authority().issue_for(&["localhost"]));
    let url = sentinel.url().replace("rediss://", "rediss+sentinel://") + "/locks";
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
    eventually("a cluster in order", || info().contains("state:ok")).await;
    server.show(&server.authority().issue_for(&["locks.example"]));
    let url = server.url().replace("rediss://", "rediss+cluster://");
    let builder = || at(&url).ca_certificate(server.ca());
    refusal(builder()).await;
    let locks = manager(builder().tls_server_name("locks.example")).await;
    locks.acquire("a").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_refuses_those_without_a_good_one() {
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
                // In TLS 1.3 the client is done before the server has looked at its certificate,
                // and may run into the end of the connection before it reads of the reason.
                ConnectError::Unreachable { .. } if version == "TLSv1.3" => {}
                error => panic!("{version}: {error:?}"),
            }
        }
        let good = server.authority().issue();
        let good = builder(&server).client_certificate(good.certificate, good.key);
        good.connect().await.unwrap();
    }
}

/// Whether it takes the greeting for half a command, and waits for the rest, or for a wrong one,
/// depends on random bytes in it.
#[tokio::test]
async fn a_server_without_tls_is_not_spoken_to() {
    let server = RedisServer::start();
    let url = server.url().replace("redis://", "rediss://");
    let builder = RedisBackend::builder(url).connect_timeout(SECOND / 2);
    let error = builder.connect().await.unwrap_err();
    assert!(!matches!(error, ConnectError::Config(_)), "{error:?}");
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn a_port_for_tls_does_not_answer_plain_text() {
    let server = TlsServer::start();
    let url = server.url().replace("rediss://", "redis://");
    let error = at(url).connect().await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_certificate_that_went_bad_is_told_and_a_good_one_heals_it() {
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

// ---- what cannot be used ----

#[tokio::test]
async fn certificates_that_cannot_be_used_are_named() {
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
    // Nothing would look at them.
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
