//! `read_body_first` on a bare service: which bodies it reads, when the wait begins, and what it passes on.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::map_request_body::MapRequestBodyLayer;
use tower_lock::backend::BackendErrorKind;
use tower_lock::keys::{BodyFirst, ByPath, KeyExtractor};
use tower_lock::service::{ReadBody, Unlocked};
use tower_lock::{ErrorKind, Held, LockKey, LockLayer, LockManager, LockRejection, OnUnavailable};

use crate::served::{Stream, assert_waits, in_time, path_key};
use crate::support::broken::broken;
use crate::support::engine::SECOND;

const LIMIT: usize = 5;
const DEADLINE: Duration = Duration::from_secs(10);

/// What a handler saw of its request.
#[derive(Debug, PartialEq)]
struct Seen {
    body: String,
    has_failed: bool,
    trailers: Option<HeaderMap>,
    unlocked: Option<ErrorKind>,
}

impl Seen {
    fn locked(body: &str) -> Self {
        Self {
            body: body.to_owned(),
            has_failed: false,
            trailers: None,
            unlocked: None,
        }
    }
}

/// Reads the body to its end or its error.
async fn see<B>(request: Request<ReadBody<B>>) -> Seen
where
    ReadBody<B>: Body<Data = Bytes> + Unpin,
{
    let (head, mut body) = request.into_parts();
    let unlocked: Option<&Unlocked> = head.extensions.get();
    let mut seen = Seen::locked("");
    seen.unlocked = unlocked.map(|unlocked| unlocked.error().kind());
    assert_eq!(
        head.extensions.get::<Held>().is_some(),
        unlocked.is_none(),
        "{unlocked:?}"
    );
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => seen.body += std::str::from_utf8(&data).unwrap(),
            Ok(Err(frame)) => seen.trailers = frame.into_trailers().ok(),
            Err(_) => seen.has_failed = true,
        }
    }
    seen
}

type Answer = Result<Seen, (StatusCode, ErrorKind)>;

async fn serve<K, B>(layer: LockLayer<BodyFirst<K>>, request: Request<B>) -> Answer
where
    K: KeyExtractor,
    B: Body<Data = Bytes, Error: Into<tower::BoxError>> + Unpin,
{
    let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let service = layer.layer(service_fn(|request: Request<ReadBody<B>>| {
        let sender = sender.clone();
        async move {
            sender.send(see(request).await).unwrap();
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    }));
    let response = service.oneshot(request).await.unwrap();
    let rejection: Option<&LockRejection> = response.extensions().get();
    match rejection {
        Some(rejection) => {
            assert!(seen.try_recv().is_err(), "rejected after its handler");
            assert_eq!(rejection.retry_after(), None);
            Err((response.status(), rejection.kind()))
        }
        None => Ok(seen.recv().await.unwrap()),
    }
}

fn by_path(locks: &LockManager) -> LockLayer<BodyFirst<ByPath>> {
    LockLayer::by_path(locks.clone())
        .no_wait()
        .read_body_first(LIMIT, DEADLINE)
}

fn post<B>(body: B) -> Request<B> {
    Request::post("/a").body(body).unwrap()
}

#[tokio::test]
async fn frames_and_trailers_reach_handler() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "7".parse().unwrap());
    let frames = [
        Frame::data(Bytes::from("12")),
        Frame::data(Bytes::new()),
        Frame::data(Bytes::from("345")),
        Frame::trailers(trailers.clone()),
    ];
    let frames = frames.map(Ok::<_, Infallible>);
    let body = StreamBody::new(futures_util::stream::iter(frames));
    let seen = serve(by_path(&LockManager::in_memory()), post(body)).await;
    let expected = Seen {
        trailers: Some(trailers),
        ..Seen::locked("12345")
    };
    assert_eq!(seen, Ok(expected));
}

