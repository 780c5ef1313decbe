//! Rates, percentiles and hot keys, in the frames and in the history.

use std::future::IntoFuture as _;
use std::time::Duration;

use axum::Router;
use futures_util::poll;
use serde_json::{Value, json};
use tower_lock::LockManager;

use super::support::{Stream, ask, get, open};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Expects that the last second of the history has the figures of its frame.
async fn expect_in_history(app: &Router, frame: &Value) {
    let (_, history) = ask(app, get("/api/v1/history")).await;
    let mut columns = history.as_object().unwrap().clone();
    for name in ["held", "waiting"] {
        assert!(columns.remove(name).is_some());
    }
    let (rates, wait, hold) = (&frame["rates"], &frame["wait"], &frame["hold"]);
    let expected = [
        ("at", &frame["counted_at"]),
        ("grants", &rates["grants"]),
        ("handoffs", &rates["handoffs"]),
        ("rejected", &rates["rejected"]),
        ("lost", &rates["lost"]),
        ("wait_p50", &wait["p50"]),
        ("wait_p99", &wait["p99"]),
        ("hold_p50", &hold["p50"]),
        ("hold_p99", &hold["p99"]),
    ];
    for (name, figure) in expected {
        let column = columns.remove(name).unwrap();
        assert_eq!(column.as_array().unwrap().last(), Some(figure), "{name}");
    }
    assert!(columns.is_empty(), "{columns:?}");
}

/// The figures come from the counts of the manager.
#[tokio::test(start_paused = true)]
async fn frame_shows_rates_and_hot_keys() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let mut stream = Stream::open(&app).await;
    drop(stream.next().await);
    let holder = locks.acquire("busy").await.unwrap();
    let mut waiters = [
        locks.acquire("busy").into_future(),
        locks.acquire("busy").into_future(),
    ];
    for waiter in &mut waiters {
        assert!(poll!(waiter).is_pending());
    }
    for _ in 0..3 {
        assert!(locks.acquire("busy").no_wait().await.is_err());
    }
    tokio::time::advance(300 * MS).await;
    drop(holder);
    for waiter in waiters {
        drop(waiter.await.unwrap());
    }
    let guards = [
        locks.acquire("lost:1").await.unwrap(),
        locks.acquire("lost:2").await.unwrap(),
    ];
    for key in ["lost:1", "lost:2"] {
        assert!(locks.force_release(key).await.unwrap());
    }
    let frame = stream.next().await.unwrap();
    // The lease has been held for too long to be handed off, until the backend has kept it.
    let rates = json!({
        "grants": 5.0, "handoffs": 1.0, "rejected": 3.0, "lost": 2.0, "renewals_failed": 0.0,
    });
    assert_eq!(frame["rates"], rates);
    assert_eq!(frame["lost"]["forced"], 2);
    assert_eq!(frame["rejected"]["busy"], 3);
    assert_eq!(frame["hot"][0]["key"], "busy");
    assert_eq!(
        (&frame["hot"][0]["waits"], &frame["hot"][0]["waited_ms"]),
        (&json!(2), &json!(600))
    );
    expect_in_history(&app, &frame).await;
    drop(guards);
}

/// 60 holds are short, and the others longer. All waiters come 25 ms after the holders, whose waits are 0.
#[tokio::test(start_paused = true)]
async fn frame_shows_percentiles_of_waits_and_holds() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let mut stream = Stream::open(&app).await;
    drop(stream.next().await);
    let (mut guards, mut waiters) = (Vec::new(), Vec::new());
    for n in 0..100 {
        guards.push(locks.acquire(format!("key:{n}")).await.unwrap());
    }
    tokio::time::advance(25 * MS).await;
    for n in 0..100 {
        let mut waiter = locks.acquire(format!("key:{n}")).into_future();
        assert!(poll!(&mut waiter).is_pending());
        waiters.push(waiter);
    }
    let mut next = Vec::new();
    for (count, pause) in [(60, 25), (35, 50), (4, 100), (1, 200)] {
        tokio::time::advance(pause * MS).await;
        drop(guards.drain(..count));
        for waiter in waiters.drain(..count) {
            next.push(waiter.await.unwrap());
        }
    }
    let frame = stream.next().await.unwrap();
    for (figure, p50, p90, p99, max) in [
        ("wait", 0.0, 75.0, 175.0, 375.0),
        ("hold", 50.0, 100.0, 200.0, 400.0),
    ] {
        for (name, expected) in [("p50", p50), ("p90", p90), ("p99", p99), ("max", max)] {
            let seen = frame[figure][name].as_f64().unwrap();
            // The buckets are exact to one eighth.
            assert!(
                (seen - expected).abs() <= expected / 8.0 + 1.0,
                "{figure} {name}: {seen}"
            );
        }
    }
    assert_eq!(frame["rates"]["grants"], 200.0);
    expect_in_history(&app, &frame).await;
    drop(next);
}

/// The waiters for permits of one key have lanes of their own.
#[tokio::test(start_paused = true)]
async fn hot_key_counts_waits_of_all_modes() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let guard = locks.acquire("busy").permits(1).await.unwrap();
    for _ in 0..3 {
        let permit = locks.acquire("busy").permits(1).wait(MS);
        assert!(permit.await.is_err());
    }
    assert!(locks.acquire("busy").wait(MS).await.is_err());
    let frame = Stream::open(&app).await.next().await.unwrap();
    assert_eq!(frame["hot"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&frame["hot"][0]["key"], &frame["hot"][0]["waits"]),
        (&json!("busy"), &json!(4))
    );
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn hot_keys_are_halved_each_minute() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let guard = locks.acquire("busy").await.unwrap();
    for _ in 0..4 {
        assert!(locks.acquire("busy").wait(MS).await.is_err());
    }
    for (pause, waits) in [(1, 4), (60, 2), (60, 1)] {
        tokio::time::sleep(pause * SECOND).await;
        let frame = Stream::open(&app).await.next().await.unwrap();
        assert_eq!(frame["hot"][0]["waits"], waits);
    }
    drop(guard);
}

/// The history also grows while no page is open.
#[tokio::test(start_paused = true)]
async fn history_begins_without_stream() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    // The task has begun to count.
    tokio::time::sleep(SECOND).await;
    let guards = [
        locks.acquire("order:42").await.unwrap(),
        locks.acquire("order:43").await.unwrap(),
    ];
    let waiter = locks.acquire("order:42").wait(200 * SECOND);
    let mut waiter = waiter.into_future();
    assert!(poll!(&mut waiter).is_pending());
    tokio::time::sleep(124 * SECOND).await;
    let (_, seconds) = ask(&app, get("/api/v1/history")).await;
    let count = seconds["at"].as_array().unwrap().len();
    assert!((120..=126).contains(&count), "{count}");
    assert_eq!(seconds["held"][count - 1], 2);
    assert_eq!(seconds["waiting"][count - 1], 1);
    let (_, minutes) = ask(&app, get("/api/v1/history?range=24h")).await;
    assert_eq!(minutes["at"].as_array().unwrap().len(), 2);
    assert_eq!(minutes["held"], json!([2, 2]));
    assert_eq!(minutes["waiting"], json!([1, 1]));
    // Two grants in 60 s.
    assert_eq!(minutes["grants"], json!([0.033, 0.0]));
    drop(guards);
}
