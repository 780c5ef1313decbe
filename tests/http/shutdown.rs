//! SIGTERM under load, with locks in Redis.

use std::process::Stdio;
use std::time::Duration;

use axum::routing::post;
use http::StatusCode;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower_lock::{Held, LockLayer, LockManager};

use crate::stacks::{over_http1, request};
use crate::support::engine::{PATIENCE, nothing_is_left, within};
use crate::support::example::program;
use crate::support::redis_server::RedisServer;

/// The example transfers money by 64 concurrent requests while it starts.
#[tokio::test]
async fn sigterm_under_load_leaves_no_key() {
    let redis = RedisServer::start();
    let mut bank = Command::new(program("bank"))
        .args(["--port", "0", "--locks", &redis.url()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    within(PATIENCE, "account locks", || {
        let keys = redis.cli(&["KEYS", "lock:account*"]);
        // Less than that could be the end of the load.
        keys.lines().count() >= 2
    })
    .await;
    let id = bank.id().unwrap().to_string();
    let killed = std::process::Command::new("kill").arg(&id).status();
    assert!(killed.unwrap().success());
    let ended = timeout(PATIENCE, bank.wait())
        .await
        .expect("it ends in time");
    assert!(ended.unwrap().success());
    nothing_is_left(&redis, &[], Duration::ZERO, "the end of the process").await;
}

/// The lines of the documentation of `LockManager::shutdown`.
#[tokio::test]
async fn documented_shutdown_serves_holder_and_waiter() {
    let redis = RedisServer::start();
    let locks = LockManager::connect(&redis.url()).await.unwrap();
    let (entered, mut running) = tokio::sync::mpsc::unbounded_channel();
    let app = axum::Router::new()
        .route(
            "/orders/{id}",
            post(async move |held: Held| {
                let (finish, finished) = oneshot::channel::<()>();
                entered.send(finish).unwrap();
                drop(finished.await);
                assert!(held.is_held());
            }),
        )
        .layer(LockLayer::by_path(locks.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
    let server = tokio::spawn(server.into_future());

    let send = || async move {
        let mut client = over_http1(address).await;
        client.send_request(request(true)).await.unwrap().status()
    };
    let holder = tokio::spawn(send());
    let finish = running.recv().await.unwrap();
    let waiter = tokio::spawn(send());
    within(PATIENCE, "a waiter", || locks.snapshot().waiting == 1).await;
    drop(stop);
    let stopping = async { tokio::join!(locks.shutdown(PATIENCE), timeout(PATIENCE, server)) };
    let clients = async {
        drop(finish);
        assert_eq!(holder.await.unwrap(), StatusCode::OK);
        drop(running.recv().await.unwrap());
        assert_eq!(waiter.await.unwrap(), StatusCode::OK);
    };
    let ((left, served), ()) = tokio::join!(stopping, clients);
    assert!(left.is_idle());
    served.expect("it ends").unwrap().unwrap();
    nothing_is_left(&redis, &[], Duration::ZERO, "the end of the server").await;
}
