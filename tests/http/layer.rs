//! `LockLayer` around bare tower services.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::served::{
    Broken, Gate, OnDrop, Stream, assert_waits, in_time, is_locked, path_key, post, until,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderName, Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use static_assertions::assert_impl_all;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_lock::{
    ByHeader, Error, ErrorKind, Held, InvalidKey, LockBody, LockKey, LockKeys, LockLayer,
    LockManager, LockRejection, LockService, LockTarget, OnLost, Owner, ResponseFuture,
};

type Handler = fn(Request<String>) -> BoxFuture<'static, Result<Response<String>, Infallible>>;

assert_impl_all!(LockLayer<ByHeader>: Clone, Send, Sync, std::fmt::Debug);
assert_impl_all!(LockService<Handler, ByHeader>: Clone, Send, Sync, std::fmt::Debug);
assert_impl_all!(LockBody<Full<Bytes>>: Send, Unpin, std::fmt::Debug);
assert_impl_all!(LockBody<LockBody<Stream>>: Body, Send);
assert_impl_all!(ResponseFuture<BoxFuture<'static, ()>, Handler, String>: Send);
assert_impl_all!(LockRejection: Clone, Send, Sync, std::error::Error);

/// A service that responds at once with the state of its lock.
async fn show_held(request: Request<String>) -> Result<Response<String>, Infallible> {
    let text = match request.extensions().get::<Held>() {
        Some(held) => {
            assert!(held.is_held());
            let keys: Vec<_> = held.keys().map(LockKey::as_str).collect();
            keys.join(" ")
        }
        None => "unlocked".to_owned(),
    };
    Ok(Response::new(text))
}

async fn text<B>(response: Response<B>) -> String
where
    B: Body,
    B::Error: std::fmt::Debug,
{
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn inner_service_sees_lock() {
    let locks = LockManager::in_memory();
    let service = LockLayer::by_path(locks.clone()).layer(service_fn(show_held));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(text(response).await, "/a");
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn requests_with_one_key_run_in_order() {
    let (gate, mut calls) = Gate::new();
    let locks = LockManager::in_memory();
    let service = LockLayer::by_path(locks.clone())
        .layer(service_fn(move |request| gate.clone().handle(request)));
    let request = |number: &str| {
        let request = Request::post("/a").header("number", number);
        Box::pin(
            service
                .clone()
                .oneshot(request.body(String::new()).unwrap()),
        )
    };
    let (mut first, mut second, mut third) = (request("1"), request("2"), request("3"));
    assert_waits(&mut first).await;
    assert_waits(&mut second).await;
    assert_waits(&mut third).await;
    for (mut response, number) in [(first, "1"), (second, "2"), (third, "3")] {
        assert_waits(&mut response).await;
        let call = calls.recv().await.unwrap();
        assert_eq!(call.request.headers["number"], number);
        assert!(calls.try_recv().is_err(), "two run at once");
        call.finish();
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn requests_with_different_keys_run_concurrently() {
    let (gate, mut calls) = Gate::new();
    let service = LockLayer::by_path(LockManager::in_memory())
        .layer(service_fn(move |request| gate.clone().handle(request)));
    let mut a = Box::pin(service.clone().oneshot(post("/a")));
    let mut b = Box::pin(service.oneshot(post("/b")));
    assert_waits(&mut a).await;
    assert_waits(&mut b).await;
    assert!(calls.try_recv().is_ok());
    assert!(calls.try_recv().is_ok());
}

#[tokio::test]
async fn request_without_key_passes_unlocked() {
    let service = LockLayer::new(LockManager::in_memory(), |_: &http::request::Parts| {
        Ok(None)
    })
    .layer(service_fn(show_held));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(text(response).await, "unlocked");
}

#[tokio::test]
async fn writes_only_passes_only_safe_methods() {
    let locks = LockManager::in_memory();
    let service = LockLayer::by_path(locks)
        .writes_only()
        .layer(service_fn(show_held));
    for (method, expected) in [
        (Method::GET, "unlocked"),
        (Method::HEAD, "unlocked"),
        (Method::OPTIONS, "unlocked"),
        (Method::TRACE, "unlocked"),
        (Method::POST, "/a"),
        (Method::PUT, "/a"),
        (Method::PATCH, "/a"),
        (Method::DELETE, "/a"),
    ] {
        let mut request = post("/a");
        *request.method_mut() = method.clone();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(text(response).await, expected, "{method}");
    }
}

#[tokio::test]
async fn each_constructor_locks_its_own_key() {
    #[derive(Clone)]
    struct Tenant(&'static str);

    impl LockTarget for Tenant {
        fn lock_keys(&self) -> LockKeys {
            LockKey::from_parts(["tenant", self.0]).into()
        }
    }

    let locks = LockManager::in_memory;
    let inner = || service_fn(show_held);
    let request = || {
        let mut request = post("/a%42?account=x+y");
        request.headers_mut().insert("x-id", "7".parse().unwrap());
        request.extensions_mut().insert(Tenant("t"));
        request
    };
    let by_path = LockLayer::by_path(locks()).layer(inner());
    let by_header = LockLayer::by_header(locks(), "X-Id").layer(inner());
    let by_query = LockLayer::by_query(locks(), "account").layer(inner());
    let by_extension = LockLayer::by_extension::<Tenant>(locks()).layer(inner());
    let by_closure = LockLayer::new(locks(), |request: &http::request::Parts| {
        Ok(Some(LockKeys::from([request.method.as_str(), "all"])))
    })
    .layer(inner());
    let answer = |response: Result<Response<_>, _>| text(response.unwrap());
    assert_eq!(answer(by_path.oneshot(request()).await).await, "/aB");
    assert_eq!(answer(by_header.oneshot(request()).await).await, "x-id:7");
    assert_eq!(
        answer(by_query.oneshot(request()).await).await,
        "account:x y"
    );
    assert_eq!(
        answer(by_extension.oneshot(request()).await).await,
        "tenant:t"
    );
    assert_eq!(
        answer(by_closure.oneshot(request()).await).await,
        "POST all"
    );
}

#[tokio::test]
async fn invalid_key_does_not_reach_inner_service() {
    let service = LockLayer::new(LockManager::in_memory(), |_: &http::request::Parts| {
        Err(InvalidKey::Missing {
            what: "thing".into(),
        })
    })
    .layer(service_fn(|_: Request<String>| async {
        panic!("called without a lock");
        #[expect(unreachable_code, reason = "names the type")]
        Ok::<Response<String>, Infallible>(Response::default())
    }));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn inner_service_error_passes_and_releases_lock() {
    #[derive(Debug, PartialEq)]
    struct Mine(u8);

    let locks = LockManager::in_memory();
    let service = LockLayer::by_path(locks.clone()).layer(service_fn(|_| async {
        Err::<Response<String>, _>(Mine(7))
    }));
    assert_eq!(service.oneshot(post("/a")).await.unwrap_err(), Mine(7));
    assert!(!is_locked(&locks));
}

/// A service that panics if it is called before it was ready. A clone is not ready.
struct OnceReady {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for OnceReady {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            calls: Arc::clone(&self.calls),
        }
    }
}

impl Service<Request<String>> for OnceReady {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        assert!(self.ready, "called a service that was not ready");
        self.ready = false;
        self.calls.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Response::default()))
    }
}

#[tokio::test]
async fn ready_service_is_the_called_one() {
    let locks = LockManager::in_memory();
    let calls = Arc::new(AtomicUsize::new(0));
    let mut service = LockLayer::by_path(locks.clone())
        .writes_only()
        .layer(OnceReady {
            ready: false,
            calls: Arc::clone(&calls),
        });
    let guard = locks.acquire(path_key("/a")).await.unwrap();
    let mut waiting = Box::pin(service.ready().await.unwrap().call(post("/a")));
    assert_waits(&mut waiting).await;
    // While one request waits, the next ones pass through the same service, locked and unlocked.
    service
        .ready()
        .await
        .unwrap()
        .call(post("/b"))
        .await
        .unwrap();
    let get = Request::get("/a").body(String::new()).unwrap();
    service.ready().await.unwrap().call(get).await.unwrap();
    drop(guard);
    waiting.await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn unready_inner_service_makes_layer_unready() {
    let never = tower::limit::ConcurrencyLimit::new(service_fn(show_held), 0);
    let mut service = LockLayer::by_path(LockManager::in_memory()).layer(never);
    let ready = poll_fn(|cx| Poll::Ready(Service::<Request<String>>::poll_ready(&mut service, cx)));
    assert!(ready.await.is_pending());
}

#[tokio::test]
async fn body_in_memory_releases_lock_at_head() {
    let locks = LockManager::in_memory();
    let service = LockLayer::by_path(locks.clone()).layer(service_fn(|_| async {
        Ok::<_, Infallible>(Response::new("hello".to_owned()))
    }));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert!(!is_locked(&locks));
    assert_eq!(response.body().size_hint().exact(), Some(5));
    assert!(!response.body().is_end_stream());
    assert_eq!(text(response).await, "hello");
}

#[tokio::test]
async fn empty_body_is_complete_at_head() {
    let locks = LockManager::in_memory();
    let service = LockLayer::by_path(locks.clone()).layer(service_fn(|_| async {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert!(!is_locked(&locks));
    assert!(response.body().is_end_stream());
    assert_eq!(response.body().size_hint().exact(), Some(0));
}

/// Sends one request whose response has this body.
async fn respond<K: tower_lock::KeyExtractor>(
    layer: LockLayer<K>,
    body: Stream,
    status: StatusCode,
    method: Method,
) -> Response<LockBody<Stream>> {
    let body = Arc::new(Mutex::new(Some(body)));
    let service = layer.layer(service_fn(move |_: Request<String>| {
        let mut response = Response::new(body.lock().unwrap().take().unwrap());
        *response.status_mut() = status;
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    let mut request = post("/a");
    *request.method_mut() = method;
    service.oneshot(request).await.unwrap()
}

#[tokio::test]
async fn streaming_body_holds_lock_until_its_end() {
    let locks = LockManager::in_memory();
    let (body, frames) = Stream::new();
    // The first frame is ready at the head, but it is not the last one.
    frames.data("one");
    let layer = LockLayer::by_path(locks.clone());
    let mut response = respond(layer, body, StatusCode::OK, Method::POST).await;
    assert!(is_locked(&locks));
    let first = response.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "one");
    frames.data("two");
    let second = response.frame().await.unwrap().unwrap();
    assert_eq!(second.into_data().unwrap(), "two");
    assert!(is_locked(&locks));
    drop(frames);
    assert!(response.frame().await.is_none());
    assert!(!is_locked(&locks));
    assert!(response.frame().await.is_none());
    assert!(response.is_end_stream());
}

#[tokio::test]
async fn failed_streaming_body_releases_lock() {
    let locks = LockManager::in_memory();
    let (body, frames) = Stream::new();
    let layer = LockLayer::by_path(locks.clone());
    let mut response = respond(layer, body, StatusCode::OK, Method::POST).await;
    frames.fail();
    let error = response.frame().await.unwrap().unwrap_err();
    assert!(error.is::<Broken>());
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn body_that_fails_at_head_delivers_error() {
    let locks = LockManager::in_memory();
    let (body, frames) = Stream::new();
    frames.fail();
    let layer = LockLayer::by_path(locks.clone());
    let mut response = respond(layer, body, StatusCode::OK, Method::POST).await;
    assert!(!is_locked(&locks));
    assert!(!response.is_end_stream());
    assert_eq!(response.size_hint().exact(), None, "not an empty body");
    assert!(response.frame().await.unwrap().unwrap_err().is::<Broken>());
    assert!(response.frame().await.is_none());
}

#[tokio::test]
async fn dropped_streaming_body_releases_lock() {
    let locks = LockManager::in_memory();
    let (body, frames) = Stream::new();
    let layer = LockLayer::by_path(locks.clone());
    let response = respond(layer, body, StatusCode::OK, Method::POST).await;
    assert!(is_locked(&locks));
    drop(response);
    assert!(frames.is_abandoned());
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn some_responses_with_body_complete_at_head() {
    for (layer, status, method) in [
        (
            LockLayer::by_path as fn(_) -> _,
            StatusCode::SWITCHING_PROTOCOLS,
            Method::GET,
        ),
        (LockLayer::by_path, StatusCode::OK, Method::CONNECT),
        (LockLayer::by_path, StatusCode::OK, Method::HEAD),
        (
            |locks| LockLayer::by_path(locks).release_at_head(),
            StatusCode::OK,
            Method::POST,
        ),
    ] {
        let locks = LockManager::in_memory();
        let (body, frames) = Stream::new();
        frames.data("kept");
        let response = respond(layer(locks.clone()), body, status, method.clone()).await;
        assert!(!is_locked(&locks), "{status} {method}");
        drop(frames);
        assert_eq!(text(response).await, "kept");
    }
    // A rejected tunnel is an ordinary response.
    let locks = LockManager::in_memory();
    let (body, _frames) = Stream::new();
    let layer = LockLayer::by_path(locks.clone());
    let _response = respond(layer, body, StatusCode::FORBIDDEN, Method::CONNECT).await;
    assert!(is_locked(&locks));
}

#[tokio::test(start_paused = true)]
async fn loss_during_streaming_body_ends_it_with_error() {
    let locks = LockManager::in_memory();
    let (body, frames) = Stream::new();
    let layer = LockLayer::by_path(locks.clone()).max_hold(Duration::from_secs(10));
    let mut response = respond(layer, body, StatusCode::OK, Method::POST).await;
    frames.data("one");
    assert!(response.frame().await.unwrap().is_ok());
    // No frame arrives, so only the loss can wake this future.
    let error = in_time(response.frame()).await.unwrap().unwrap_err();
    let error = error.downcast::<Error>().unwrap();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(frames.is_abandoned());
    assert!(response.frame().await.is_none());
    assert!(response.is_end_stream());
    until_free(&locks, "/a").await;
}

#[tokio::test(start_paused = true)]
async fn loss_during_streaming_body_is_flagged_by_option() {
    let locks = LockManager::in_memory();
    let (body, frames) = Stream::new();
    let layer = LockLayer::by_path(locks.clone())
        .max_hold(Duration::from_secs(10))
        .on_lost(OnLost::Continue);
    let response = respond(layer, body, StatusCode::OK, Method::POST).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    frames.data("late");
    drop(frames);
    assert_eq!(text(response).await, "late");
}

async fn until_free(locks: &LockManager, path: &str) {
    drop(locks.acquire(path_key(path)).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn loss_before_head_drops_handler_and_returns_500() {
    let locks = LockManager::in_memory();
    let (gate, mut calls) = Gate::new();
    let service = LockLayer::by_path(locks.clone())
        .lease(Duration::from_secs(10))
        .layer(service_fn(move |request| gate.clone().handle(request)));
    let response = in_time(service.oneshot(post("/a"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let rejection = response.extensions().get::<LockRejection>().unwrap();
    assert!(rejection.error().is_lost());
    assert!(calls.recv().await.unwrap().is_abandoned());
    until_free(&locks, "/a").await;
}

#[tokio::test(start_paused = true)]
async fn max_hold_bounds_handler_with_renewed_lock() {
    let locks = LockManager::in_memory();
    let (gate, _calls) = Gate::new();
    let service = LockLayer::by_path(locks.clone())
        .layer(service_fn(move |request| gate.clone().handle(request)));
    let start = tokio::time::Instant::now();
    let response = in_time(service.oneshot(post("/a"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let held = start.elapsed();
    let five_minutes = Duration::from_secs(300);
    assert!(
        held >= five_minutes && held < five_minutes + Duration::from_secs(1),
        "{held:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn handler_under_lost_lock_continues_by_option() {
    let (gate, mut calls) = Gate::new();
    let service = LockLayer::by_path(LockManager::in_memory())
        .lease(Duration::from_secs(10))
        .on_lost(OnLost::Continue)
        .layer(service_fn(move |request| gate.clone().handle(request)));
    let mut response = Box::pin(service.oneshot(post("/a")));
    assert_waits(&mut response).await;
    let call = calls.recv().await.unwrap();
    let held = call.request.extensions.get::<Held>().unwrap().clone();
    assert!(held.is_held());
    in_time(held.lost()).await;
    assert!(!held.is_held());
    assert_waits(&mut response).await;
    call.finish();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn loss_precedes_response_of_same_moment() {
    let (gate, mut calls) = Gate::new();
    let service = LockLayer::by_path(LockManager::in_memory())
        .lease(Duration::from_secs(10))
        .layer(service_fn(move |request| gate.clone().handle(request)));
    let mut response = Box::pin(service.oneshot(post("/a")));
    assert_waits(&mut response).await;
    calls.recv().await.unwrap().finish();
    tokio::time::advance(Duration::from_secs(10)).await;
    let response = response.await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

/// This test uses real time, because a handler that blocks cannot be paused. It blocks longer than its
/// lease, so the outcome does not depend on the duration.
#[tokio::test]
async fn blocking_response_beyond_lease_is_not_delivered() {
    let service = LockLayer::by_path(LockManager::in_memory())
        .lease(Duration::from_millis(20))
        .layer(service_fn(|_: Request<String>| async {
            std::thread::sleep(Duration::from_millis(40));
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

/// A frame that is produced in one blocking step is not delivered after its lease, like a head.
#[tokio::test]
async fn blocking_frame_beyond_lease_is_not_delivered() {
    let blocking = futures_util::stream::poll_fn({
        let mut polls = 0;
        move |_| {
            polls += 1;
            if polls == 1 {
                // The check at the head finds the lock held.
                return Poll::Pending;
            }
            std::thread::sleep(Duration::from_millis(1_200));
            Poll::Ready(Some(Ok::<_, Infallible>(http_body::Frame::data(
                Bytes::new(),
            ))))
        }
    });
    let body = Arc::new(Mutex::new(Some(http_body_util::StreamBody::new(blocking))));
    let service = LockLayer::by_path(LockManager::in_memory())
        .lease(Duration::from_secs(1))
        .layer(service_fn(move |_: Request<String>| {
            let body = body.lock().unwrap().take().unwrap();
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        }));
    let mut response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let error = response.frame().await.unwrap().unwrap_err();
    assert!(error.is::<Error>(), "{error:?}");
}

/// The number of held locks when the handler's future was dropped.
async fn held_at_drop(
    layer: impl FnOnce(LockManager) -> LockLayer<tower_lock::ByPath>,
    end: impl AsyncFnOnce(BoxFuture<'static, ()>),
) -> Option<usize> {
    let locks = LockManager::in_memory();
    let seen = Arc::new(Mutex::new(None));
    let (watched, saw) = (locks.clone(), Arc::clone(&seen));
    let service = layer(locks).layer(service_fn(move |_: Request<String>| {
        let (watched, saw) = (watched.clone(), Arc::clone(&saw));
        let on_drop = OnDrop(move || *saw.lock().unwrap() = Some(watched.snapshot().held));
        async move {
            let _on_drop = on_drop;
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    }));
    let mut request: BoxFuture<'static, ()> = Box::pin(async move {
        drop(service.oneshot(post("/a")).await);
    });
    assert_waits(&mut request).await;
    end(request).await;
    *seen.lock().unwrap()
}

#[tokio::test]
async fn cancelled_handler_is_dropped_before_its_lock() {
    let held = held_at_drop(LockLayer::by_path, async |request| drop(request)).await;
    assert_eq!(held, Some(1));
}

#[tokio::test]
async fn completed_handler_is_dropped_before_its_lock() {
    /// A future that is ready at once and ends only when it is dropped.
    struct AtOnce<F: FnMut()>(#[allow(dead_code)] OnDrop<F>);

    impl<F: FnMut()> Future for AtOnce<F> {
        type Output = Result<Response<String>, Infallible>;

        fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            Poll::Ready(Ok(Response::new(String::new())))
        }
    }

    let locks = LockManager::in_memory();
    let seen = Arc::new(Mutex::new(None));
    let (watched, saw) = (locks.clone(), Arc::clone(&seen));
    let service = LockLayer::by_path(locks).layer(service_fn(move |_: Request<String>| {
        let (watched, saw) = (watched.clone(), Arc::clone(&saw));
        AtOnce(OnDrop(move || {
            *saw.lock().unwrap() = Some(watched.snapshot().held);
        }))
    }));
    drop(service.oneshot(post("/a")).await);
    assert_eq!(*seen.lock().unwrap(), Some(1));
}

#[tokio::test]
async fn panic_in_call_releases_lock() {
    let locks = LockManager::in_memory();
    let panics = |_: Request<String>| -> std::future::Ready<Result<Response<String>, Infallible>> {
        std::panic::resume_unwind(Box::new("of a service"));
    };
    let service = LockLayer::by_path(locks.clone()).layer(service_fn(panics));
    let request = tokio::spawn(service.oneshot(post("/a")));
    assert!(request.await.unwrap_err().is_panic());
    assert!(locks.snapshot().is_idle());
}

#[tokio::test(start_paused = true)]
async fn aborted_handler_is_dropped_before_response() {
    let layer = |locks| LockLayer::by_path(locks).max_hold(Duration::from_secs(1));
    let held = held_at_drop(layer, in_time).await;
    // The lock is lost by then. The test requires that the handler was dropped.
    assert!(held.is_some());
}

#[tokio::test]
async fn body_is_dropped_before_its_lock() {
    struct Watching(Option<OnDrop<Box<dyn FnMut() + Send>>>);

    impl Body for Watching {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
            assert!(self.0.is_some());
            Poll::Pending
        }
    }

    let locks = LockManager::in_memory();
    let seen = Arc::new(Mutex::new(None));
    let (watched, saw) = (locks.clone(), Arc::clone(&seen));
    let service = LockLayer::by_path(locks).layer(service_fn(move |_: Request<String>| {
        let (watched, saw) = (watched.clone(), Arc::clone(&saw));
        let on_drop = move || *saw.lock().unwrap() = Some(watched.snapshot().held);
        let body = Watching(Some(OnDrop(Box::new(on_drop))));
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), None);
    drop(response);
    assert_eq!(*seen.lock().unwrap(), Some(1));
}

#[tokio::test]
async fn dropped_waiting_request_leaves_no_trace() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(path_key("/a")).await.unwrap();
    let service = LockLayer::by_path(locks.clone()).layer(service_fn(show_held));
    let mut waiting = Box::pin(service.oneshot(post("/a")));
    assert_waits(&mut waiting).await;
    assert_eq!(locks.snapshot().waiting, 1);
    drop(waiting);
    assert_eq!(locks.snapshot().waiting, 0);
    drop(guard);
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn layers_with_one_key_hold_one_lock_twice() {
    let locks = LockManager::in_memory();
    let service = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()).no_wait())
        .layer(LockLayer::by_path(locks.clone()).no_wait())
        .service(service_fn(|request: Request<String>| {
            let held = request.extensions().get::<Held>().unwrap();
            std::future::ready(Ok::<_, Infallible>(Response::new(
                held.hold_count().to_string(),
            )))
        }));
    let response = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(text(response).await, "2");
    assert!(!is_locked(&locks));
}

#[tokio::test]
async fn layers_with_two_keys_hold_both_and_show_inner_one() {
    let locks = LockManager::in_memory();
    let checked = locks.clone();
    let service = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()))
        .layer(LockLayer::by_header(locks.clone(), "x-id"))
        .service(service_fn(move |request: Request<String>| {
            let held = request.extensions().get::<Held>().unwrap();
            assert_eq!(checked.snapshot().held, 2);
            std::future::ready(Ok::<_, Infallible>(Response::new(
                held.key().as_str().to_owned(),
            )))
        }));
    let mut request = post("/a");
    request.headers_mut().insert("x-id", "7".parse().unwrap());
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(text(response).await, "x-id:7");
    until(|| locks.snapshot().is_idle()).await;
}

#[tokio::test]
async fn owner_in_extensions_re_enters() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(path_key("/a")).await.unwrap();
    let service = LockLayer::by_path(locks.clone())
        .no_wait()
        .layer(service_fn(show_held));
    let mut request = post("/a");
    request.extensions_mut().insert::<Owner>(guard.owner());
    let response = service.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let stranger = service.oneshot(post("/a")).await.unwrap();
    assert_eq!(stranger.status(), StatusCode::CONFLICT);
}

#[tokio::test(start_paused = true)]
async fn wait_setting_bounds_the_wait() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(path_key("/a")).await.unwrap();
    for (layer, millis) in [
        (LockLayer::by_path(locks.clone()), 5_000),
        (
            LockLayer::by_path(locks.clone()).wait(Duration::from_millis(100)),
            100,
        ),
        (LockLayer::by_path(locks.clone()).no_wait(), 0),
    ] {
        let start = tokio::time::Instant::now();
        let response = layer
            .layer(service_fn(show_held))
            .oneshot(post("/a"))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::CONFLICT);
        let waited = start.elapsed();
        let expected = Duration::from_millis(millis);
        let slack = Duration::from_millis(10);
        assert!(
            waited >= expected && waited <= expected + slack,
            "{waited:?}, not {expected:?}"
        );
    }
}

#[tokio::test]
async fn unpolled_future_does_nothing() {
    let locks = LockManager::in_memory();
    let mut service = LockLayer::by_path(locks.clone()).layer(service_fn(show_held));
    let future = service.call(post("/a"));
    assert!(!is_locked(&locks));
    let future = pin!(future);
    assert_eq!(future.await.unwrap().status(), StatusCode::OK);
}

#[test]
#[should_panic(expected = "invalid `lease`")]
fn zero_lease_is_rejected_at_construction() {
    let _layer = LockLayer::by_path(LockManager::in_memory()).lease(Duration::ZERO);
}

#[test]
#[should_panic(expected = "invalid `wait`")]
fn endless_wait_is_rejected_at_construction() {
    let _layer = LockLayer::by_path(LockManager::in_memory()).wait(Duration::MAX);
}

#[test]
#[should_panic(expected = "invalid `max_hold`")]
fn zero_max_hold_is_rejected_at_construction() {
    let _layer = LockLayer::by_path(LockManager::in_memory()).max_hold(Duration::ZERO);
}

#[test]
#[should_panic(expected = "invalid `status`")]
fn server_error_status_is_rejected_at_construction() {
    let _layer =
        LockLayer::by_path(LockManager::in_memory()).status(StatusCode::SERVICE_UNAVAILABLE);
}

#[test]
#[should_panic(expected = "`LockLayer`: invalid `by_header`")]
fn invalid_header_name_is_rejected_at_construction() {
    let _layer = LockLayer::by_header(LockManager::in_memory(), "no name");
}

#[test]
fn header_name_constant_is_accepted() {
    let _layer = LockLayer::by_header(LockManager::in_memory(), http::header::IF_MATCH);
    let _layer = LockLayer::by_header(LockManager::in_memory(), HeaderName::from_static("x-id"));
}
