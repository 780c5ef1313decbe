//! The data of the routes.

use std::collections::BTreeSet;
use std::future::IntoFuture as _;
use std::time::Duration;

use futures_util::poll;
use http::StatusCode;
use serde_json::{Value, json};
use tower_lock::dashboard::Dashboard;
use tower_lock::{LockKey, LockManager, Memory};

use super::support::{Stream, ask, get, open, post, send, served};
use crate::support::simulated::{Simulated, unreleasing};

async fn inspect(app: &axum::Router, key: &str) -> (StatusCode, Value) {
    ask(app, post("/api/v1/inspect", &json!({ "key": key }))).await
}

fn keys(rows: &Value) -> Vec<&str> {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row["key"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn page_has_no_slash_at_its_end() {
    let app = open(&LockManager::in_memory());
    for (path, status) in [("", StatusCode::OK), ("/", StatusCode::NOT_FOUND)] {
        assert_eq!(send(&app, get(path)).await.status(), status, "{path:?}");
    }
}

#[tokio::test]
async fn summary_names_process_and_settings() {
    let builder = LockManager::builder(Memory::new()).wait(Duration::from_secs(2));
    let locks = builder.max_waiters(7).build().unwrap();
    let app = open(&locks);
    let guard = locks.acquire("order:42").await.unwrap();
    let response = send(&app, get("/api/v1/summary")).await;
    assert_eq!(response.status(), StatusCode::OK);
    let instance = response.headers()["x-tower-lock-instance"].clone();
    let (_, summary) = ask(&app, get("/api/v1/summary")).await;
    assert_eq!(summary["instance"], instance.to_str().unwrap());
    assert_eq!(summary["pid"], std::process::id());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(summary["host"], host.trim());
    assert_eq!(summary["version"], env!("CARGO_PKG_VERSION"));
    let options = json!({
        "wait_ms": 2000,
        "watchdog_timeout_ms": 30_000,
        "max_waiters_per_key": 1024,
        "max_waiters": 7,
    });
    assert_eq!(summary["options"], options);
    assert_eq!(summary["totals"]["held"], 1);
    assert_eq!(summary["operator"], Value::Null);
    assert_eq!(summary["capabilities"]["force_release"], false);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn holders_are_sorted_as_requested() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let first = locks.acquire("old").name("orders").await.unwrap();
    tokio::time::advance(Duration::from_secs(5)).await;
    let second = locks
        .acquire("short")
        .lease(Duration::from_secs(2))
        .await
        .unwrap();
    let third = locks.acquire("wanted").await.unwrap();
    let mut waiters: Vec<_> = (0..3)
        .map(|_| locks.acquire("wanted").into_future())
        .collect();
    for waiter in &mut waiters {
        assert!(poll!(waiter).is_pending());
    }

    let sorted = async |sort: &str| {
        ask(&app, get(&format!("/api/v1/holders?sort={sort}")))
            .await
            .1
    };
    let by_waiters = sorted("waiters").await;
    assert_eq!(keys(&by_waiters["rows"]), ["wanted", "old", "short"]);
    assert_eq!(
        (&by_waiters["held"], &by_waiters["waiting"]),
        (&json!(3), &json!(3))
    );
    assert_eq!(by_waiters["rows"][0]["waiters"], 3);
    assert_eq!(
        by_waiters["rows"][0]["token"],
        third.fencing_token().to_string()
    );
    let by_age = sorted("age").await;
    assert_eq!(keys(&by_age["rows"])[0], "old");
    assert_eq!(by_age["rows"][0]["since_ms"], 5000);
    assert_eq!(by_age["rows"][0]["layer"], "orders");
    assert_eq!(by_age["rows"][1]["layer"], Value::Null, "without a name");
    let found = inspect(&app, "old").await.1;
    assert_eq!(found["here"]["layer"], "orders");
    assert_eq!(
        keys(&sorted("remaining").await["rows"])[..2],
        ["short", "old"]
    );
    let one = ask(&app, get("/api/v1/holders?sort=age&limit=1")).await.1;
    assert_eq!(keys(&one["rows"]), ["old"]);
    assert_eq!(one["held"], 3, "all are counted");
    drop((first, second, third));
}

/// Readers share one lane, and each permit has one of its own. The lock and the permits of a key are one row.
#[tokio::test(start_paused = true)]
async fn key_of_several_owners_is_one_row() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let first = locks.acquire("p").permits(2).name("tenants").await.unwrap();
    tokio::time::advance(Duration::from_secs(5)).await;
    let second = locks.acquire("p").permits(2).lease(Duration::from_secs(9));
    let second = second.await.unwrap();
    let again = locks.acquire("p").permits(2).owner(first.owner());
    let again = again.await.unwrap();
    let readers = [
        locks.acquire("r").shared().await.unwrap(),
        locks.acquire("r").shared().await.unwrap(),
    ];
    let mut waiters = [
        locks.acquire("p").permits(2).into_future(),
        locks.acquire("p").permits(2).into_future(),
        locks.acquire("p").into_future(),
        locks.acquire("r").into_future(),
    ];
    for waiter in &mut waiters {
        assert!(poll!(waiter).is_pending());
    }
    // The loops enter the queue of the backend.
    tokio::time::sleep(Duration::from_millis(10)).await;

    let permit = json!({
        "key": "p", "held_by": "here", "layer": "tenants", "mode": "permit", "owners": 2, "holds": 3,
        "token": null, "waiters": 3, "since_ms": 5010, "left_ms": 8898,
    });
    let shared = json!({
        "key": "r", "held_by": "here", "layer": null, "mode": "shared", "owners": 2, "holds": 2,
        "token": readers[0].fencing_token().to_string(), "waiters": 1, "since_ms": 10, "left_ms": 29_688,
    });
    for sort in ["waiters", "age", "remaining"] {
        let (_, list) = ask(&app, get(&format!("/api/v1/holders?sort={sort}"))).await;
        assert_eq!(list["rows"], json!([permit, shared]), "{sort}");
        let counts = ["held", "waiting", "lanes"].map(|name| &list[name]);
        assert_eq!(counts, [&json!(2), &json!(4), &json!(2)]);
    }
    let mut rows = Vec::new();
    let mut after = Some(String::new());
    while let Some(next) = after {
        let (_, page) = ask(&app, get(&format!("/api/v1/holders?limit=1&after={next}"))).await;
        rows.extend(page["rows"].as_array().unwrap().clone());
        after = page["next"].as_str().map(str::to_owned);
    }
    rows.sort_by_key(|row| row["key"].to_string());
    assert_eq!(rows, [permit.clone(), shared.clone()]);
    let (_, summary) = ask(&app, get("/api/v1/summary")).await;
    let names = [
        "held",
        "exclusive",
        "shared",
        "permits",
        "waiting",
        "queued",
        "lanes",
    ];
    let totals = names.map(|name| summary["totals"][name].as_u64().unwrap());
    assert_eq!(totals, [2, 0, 2, 2, 4, 1, 2]);
    let frame = Stream::open(&app).await.next().await.unwrap();
    assert_eq!(frame["top"], json!([permit, shared]));
    assert_eq!((&frame["shown"], &frame["permits"]), (&json!(2), &json!(2)));

    let (_, found) = inspect(&app, "p").await;
    assert_eq!(found["here"], permit);
    assert_eq!(
        (&found["mode"], &found["holders"]),
        (&json!("permit"), &json!(2))
    );
    let owners = [&first, &second].map(|guard| json!(guard.owner().to_string()));
    let listed = found["owners"].as_array().unwrap();
    assert!(listed.iter().map(|it| &it["owner"]).eq(&owners));
    assert_eq!(listed[0]["token"], first.fencing_token().to_string());
    let ages = ["layer", "since_ms", "left_ms", "holds"].map(|name| listed[1][name].clone());
    assert_eq!(ages, [json!(null), json!(10), json!(8898), json!(1)]);
    let (_, found) = inspect(&app, "r").await;
    assert_eq!(
        (&found["mode"], &found["holders"]),
        (&json!("shared"), &json!(2))
    );
    assert_eq!(found["owners"].as_array().unwrap().len(), 2);
    drop((first, second, again, readers));
}

/// Thousands of owners can share a key.
#[tokio::test]
async fn inspect_lists_oldest_hundred_owners() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let mut guards = Vec::new();
    for _ in 0..150 {
        guards.push(locks.acquire("r").shared().await.unwrap());
    }
    let (_, found) = inspect(&app, "r").await;
    assert_eq!(found["holders"], 150);
    let listed = found["owners"].as_array().unwrap();
    let owners = listed
        .iter()
        .map(|it| it["owner"].as_str().unwrap().to_owned());
    let oldest = guards.iter().map(|it| it.owner().to_string());
    assert!(owners.eq(oldest.take(100)));
    let exclusive = locks.acquire("e").await.unwrap();
    let (_, found) = inspect(&app, "e").await;
    assert_eq!(found["mode"], "exclusive");
    assert_eq!(found["owners"], json!([]));
    drop((guards, exclusive));
}

