//! Credentials that change, and nodes that report addresses that clients cannot reach.

use std::future::{IntoFuture as _, pending};
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deadpool_redis::{Config, Runtime};
use tokio::time::{sleep, timeout};
use tower_lock::backend::redis::{Credentials, RedisBackendBuilder};
use tower_lock::{ConnectError, ErrorKind, RedisBackend};

use crate::support::cluster::{Cluster, add_all_slots};
use crate::support::engine::{MS, PATIENCE, SECOND, eventually, manager_from, subscribers};
use crate::support::errors::chain;
use crate::support::process::version;
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);
const USER: &str = "locker";
/// A host that no resolver knows.
const NOWHERE: &str = "locks.invalid";

/// Creates a builder with long timeouts for a busy machine.
fn at(url: impl Into<String>) -> RedisBackendBuilder {
    let builder = RedisBackend::builder(url).connect_timeout(PATIENCE);
    builder.response_timeout(PATIENCE)
}

/// A token service that counts its calls.
#[derive(Clone, Default)]
struct Tokens {
    token: Arc<Mutex<String>>,
    fails: Arc<Mutex<bool>>,
    asked: Arc<AtomicU64>,
}

impl Tokens {
    /// Sets the only password of the user, at the server and here.
    fn rotate(&self, server: &RedisServer, token: &str) {
        let password = format!(">{token}");
        let all = ["~*", "&*", "+@all"];
        let rule = ["ACL", "SETUSER", USER, "on", "resetpass", &password];
        server.cli(&[&rule[..], &all].concat());
        *self.token.lock().unwrap() = token.to_owned();
    }

    /// Rejects connections without the user from now on.
    fn required(server: &RedisServer) -> Self {
        let tokens = Self::default();
        tokens.rotate(server, "first");
        server.cli(&["ACL", "SETUSER", "default", "off"]);
        tokens
    }

