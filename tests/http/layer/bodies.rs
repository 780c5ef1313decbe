//! The end of the response, and so of the lock.

use std::convert::Infallible;
use std::task::Poll;

use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::{LockLayer, LockManager};

use super::support::{respond, text};
use crate::served::{Broken, Stream, is_locked, post};

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

#[tokio::test]
async fn body_of_unlocked_request_is_not_read_ahead() {
    type Read = Poll<Option<Result<Frame<Bytes>, Infallible>>>;
    let layer = LockLayer::by_path(LockManager::in_memory());
    let service = layer.layer(service_fn(|_: Request<String>| async {
        let body = poll_fn(|_| -> Read { panic!("no client reads the body") });
        Ok::<_, Infallible>(Response::new(StreamBody::new(body)))
    }));
    let get = Request::get("/a").body(String::new()).unwrap();
    assert_eq!(service.oneshot(get).await.unwrap().status(), StatusCode::OK);
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
async fn body_failing_at_head_delivers_error() {
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
    let all = |locks| LockLayer::by_path(locks).all_methods();
    for (layer, status, method) in [
        (
            all as fn(_) -> _,
            StatusCode::SWITCHING_PROTOCOLS,
            Method::GET,
        ),
        (all, StatusCode::OK, Method::CONNECT),
        (all, StatusCode::OK, Method::HEAD),
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
