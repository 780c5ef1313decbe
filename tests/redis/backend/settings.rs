//! Settings, and errors of connecting.

use std::future::IntoFuture as _;
use std::num::NonZeroUsize;
use std::time::Duration;

use deadpool_redis::{Config, Runtime};
use static_assertions::assert_impl_all;
use tokio::time::{Instant, sleep};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::backend::{AcquireRequest, Backend, BackendErrorKind};
use tower_lock::{ConnectError, LockKey, LockManager, LockManagerBuilder, RedisBackend};

use super::client::{TTL, lease};
use crate::support::engine::{PATIENCE, eventually};
use crate::support::errors::debug_chain;
use crate::support::redis_server::RedisServer;

assert_impl_all!(RedisBackend: Clone, Send, Sync, std::fmt::Debug, Unpin);
assert_impl_all!(RedisBackendBuilder: Send, Sync, std::fmt::Debug, Unpin);

#[tokio::test]
async fn invalid_settings_are_named() {
    let builder = || RedisBackend::builder("redis://127.0.0.1:1");
    let many = NonZeroUsize::new(1_000_000).unwrap();
    for (field, builder) in [
        ("prefix", builder().prefix("a{b}")),
        ("prefix", builder().prefix("a\n")),
        ("connections", builder().connections(many)),
        ("connect_timeout", builder().connect_timeout(Duration::ZERO)),
        ("connect_timeout", builder().connect_timeout(Duration::MAX)),
        (
            "response_timeout",
            builder().response_timeout(Duration::ZERO),
        ),
        ("notify", builder().notify("nonsense")),
        ("url", RedisBackend::builder("redis+sentinel://h")),
        ("url", RedisBackend::builder("redis+cluster://h/1")),
        (
            "notify",
            RedisBackend::builder("redis+cluster://h").notify("redis://h"),
        ),
        ("sentinel_auth", builder().sentinel_auth("", "secret")),
        ("url", RedisBackend::builder("amqp://h")),
        (
            "redisson_fencing_tokens",
            builder().redisson_fencing_tokens().quarantine(TTL),
        ),
    ] {
        match builder.connect().await {
            Err(ConnectError::Config(error)) => assert_eq!(error.field(), field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn prefix_of_url_is_default_of_setting() {
    let server = RedisServer::start();
    let builder = || RedisBackend::builder(format!("{}?prefix=url%3A", server.url()));
    for (builder, name) in [(builder(), "url:k"), (builder().prefix("own:"), "own:k")] {
        let backend = builder.connect().await.unwrap();
        let request = AcquireRequest::new(LockKey::new("k"), lease(), TTL);
        backend.try_acquire(&request).await.unwrap();
        assert_eq!(server.cli(&["EXISTS", name]).trim(), "1", "{name}");
    }
    let url = format!("{}?prefix=url:", server.url());
    let manager = LockManager::connect(&url).await.unwrap();
    assert!(manager.is_locked("k").await.unwrap());
    let twice = RedisBackend::builder("redis://127.0.0.1:1?prefix=a&prefix=b");
    match twice.connect().await {
        Err(ConnectError::Config(error)) => assert_eq!(error.field(), "url"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn lazy_connect_finds_server_started_later() {
    let mut server = RedisServer::start();
    server.kill();
    let url = server.url();
    let builder = || RedisBackend::builder(url.clone());
    builder().connect().await.unwrap_err();
    let backend = builder().connect_lazy().unwrap();
    eventually("tried", || !backend.warnings().is_empty()).await;
    let warnings = backend.warnings().concat();
    assert!(warnings.contains("is unreachable"), "{warnings}");
    let key = LockKey::new("a");
    let refused = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), BackendErrorKind::Unavailable);
    server.launch_again();
    let deadline = Instant::now() + Duration::from_secs(10);
    while backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .is_err()
    {
        assert!(Instant::now() < deadline, "still unavailable");
        sleep(Duration::from_millis(20)).await;
    }
    // A wrong password is a warning, and an error of the first lock.
    let wrong = RedisBackend::builder(server.url_of("unknown", "wrong"));
    let backend = wrong.connect_lazy().unwrap();
    let request = AcquireRequest::new(key, lease(), TTL);
    let refused = backend.try_acquire(&request).await.unwrap_err();
    assert_eq!(refused.kind(), BackendErrorKind::Misconfigured);
    eventually("tried", || !backend.warnings().is_empty()).await;
    let warnings = backend.warnings().concat();
    assert!(
        warnings.contains("does not serve this client"),
        "{warnings}"
    );
    // A server that is there is tried as well.
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let backend = builder().connect_lazy().unwrap();
    eventually("tried", || !backend.warnings().is_empty()).await;
    assert!(backend.warnings()[0].contains("may evict"));
}

#[tokio::test]
async fn lazy_manager_connects_at_first_lock() {
    let mut server = RedisServer::start();
    server.kill();
    let url = server.url();
    let builder = || LockManagerBuilder::new().wait(PATIENCE);
    assert!(builder().connect(&url).await.is_err());
    let locks = builder().connect_lazy(&url).unwrap();
    let waiter = tokio::spawn(locks.acquire("a").into_future());
    server.launch_again();
    let guard = waiter.await.unwrap().unwrap();
    let other = builder().wait(Duration::ZERO).connect(&url).await.unwrap();
    assert!(other.acquire("a").await.unwrap_err().is_busy());
    drop(guard);
    for url in ["redis+cluster://127.0.0.1:1", "memory://a", "mysql://a"] {
        let error = builder().connect_lazy(url).unwrap_err();
        assert!(matches!(error, ConnectError::Config(_)), "{url}: {error:?}");
    }
    assert!(builder().connect_lazy("memory://").is_ok());
}

#[tokio::test]
async fn unreachable_server_is_named_within_connect_timeout() {
    let patience = Duration::from_millis(300);
    // This server accepts connections and never replies.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = mute.local_addr().unwrap().to_string();
    // The listener of this address is closed.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = closed.local_addr().unwrap().to_string();
    drop(closed);
    for (url, expected) in [
        (format!("redis://user:canary@{mute}"), mute.as_str()),
        (format!("redis://user:canary@{gone}"), gone.as_str()),
        (
            "redis+unix:///no/such.sock?pass=canary".to_owned(),
            "/no/such.sock",
        ),
    ] {
        let started = Instant::now();
        let builder = RedisBackend::builder(url).connect_timeout(patience);
        let error = builder.connect().await.unwrap_err();
        // Without the setting, two seconds. A busy machine may need most of them.
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{:?}",
            started.elapsed()
        );
        let ConnectError::Unreachable { address, .. } = &error else {
            panic!("{}", debug_chain(&error));
        };
        assert_eq!(address, expected);
        assert!(error.to_string().contains(expected));
        assert!(!debug_chain(&error).contains("canary"));
    }
}

#[tokio::test]
async fn debug_and_errors_omit_passwords() {
    let server = RedisServer::start();
    let rules = "ACL SETUSER some reset on >canary ~* &* +@all";
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let url = server.url_of("some", "canary");
    let builder = RedisBackend::builder(url.clone()).notify(url.clone());
    let mut shown = format!("{builder:?} {builder:#?}");
    let backend = builder.connect().await.unwrap();
    shown += &format!("{backend:?} {backend:#?} {:?}", backend.warnings());
    let pool = Config::from_url(url).create_pool(Some(Runtime::Tokio1));
    let builder = RedisBackend::from_pool(pool.unwrap());
    shown += &format!("{builder:?}");
    shown += &format!("{:?}", builder.connect().await.unwrap());
    let unix = format!("{}?user=some&pass=canary", server.unix_url());
    let builder = RedisBackend::builder(unix);
    shown += &format!("{builder:?}");
    shown += &format!("{:?}", builder.connect().await.unwrap());
    for url in [
        server.url_of("some", "wrong-canary"),
        server.url_of("canary", "canary"),
        "redis://some:canary@127.0.0.1:1/canary".to_owned(),
        "rediss://some:canary@127.0.0.1:1#canary".to_owned(),
    ] {
        let error = RedisBackend::builder(url).connect().await.unwrap_err();
        shown += &debug_chain(&error);
    }
    assert!(!shown.contains("canary"), "{shown}");
    assert!(shown.contains("127.0.0.1"), "the address is shown");
}
