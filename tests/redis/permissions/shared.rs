//! Users that may not use what shared locks and permits need.

use std::future::IntoFuture as _;

use tower_lock::manager::Acquire;
use tower_lock::{ErrorKind, LockManager, Quorum};

use super::{LOCKER, WITH_SHARED, WITH_VOTES, allow, at};
use crate::support::engine::{PATIENCE, eventually};
use crate::support::redis_server::RedisServer;

/// The modes that leases share.
const MODES: [fn(Acquire) -> Acquire; 2] = [Acquire::shared, |acquire| acquire.permits(1)];

/// A lease that could not be renewed or released would block its key.
#[tokio::test]
async fn shared_lock_without_read_permission_is_refused() {
    let server = RedisServer::start();
    for denied in WITH_SHARED.split_ascii_whitespace() {
        let others = WITH_SHARED.split_ascii_whitespace();
        let others = others.filter(|it| *it != denied).collect::<String>();
        allow(&server, &format!("{LOCKER} {others}"));
        let locks = LockManager::builder(at(&server.url()).connect().await.unwrap());
        let locks = locks.build().unwrap();
        for mode in MODES {
            let refused = mode(locks.acquire("a")).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Refused, "without {denied}");
            drop(locks.acquire("a").no_wait().await.unwrap());
            eventually("released", || locks.snapshot().is_idle()).await;
        }
    }
}

#[tokio::test]
async fn mode_with_denied_queue_is_acquired_and_released() {
    let server = RedisServer::start();
    for names in [
        "~order:* ~self-test:* ~{fencing-token*",
        "~order:* ~self-test:* ~{fencing-token* ~{self-test:*",
    ] {
        allow(
            &server,
            &format!("{} {WITH_SHARED}", LOCKER.replace("~lock:*", names)),
        );
        let connect = async || {
            let backend = at(&server.url()).prefix("").connect().await.unwrap();
            LockManager::builder(backend).build().unwrap()
        };
        let (locks, others) = (connect().await, connect().await);
        let reader = locks.acquire("order:1").shared().await.unwrap();
        drop(others.acquire("order:1").shared().no_wait().await.unwrap());
        reader.release().await.unwrap();
        let permit = locks.acquire("order:2").permits(1).await.unwrap();
        let full = others
            .acquire("order:2")
            .permits(1)
            .no_wait()
            .await
            .unwrap_err();
        assert_eq!(full.kind(), ErrorKind::PermitsExhausted, "{names}");
        let waiting = others.acquire("order:2").permits(1).wait(PATIENCE);
        let release = async {
            eventually("a waiter", || others.snapshot().waiting == 1).await;
            permit.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(waiting.into_future(), release);
        next.unwrap().release().await.unwrap();
    }
}

/// A shared vote names the queue, where the waiters of other processes are.
#[tokio::test]
async fn shared_vote_with_denied_queue_is_refused() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let names = "~order:* ~self-test:* ~{fencing-token*";
    let rules = LOCKER.replace("~lock:*", names);
    let mut quorum = Quorum::builder();
    for server in &servers {
        allow(server, &format!("{rules} {WITH_VOTES} {WITH_SHARED}"));
        quorum = quorum.node(at(&server.url()).prefix("").connect().await.unwrap());
    }
    let locks = LockManager::builder(quorum.build().unwrap());
    let locks = locks.build().unwrap();
    let refused = locks.acquire("order:1").shared().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused:?}");
    let guard = locks.acquire("order:1").await.unwrap();
    guard.release().await.unwrap();
}
