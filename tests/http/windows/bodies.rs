//! What a waiting request reads of its body, and what its handler then receives.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::middleware::{Next, from_fn};
use axum::routing::{any, post};
use bytes::Bytes;
use futures_util::{poll, stream};
use http::header::{CONTENT_ENCODING, EXPECT};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::compression::CompressionLayer;
use tower_http::decompression::RequestDecompressionLayer;
use tower_lock::service::ReadBody;
use tower_lock::{
    ErrorKind, LockGuard, LockLayer, LockManager, LockManagerBuilder, LockRejection,
    LockScopeLayer, Locked, Memory, OnUnavailable,
};

use crate::scope::support::{LockedId, key};
use crate::served::{Frames, Stream, in_time, path_key};
use crate::support::engine::{MS, PATIENCE, SECOND};

const KIB: usize = 1024;

/// A body of many frames with trailers, which counts those that were read.
struct Counted {
    frames: usize,
    read: Arc<AtomicUsize>,
}

fn counted(frames: usize) -> (Counted, Arc<AtomicUsize>) {
    let read = Arc::<AtomicUsize>::default();
    let counted = Counted {
        frames,
        read: Arc::clone(&read),
    };
    (counted, read)
}

/// The bytes of frame `number`.
fn frame(number: usize) -> Bytes {
    vec![number as u8; KIB].into()
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())])
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let number = self.read.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(match number.cmp(&self.frames) {
            std::cmp::Ordering::Less => Some(Ok(Frame::data(frame(number)))),
            std::cmp::Ordering::Equal => Some(Ok(Frame::trailers(trailers()))),
            std::cmp::Ordering::Greater => None,
        })
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.load(Ordering::Relaxed).min(self.frames);
        SizeHint::with_exact(((self.frames - read) * KIB) as u64)
    }
}

/// What a handler received.
#[derive(Debug, PartialEq)]
struct Received {
    hint: Option<u64>,
    is_end: bool,
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
}

fn sent(frames: usize) -> Received {
    Received {
        hint: Some((frames * KIB) as u64),
        is_end: false,
        data: (0..frames).flat_map(frame).collect(),
        trailers: Some(trailers()),
    }
}

