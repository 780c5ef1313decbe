//! The memory of the dashboard.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;
use tower_lock::dashboard::Dashboard;
use tower_lock::{LockGuard, LockKey, LockManager};

const HOUR: Duration = Duration::from_secs(60 * 60);
const LIMIT: i64 = 1024 * 1024;
/// The incidents of servers, of which memory has none: 256 of at most 256 bytes.
const INCIDENTS: i64 = 256 * 256;
/// The points of the minutes of a day, of which an hour has few.
const MINUTES: i64 = 1_440 * 128;

fn key(kind: &str, n: u32) -> LockKey {
    LockKey::new(format!("{kind}:{n}:{}", "x".repeat(LockKey::MAX_LEN - 20)))
}

/// Fills the history of seconds, the hot keys and the latest frame.
async fn fill(locks: &LockManager) -> (Router, Body, Vec<LockGuard>) {
    let app = Dashboard::new(locks.clone()).unprotected().router();
    tokio::time::sleep(HOUR).await;
    for n in 0..1_000 {
        let key = key("hot", n);
        let guard = locks.acquire(&key).await.unwrap();
        let waiter = locks.acquire(&key).wait(Duration::from_millis(1));
        waiter.await.unwrap_err();
        drop(guard);
    }
    let mut guards = Vec::new();
    for n in 0..200 {
        guards.push(locks.acquire(key("held", n)).await.unwrap());
    }
    let request = Request::get("/api/v1/stream").body(Body::empty()).unwrap();
    let mut stream = app.clone().oneshot(request).await.unwrap().into_body();
    let mut longest = 0;
    for _ in 0..3 {
        let frame = stream.frame().await.unwrap().unwrap();
        longest = longest.max(frame.into_data().unwrap().len());
    }
    assert!(longest > 50_000, "a frame with long keys: {longest}");
    (app, stream, guards)
}

#[test]
fn dashboard_keeps_less_than_one_mebibyte() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    let locks = runtime.block_on(async { LockManager::in_memory() });
    // The engine allocates its own counts and tasks first.
    runtime.block_on(async { drop(locks.acquire("k").await.unwrap()) });
    let mut kept = None;
    let memory = allocation_counter::measure(|| {
        kept = Some(runtime.block_on(fill(&locks)));
    });
    let bytes = memory.bytes_current;
    println!("{bytes} bytes are kept");
    assert!(bytes + INCIDENTS + MINUTES < LIMIT, "{bytes}");
    drop(kept);
}
