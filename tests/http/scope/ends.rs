//! Requests that end at any point: no key is left.

use std::convert::Infallible;
use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tower::ServiceExt;
use tower_lock::{LockLayer, LockManager, LockScope, LockScopeLayer, Locked};

use super::support::{LockedId, key, request};
use crate::served::{is_locked, until};

const FRAMES: usize = 4;

/// A body that returns pending before each frame.
fn slow_body() -> Body {
    Body::from_stream(stream::unfold(0, async |frame| {
        yield_now().await;
        (frame < FRAMES).then(|| (Ok::<_, Infallible>(Bytes::from_static(b"frame")), frame + 1))
    }))
}

/// Locks a key by the extractor and two by hand, of which one is released, and waits at every turn.
async fn handler(scope: LockScope, State(locks): State<LockManager>, locked: LockedId) -> Body {
    yield_now().await;
    scope.keep(locks.acquire("kept").await.unwrap());
    yield_now().await;
    let early = locks.acquire("early").await.unwrap();
    yield_now().await;
    early.release().await.unwrap();
    drop(locked);
    yield_now().await;
    slow_body()
}

fn apps(locks: &LockManager) -> Vec<Router> {
    let function = Router::new().route("/{id}", post(handler));
    let closure = Router::new().route(
        "/{id}",
        post(|Locked(_id, _guard): LockedId| async {
            yield_now().await;
            slow_body()
        }),
    );
    let layer = || LockLayer::by_path(locks.clone());
    let mut apps = Vec::new();
    for router in [function, closure] {
        apps.push(router.clone().layer(LockScopeLayer::new()));
        apps.push(router.clone().layer(layer()));
        apps.push(router.clone().layer(LockScopeLayer::new()).layer(layer()));
        apps.push(router.layer(layer()).layer(LockScopeLayer::new()));
    }
    let apps = apps.into_iter();
    apps.map(|app| app.with_state(locks.clone())).collect()
}

/// Polls up to this often, with a turn of the other tasks after each poll.
async fn after_polls<F: Future + Unpin>(future: &mut F, polls: usize) -> Option<F::Output> {
    for _ in 0..polls {
        if let Poll::Ready(output) = futures_util::poll!(&mut *future) {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

async fn assert_free(locks: &LockManager, point: &str) {
    assert!(!is_locked(locks), "{point}: a lock is held");
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn request_dropped_after_any_poll_leaves_no_key() {
    let locks = LockManager::in_memory();
    for (app, router) in apps(&locks).into_iter().enumerate() {
        let mut polls = 0;
        loop {
            let mut response = Box::pin(router.clone().oneshot(request("/7")));
            let is_done = after_polls(&mut response, polls).await.is_some();
            drop(response);
            assert_free(&locks, &format!("app {app} after {polls} polls")).await;
            if is_done {
                break;
            }
            polls += 1;
        }
        assert!(polls > 1, "app {app} has no await to drop at");
    }
}

#[tokio::test]
async fn waiting_request_dropped_anywhere_leaves_queue() {
    let locks = LockManager::in_memory();
    for (app, router) in apps(&locks).into_iter().enumerate() {
        for polls in 0..4 {
            let guard = locks.acquire(key("7")).await.unwrap();
            let mut response = Box::pin(router.clone().oneshot(request("/7")));
            assert!(after_polls(&mut response, polls).await.is_none());
            drop(response);
            assert_eq!(locks.snapshot().waiting, 0);
            drop(guard);
            assert_free(&locks, &format!("app {app} after {polls} polls")).await;
        }
    }
}

#[tokio::test]
async fn body_dropped_after_any_frame_leaves_no_key() {
    let locks = LockManager::in_memory();
    for (app, router) in apps(&locks).into_iter().enumerate() {
        for frames in 0..=FRAMES {
            let response: Response = router.clone().oneshot(request("/7")).await.unwrap();
            let mut body = response.into_body();
            for _ in 0..frames {
                assert!(body.frame().await.unwrap().is_ok());
            }
            assert!(is_locked(&locks), "app {app} after {frames} frames");
            if frames == FRAMES {
                assert!(body.frame().await.is_none());
            }
            drop(body);
            assert_free(&locks, &format!("app {app} after {frames} frames")).await;
        }
    }
}

/// The point at which a client hangs up.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Connected,
    InHead,
    InRequestBody,
    Sent,
    AtHead,
    InBody,
    Complete,
}

const STAGES: [Stage; 7] = [
    Stage::Connected,
    Stage::InHead,
    Stage::InRequestBody,
    Stage::Sent,
    Stage::AtHead,
    Stage::InBody,
    Stage::Complete,
];

/// Sends as much as the stage has, and reads as much as it has.
async fn client(address: std::net::SocketAddr, id: usize, stage: Stage) {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let head = format!("POST /{id} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\n");
    let sent = match stage {
        Stage::Connected => String::new(),
        Stage::InHead => head[..20].to_owned(),
        Stage::InRequestBody => head + "bo",
        _ => head + "body",
    };
    connection.write_all(sent.as_bytes()).await.unwrap();
    let end = match stage {
        Stage::AtHead => "\r\n\r\n",
        Stage::InBody => "frame",
        Stage::Complete => "0\r\n\r\n",
        _ => return,
    };
    let mut seen = String::new();
    while !seen.contains(end) {
        let mut buffer = [0; 256];
        let count = connection.read(&mut buffer).await.unwrap();
        assert!(count > 0, "the server hung up after {seen:?}");
        seen.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnecting_clients_leave_no_key() {
    const ROUND: usize = 100;
    let locks = LockManager::in_memory();
    let scope = LockScopeLayer::new().wait(Duration::from_secs(60));
    let app = Router::new()
        .route(
            "/{id}",
            post(|Locked(_id, _guard): LockedId, body: Bytes| async move {
                assert_eq!(body, "body");
                tokio::time::sleep(Duration::from_millis(1)).await;
                slow_body()
            }),
        )
        .layer(scope)
        .with_state(locks.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    for round in 0..10 {
        let clients = (0..ROUND).map(|client_| {
            let number = round * ROUND + client_;
            tokio::spawn(client(address, number % 10, STAGES[number % STAGES.len()]))
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
    }
    let patience = Duration::from_secs(60);
    let idle = async {
        while !locks.snapshot().is_idle() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let idle = tokio::time::timeout(patience, idle).await;
    assert!(idle.is_ok(), "left: {:?}", locks.snapshot());
    for id in 0..10 {
        let key = key(&id.to_string());
        assert!(!locks.is_locked(key).await.unwrap());
    }
    server.abort();
}