#[tokio::test]
async fn read_body_has_exact_size() {
    let layer = by_path(&LockManager::in_memory());
    let service = layer.layer(service_fn(async |request: Request<ReadBody<Stream>>| {
        let body = request.body();
        assert_eq!(body.size_hint().exact(), Some(2));
        assert!(!body.is_end_stream());
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let (body, frames) = Stream::new();
    frames.data("12");
    drop(frames);
    let response = service.oneshot(post(body)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn wait_begins_after_complete_body() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(path_key("/a")).await.unwrap();
    let layer = by_path(&locks).wait(5 * SECOND);
    let (body, frames) = Stream::new();
    let start = Instant::now();
    let client = async {
        tokio::time::sleep(8 * SECOND).await;
        frames.data("12");
        assert_eq!(locks.snapshot().waiting, 0);
        drop(frames);
    };
    let service = layer.layer(service_fn(|request: Request<ReadBody<Stream>>| async {
        see(request).await;
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let request = service.oneshot(post(body));
    let (response, ()) = in_time(futures_util::future::join(request, client)).await;
    let response = response.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert_eq!(start.elapsed().as_secs(), 13);
    let rejection: &LockRejection = response.extensions().get().unwrap();
    assert_eq!(rejection.waited().map(|waited| waited.as_secs()), Some(5));
}

#[tokio::test(start_paused = true)]
async fn incomplete_bodies_are_rejected_without_lock() {
    let locks = LockManager::in_memory();
    // A rejection that needed the lock would be 409.
    let _guard = locks.acquire(path_key("/a")).await.unwrap();
    let late = (StatusCode::REQUEST_TIMEOUT, ErrorKind::BodyTimeout);
    let large = (StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::BodyTooLarge);
    let failed = (StatusCode::BAD_REQUEST, ErrorKind::BodyFailed);
    let start = Instant::now();
    let (body, _frames) = Stream::new();
    assert_eq!(serve(by_path(&locks), post(body)).await, Err(late));
    assert_eq!(start.elapsed().as_secs(), 10);
    let (body, frames) = Stream::new();
    frames.data("12345");
    frames.data("6");
    assert_eq!(serve(by_path(&locks), post(body)).await, Err(large));
    let (body, frames) = Stream::new();
    frames.data("12345");
    frames.fail();
    assert_eq!(serve(by_path(&locks), post(body)).await, Err(failed));
    let known = post(Full::from("123456"));
    assert_eq!(serve(by_path(&locks), known).await, Err(large));
    let passing = by_path(&locks).on_unavailable(OnUnavailable::Pass);
    let known = post(Full::from("123456"));
    assert_eq!(serve(passing, known).await, Err(large));
    assert_eq!(start.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn slow_frames_do_not_extend_deadline() {
    let (body, frames) = Stream::new();
    let start = Instant::now();
    let client = async {
        for _ in 0..4 {
            tokio::time::sleep(3 * SECOND).await;
            if !frames.is_abandoned() {
                frames.data("1");
            }
        }
    };
    let request = async {
        let answer = serve(by_path(&LockManager::in_memory()), post(body)).await;
        (answer, start.elapsed().as_secs())
    };
    let ((answer, after), ()) = in_time(futures_util::future::join(request, client)).await;
    let late = (StatusCode::REQUEST_TIMEOUT, ErrorKind::BodyTimeout);
    assert_eq!((answer, after), (Err(late), 10));
}

/// The handler reads nothing, so the answer shows that the layer reads nothing either.
#[tokio::test]
async fn bodies_of_requests_without_lock_stream() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(path_key("/a")).await.unwrap();
    let no_key = LockLayer::by_fn(locks.clone(), |_| None::<LockKey>);
    let by_path = || LockLayer::by_path(locks.clone());
    let by_header = LockLayer::by_header(locks.clone(), "x-id");
    let ran = StatusCode::OK;
    async fn answer<K: KeyExtractor>(layer: LockLayer<K>, method: &str) -> Option<StatusCode> {
        let layer = layer.read_body_first(LIMIT, DEADLINE);
        let service = layer.layer(service_fn(async |_: Request<ReadBody<Stream>>| {
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
        let (body, _frames) = Stream::new();
        let request = Request::builder().method(method).uri("/a").body(body);
        let response = service.oneshot(request.unwrap()).now_or_never();
        response.map(|response| response.unwrap().status())
    }
    assert_eq!(answer(by_path(), "GET").await, Some(ran));
    assert_eq!(answer(by_path().skip(|_| true), "PUT").await, Some(ran));
    assert_eq!(answer(no_key, "PUT").await, Some(ran));
    // The cheaper rejection comes first.
    let refused = answer(by_header, "PUT").await;
    assert_eq!(refused, Some(StatusCode::BAD_REQUEST));
    assert_eq!(answer(by_path(), "PUT").await, None);
}

#[tokio::test(start_paused = true)]
async fn observe_only_passes_bodies_unchanged() {
    let locks = LockManager::in_memory();
    let observing = || by_path(&locks).observe_only();
    let unlocked = |body: &str, kind| Seen {
        unlocked: Some(kind),
        ..Seen::locked(body)
    };
    let (body, frames) = Stream::new();
    for data in ["123", "456", "789"] {
        frames.data(data);
    }
    drop(frames);
    let seen = serve(observing(), post(body)).await;
    assert_eq!(seen, Ok(unlocked("123456789", ErrorKind::BodyTooLarge)));
    let (body, frames) = Stream::new();
    frames.data("12");
    frames.fail();
    let mut failed = unlocked("12", ErrorKind::BodyFailed);
    failed.has_failed = true;
    assert_eq!(serve(observing(), post(body)).await, Ok(failed));
    let (body, frames) = Stream::new();
    let client = async {
        frames.data("12");
        tokio::time::sleep(2 * DEADLINE).await;
        frames.data("34");
        drop(frames);
    };
    let request = serve(observing(), post(body));
    let (seen, ()) = in_time(futures_util::future::join(request, client)).await;
    assert_eq!(seen, Ok(unlocked("1234", ErrorKind::BodyTimeout)));
    let seen = serve(observing(), post(Full::from("12"))).await;
    assert_eq!(seen, Ok(Seen::locked("12")));
    let _guard = locks.acquire(path_key("/a")).await.unwrap();
    let seen = serve(observing(), post(Full::from("12"))).await;
    assert_eq!(seen, Ok(unlocked("12", ErrorKind::Busy)));
}

#[tokio::test(start_paused = true)]
async fn unavailable_backend_passes_read_body() {
    let layer = by_path(&broken(BackendErrorKind::Unavailable)).on_unavailable(OnUnavailable::Pass);
    let seen = serve(layer, post(Full::from("12"))).await.unwrap();
    assert_eq!(seen.unlocked, Some(ErrorKind::Unavailable));
    assert_eq!(seen.body, "12");
}

#[tokio::test]
async fn dropped_request_leaves_nothing() {
    let locks = LockManager::in_memory();
    let service =
        by_path(&locks)
            .wait(SECOND)
            .layer(service_fn(async |_: Request<ReadBody<Stream>>| {
                Ok::<_, Infallible>(Response::new(String::new()))
            }));
    let (body, frames) = Stream::new();
    let mut reading = Box::pin(service.clone().oneshot(post(body)));
    frames.data("12");
    assert_waits(&mut reading).await;
    assert!(locks.snapshot().is_idle());
    drop(reading);
    assert!(frames.is_abandoned());
    assert!(locks.snapshot().is_idle());
    let guard = locks.acquire(path_key("/a")).await.unwrap();
    let (body, frames) = Stream::new();
    drop(frames);
    let mut waiting = Box::pin(service.oneshot(post(body)));
    assert_waits(&mut waiting).await;
    assert_eq!(locks.snapshot().waiting, 1);
    drop(waiting);
    assert_eq!(locks.snapshot().waiting, 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn body_error_is_source_of_rejection() {
    let service = by_path(&LockManager::in_memory()).layer(service_fn(
        async |_: Request<ReadBody<Stream>>| Ok::<_, Infallible>(Response::new(String::new())),
    ));
    let (body, frames) = Stream::new();
    frames.fail();
    let response = service.oneshot(post(body)).await.unwrap();
    let rejection: &LockRejection = response.extensions().get().unwrap();
    let levels = std::iter::successors(
        Some(rejection.error() as &dyn std::error::Error),
        |&error| error.source(),
    );
    let levels: Vec<String> = levels.map(ToString::to_string).collect();
    assert_eq!(levels.last().unwrap(), "the body broke", "{levels:?}");
}

/// As documented, for an inner service of one body type.
#[tokio::test]
async fn mapped_body_reaches_service_of_one_type() {
    type Boxed = http_body_util::combinators::UnsyncBoxBody<Bytes, tower::BoxError>;
    let layer = by_path(&LockManager::in_memory());
    let service = tower::ServiceBuilder::new()
        .layer(layer)
        .layer(MapRequestBodyLayer::new(BodyExt::boxed_unsync))
        .service_fn(async |request: Request<Boxed>| {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Ok::<_, Infallible>(Response::new(Full::new(body)))
        });
    let response = service.oneshot(post(Full::from("12"))).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "12");
}

#[test]
fn deadline_out_of_bounds_panics() {
    for deadline in [Duration::ZERO, Duration::from_secs(367 * 24 * 60 * 60)] {
        let set = || {
            let locks = LockManager::in_memory();
            drop(LockLayer::by_path(locks).read_body_first(LIMIT, deadline));
        };
        assert!(std::panic::catch_unwind(set).is_err(), "{deadline:?}");
    }
}
