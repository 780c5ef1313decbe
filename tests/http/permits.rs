//! Layers and extractors that let several requests of one key run at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use futures_util::FutureExt as _;
use http::{HeaderMap, Request, StatusCode};
use tokio::time::sleep;
use tower::ServiceExt as _;
use tower_lock::keys::KeyExtractor;
use tower_lock::manager::AcquireFuture;
use tower_lock::{
    ErrorKind, LockKey, LockKeys, LockLayer, LockManager, LockRejection, LockScopeLayer,
    LockTarget, Locked, LockedShared,
};

const HOLD: Duration = Duration::from_millis(50);

/// Counts the requests that run, and the most at a time.
#[derive(Default)]
struct Peak {
    now: AtomicU32,
    most: AtomicU32,
}

fn app<K: KeyExtractor + Send + Sync + 'static>(layer: LockLayer<K>) -> (Router, Arc<Peak>) {
    let peak = Arc::new(Peak::default());
    let handler = {
        let peak = Arc::clone(&peak);
        move || async move {
            let now = peak.now.fetch_add(1, Ordering::SeqCst) + 1;
            peak.most.fetch_max(now, Ordering::SeqCst);
            sleep(HOLD).await;
            peak.now.fetch_sub(1, Ordering::SeqCst);
            "done"
        }
    };
    (Router::new().route("/", get(handler)).layer(layer), peak)
}

