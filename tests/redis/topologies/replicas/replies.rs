//! Replies that are lost or late.

use futures_util::future::{join, join_all};
use tokio::time::{Instant, sleep};
use tower_lock::backend::{AcquireRequest, Acquired, Backend as _, Released};
use tower_lock::{ErrorKind, LockKey, LockManager, RedisBackend};

use super::trio::{LENT, TTL, Trio, acquire, connected, exists, lease, release};
use crate::support::engine::{FENCE, MS, Monitor, PATIENCE, SECOND, eventually};
use crate::support::errors::chain;
use crate::support::proxy::{Proxy, Swallow};
use crate::support::redis_server::RedisServer;

/// Pauses all writes on the server until `CLIENT UNPAUSE`.
fn pause(server: &RedisServer) {
    server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]);
}

/// Waits until the server has blocked a call of the acquire script.
async fn acquire_is_held_up(server: &RedisServer) {
    eventually("the acquire is blocked", || {
        let clients = server.cli(&["INFO", "clients"]);
        clients.contains("blocked_clients:1")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_with_lost_reply_leaves_no_key() {
    let trio = Trio::start();
    let proxy = Proxy::start(trio.primary.port()).await;
    let builder = || trio.builder_at(proxy.url(), 2, 100 * MS);
    let backend = connected(|| builder().response_timeout(SECOND)).await;
    pause(&trio.primary);
    let unknown = join(acquire(&backend, "k"), async {
        acquire_is_held_up(&trio.primary).await;
        proxy.swallow(Swallow::Answers);
        trio.primary.cli(&["CLIENT", "UNPAUSE"]);
        eventually("granted", || trio.has("k")).await;
    });
    let error = unknown.await.0.unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", chain(&error));
    // Only the backend can release this lease: the caller has no guard.
    eventually("released", || !trio.has("k")).await;
    proxy.heal();
    grant_again(&backend, "k").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_acquire_leaves_no_key() {
    let trio = Trio::start();
    let builder = || trio.builder(2, 100 * MS).response_timeout(300 * MS);
    let backend = connected(builder).await;
    let granted = |n: u64| trio.primary.calls("hset") > n;
    let before = trio.primary.calls("hset");
    pause(&trio.primary);
    let error = acquire(&backend, "k").await.unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", chain(&error));
    trio.primary.cli(&["CLIENT", "UNPAUSE"]);
    eventually("granted and released", || granted(before) && !trio.has("k")).await;
    grant_again(&backend, "k").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replica_count_leaves_no_key() {
    let trio = Trio::start();
    let proxy = Proxy::start(trio.primary.port()).await;
    let builder = || trio.builder_at(proxy.url(), 2, 500 * MS);
    let backend = connected(|| builder().response_timeout(500 * MS)).await;
    trio.stop_replicas();
    let unknown = join(acquire(&backend, "k"), async {
        eventually("granted", || trio.has("k")).await;
        // The reply to the grant has arrived, and the replica count is outstanding.
        sleep(100 * MS).await;
        proxy.swallow(Swallow::Answers);
    });
    let error = unknown.await.0.unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", chain(&error));
    eventually("released", || !trio.has("k")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_in_replica_wait_leaves_no_key() {
    let trio = Trio::start();
    let proxy = Proxy::start(trio.primary.port()).await;
    let backend = trio.builder_at(proxy.url(), 2, 10 * SECOND).connect().await;
    let locks = LockManager::builder(backend.unwrap()).build().unwrap();
    trio.stop_replicas();
    let unknown = join(locks.acquire("k").no_wait().into_future(), async {
        eventually("granted", || trio.has("k")).await;
        proxy.cut();
    });
    let error = unknown.await.0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    eventually("released", || !trio.has("k")).await;
    trio.continue_replicas();
    let guard = locks.acquire("k").wait(PATIENCE).await.unwrap();
    guard.release().await.unwrap();
}

/// All connections for acquires hang. None of them may be kept for the length of its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_without_reply_free_their_connections() {
    let trio = Trio::start();
    let proxy = Proxy::start(trio.primary.port()).await;
    let builder = || trio.builder_at(proxy.url(), 2, 100 * MS);
    let backend = connected(|| builder().response_timeout(500 * MS)).await;
    pause(&trio.primary);
    let keys: Vec<_> = (0..LENT).map(|n| format!("key {n}")).collect();
    let unknown = join(
        join_all(keys.iter().map(|key| acquire(&backend, key))),
        async {
            eventually("all are blocked", || {
                let clients = trio.primary.cli(&["INFO", "clients"]);
                clients.contains(&format!("blocked_clients:{LENT}"))
            })
            .await;
            proxy.freeze();
            trio.primary.cli(&["CLIENT", "UNPAUSE"]);
        },
    );
    for outcome in unknown.await.0 {
        assert!(outcome.unwrap_err().may_have_taken_effect());
    }
    let start = Instant::now();
    grant_again(&backend, "later").await;
    assert!(start.elapsed() < TTL / 2, "{:?}", start.elapsed());
}

/// A command that the server has read but not executed must not run after its own undo.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_after_disconnect_uses_new_connection() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    // Returns the address of the client that sent the last command for the key.
    let monitor = Monitor::start(&trio.primary);
    let sender = async || {
        let lines = monitor.lines_until_now(&trio.primary).await;
        let last = lines.into_iter().rfind(|line| line.contains("lock:k"));
        last.unwrap().split([' ', ']']).nth(2).unwrap().to_owned()
    };
    assert_eq!(backend.inspect(&LockKey::new("k")).await.unwrap(), None);
    let shared = sender().await;
    trio.stop_replicas();
    let broken = join(acquire(&backend, "k"), async {
        let waits = |line: &String| line.contains(" flags=b ");
        let waiting = || trio.primary.clients("normal").into_iter().find(waits);
        eventually("it waits for replicas", || waiting().is_some()).await;
        let waiting = waiting().unwrap();
        let id = waiting
            .strip_prefix("id=")
            .and_then(|line| line.split(' ').next());
        trio.primary.cli(&["CLIENT", "KILL", "ID", id.unwrap()]);
    });
    let error = broken.await.0.unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", chain(&error));
    let acquirer = sender().await;
    assert_eq!(release(&backend, "k").await, Released::Released);
    let releaser = sender().await;
    assert_ne!(acquirer, shared);
    assert!(releaser != shared && releaser != acquirer, "{releaser}");
}

/// Acquires the key, with retries until the fault is over.
async fn grant_again(backend: &RedisBackend, key: &str) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match acquire(backend, key).await {
            Ok(Acquired::Granted { counter, .. }) => return counter,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        sleep(50 * MS).await;
    }
}

#[test]
fn runtime_shutdown_in_replica_wait_expires_leases() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().unwrap()
    };
    let trio = Trio::start();
    let first = runtime();
    let backend = first.block_on(trio.backend(PATIENCE));
    trio.stop_replicas();
    let waits = (0..50).map(|n| {
        let backend = backend.clone();
        let key = LockKey::new(format!("key {n}"));
        first.spawn(async move {
            backend
                .try_acquire(&AcquireRequest::new(key.clone(), lease(1), 2 * SECOND))
                .await
        })
    });
    let waits: Vec<_> = waits.collect();
    first.block_on(eventually("granted", || {
        let granted = |n| exists(&trio.primary, LockKey::new(format!("key {n}")).as_str());
        (0..50).filter(|n| granted(*n)).count() == LENT
    }));
    let start = Instant::now();
    drop(first);
    assert!(start.elapsed() < 5 * SECOND, "slow shutdown");
    drop(waits);
    trio.continue_replicas();
    // The backend must work on another runtime.
    runtime().block_on(async {
        eventually("over", || trio.primary.cli(&["KEYS", "*"]) == FENCE).await;
        grant_again(&backend, "k").await;
    });
}