/// A waiter whose lock another process holds is listed without a hold.
#[tokio::test]
async fn key_held_elsewhere_is_listed_with_waiters() {
    let store = Memory::new();
    let manager = || LockManager::builder(store.clone()).build().unwrap();
    let (here, there) = (manager(), manager());
    let guard = there.acquire("order:42").await.unwrap();
    let mut waiter = here.acquire("order:42").into_future();
    assert!(poll!(&mut waiter).is_pending());
    let app = open(&here);
    let (_, list) = ask(&app, get("/api/v1/holders")).await;
    assert_eq!(list["rows"][0]["waiters"], 1);
    assert_eq!(list["rows"][0]["since_ms"], Value::Null);
    assert_eq!(list["rows"][0]["held_by"], "elsewhere");
    assert_eq!(list["held"], 0);
    let (_, found) = inspect(&app, "order:42").await;
    assert_eq!(
        (&found["held"], &found["here"]),
        (&json!(true), &Value::Null)
    );
    assert_eq!(found["held_by"], "elsewhere");
    drop(guard);
}

/// A release has no reply, and took effect only in the second part: another process holds the key by then.
#[tokio::test(start_paused = true)]
async fn release_without_reply_is_of_this_process() {
    let store = unreleasing();
    let manager = |backend: Simulated| LockManager::builder(backend).build().unwrap();
    let (here, there) = (manager(store.clone()), manager(store.another_wire()));
    let app = open(&here);
    drop(here.acquire("order:42").await.unwrap());
    let (_, found) = inspect(&app, "order:42").await;
    assert_eq!(
        (&found["held"], &found["held_by"]),
        (&json!(true), &json!("releasing"))
    );
    assert!(there.force_release("order:42").await.unwrap());
    let guard = there.acquire("order:42").await.unwrap();
    let (_, found) = inspect(&app, "order:42").await;
    assert_eq!(found["held_by"], "elsewhere");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn kept_lease_is_shown_as_kept() {
    let locks = LockManager::builder(Simulated::new(Duration::ZERO));
    let locks = locks.keep_released(Duration::from_millis(100));
    let locks = locks.build().unwrap();
    let app = open(&locks);
    for _ in 0..2 {
        drop(locks.acquire("order:42").await.unwrap());
    }
    let (_, found) = inspect(&app, "order:42").await;
    assert_eq!(
        (&found["held"], &found["held_by"]),
        (&json!(true), &json!("kept"))
    );
}

#[tokio::test]
async fn pages_contain_every_key_once() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let mut guards = Vec::new();
    for n in 0..300 {
        guards.push(locks.acquire(format!("key:{n}")).await.unwrap());
    }
    let (mut after, mut seen, mut count) = (String::new(), BTreeSet::new(), 0);
    loop {
        let path = format!("/api/v1/holders?limit=77&after={after}");
        let (status, page) = ask(&app, get(&path)).await;
        assert_eq!(status, StatusCode::OK);
        let rows = keys(&page["rows"]);
        assert!(rows.len() <= 77);
        count += rows.len();
        seen.extend(rows.into_iter().map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
        assert!(!after.contains("key"), "targets are logged: {after}");
    }
    assert_eq!((seen.len(), count), (300, 300));
    drop(guards);
}

#[tokio::test]
async fn invalid_query_is_bad_request() {
    let app = open(&LockManager::in_memory());
    for path in [
        "/holders?limit=0",
        "/holders?limit=501",
        "/holders?limit=x",
        "/holders?sort=key",
        "/holders?after=x",
        "/history?range=1y",
    ] {
        let (status, body) = ask(&app, get(&format!("/api/v1{path}"))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        assert!(body["error"].is_string(), "{path}");
    }
}

#[tokio::test]
async fn inspect_shows_held_and_free_key() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let guard = locks.acquire("order:42").await.unwrap();
    let (status, found) = inspect(&app, "order:42").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(found["owner"], guard.owner().to_string());
    assert_eq!(found["here"]["token"], guard.fencing_token().to_string());
    assert_eq!(found["held_by"], "here");
    assert!(found["ttl_ms"].as_u64().unwrap() > 20_000);
    guard.release().await.unwrap();
    let (_, free) = inspect(&app, "order:42").await;
    assert_eq!(
        (&free["held"], &free["owner"]),
        (&json!(false), &Value::Null)
    );
}

/// The holder is in another process, and so is one of those that wait.
#[tokio::test(start_paused = true)]
async fn inspect_and_summary_show_queue() {
    let store = Memory::new();
    let manager = || LockManager::builder(store.clone()).build().unwrap();
    let [locks, holder, other] = [manager(), manager(), manager()];
    let app = open(&locks);
    let guard = holder.acquire("order:42").await.unwrap();
    let mut waiters = [&locks, &locks, &other].map(|it| it.acquire("order:42").into_future());
    for waiter in &mut waiters {
        assert!(poll!(waiter).is_pending());
    }
    // The loops enter the queue of the backend.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (_, found) = inspect(&app, "order:42").await;
    assert_eq!(
        (&found["waiters"], &found["queued"]),
        (&json!(2), &json!(2))
    );
    let (_, summary) = ask(&app, get("/api/v1/summary")).await;
    let totals = &summary["totals"];
    assert_eq!(
        (&totals["waiting"], &totals["queued"]),
        (&json!(2), &json!(1))
    );
    drop(guard);
}

/// The operator types the check digits of a long key.
#[tokio::test]
async fn inspect_has_check_digits_of_key() {
    let app = open(&LockManager::in_memory());
    for (key, digits) in [("order:42", "da68380d"), ("order:43", "d4dda5eb")] {
        let (_, found) = inspect(&app, key).await;
        assert_eq!(found["confirm"], digits, "{key}");
    }
}

/// A key with encoded characters is found by the text that the page shows.
#[tokio::test]
async fn inspect_finds_key_as_it_is_shown() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let long = "x".repeat(2 * LockKey::MAX_LEN);
    let hostile = [
        LockKey::new("a\nb%c\0"),
        LockKey::from_parts(["a:b", "{c}"]),
        LockKey::new(long),
    ];
    for key in hostile {
        let guard = locks.acquire(&key).await.unwrap();
        let (status, found) = inspect(&app, key.as_str()).await;
        assert_eq!(
            (status, &found["held"]),
            (StatusCode::OK, &json!(true)),
            "{key:?}"
        );
        assert_eq!(found["key"], key.as_str());
        drop(guard);
    }
}