    fn give(&self, builder: RedisBackendBuilder) -> RedisBackendBuilder {
        let tokens = self.clone();
        builder.credentials(move || {
            let tokens = tokens.clone();
            async move {
                tokens.asked.fetch_add(1, Ordering::SeqCst);
                if *tokens.fails.lock().unwrap() {
                    return Err(io::Error::other("no token"));
                }
                Ok(Credentials::new(
                    USER,
                    tokens.token.lock().unwrap().as_str(),
                ))
            }
        })
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    fn fail(&self, fails: bool) {
        *self.fails.lock().unwrap() = fails;
    }
}

/// A holder and a waiter survive a change of the password.
async fn survives_rotation(server: &RedisServer, tokens: &Tokens, url: &str) {
    let connect = || manager_from(tokens.give(at(url)), LEASE);
    let (here, there) = (connect().await, connect().await);
    let guard = here.acquire("a").await.unwrap();
    let waiting = tokio::spawn(there.acquire("a").wait_forever().into_future());
    let sharded = ["PUBSUB", "SHARDNUMSUB", "redisson_lock__channel:{lock:a}"];
    // Redis 6 has no sharded messages.
    let sharded = || version() >= 7 && server.cli(&sharded).ends_with('1');
    let listens = || subscribers(server, "a") > 0 || sharded();
    eventually("a subscriber", listens).await;
    tokens.rotate(server, "second");
    let own = format!(" user={USER} ");
    let ids = || {
        let clients = server.clients("pubsub").into_iter();
        let own = clients.filter(|it| it.contains(&own));
        let ids = own.map(|it| it.split(' ').next().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    let before = ids();
    server.cli(&["CLIENT", "KILL", "USER", USER]);
    assert!(!before.is_empty() && ids().iter().all(|id| !before.contains(id)));
    eventually("a subscriber again", listens).await;
    guard.release().await.unwrap();
    let guard = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_password_opens_next_connections() {
    let server = RedisServer::start();
    let tokens = Tokens::required(&server);
    survives_rotation(&server, &tokens, &server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_password_opens_cluster_nodes() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    add_all_slots(&server);
    let ok = || server.cli(&["CLUSTER", "INFO"]).contains("state:ok");
    eventually("a ready cluster", ok).await;
    let tokens = Tokens::required(&server);
    let url = server.url().replace("redis://", "redis+cluster://");
    survives_rotation(&server, &tokens, &url).await;
}

/// Starts a sentinel that reports this address of the primary.
fn sentinel(address: &str) -> RedisServer {
    let monitor = format!(
        "sentinel monitor locks {address} 1\n\
         sentinel auth-user locks watcher\n\
         sentinel auth-pass locks watches\n"
    );
    RedisServer::try_start(Some(&monitor), &["--sentinel"]).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_password_opens_primary() {
    let server = RedisServer::start();
    let watcher = ["ACL", "SETUSER", "watcher", "on", ">watches"];
    server.cli(&[&watcher[..], &["~*", "&*", "+@all"]].concat());
    let tokens = Tokens::required(&server);
    let sentinel = sentinel(&format!("127.0.0.1 {}", server.port()));
    // The sentinel has no such user: the credentials are not for it.
    let url = format!("redis+sentinel://{}/locks", sentinel.address());
    survives_rotation(&server, &tokens, &url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_password_opens_pooled_connection() {
    let server = RedisServer::start();
    let replica = RedisServer::start();
    replica.cli(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    let online = || server.cli(&["INFO", "replication"]).contains("online");
    eventually("a replica", online).await;
    let tokens = Tokens::default();
    tokens.rotate(&server, "first");
    let builder = at(server.url()).min_replicas(NonZeroUsize::MIN, PATIENCE);
    let locks = manager_from(tokens.give(builder), LEASE).await;
    locks.acquire("a").await.unwrap().release().await.unwrap();

    tokens.rotate(&server, "second");
    // The last command of the shared connection was the release.
    let clients = server.clients("normal");
    let pooled = clients.iter().filter(|it| !it.contains(" cmd=evalsha "));
    let ids: Vec<_> = pooled.map(|it| it.split(' ').next().unwrap()).collect();
    assert!((1..clients.len()).contains(&ids.len()), "{clients:?}");
    let asked = tokens.asked();
    for id in ids {
        server.cli(&["CLIENT", "KILL", "ID", id.trim_start_matches("id=")]);
    }
    locks.acquire("a").await.unwrap().release().await.unwrap();
    assert_eq!(tokens.asked(), asked + 1);
    // The next one has the new password from the start.
    let (one, other) = tokio::join!(locks.acquire("a"), locks.acquire("b"));
    one.unwrap().release().await.unwrap();
    other.unwrap().release().await.unwrap();
    assert_eq!(tokens.asked(), asked + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_provider_is_unavailable_with_backoff() {
    let server = RedisServer::start();
    let tokens = Tokens::required(&server);
    let locks = manager_from(tokens.give(at(server.url())), LEASE).await;
    tokens.fail(true);
    server.cli(&["CLIENT", "KILL", "USER", USER]);
    let error = locks.acquire("a").wait(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = chain(&error);
    assert!(text.ends_with("provider failed: no token"), "{text}");
    let asked = tokens.asked();
    let end = tokio::time::Instant::now() + SECOND;
    while tokio::time::Instant::now() < end {
        drop(locks.acquire("a").no_wait().await);
        sleep(5 * MS).await;
    }
    let asked = tokens.asked() - asked;
    assert!((1..=20).contains(&asked), "asked {asked} times");
    tokens.fail(false);
    locks.acquire("a").await.unwrap().release().await.unwrap();

    tokens.fail(true);
    let error = tokens.give(at(server.url())).connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }));
}

#[tokio::test]
async fn hanging_provider_meets_connect_timeout() {
    let server = RedisServer::start();
    let builder = RedisBackend::builder(server.url())
        .connect_timeout(100 * MS)
        .credentials(pending::<io::Result<Credentials>>);
    let error = timeout(PATIENCE, builder.connect()).await.unwrap();
    assert!(matches!(error, Err(ConnectError::Unreachable { .. })));
}

#[tokio::test]
async fn rejected_credentials_are_asked_for_again() {
    let server = RedisServer::start();
    let tokens = Tokens::required(&server);
    let locks = manager_from(tokens.give(at(server.url())), LEASE).await;
    *tokens.token.lock().unwrap() = "stale".to_owned();
    server.cli(&["CLIENT", "KILL", "USER", USER]);
    let error = locks.acquire("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(!format!("{} {error:?}", chain(&error)).contains("stale"));
    tokens.rotate(&server, "fresh");
    let granted = async { while locks.acquire("a").await.is_err() {} };
    timeout(PATIENCE, granted).await.expect("a lock again");
}

// ---- addresses ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address_map_leads_to_cluster_nodes() {
    let hostname = [
        ["--cluster-announce-hostname", NOWHERE],
        ["--cluster-preferred-endpoint-type", "hostname"],
    ];
    // Nodes of Redis 6 announce no hostname, and clients reach them without the map, too.
    let (options, announced): (&[_], _) = match version() {
        ..7 => (&[], "127.0.0.1"),
        _ => (hostname.as_flattened(), NOWHERE),
    };
    let cluster = Cluster::start_with(options);
    let mut ports = Vec::new();
    let mut proxies = Vec::new();
    for node in cluster.nodes() {
        let proxy = Proxy::start(node.port()).await;
        ports.push((node.port(), proxy.port()));
        proxies.push(proxy);
    }
    let url = proxies[0].url().replace("redis://", "redis+cluster://");
    if announced == NOWHERE {
        let unmapped = manager_from(RedisBackend::builder(&url), LEASE).await;
        let error = unmapped.acquire("a").wait(SECOND).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }

    let through = move |host: &str, port: u16| {
        assert_eq!(host, announced);
        let proxy = ports.iter().find(|(node, _)| *node == port);
        ("127.0.0.1".to_owned(), proxy.unwrap().1)
    };
    let locks = manager_from(at(&url).address_map(through.clone()), LEASE).await;
    let other = manager_from(at(&url).address_map(through), LEASE).await;
    // Each node has some of the keys.
    for key in 0..12 {
        let key = format!("key {key}");
        let guard = locks.acquire(key.as_str()).await.unwrap();
        let waiting = tokio::spawn(other.acquire(key.as_str()).wait_forever().into_future());
        eventually("a waiter", || other.snapshot().waiting > 0).await;
        guard.release().await.unwrap();
        let guard = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
        guard.release().await.unwrap();
    }

    let key = "{user}:a";
    let (slot, from) = (cluster.slot(key), cluster.node_of(key));
    let to = cluster.primaries().into_iter().find(|it| *it != from);
    let to = to.unwrap();
    cluster.begin_migration(slot, from, to);
    cluster.move_keys(slot, from, to);
    // `ASK`, and later `MOVED`.
    let guard = locks.acquire(key).await.unwrap();
    cluster.move_keys(slot, from, to);
    cluster.end_migration(slot, from, to).await;
    guard.release().await.unwrap();
    let guard = other.acquire(key).await.unwrap();
    guard.release().await.unwrap();
    for node in cluster.primaries() {
        assert!(proxies[node].accepted() > 0, "node {node} has no client");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address_map_leads_to_primary() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    // Reserved for documentation: no host has this address.
    let sentinel = sentinel("192.0.2.1 6379");
    let url = format!("redis+sentinel://{}/locks", sentinel.address());
    let unmapped = RedisBackend::builder(&url).connect_timeout(SECOND);
    let error = unmapped.connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }));

    let port = proxy.port();
    let mapped = at(&url).address_map(move |host, reported| {
        assert_eq!((host, reported), ("192.0.2.1", 6379));
        ("127.0.0.1".to_owned(), port)
    });
    let locks = manager_from(mapped, LEASE).await;
    let guard = locks.acquire("a").await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "lock:a"]), "1");
    // If the addresses differed, the primary would appear to have changed, and the link would end.
    let accepted = proxy.accepted();
    sleep(SECOND).await;
    assert_eq!(proxy.accepted(), accepted);
    guard.release().await.unwrap();
}

// ---- settings that nothing would use ----

#[tokio::test]
async fn unused_setting_is_rejected() {
    let provider = || async { Ok::<_, io::Error>(Credentials::new("", "p")) };
    let map = |host: &str, port| (host.to_owned(), port);
    let pool = || {
        let config = Config::from_url("redis://127.0.0.1:1");
        RedisBackend::from_pool(config.create_pool(Some(Runtime::Tokio1)).unwrap())
    };
    let url = RedisBackend::builder;
    for (field, builder) in [
        ("credentials", url("redis://:p@h").credentials(provider)),
        (
            "credentials",
            url("redis://h")
                .notify("redis://:p@h")
                .credentials(provider),
        ),
        ("credentials", pool().credentials(provider)),
        ("address_map", url("redis://h").address_map(map)),
        ("address_map", pool().address_map(map)),
    ] {
        match builder.connect().await {
            Err(ConnectError::Config(error)) => assert_eq!(error.field(), field),
            outcome => panic!("{field}: {outcome:?}"),
        }
    }
}
