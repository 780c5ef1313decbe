//! The figures of more keys than a walk reads.

use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

use super::Dashboard;
use crate::{LockGuard, LockManager};

async fn body(app: &Router, path: &str) -> Body {
    let request = Request::get(path).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().into_body()
}

/// Returns the next frame of a stream.
async fn frame(stream: &mut Body) -> Value {
    loop {
        let data = stream.frame().await.unwrap().unwrap().into_data().unwrap();
        let text = std::str::from_utf8(&data).unwrap();
        if let Some(frame) = text.strip_prefix("event: frame\ndata: ") {
            return serde_json::from_str(frame).unwrap();
        }
    }
}

async fn hold(locks: &LockManager, keys: std::ops::Range<u32>) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for n in keys {
        guards.push(locks.acquire(format!("key:{n}")).await.unwrap());
    }
    guards
}

/// Each frame reads another fourth of the lanes, so four of them read every key.
#[tokio::test(start_paused = true)]
async fn frames_above_limit_are_sampled() {
    let locks = LockManager::in_memory();
    let app = Dashboard::new(locks.clone()).unprotected().router();
    let few = hold(&locks, 0..1_000).await;
    let mut stream = body(&app, "/api/v1/stream").await;
    let exact = frame(&mut stream).await;
    assert_eq!(
        (&exact["sampled"], &exact["held"]),
        (&false.into(), &1_000.into())
    );

    let more = hold(&locks, 1_000..1_200).await;
    let mut held = 0;
    for _ in 0..4 {
        let frame = frame(&mut stream).await;
        assert_eq!(frame["sampled"], true);
        let estimate = frame["held"].as_u64().unwrap();
        assert!((900..1_500).contains(&estimate), "{estimate}");
        assert_eq!(frame["top"].as_array().unwrap().len(), 100);
        held += estimate;
    }
    assert_eq!(held, 4 * 1_200);
    let list = body(&app, "/api/v1/holders").await.collect().await.unwrap();
    let list: Value = serde_json::from_slice(&list.to_bytes()).unwrap();
    assert_eq!(list["sampled"], true);

    drop((few, more));
    let exact = frame(&mut stream).await;
    assert_eq!(
        (&exact["sampled"], &exact["held"]),
        (&false.into(), &0.into())
    );
}
