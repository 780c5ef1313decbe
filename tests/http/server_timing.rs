//! The time of the wait for a lock, in the response.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_lock::{
    ByPath, LockBody, LockKey, LockLayer, LockManager, LockRejection, LockTiming, LostReason, Via,
};

const MS: Duration = Duration::from_millis(1);

type Locked = Response<LockBody<String>>;

fn request() -> Request<String> {
    Request::put("/orders/42").body(String::new()).unwrap()
}

fn layer(locks: &LockManager) -> LockLayer<ByPath> {
    LockLayer::by_path(locks.clone()).wait(100 * MS)
}

async fn handler(_request: Request<String>) -> Result<Response<String>, Infallible> {
    Ok(Response::new(String::new()))
}

async fn respond(layer: LockLayer<ByPath>, request: Request<String>) -> Locked {
    let service = layer.layer(service_fn(handler));
    service.oneshot(request).await.unwrap()
}

/// Returns the header, and the extension.
fn timing(response: &Locked) -> (Option<&str>, Option<LockTiming>) {
    let header = response.headers().get("server-timing");
    let header = header.map(|it| it.to_str().unwrap());
    (header, response.extensions().get().copied())
}

fn key() -> LockKey {
    LockKey::from_path("/orders/42")
}

#[tokio::test(start_paused = true)]
async fn timing_is_off_by_default() {
    let locks = LockManager::in_memory();
    let response = respond(layer(&locks), request()).await;
    assert_eq!(timing(&response), (None, None));
}

#[tokio::test(start_paused = true)]
async fn free_lock_takes_no_time() {
    let locks = LockManager::in_memory();
    let response = respond(layer(&locks).server_timing(), request()).await;
    let (header, timing) = timing(&response);
    assert_eq!(header, Some("lock;dur=0;desc=backend"));
    let timing = timing.unwrap();
    assert_eq!(
        (timing.waited, timing.via),
        (Duration::ZERO, Some(Via::Backend))
    );
    assert_eq!(timing.queue_position, None);
}

#[tokio::test(start_paused = true)]
async fn timing_of_handler_is_kept() {
    let locks = LockManager::in_memory();
    let service = layer(&locks)
        .server_timing()
        .layer(service_fn(async |_: Request<String>| {
            let response = Response::builder().header("server-timing", "db;dur=5");
            Ok::<_, Infallible>(response.body(String::new()).unwrap())
        }));
    let response = service.oneshot(request()).await.unwrap();
    let headers = response.headers().get_all("server-timing");
    let headers: Vec<_> = headers.iter().collect();
    assert_eq!(headers, ["db;dur=5", "lock;dur=0;desc=backend"]);
}

/// Sends a request through a layer by path, around one by the header `x-id`.
async fn through_nested_layers(locks: &LockManager) -> Response<LockBody<LockBody<String>>> {
    let inner = LockLayer::by_header(locks.clone(), "x-id").wait(100 * MS);
    let service = ServiceBuilder::new()
        .layer(layer(locks).server_timing())
        .layer(inner.server_timing())
        .service(service_fn(handler));
    let mut request = request();
    request.headers_mut().insert("x-id", "7".parse().unwrap());
    service.oneshot(request).await.unwrap()
}

/// Returns the values of the header, rounded down to milliseconds, and the extension.
fn nested_timings<B>(response: &Response<B>) -> (Vec<String>, LockTiming) {
    let values = response.headers().get_all("server-timing").iter();
    let values = values.map(|value| {
        let value = value.to_str().unwrap();
        let (millis, description) = value
            .strip_prefix("lock;dur=")
            .and_then(|value| value.split_once(";desc="))
            .expect(value);
        format!("{} {description}", millis.parse::<f64>().unwrap().floor())
    });
    let timing = response.extensions().get().copied();
    (values.collect(), timing.unwrap())
}

#[tokio::test(start_paused = true)]
async fn nested_layers_add_one_value_each() {
    let locks = LockManager::in_memory();
    let response = through_nested_layers(&locks).await;
    assert_eq!(nested_timings(&response).0, ["0 backend", "0 backend"]);
    let guard = locks.acquire(key()).await.unwrap();
    let outer_waits = locks.clone();
    let waiting = tokio::spawn(async move { through_nested_layers(&outer_waits).await });
    tokio::time::sleep(20 * MS).await;
    drop(guard);
    let response = waiting.await.unwrap();
    let (values, timing) = nested_timings(&response);
    assert_eq!(values, ["0 backend", "20 handoff"]);
    assert_eq!(timing.via, Some(Via::Backend));
}

#[tokio::test(start_paused = true)]
async fn rejection_of_inner_layer_keeps_outer_value() {
    let locks = LockManager::in_memory();
    let guard = locks
        .acquire(LockKey::from_parts(["x-id", "7"]))
        .await
        .unwrap();
    let response = through_nested_layers(&locks).await;
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let (values, timing) = nested_timings(&response);
    assert_eq!(values, ["100 busy", "0 backend"]);
    assert_eq!(timing.via, None);
    drop(guard);
    let _guard = locks.acquire(key()).await.unwrap();
    let response = through_nested_layers(&locks).await;
    assert_eq!(nested_timings(&response).0, ["100 busy"]);
}

