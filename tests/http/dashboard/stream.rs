//! The stream of frames.

use std::future::IntoFuture as _;
use std::time::Duration;

use futures_util::poll;
use http::StatusCode;
use serde_json::json;
use tokio::time::Instant;
use tower_lock::{LockKey, LockManager};

use super::support::{Stream, ask, get, open, send};
use crate::support::simulated::Simulated;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn frame_shows_holders_and_waiters() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let guard = locks.acquire("order:42").await.unwrap();
    let mut waiter = locks.acquire("order:42").into_future();
    assert!(poll!(&mut waiter).is_pending());
    let started = Instant::now();
    let mut stream = Stream::open(&app).await;
    let frame = stream.next().await.unwrap();
    assert!(started.elapsed() < SECOND, "the first frame comes at once");
    assert_eq!((&frame["held"], &frame["waiting"]), (&json!(1), &json!(1)));
    assert_eq!(frame["top"][0]["key"], "order:42");
    assert_eq!(frame["top"][0]["waiters"], 1);
    drop(guard);
    drop(waiter.await.unwrap());
    let next = stream.next().await.unwrap();
    assert_eq!(next["held"], 0);
    assert_eq!(started.elapsed(), SECOND, "one frame per second");
}

/// A frame of a page that has just opened does not replace that of the second.
#[tokio::test(start_paused = true)]
async fn stream_opened_late_shows_its_second() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let started = Instant::now();
    tokio::time::sleep(SECOND * 7 / 10).await;
    let mut stream = Stream::open(&app).await;
    drop(stream.next().await.unwrap());
    drop(locks.acquire("order:42").await.unwrap());
    let next = stream.next().await.unwrap();
    assert_eq!(started.elapsed(), SECOND);
    assert_eq!(next["rates"]["grants"], 1.0);
    // The page recognizes its points by their time.
    let (_, history) = ask(&app, get("/api/v1/history")).await;
    assert_eq!(history["at"], json!([next["counted_at"]]));
}

/// The page lists no key whose release is in flight, so its rest of unlisted keys contains none.
#[tokio::test(start_paused = true)]
async fn key_in_release_is_not_counted_as_shown() {
    let locks = LockManager::builder(Simulated::new(2 * SECOND))
        .build()
        .unwrap();
    let app = open(&locks);
    drop(locks.acquire("order:42").await.unwrap());
    let mut stream = Stream::open(&app).await;
    let frame = stream.next().await.unwrap();
    assert_eq!(
        (&frame["lanes"], &frame["unreleased"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(frame["shown"], 0);
}

/// All streams show one walk.
#[tokio::test(start_paused = true)]
async fn streams_share_frames() {
    let app = open(&LockManager::in_memory());
    let (mut one, mut two) = (Stream::open(&app).await, Stream::open(&app).await);
    // The second stream asks for a frame of its own, which both receive.
    for _ in 0..3 {
        tokio::time::sleep(SECOND).await;
        assert_eq!(
            one.next().await.unwrap()["at"],
            two.next().await.unwrap()["at"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn slow_reader_receives_only_latest_frame() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let mut stream = Stream::open(&app).await;
    drop(stream.next().await);
    let mut guards = Vec::new();
    for n in 1..=10 {
        guards.push(locks.acquire(format!("key:{n}")).await.unwrap());
        tokio::time::sleep(SECOND).await;
    }
    let held = stream.next().await.unwrap()["held"].as_u64().unwrap();
    assert!(held >= 9, "{held}");
}

#[tokio::test(start_paused = true)]
async fn seventeenth_stream_is_rejected() {
    let app = open(&LockManager::in_memory());
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(Stream::open(&app).await);
    }
    let one_more = async || send(&app, get("/api/v1/stream")).await.status();
    assert_eq!(one_more().await, StatusCode::SERVICE_UNAVAILABLE);
    drop(streams.pop());
    assert_eq!(one_more().await, StatusCode::OK);
}

/// The server polls no stream whose client reads nothing.
#[tokio::test(start_paused = true)]
async fn stalled_stream_counts_for_one_minute() {
    let app = open(&LockManager::in_memory());
    let mut stalled = Vec::new();
    for _ in 0..16 {
        stalled.push(Stream::open(&app).await);
    }
    let one_more = async || send(&app, get("/api/v1/stream")).await.status();
    tokio::time::advance(59 * SECOND).await;
    assert_eq!(one_more().await, StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::advance(SECOND).await;
    assert_eq!(one_more().await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn stream_ends_after_one_minute() {
    let app = open(&LockManager::in_memory());
    let started = Instant::now();
    let mut stream = Stream::open(&app).await;
    while stream.next().await.is_some() {}
    assert_eq!(started.elapsed(), 60 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_streams_at_once() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let guard = locks.acquire("order:42").await.unwrap();
    let mut streams = [Stream::open(&app).await, Stream::open(&app).await];
    for stream in &mut streams {
        drop(stream.next().await);
    }
    let started = Instant::now();
    locks.shutdown(Duration::ZERO).await;
    for stream in &mut streams {
        while stream.next().await.is_some() {}
    }
    assert!(started.elapsed() < SECOND / 10, "{:?}", started.elapsed());
    let late = send(&app, get("/api/v1/stream")).await.status();
    assert_eq!(late, StatusCode::SERVICE_UNAVAILABLE);
    drop(guard);
}

/// Neither the dashboard's task nor an open stream keeps the manager, and a dropped router ends its streams.
#[tokio::test(start_paused = true)]
async fn dropped_router_ends_streams() {
    let app = open(&LockManager::in_memory());
    let mut stream = Stream::open(&app).await;
    drop(stream.next().await);
    drop(app);
    let ended = async { while stream.next().await.is_some() {} };
    tokio::time::timeout(2 * SECOND, ended).await.unwrap();
}

/// A line break would end the event, and the rest of the key would be read as another one.
#[tokio::test(start_paused = true)]
async fn hostile_key_stays_inside_its_event() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let hostile = [
        "a\n\nevent: frame\ndata: {}\n\n",
        "b\r\r",
        "c\u{2028}d",
        "</script>",
        "\u{202e}",
    ];
    let mut guards = Vec::new();
    for key in hostile {
        guards.push(locks.acquire(key).await.unwrap());
    }
    let frame = Stream::open(&app).await.next().await.unwrap();
    let rows = frame["top"].as_array().unwrap();
    let mut seen: Vec<_> = rows
        .iter()
        .map(|row| row["key"].as_str().unwrap())
        .collect();
    let expected = hostile.map(LockKey::new);
    let mut expected: Vec<_> = expected.iter().map(LockKey::as_str).collect();
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}