async fn statuses(
    app: &Router,
    headers: &[(&'static str, &'static str)],
    count: usize,
) -> Vec<(StatusCode, HeaderMap)> {
    let requests = (0..count).map(|_| {
        let mut request = Request::get("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        app.clone().oneshot(request.body(String::new()).unwrap())
    });
    let responses = futures_util::future::join_all(requests).await;
    let responses = responses.into_iter().map(Result::unwrap);
    responses
        .map(|it| (it.status(), it.headers().clone()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn requests_above_limit_wait_for_permits() {
    let (app, peak) = app(LockLayer::by_header(LockManager::in_memory(), "x-tenant").permits(3));
    let responses = statuses(&app, &[("x-tenant", "a")], 10).await;
    assert!(
        responses
            .iter()
            .all(|(status, _)| *status == StatusCode::OK)
    );
    assert_eq!(peak.most.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn requests_without_permits_are_too_many() {
    let layer = LockLayer::by_header(LockManager::in_memory(), "x-tenant").permits(2);
    let (full, _) = app(layer.clone().no_wait());
    let responses = statuses(&full, &[("x-tenant", "a")], 5).await;
    let refused: Vec<_> = responses
        .iter()
        .filter(|(status, _)| *status != StatusCode::OK)
        .collect();
    assert_eq!(refused.len(), 3);
    for (status, headers) in refused {
        assert_eq!(*status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(headers["retry-after"], "1");
    }
    let (conflict, _) = app(layer.no_wait().status(StatusCode::CONFLICT));
    let responses = statuses(&conflict, &[("x-tenant", "a")], 3).await;
    assert!(
        responses
            .iter()
            .any(|(status, _)| *status == StatusCode::CONFLICT)
    );
}

/// Returns acquires that wait for one of two permits.
fn queue_of_permits(locks: &LockManager, key: &LockKey, count: usize) -> Vec<AcquireFuture> {
    let acquire = |_| {
        let acquire = locks.acquire(key).permits(2).wait_forever();
        let mut waiter = acquire.into_future();
        assert!((&mut waiter).now_or_never().is_none());
        waiter
    };
    (0..count).map(acquire).collect()
}

/// Returns the rejections of a request without a wait, and of one that waits.
async fn rejections(locks: &LockManager) -> Vec<(StatusCode, HeaderMap)> {
    let layer = LockLayer::by_header(locks.clone(), "x-tenant").permits(2);
    let mut rejections = Vec::new();
    for layer in [layer.clone().no_wait(), layer.wait(HOLD)] {
        let (app, _) = app(layer);
        rejections.extend(statuses(&app, &[("x-tenant", "a")], 1).await);
    }
    rejections
}

/// Each holder is assumed to end after a second, and those that wait are first.
#[tokio::test(start_paused = true)]
async fn retry_after_counts_waiters_per_permit() {
    let locks = LockManager::in_memory();
    let key = LockKey::from_parts(["x-tenant", "a"]);
    let permit = || locks.acquire(&key).permits(2);
    let _held = [permit().await.unwrap(), permit().await.unwrap()];
    let _waiters = queue_of_permits(&locks, &key, 9);
    for (status, headers) in rejections(&locks).await {
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        // 10 turns of 2 permits, less up to a fifth.
        let seconds: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((4..=5).contains(&seconds), "{seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_at_most_first_lease() {
    let locks = LockManager::in_memory();
    let key = LockKey::from_parts(["x-tenant", "a"]);
    let permit = || locks.acquire(&key).permits(2);
    let short = permit().lease(Duration::from_secs(3)).await.unwrap();
    let _held = [short, permit().await.unwrap()];
    let _waiters = queue_of_permits(&locks, &key, 19);
    for (_, headers) in rejections(&locks).await {
        assert_eq!(headers["retry-after"], "3");
    }
}

/// An export has held the key shared for 15 s, and no permit is held.
#[tokio::test(start_paused = true)]
async fn retry_after_of_permit_is_age_of_shared_lock() {
    let locks = LockManager::in_memory();
    let key = LockKey::from_parts(["x-tenant", "a"]);
    let _export = locks.acquire(&key).shared().await.unwrap();
    sleep(Duration::from_secs(15)).await;
    for (status, headers) in rejections(&locks).await {
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        // Less up to a fifth.
        let seconds: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((12..=16).contains(&seconds), "{seconds}");
    }
    let error = locks.acquire(&key).permits(2).no_wait().await.unwrap_err();
    assert!(error.retry_after().unwrap() >= Duration::from_secs(15));
    assert_eq!(error.to_string(), "no permit of the lock is free");
    let response = LockRejection::from(error).to_response();
    assert!(response.body().contains("or one that excludes them"));
}

#[tokio::test(start_paused = true)]
async fn limit_is_that_of_request() {
    let limit_of = |request: &http::request::Parts| match request.headers.get("x-limit") {
        Some(limit) => limit.to_str().unwrap().parse().unwrap(),
        None => 1,
    };
    let layer = LockLayer::by_header(LockManager::in_memory(), "x-tenant").permits_with(limit_of);
    let (app, peak) = app(layer);
    statuses(&app, &[("x-tenant", "a"), ("x-limit", "4")], 8).await;
    assert_eq!(peak.most.swap(0, Ordering::SeqCst), 4);
    statuses(&app, &[("x-tenant", "a")], 3).await;
    assert_eq!(peak.most.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn limit_of_request_out_of_bounds_is_500() {
    for (limit, is_valid) in [
        (0, false),
        (1, true),
        (10_000, true),
        (10_001, false),
        (u32::MAX, false),
    ] {
        let layer = LockLayer::by_header(LockManager::in_memory(), "x-tenant");
        let (app, _) = app(layer.permits_with(move |_| limit));
        let request = Request::get("/").header("x-tenant", "a");
        let response = app.oneshot(request.body(String::new()).unwrap()).await;
        let response = response.unwrap();
        let rejection = response.extensions().get::<LockRejection>();
        let seen = (response.status(), rejection.map(LockRejection::kind));
        let expected = match is_valid {
            true => (StatusCode::OK, None),
            false => (
                StatusCode::INTERNAL_SERVER_ERROR,
                Some(ErrorKind::InvalidOption),
            ),
        };
        assert_eq!(seen, expected, "{limit}");
    }
}

#[test]
#[should_panic(expected = "the limit is not between 1 and 10000")]
fn limit_of_layer_has_lower_bound() {
    drop(LockLayer::by_header(LockManager::in_memory(), "x-tenant").permits(0));
}

#[test]
#[should_panic(expected = "the limit is not between 1 and 10000")]
fn limit_of_layer_has_upper_bound() {
    drop(LockLayer::by_header(LockManager::in_memory(), "x-tenant").permits(10_001));
}

#[test]
fn largest_limit_of_layer_is_accepted() {
    drop(LockLayer::by_header(LockManager::in_memory(), "x-tenant").permits(10_000));
}

#[derive(serde::Deserialize)]
struct Account {
    id: String,
}

impl LockTarget for Account {
    fn lock_keys(&self) -> LockKeys {
        LockKey::from_parts(["account", &self.id]).into()
    }
}

#[tokio::test(start_paused = true)]
async fn handlers_that_read_share_their_locks() {
    async fn read(Locked(Path(account), guard): LockedShared<Path<Account>>) -> String {
        sleep(HOLD).await;
        format!("{} {:?}", account.id, guard.mode())
    }
    let locks = LockManager::in_memory();
    let app = Router::new()
        .route("/{id}", get(read))
        .layer(LockScopeLayer::new())
        .with_state(locks.clone());
    let start = tokio::time::Instant::now();
    let requests = (0..5).map(|_| {
        app.clone()
            .oneshot(Request::get("/7").body(String::new()).unwrap())
    });
    for response in futures_util::future::join_all(requests).await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
    assert!(start.elapsed() < 2 * HOLD);
}

#[tokio::test(start_paused = true)]
async fn keys_of_layer_have_their_modes() {
    let layer = LockLayer::by_fn(LockManager::in_memory(), |request| {
        match request.headers.contains_key("x-write") {
            true => LockKeys::new().exclusive("k"),
            false => LockKeys::new().shared("k"),
        }
    });
    let (app, peak) = app(layer.all_methods().no_wait());
    let (reads, writes) = tokio::join!(
        statuses(&app, &[], 2),
        statuses(&app, &[("x-write", "yes")], 1),
    );
    assert!(reads.iter().all(|(status, _)| *status == StatusCode::OK));
    assert_eq!(writes[0].0, StatusCode::CONFLICT);
    assert_eq!(peak.most.load(Ordering::SeqCst), 2);
}

/// Reads one account and changes another.
#[derive(serde::Deserialize)]
struct Transfer {
    from: String,
    to: String,
}

impl LockTarget for Transfer {
    fn lock_keys(&self) -> LockKeys {
        let [from, to] = [&self.from, &self.to].map(|id| LockKey::from_parts(["account", id]));
        LockKeys::new().shared(from).exclusive(to)
    }
}

#[tokio::test(start_paused = true)]
async fn keys_of_target_have_their_modes() {
    async fn transfer(Locked(Path(_transfer), _guard): Locked<Path<Transfer>>) {
        sleep(HOLD).await;
    }
    let app = Router::new()
        .route("/{from}/{to}", get(transfer))
        .layer(LockScopeLayer::new().no_wait())
        .with_state(LockManager::in_memory());
    // Each rejected request conflicts with an earlier one.
    let expected = [
        ("/b/a", StatusCode::OK),
        ("/b/c", StatusCode::OK),
        ("/d/b", StatusCode::CONFLICT),
        ("/a/d", StatusCode::CONFLICT),
        ("/d/c", StatusCode::CONFLICT),
        ("/d/e", StatusCode::OK),
    ];
    let requests = expected.map(|(path, _)| {
        app.clone()
            .oneshot(Request::get(path).body(String::new()).unwrap())
    });
    let responses = futures_util::future::join_all(requests).await;
    for ((path, status), response) in expected.into_iter().zip(responses) {
        assert_eq!(response.unwrap().status(), status, "{path}");
    }
}
