//! Connections that end, are upgraded, or are shut down.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::FutureExt as _;
use http::{Method, Request, Response, StatusCode};
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_lock::{LockLayer, LockManager};

use super::support::{gated, read_until, request, send, serve, streaming};
use crate::served::{assert_waits, is_locked, path_key, until};

#[tokio::test]
async fn client_disconnect_in_queue_leaves_it() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let guard = locks.acquire(path_key("/gate")).await.unwrap();
    let address = serve(app).await;
    let client = send(address, "POST /gate HTTP/1.1").await;
    until(|| locks.snapshot().waiting == 1).await;
    drop(client);
    until(|| locks.snapshot().waiting == 0).await;
    drop(guard);
    until(|| locks.snapshot().is_idle()).await;
    assert!(
        calls.try_recv().is_err(),
        "the handler ran without a client"
    );
}

#[tokio::test]
async fn client_disconnect_in_handler_releases_lock() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let address = serve(app).await;
    let client = send(address, "POST /gate HTTP/1.1").await;
    let call = calls.recv().await.unwrap();
    assert!(is_locked(&locks));
    drop(client);
    until(|| call.is_abandoned() && !is_locked(&locks)).await;
}

#[tokio::test]
async fn client_disconnect_in_body_releases_lock() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let address = serve(app).await;
    let mut client = send(address, "POST /gate HTTP/1.1").await;
    let (response, frames) = streaming();
    calls.recv().await.unwrap().answer(response);
    frames.data("first");
    read_until(&mut client, "first").await;
    assert!(is_locked(&locks));
    drop(client);
    until(|| frames.is_abandoned() && !is_locked(&locks)).await;
}

#[tokio::test]
async fn streaming_body_holds_lock_until_sent() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let address = serve(app).await;
    let mut client = send(address, "POST /gate HTTP/1.1").await;
    let (response, frames) = streaming();
    calls.recv().await.unwrap().answer(response);
    for part in ["one", "two", "three"] {
        frames.data(part);
        read_until(&mut client, part).await;
        assert!(is_locked(&locks));
    }
    drop(frames);
    read_until(&mut client, "0\r\n\r\n").await;
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn body_in_memory_keeps_content_length() {
    let app = Router::new()
        .route("/", get(async || "hello"))
        .route_layer(LockLayer::by_path(LockManager::in_memory()).all_methods());
    let address = serve(app).await;
    let mut client = send(address, "GET / HTTP/1.1").await;
    let answer = read_until(&mut client, "hello").await;
    assert!(answer.contains("content-length: 5\r\n"), "{answer}");
    let mut client = send(address, "HEAD / HTTP/1.1").await;
    let answer = read_until(&mut client, "\r\n\r\n").await;
    assert!(answer.contains("content-length: 5\r\n"), "{answer}");
}

#[tokio::test]
async fn head_request_to_stream_is_complete_at_head() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let mut head = Box::pin(app.oneshot(request(Method::HEAD, "/gate")));
    assert_waits(&mut head).await;
    let (response, frames) = streaming();
    calls.recv().await.unwrap().answer(response);
    frames.data("never sent");
    let response = head.await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn upgraded_connection_does_not_hold_lock() {
    let locks = LockManager::in_memory();
    let (upgraded, mut is_upgraded) = tokio::sync::mpsc::unbounded_channel();
    let handler = async move |mut request: Request<Body>| {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move { drop(upgraded.send(upgrade.await.unwrap())) });
        Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "echo")
            .body(Body::empty())
            .unwrap()
    };
    let app = Router::new()
        .route("/", get(handler))
        .route_layer(LockLayer::by_path(locks.clone()));
    let head = "GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: echo";
    let mut client = send(serve(app).await, head).await;
    read_until(&mut client, "101 Switching Protocols").await;
    let _tunnel = is_upgraded.recv().await.unwrap();
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn graceful_shutdown_serves_queue_and_holder() {
    let locks = LockManager::in_memory();
    let (app, mut calls) = gated(&locks);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
    let server = tokio::spawn(server.into_future());

    let mut holder = send(address, "POST /gate HTTP/1.1").await;
    let call = calls.recv().await.unwrap();
    let mut queued = send(address, "POST /gate HTTP/1.1").await;
    until(|| locks.snapshot().waiting == 1).await;

    stop.send(()).unwrap();
    let (manager, ending) = (locks.clone(), locks.clone());
    let shutdown = tokio::spawn(async move { ending.shutdown(Duration::from_secs(60)).await });
    until(|| {
        manager
            .acquire("new")
            .into_future()
            .now_or_never()
            .is_some_and(|it| it.is_err())
    })
    .await;
    call.finish();
    calls.recv().await.unwrap().finish();
    for client in [&mut holder, &mut queued] {
        let answer = read_until(client, "\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert!(shutdown.await.unwrap().is_idle());
    server.await.unwrap().unwrap();
}
