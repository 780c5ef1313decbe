//! The connection of subscriptions.

use std::num::NonZeroUsize;
use std::time::Duration;

use redis::Commands as _;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::{AcquireRequest, Acquired, Backend, Release, Renewed};
use tower_lock::{LockKey, RedisBackend};

use super::client::{MANAGER, TTL, connect, grant, hinted, lease, release, renew, stranger};
use crate::support::engine::{PATIENCE, eventually, within};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn subscriptions_share_one_connection_until_dropped() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut watches: Vec<_> = (0..1_200)
        .map(|number| backend.watch(&LockKey::new(format!("a:{number}")), MANAGER))
        .collect();
    for hints in &mut watches {
        assert!(hinted(hints).await);
    }
    let clients = server.clients("pubsub");
    assert_eq!(clients.len(), 1);
    // The channel of the releases, the one of this crate and the one of the manager.
    assert!(clients[0].contains(" sub=3600 "), "{clients:?}");

    // A watch that follows at once reuses the existing subscription.
    watches.truncate(1);
    drop(backend.watch(&LockKey::new("a:5"), MANAGER));
    eventually("the channels are unsubscribed", || {
        server
            .clients("pubsub")
            .iter()
            .any(|client| client.contains(" sub=3 "))
    })
    .await;
    watches.clear();
    let left = Instant::now();
    eventually("the connection is closed", || {
        server.clients("pubsub").is_empty()
    })
    .await;
    assert!(left.elapsed() > Duration::from_secs(1), "closed early");
    assert!(format!("{backend:?}").contains("RedisBackend"));

    let mut again = backend.watch(&LockKey::new("a:1"), MANAGER);
    assert!(hinted(&mut again).await, "the next watch subscribes again");
}

#[tokio::test]
async fn killed_subscription_is_restored_and_hints() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut hints = [
        backend.watch(&LockKey::new("a"), MANAGER),
        backend.watch(&LockKey::new("b"), MANAGER),
    ];
    for hints in &mut hints {
        assert!(hinted(hints).await, "in force");
    }
    for _ in 0..2 {
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        for hints in &mut hints {
            assert!(hinted(hints).await, "in force again");
        }
    }
    grant(&backend, "a").await;
    release(&backend, "a").await.unwrap();
    assert!(hinted(&mut hints[0]).await, "a message");
    let quiet = timeout(Duration::from_millis(300), hints[1].next()).await;
    assert!(quiet.is_err(), "the other key was not released");
}

#[tokio::test]
async fn subscription_survives_server_restart() {
    let mut server = RedisServer::start();
    let backend = connect(&server).await;
    let mut hints = backend.watch(&LockKey::new("a"), MANAGER);
    assert!(hinted(&mut hints).await);
    server.kill();
    sleep(Duration::from_millis(300)).await;
    server.launch_again();
    assert!(hinted(&mut hints).await, "in force again");
}

#[tokio::test]
async fn silent_subscription_connection_is_replaced() {
    /// The interval of the probe, its timeout and a tolerance for a busy machine.
    const LIMIT: Duration = Duration::from_millis(3_000 + 500 + 2_500);
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let builder = RedisBackend::builder(proxy.url()).connect_timeout(PATIENCE);
    let backend = builder.connect().await.unwrap();
    let mut hints = backend.watch(&LockKey::new("a"), MANAGER);
    assert!(hinted(&mut hints).await);
    let before = proxy.accepted();
    proxy.freeze();
    within(LIMIT, "a new connection", || proxy.accepted() > before).await;
    assert!(hinted(&mut hints).await, "subscribed again");
}

#[tokio::test]
async fn subscribe_without_permission_backs_off() {
    let server = RedisServer::start();
    let all = [
        "ACL", "SETUSER", "some", "reset", "on", ">secret", "~*", "&*", "+@all",
    ];
    server.cli(&all);
    let url = server.url_of("some", "secret");
    let backend = RedisBackend::builder(url).connect().await.unwrap();
    server.cli(&["ACL", "SETUSER", "some", "-subscribe"]);
    let before = server.calls("auth") + server.calls("hello");
    let watch = backend.watch(&LockKey::new("a"), MANAGER);
    sleep(Duration::from_secs(2)).await;
    let attempts = server.calls("auth") + server.calls("hello") - before;
    assert!((1..=3).contains(&attempts), "{attempts} in two seconds");
    drop(watch);
}

#[test]
fn backend_moved_to_second_runtime_still_works() {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let backend = first.block_on(async {
        let backend = connect(&server).await;
        grant(&backend, "a").await;
        let mut hints = backend.watch(&LockKey::new("a"), MANAGER);
        assert!(hinted(&mut hints).await);
        backend
    });
    drop(first);
    runtime().block_on(async {
        assert_eq!(renew(&backend, "a").await.unwrap(), Renewed::Renewed);
        let mut hints = backend.watch(&LockKey::new("a"), MANAGER);
        assert!(hinted(&mut hints).await, "in force");
        release(&backend, "a").await.unwrap();
        assert!(hinted(&mut hints).await, "a message");
        let mut others = backend.watch(&LockKey::new("b"), MANAGER);
        assert!(hinted(&mut others).await, "another key");
    });
}

#[tokio::test]
async fn keys_with_different_prefixes_are_independent() {
    let server = RedisServer::start();
    let shop = RedisBackend::builder(server.url()).prefix("shop:");
    let shop = shop.connect().await.unwrap();
    grant(&shop, "a").await;
    grant(&connect(&server).await, "a").await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut keys: Vec<String> = client.get_connection().unwrap().keys("*:a").unwrap();
    keys.sort();
    assert_eq!(keys, ["lock:a", "shop:a"]);
}

#[tokio::test]
async fn response_timeout_includes_replica_timeout() {
    let (timeout, one) = (Duration::from_secs(3), NonZeroUsize::MIN);
    let builder = || RedisBackend::builder("redis://127.0.0.1:1").response_timeout(timeout);
    let backend = builder().connect_lazy().unwrap();
    assert_eq!(backend.capabilities().response_timeout, timeout);
    let replicated = builder().min_replicas(one, Duration::from_secs(2));
    let replicated = replicated.connect_lazy().unwrap();
    assert_eq!(
        replicated.capabilities().response_timeout,
        Duration::from_secs(5)
    );
}

/// One lock has two counters, which follow the server's clock.
#[tokio::test]
async fn lock_under_two_prefixes_has_one_holder() {
    let server = RedisServer::start();
    let shared = RedisBackend::builder(server.url()).prefix("");
    let backends = [
        (connect(&server).await, "k"),
        (shared.connect().await.unwrap(), "lock:k"),
    ];
    let mut last = 0;
    for round in 0..20 {
        let (backend, key) = &backends[round % 2];
        let (other, same) = &backends[(round + 1) % 2];
        let counter = grant(backend, key).await;
        assert!(counter > last, "{counter} after {last}");
        last = counter;
        let request = AcquireRequest::new(LockKey::new(same), stranger(), TTL);
        let busy = other.try_acquire(&request).await.unwrap();
        assert!(matches!(busy, Acquired::Busy { .. }), "{busy:?}");
        let release = Release::new(LockKey::new(key), lease());
        backend.release(&[release]).await.remove(0).unwrap();
        // Counters are ordered only if the grants are at least 1 ms apart.
        sleep(2 * Duration::from_millis(1)).await;
    }
}
