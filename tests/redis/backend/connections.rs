//! The connections of commands.

use std::num::NonZeroUsize;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use tokio::time::{Instant, sleep};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendErrorKind, Release, Released, Renewed,
};
use tower_lock::{LockKey, RedisBackend};

use super::client::{
    MANAGER, PATIENCE, TTL, connect, connections, grant, hinted, lease, release, renew, sent,
    stranger,
};
use crate::support::engine::{connected, eventually, reconnected};
use crate::support::errors::debug_chain;
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn connections_open_once_and_close_with_last_handle() {
    let server = RedisServer::start();
    let three = NonZeroUsize::new(3).unwrap();
    let builder = RedisBackend::builder(server.url()).connections(three);
    let backend = builder.connect().await.unwrap();
    eventually("the self-test disconnected", || {
        server.clients("pubsub").is_empty()
    })
    .await;
    assert_eq!(server.clients("normal").len(), 3);
    for number in 0..50 {
        let key = format!("a:{number}");
        grant(&backend, &key).await;
        release(&backend, &key).await.unwrap();
    }
    assert_eq!(
        server.clients("normal").len(),
        3,
        "a command opened a connection"
    );
    let mut hints = backend.watch(&LockKey::new("a"), MANAGER);
    assert!(hinted(&mut hints).await);
    drop(backend.clone());
    assert_eq!(server.clients("normal").len(), 3);
    drop(backend);
    eventually("all connections are closed", || {
        server.clients("normal").is_empty() && server.clients("pubsub").is_empty()
    })
    .await;
}

#[tokio::test]
async fn killed_connection_is_replaced_on_next_command() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for round in 0..3 {
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        grant(&backend, "a").await;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert_eq!(renew(&backend, "a").await.unwrap(), Renewed::Renewed);
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        let outcome = release(&backend, "a").await.unwrap();
        assert_eq!(outcome, Released::Released, "round {round}");
    }
}

#[tokio::test]
async fn commands_after_kill_open_one_connection() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let before = connections(&server);
    let backend = &backend;
    join_all((0..50).map(|number| async move { grant(backend, &format!("a:{number}")).await }))
        .await;
    assert_eq!(connections(&server) - before, 1);
}

#[tokio::test]
async fn commands_to_stopped_server_fail_at_once() {
    let mut server = RedisServer::start();
    let backend = connect(&server).await;
    let key = LockKey::new("a");
    server.stop_process();
    let request = AcquireRequest::new(key.clone(), lease(), TTL);
    let mut first = Box::pin(backend.try_acquire(&request));
    assert!(poll!(&mut first).is_pending());
    // The command is sent and unread.
    sleep(Duration::from_millis(50)).await;
    server.kill();
    let first = first.await.unwrap_err();
    assert_eq!(first.kind(), BackendErrorKind::Unavailable);
    assert!(
        first.may_have_taken_effect(),
        "the connection broke in flight"
    );
    let started = Instant::now();
    for _ in 0..1_000 {
        let error = backend
            .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
        assert!(!error.may_have_taken_effect(), "it was never sent");
    }
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    server.launch_again();
    reconnected(&backend).await;
}

#[tokio::test]
async fn late_acquire_is_released_automatically() {
    let server = RedisServer::start();
    let timeout = Duration::from_secs(1);
    let builder = || RedisBackend::builder(server.url()).response_timeout(timeout);
    let backend = connected(builder).await;
    grant(&backend, "before").await;
    let acquires = server.calls("evalsha");
    let fence = server.cli(&["GET", "lock:{fencing-token}%"]);
    server.cli(&["CLIENT", "PAUSE", "2500", "ALL"]);

    let key = LockKey::new("late");
    let started = Instant::now();
    let error = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert!(started.elapsed() < 2 * timeout);
    assert!(error.may_have_taken_effect(), "{}", debug_chain(&error));

    // `INFO` also waits for the end of the pause.
    eventually("the late acquire was executed", || {
        server.calls("evalsha") > acquires
    })
    .await;
    assert_ne!(
        server.cli(&["GET", "lock:{fencing-token}%"]),
        fence,
        "the acquire was granted"
    );
    eventually("the late acquire was released", || {
        server.cli(&["EXISTS", "lock:late"]) == "0"
    })
    .await;
    assert_eq!(server.cli(&["EXISTS", "lock:before"]), "1");
    reconnected(&backend).await;
    grant(&backend, "late").await;
}

/// Connects, and acquires the key `before`. On a busy machine a server may be silent for 200 ms.
async fn held_before(proxy: &Proxy) -> RedisBackend {
    let timeout = Duration::from_secs(1);
    let builder = || RedisBackend::builder(proxy.url()).response_timeout(timeout);
    let backend = connected(builder).await;
    grant(&backend, "before").await;
    backend
}

