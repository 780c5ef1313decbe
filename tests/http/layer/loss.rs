//! Locks that are lost before the head, during the body, or while the inner service blocks.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::{Error, ErrorKind, Held, LockLayer, LockManager, LockRejection, OnLost};

use super::support::{respond, text, until_free};
use crate::served::{Gate, Stream, assert_waits, in_time, post};

#[tokio::test(start_paused = true)]
async fn loss_during_streaming_body_is_body_error() {
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
    let layer = LockLayer::by_path(LockManager::in_memory()).max_hold(Duration::from_secs(10));
    for layer in [
        layer.clone().on_lost(OnLost::Continue),
        layer.observe_only(),
    ] {
        let (body, frames) = Stream::new();
        let response = respond(layer, body, StatusCode::OK, Method::POST).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        frames.data("late");
        drop(frames);
        assert_eq!(text(response).await, "late");
    }
}

#[tokio::test(start_paused = true)]
async fn loss_before_head_is_rejected_as_set() {
    let locks = LockManager::in_memory();
    let (gate, _calls) = Gate::new();
    let layer = LockLayer::by_path(locks).lease(Duration::from_secs(10));
    let layer = layer.on_reject(|rejection| {
        let mut response = Response::new(format!("{:?}", rejection.kind()));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    });
    let service = layer.layer(service_fn(move |request| gate.clone().handle(request)));
    let response = in_time(service.oneshot(post("/a"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(text(response).await, "Lost");
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