#[tokio::test(start_paused = true)]
async fn inspect_without_key_is_bad_request() {
    let app = open(&LockManager::in_memory());
    let large = json!({ "key": "k".repeat(20_000) });
    for body in [
        json!({}),
        json!({ "key": 7 }),
        json!([]),
        json!({ "key": "" }),
        large,
    ] {
        let (status, _) = ask(&app, post("/api/v1/inspect", &body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_above_rate_are_rejected() {
    let app = open(&LockManager::in_memory());
    let inspect = || post("/api/v1/inspect", &json!({ "key": "order:42" }));
    let list = || get("/api/v1/holders");
    for _ in 0..5 {
        assert_eq!(send(&app, inspect()).await.status(), StatusCode::OK);
    }
    for _ in 0..10 {
        assert_eq!(send(&app, list()).await.status(), StatusCode::OK);
    }
    // A summary also reads all lanes.
    for request in [inspect(), list(), get("/api/v1/summary")] {
        let response = send(&app, request).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()["retry-after"], "1");
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    let mut admitted = 0;
    for _ in 0..100 {
        let status = send(&app, inspect()).await.status();
        admitted += usize::from(status == StatusCode::OK);
    }
    assert_eq!(admitted, 5, "of 100 in one second");
}

/// The page offers no release, and neither does the server.
#[tokio::test]
async fn read_only_dashboard_has_no_release() {
    let locks = LockManager::in_memory();
    let app = open(&locks);
    let guard = locks.acquire("order:42").await.unwrap();
    let owner = guard.owner().to_string();
    let body = json!({ "key": "order:42", "owner": owner, "reason": "the handler hangs" });
    let (status, _) = ask(&app, post("/api/v1/force-release", &body)).await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    assert!(guard.is_held());
}

#[tokio::test]
async fn summary_lists_peers_in_order() {
    let board = Dashboard::new(LockManager::in_memory()).unprotected();
    let board = board.peer("b", "https://b.example.com/ops/locks");
    let app = served(board.peer("c", "/c/ops/locks"));
    let (_, summary) = ask(&app, get("/api/v1/summary")).await;
    let expected = json!([
        { "name": "b", "url": "https://b.example.com/ops/locks" },
        { "name": "c", "url": "/c/ops/locks" },
    ]);
    assert_eq!(summary["peers"], expected);
    let (_, alone) = ask(&open(&LockManager::in_memory()), get("/api/v1/summary")).await;
    assert_eq!(alone["peers"], json!([]));
}