/// The connection of the acquire hangs, and its replacement does not. The engine's release
/// overtakes the acquire, so only a release queued on the same connection can undo it.
#[tokio::test]
async fn overtaken_acquire_is_released_on_its_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let backend = held_before(&proxy).await;

    proxy.freeze();
    let key = LockKey::new("late");
    let error = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", debug_chain(&error));
    let overtaking = sent(async || release(&backend, "late").await).await;
    assert_eq!(overtaking, Released::NotHeld, "on the replacement");
    let fence = || server.cli(&["GET", "lock:{fencing-token}%"]);
    let before = fence();
    let clients = server.clients("normal").len();
    assert_eq!(clients, 2, "the old connection stays for its commands");

    proxy.thaw();
    eventually("the late acquire was granted", || fence() != before).await;
    eventually("the late acquire was released", || {
        server.cli(&["EXISTS", "lock:late"]) == "0"
    })
    .await;
    eventually("the old connection was closed", || {
        server.clients("normal").len() == 1
    })
    .await;
    assert_eq!(server.cli(&["EXISTS", "lock:before"]), "1");
}

/// The connection of the `contend` hangs, and its replacement does not. The engine's `leave` overtakes the `contend`, so
/// only a `leave` queued on the same connection can undo it.
#[tokio::test]
async fn overtaken_contend_is_left_on_its_connection() {
    const QUEUE: &str = "lock:{lock:late}%queue";
    for held in [false, true] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port()).await;
        let backend = held_before(&proxy).await;
        if held {
            server.cli(&["HSET", "lock:late", &stranger().to_string(), "1"]);
            server.cli(&["PEXPIRE", "lock:late", "60000"]);
        }
        proxy.freeze();
        let key = LockKey::new("late");
        let request = AcquireRequest::new(key.clone(), lease(), TTL);
        let error = backend.contend(&request).await.unwrap_err();
        assert!(error.may_have_taken_effect(), "{}", debug_chain(&error));
        let leave = [Release::new(key, lease())];
        let overtaking = sent(async || backend.leave(&leave).await.remove(0)).await;
        assert_eq!(overtaking, Released::NotHeld, "on the replacement");
        let contends = || server.calls("zadd") + server.calls("incrby");
        let before = contends();
        proxy.thaw();
        eventually("the late contend took effect", || contends() > before).await;
        let entered = Instant::now();
        eventually("the late contend was left", || {
            let own = server.cli(&["HEXISTS", "lock:late", &lease().to_string()]);
            own == "0" && server.cli(&["EXISTS", QUEUE]) == "0"
        })
        .await;
        // A place expires after 6 s.
        assert!(entered.elapsed() < Duration::from_secs(3));
        assert_eq!(server.cli(&["EXISTS", "lock:late"]) == "1", held);
    }
}

#[tokio::test]
async fn commands_to_hung_server_do_not_pile_up() {
    let server = RedisServer::start();
    let backend = connected(|| {
        RedisBackend::builder(server.url())
            .response_timeout(Duration::from_millis(100))
            .connect_timeout(Duration::from_millis(300))
    })
    .await;
    let evals = server.calls("evalsha");
    server.stop_process();
    let key = LockKey::new("a");
    let first = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert!(first.may_have_taken_effect());
    let until = Instant::now() + Duration::from_secs(1);
    let mut refused = 0;
    while Instant::now() < until {
        let started = Instant::now();
        let error = backend
            .try_acquire(&AcquireRequest::new(key.clone(), stranger(), TTL))
            .await
            .unwrap_err();
        assert!(!error.may_have_taken_effect(), "{}", debug_chain(&error));
        assert!(started.elapsed() < Duration::from_millis(250));
        refused += 1;
        sleep(Duration::from_millis(1)).await;
    }
    assert!(refused > 3);
    server.continue_process();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match backend
            .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
            .await
        {
            Ok(Acquired::Granted { .. }) => break,
            outcome => assert!(Instant::now() < deadline, "{outcome:?}"),
        }
        sleep(Duration::from_millis(5)).await;
    }
    let sent = server.calls("evalsha") - evals;
    assert!(sent < 20, "{sent} commands for {refused} rejected acquires");
}

#[tokio::test]
async fn recovered_server_gets_at_most_one_connection() {
    let server = RedisServer::start();
    let timeout = Duration::from_millis(500);
    let builder = || RedisBackend::builder(server.url()).response_timeout(timeout);
    let backend = connected(builder).await;
    grant(&backend, "a").await;
    let before = connections(&server);
    server.stop_process();
    let error = renew(&backend, "a").await.unwrap_err();
    assert!(error.may_have_taken_effect());
    server.continue_process();
    // No command needs a replacement. The question whether the server replies again opens one after 50 ms.
    sleep(Duration::from_millis(300)).await;
    assert_eq!(renew(&backend, "a").await.unwrap(), Renewed::Renewed);
    assert!(connections(&server) <= before + 1);
}