#[tokio::test(start_paused = true)]
async fn wait_is_in_milliseconds() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(key()).await.unwrap();
    let waiting = tokio::spawn(respond(layer(&locks).server_timing(), request()));
    tokio::time::sleep(20 * MS).await;
    drop(guard);
    let response = waiting.await.unwrap();
    let (header, timing) = timing(&response);
    let header = header.unwrap();
    let millis = header.strip_prefix("lock;dur=").unwrap();
    let millis = millis.strip_suffix(";desc=handoff").expect(header);
    assert!((20.0..22.0).contains(&millis.parse().unwrap()), "{header}");
    assert_eq!(timing.unwrap().via, Some(Via::HandOff));
    assert_eq!(timing.unwrap().queue_position, Some(1));
}

#[tokio::test(start_paused = true)]
async fn timing_has_position_in_queue() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(key()).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let waiter = tokio::spawn(respond(layer(&locks).server_timing(), request()));
        tokio::task::yield_now().await;
        waiting.push(waiter);
    }
    for (waiter, position) in waiting.into_iter().zip(1..) {
        let response = waiter.await.unwrap();
        assert_eq!(response.status(), StatusCode::CONFLICT);
        let timing = timing(&response).1.unwrap();
        assert_eq!((timing.via, timing.queue_position), (None, Some(position)));
    }
}

#[tokio::test(start_paused = true)]
async fn rejection_has_its_reason() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire(key()).await.unwrap();
    let response = respond(layer(&locks).server_timing(), request()).await;
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let (header, timing) = timing(&response);
    let header = header.unwrap();
    assert!(
        header.starts_with("lock;dur=1") && header.ends_with(";desc=busy"),
        "{header}"
    );
    assert_eq!(timing.unwrap().via, None);
}

#[tokio::test(start_paused = true)]
async fn grpc_response_has_only_extension() {
    let locks = LockManager::in_memory();
    let mut request = request();
    let grpc = "application/grpc".parse().unwrap();
    request.headers_mut().insert("content-type", grpc);
    let response = respond(layer(&locks).server_timing(), request).await;
    let (header, timing) = timing(&response);
    assert_eq!(header, None);
    assert!(timing.is_some());
}

/// Returns the response to a request that waits for 20 ms.
async fn after_wait<S>(locks: &LockManager, service: S) -> Locked
where
    S: Service<Request<String>, Response = Locked, Error = Infallible> + Send + 'static,
    S::Future: Send,
{
    let guard = locks.acquire(key()).await.unwrap();
    let waiting = tokio::spawn(service.oneshot(request()));
    tokio::time::sleep(20 * MS).await;
    drop(guard);
    waiting.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn rejection_of_lost_lock_has_wait_and_reason() {
    let locks = LockManager::in_memory();
    // The loss comes during the handler, and before a response of the same moment.
    for handler_takes in [1000 * MS, 100 * MS] {
        let layer = layer(&locks).server_timing().max_hold(100 * MS);
        let service = layer.layer(service_fn(move |request| async move {
            tokio::time::sleep(handler_takes).await;
            handler(request).await
        }));
        let response = after_wait(&locks, service).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let rejection = response.extensions().get::<LockRejection>().unwrap();
        assert_eq!(rejection.lost_reason(), Some(LostReason::MaxHold));
        let (values, timing) = nested_timings(&response);
        assert_eq!(values, ["20 lost"]);
        assert!((20 * MS..22 * MS).contains(&timing.waited), "{timing:?}");
        assert_eq!(timing.via, Some(Via::HandOff));
        assert_eq!(timing.queue_position, Some(1));
    }
}

#[tokio::test(start_paused = true)]
async fn rejection_of_handler_keeps_values_of_others() {
    let locks = LockManager::in_memory();
    let _other = locks.acquire("other").await.unwrap();
    let handler_locks = locks.clone();
    let service = layer(&locks)
        .server_timing()
        .layer(service_fn(move |_: Request<String>| {
            let locks = handler_locks.clone();
            async move {
                let error = locks.acquire("other").no_wait().await.unwrap_err();
                let mut response = LockRejection::from(error).to_response();
                let value = "db;dur=5;desc=read".parse().unwrap();
                response.headers_mut().insert("server-timing", value);
                Ok::<_, Infallible>(response)
            }
        }));
    let response = after_wait(&locks, service).await;
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let values = response.headers().get_all("server-timing").iter();
    let values: Vec<_> = values.map(|value| value.to_str().unwrap()).collect();
    let [busy, read, waited] = values[..] else {
        panic!("{values:?}");
    };
    assert_eq!([busy, read], ["lock;dur=0;desc=busy", "db;dur=5;desc=read"]);
    let is_ours = waited.starts_with("lock;dur=2") && waited.ends_with(";desc=handoff");
    assert!(is_ours, "{waited}");
}