async fn receive<B>(mut body: B) -> Received
where
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug> + Unpin,
{
    let (hint, is_end) = (body.size_hint().exact(), body.is_end_stream());
    let (mut data, mut trailers) = (Vec::new(), None);
    while let Some(frame) = body.frame().await {
        match frame.unwrap().into_data() {
            Ok(bytes) => data.extend_from_slice(&bytes),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Received {
        hint,
        is_end,
        data,
        trailers,
    }
}

type Seen = mpsc::UnboundedReceiver<Received>;

/// A layer, and `Locked` in a scope.
fn apps(locks: &LockManager) -> [(Router, Seen); 2] {
    let (sender, seen) = mpsc::unbounded_channel();
    let handler = async move |body: Body| drop(sender.send(receive(body).await));
    let layer = LockLayer::by_path(locks.clone()).wait(10 * SECOND);
    let layered = Router::new().route("/{id}", any(handler)).layer(layer);
    let (sender, seen_in_scope) = mpsc::unbounded_channel();
    let handler = async move |Locked(_id, _guard): LockedId, body: Body| {
        drop(sender.send(receive(body).await));
    };
    let scoped = Router::new()
        .route("/{id}", any(handler))
        .layer(LockScopeLayer::new().wait(10 * SECOND))
        .with_state(locks.clone());
    [(layered, seen), (scoped, seen_in_scope)]
}

/// Holds the keys of both apps.
async fn hold(locks: &LockManager) -> LockGuard {
    locks.acquire([path_key("/a"), key("a")]).await.unwrap()
}

fn to_a(body: impl Into<Body>) -> Request<Body> {
    Request::post("/a").body(body.into()).unwrap()
}

fn builder() -> LockManagerBuilder {
    LockManager::builder(Memory::new())
}

fn kind<B>(response: &Response<B>) -> Option<ErrorKind> {
    let rejection: Option<&LockRejection> = response.extensions().get();
    rejection.map(LockRejection::kind)
}

#[tokio::test(start_paused = true)]
async fn waiting_request_reads_up_to_bound() {
    let locks = LockManager::in_memory();
    for (frames, ahead) in [(100, 64), (64, 64), (63, 64), (1, 2)] {
        for (app, mut seen) in apps(&locks) {
            let guard = hold(&locks).await;
            let (body, read) = counted(frames);
            let mut request = app.oneshot(to_a(Body::new(body)));
            assert!(poll!(&mut request).is_pending());
            assert_eq!(read.load(Ordering::Relaxed), ahead);
            assert!(poll!(&mut request).is_pending());
            assert_eq!(read.load(Ordering::Relaxed), ahead);
            drop(guard);
            assert_eq!(in_time(request).await.unwrap().status(), StatusCode::OK);
            assert_eq!(seen.recv().await.unwrap(), sent(frames));
        }
    }
}

#[tokio::test]
async fn request_without_wait_reads_nothing() {
    let locks = LockManager::in_memory();
    let handler = async |request: Request<Body>| {
        let read: &Arc<AtomicUsize> = request.extensions().get().unwrap();
        assert_eq!(read.load(Ordering::Relaxed), 0);
    };
    let in_scope = async move |Locked(_id, _guard): LockedId, request| handler(request).await;
    let layered = Router::new()
        .route("/{id}", any(handler))
        .layer(LockLayer::by_path(locks.clone()));
    let scoped = Router::new()
        .route("/{id}", any(in_scope))
        .layer(LockScopeLayer::new())
        .with_state(locks);
    for app in [layered, scoped] {
        let (body, read) = counted(1);
        let mut request = to_a(Body::new(body));
        request.extensions_mut().insert(Arc::clone(&read));
        assert_eq!(app.oneshot(request).await.unwrap().status(), StatusCode::OK);
        assert_eq!(read.load(Ordering::Relaxed), 0);
    }
}

#[tokio::test]
async fn zero_turns_reading_off() {
    for locks in [builder().read_ahead(0), builder().max_read_ahead(0)] {
        let locks = locks.build().unwrap();
        for (app, mut seen) in apps(&locks) {
            let guard = hold(&locks).await;
            let (body, read) = counted(2);
            let mut request = app.oneshot(to_a(Body::new(body)));
            assert!(poll!(&mut request).is_pending());
            assert_eq!(read.load(Ordering::Relaxed), 0);
            drop(guard);
            request.await.unwrap();
            assert_eq!(seen.recv().await.unwrap(), sent(2));
        }
    }
}

#[tokio::test]
async fn memory_of_manager_bounds_all_requests() {
    let locks = builder().max_read_ahead(10 * KIB).build().unwrap();
    for (app, mut seen) in apps(&locks) {
        let guard = hold(&locks).await;
        let ahead = async |request: &mut _, read: &Arc<AtomicUsize>| {
            assert!(poll!(request).is_pending());
            read.load(Ordering::Relaxed)
        };
        let (body, read) = counted(9);
        let mut first = app.clone().oneshot(to_a(Body::new(body)));
        // The memory grows to 8 KiB, and then to 16 KiB.
        assert_eq!(ahead(&mut first, &read).await, 9);
        let (body, read) = counted(9);
        let mut second = app.oneshot(to_a(Body::new(body)));
        assert_eq!(ahead(&mut second, &read).await, 0);
        drop(first);
        assert_eq!(ahead(&mut second, &read).await, 9);
        drop(guard);
        second.await.unwrap();
        assert_eq!(seen.recv().await.unwrap(), sent(9));
    }
}

/// The first poll would send `100 Continue`.
#[tokio::test]
async fn body_of_expecting_client_is_not_polled() {
    let locks = LockManager::in_memory();
    for (app, _seen) in apps(&locks) {
        let guard = hold(&locks).await;
        let (body, read) = counted(1);
        let mut request = to_a(Body::new(body));
        let expects = "100-continue".parse().unwrap();
        request.headers_mut().insert(EXPECT, expects);
        let mut request = app.oneshot(request);
        assert!(poll!(&mut request).is_pending());
        assert_eq!(read.load(Ordering::Relaxed), 0);
        drop(guard);
        assert_eq!(request.await.unwrap().status(), StatusCode::OK);
    }
}

/// Returns a body that fails when the test lets it.
fn failing() -> (Body, Frames) {
    let (body, frames) = Stream::new();
    frames.data("12");
    (Body::new(body), frames)
}

#[tokio::test]
async fn failed_body_ends_wait_as_400() {
    let locks = LockManager::in_memory();
    for (app, mut seen) in apps(&locks) {
        let _guard = hold(&locks).await;
        let (body, frames) = failing();
        let mut request = app.oneshot(to_a(body));
        assert!(poll!(&mut request).is_pending());
        assert_eq!(locks.snapshot().waiting, 1);
        frames.fail();
        let response = request.await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(kind(&response), Some(ErrorKind::BodyFailed));
        let rejection: &LockRejection = response.extensions().get().unwrap();
        assert_eq!(rejection.retry_after(), None);
        assert!(frames.is_abandoned());
        assert_eq!(locks.snapshot().waiting, 0);
        assert!(seen.try_recv().is_err(), "the handler ran");
    }
}

#[tokio::test]
async fn length_limit_ends_wait_as_413() {
    let locks = LockManager::in_memory();
    for (app, _seen) in apps(&locks) {
        let _guard = hold(&locks).await;
        let (body, _read) = counted(2);
        let limited = Limited::new(body, KIB + 1);
        let response = app.oneshot(to_a(Body::new(limited))).await.unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(kind(&response), Some(ErrorKind::BodyTooLarge));
        assert_eq!(locks.snapshot().waiting, 0);
    }
}

/// Each request that would be rejected runs, also under a backend that is late.
#[tokio::test]
async fn request_that_only_observes_reads_nothing() {
    let locks = LockManager::in_memory();
    let layer = LockLayer::by_path(locks.clone())
        .observe_only()
        .on_unavailable(OnUnavailable::Pass);
    let app = Router::new()
        .route(
            "/a",
            post(async |body: Body| receive(body).await.data.len().to_string()),
        )
        .layer(layer);
    let _guard = hold(&locks).await;
    let (body, _read) = counted(2);
    let response = app.oneshot(to_a(Body::new(body))).await.unwrap();
    let length = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(length, "2048");
}

#[tokio::test]
async fn body_of_other_type_is_read_on_request() {
    let locks = LockManager::in_memory();
    let layer = || LockLayer::by_path(locks.clone());
    let (sender, mut seen) = mpsc::unbounded_channel();
    let service =
        layer()
            .read_body_ahead()
            .layer(service_fn(move |request: Request<ReadBody<Counted>>| {
                let sender = sender.clone();
                async move {
                    sender.send(receive(request.into_body()).await).unwrap();
                    Ok::<_, Infallible>(Response::new(String::new()))
                }
            }));
    for ahead in [0, 64] {
        let guard = match ahead {
            0 => None,
            _ => Some(hold(&locks).await),
        };
        let (body, read) = counted(100);
        let request = Request::post("/a").body(body).unwrap();
        let mut request = Box::pin(service.clone().oneshot(request));
        if guard.is_some() {
            assert!(poll!(&mut request).is_pending());
            assert_eq!(read.load(Ordering::Relaxed), ahead);
        }
        drop(guard);
        request.await.unwrap();
        assert_eq!(seen.recv().await.unwrap(), sent(100));
    }
    // Without the setting, its type and its bytes stay.
    let service = layer().layer(service_fn(async |request: Request<Counted>| {
        receive(request.into_body()).await;
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let guard = hold(&locks).await;
    let (body, read) = counted(1);
    let request = Request::post("/a").body(body).unwrap();
    let mut request = Box::pin(service.oneshot(request));
    assert!(poll!(&mut request).is_pending());
    assert_eq!(read.load(Ordering::Relaxed), 0);
    drop(guard);
    request.await.unwrap();
}

#[tokio::test]
async fn unread_body_is_dropped_by_handler() {
    let locks = LockManager::in_memory();
    let streams = async || Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    let in_scope = async move |Locked(_id, _guard): LockedId| streams().await;
    let layered = Router::new()
        .route("/{id}", any(streams))
        .layer(LockLayer::by_path(locks.clone()));
    let scoped = Router::new()
        .route("/{id}", any(in_scope))
        .layer(LockScopeLayer::new())
        .with_state(locks.clone());
    for app in [layered, scoped] {
        let guard = hold(&locks).await;
        let (body, frames) = failing();
        let mut request = app.oneshot(to_a(body));
        assert!(poll!(&mut request).is_pending());
        drop(guard);
        let response = request.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(frames.is_abandoned(), "the scope keeps the body");
    }
}

/// A body wakes only its last reader, so a scope must not read beside another one.
#[tokio::test(start_paused = true)]
async fn body_that_middleware_reads_stays_its_own() {
    let locks = LockManager::in_memory();
    let (sender, mut seen) = mpsc::unbounded_channel();
    let reads = from_fn(move |request: Request<Body>, next: Next| {
        let sender = sender.clone();
        async move {
            let (head, mut body) = request.into_parts();
            assert!(poll!(body.frame()).is_ready());
            tokio::spawn(async move { sender.send(receive(body).await) });
            tokio::task::yield_now().await;
            next.run(Request::from_parts(head, Body::empty())).await
        }
    });
    let app = Router::new()
        .route("/{id}", any(async |_: LockedId| ()))
        .layer(reads)
        .layer(LockScopeLayer::new().wait(PATIENCE))
        .with_state(locks.clone());
    let guard = hold(&locks).await;
    let (body, frames) = failing();
    let request = tokio::spawn(app.oneshot(to_a(body)));
    tokio::time::sleep(MS).await;
    frames.data("34");
    drop(frames);
    let received = in_time(seen.recv()).await.unwrap();
    assert_eq!(received.data, b"34");
    drop(guard);
    assert_eq!(request.await.unwrap().unwrap().status(), StatusCode::OK);
}

/// Several scopes have one body, that of the request.
#[tokio::test]
async fn extractor_in_nested_layers_reads_body() {
    let locks = LockManager::in_memory();
    let (sender, mut seen) = mpsc::unbounded_channel();
    let handler = async move |Locked(_id, _guard): LockedId, body: Body| {
        drop(sender.send(receive(body).await));
    };
    let app = Router::new()
        .route("/{id}", any(handler))
        .layer(LockLayer::by_path(locks.clone()))
        .layer(LockScopeLayer::new())
        .layer(LockScopeLayer::new())
        .with_state(locks.clone());
    for outer in [true, false] {
        let layer = match outer {
            true => Some(locks.acquire(path_key("/a")).await.unwrap()),
            false => None,
        };
        let extractor = locks.acquire(key("a")).await.unwrap();
        let (body, read) = counted(100);
        let mut request = app.clone().oneshot(to_a(Body::new(body)));
        assert!(poll!(&mut request).is_pending());
        assert_eq!(read.load(Ordering::Relaxed), 64);
        drop(layer);
        assert!(poll!(&mut request).is_pending());
        assert_eq!(locks.snapshot().waiting, 1);
        drop(extractor);
        assert_eq!(request.await.unwrap().status(), StatusCode::OK);
        assert_eq!(seen.recv().await.unwrap(), sent(100));
    }
}

/// A retry inside the layer sends a clone first.
#[tokio::test]
async fn inner_retry_sends_waiting_request_again() {
    let locks = LockManager::in_memory();
    let (sender, mut seen) = mpsc::unbounded_channel();
    let handler = service_fn(move |request: Request<Full<Bytes>>| {
        let sent = sender.clone();
        async move { sent.send(receive(request.into_body()).await.data) }
    });
    let retry = service_fn(move |request: Request<Full<Bytes>>| {
        let handler = handler.clone();
        async move {
            handler.clone().oneshot(request.clone()).await.unwrap();
            handler.oneshot(request).await.unwrap();
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    });
    let service = LockLayer::by_path(locks.clone()).layer(retry);
    let guard = hold(&locks).await;
    let request = Request::post("/a").body(Full::from("12")).unwrap();
    let mut request = Box::pin(service.oneshot(request));
    assert!(poll!(&mut request).is_pending());
    drop(guard);
    request.await.unwrap();
    for _ in 0..2 {
        assert_eq!(seen.recv().await.unwrap(), b"12");
    }
}

async fn compressed(text: Bytes) -> Bytes {
    let respond = service_fn(move |_: Request<()>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(text.clone()))))
    });
    let request = Request::get("/").header("accept-encoding", "gzip");
    let service = CompressionLayer::new().layer(respond);
    let response = service.oneshot(request.body(()).unwrap()).await.unwrap();
    assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn compressed_body_of_waiting_request_arrives() {
    let locks = LockManager::in_memory();
    let mut rng = fastrand::Rng::with_seed(7);
    // More than the bound, also compressed.
    let text: Bytes = (0..300 * KIB).map(|_| rng.alphanumeric() as u8).collect();
    let body = compressed(text.clone()).await;
    assert!(body.len() > 100 * KIB);
    let layer = LockLayer::by_path(locks.clone());
    let app = Router::new().route("/a", post(async |body: Body| receive(body).await.data));
    let inside = app
        .clone()
        .layer(RequestDecompressionLayer::new())
        .layer(layer.clone());
    let outside = app.layer(layer).layer(RequestDecompressionLayer::new());
    for app in [inside, outside] {
        let guard = hold(&locks).await;
        let frames = body.chunks(4 * KIB).map(Bytes::copy_from_slice);
        let frames = frames.map(|frame| Ok::<_, Infallible>(Frame::data(frame)));
        let frames = stream::iter(frames.collect::<Vec<_>>());
        let mut request = to_a(Body::new(StreamBody::new(frames)));
        let gzip = "gzip".parse().unwrap();
        request.headers_mut().insert(CONTENT_ENCODING, gzip);
        let mut request = app.oneshot(request);
        assert!(poll!(&mut request).is_pending());
        drop(guard);
        let response = request.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let echoed = response.into_body().collect().await.unwrap().to_bytes();
        assert!(echoed == text, "{} bytes", echoed.len());
    }
}

/// Frames that arrive one by one, during the wait and after it.
#[tokio::test(start_paused = true)]
async fn frames_before_and_after_grant_arrive_in_order() {
    let locks = LockManager::in_memory();
    for (app, mut seen) in apps(&locks) {
        let guard = hold(&locks).await;
        let (body, frames) = failing();
        let request = tokio::spawn(app.oneshot(to_a(body)));
        let mut guard = Some(guard);
        for (at, data) in ["34", "56", "78"].into_iter().enumerate() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            frames.data(data);
            if at == 1 {
                guard = None;
            }
        }
        tokio::time::sleep(MS).await;
        drop((frames, guard));
        assert_eq!(
            in_time(request).await.unwrap().unwrap().status(),
            StatusCode::OK
        );
        assert_eq!(seen.recv().await.unwrap().data, b"12345678");
    }
}
