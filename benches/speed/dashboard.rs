//! The time for which a walk of the dashboard holds the mutexes of the lanes.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use tokio::time::{Instant, sleep};
use tower::ServiceExt as _;
use tower_lock::LockManager;
use tower_lock::dashboard::Dashboard;

use crate::table::{Series, Table};

const KEYS: usize = 100_000;
/// The parts that a walk reads, each under the mutex of one of 64 shards: eight of 256 buckets.
const PARTS: f64 = 64.0 * 8.0;
const ROUNDS: usize = 11;

/// Lists the oldest keys, which reads all of them. The time includes the rows and their JSON, so it is more than
/// the mutexes are held.
pub(crate) async fn walk(table: &mut Table) {
    let locks = LockManager::in_memory();
    let mut guards = Vec::with_capacity(KEYS);
    for n in 0..KEYS {
        guards.push(locks.acquire(format!("order:{n}")).await.expect("free"));
    }
    let app: Router = Dashboard::new(locks).unprotected().router();
    let mut series = Series::new();
    for _ in 0..ROUNDS {
        let request = Request::get("/api/v1/holders?sort=age&limit=128");
        let request = request.body(Body::empty()).expect("a request");
        let start = Instant::now();
        let response = app.clone().oneshot(request).await.expect("infallible");
        series.add(start.elapsed().as_secs_f64() * 1e6 / PARTS);
        assert!(response.status().is_success());
        // More than ten lists per second are rejected.
        sleep(Duration::from_millis(150)).await;
    }
    table.row(
        format!("the list of the oldest of {KEYS} keys, per lock of a mutex"),
        series.micros(),
        "at most 100 µs".to_owned(),
    );
}
