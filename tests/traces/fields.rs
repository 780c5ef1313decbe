//! Each span and event of the locks, with its level, its target and all of its fields.

use std::collections::BTreeSet;
use std::future::IntoFuture as _;
use std::pin::pin;

use axum::body::Body;
use axum::{Extension, Router};
use futures_util::future::join_all;
use futures_util::poll;
use http::{Request, StatusCode};
use serde_json::json;
use tower::ServiceExt as _;
use tower_lock::dashboard::{Dashboard, Operator};
use tower_lock::manager::TraceKeys;
use tower_lock::{LockManager, RedisBackend};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::seen::{Kind, Seen};
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::log::ask_each_subscriber;
use crate::support::other_runtime::current_thread;
use crate::support::redis_server::RedisServer;

const GUIDE: &str = include_str!("../../src/guide/operations.rs");
const LOCKS: &str = "tower_lock";
const KEY: &str = "canary";

struct Row {
    is_span: bool,
    name: &'static str,
    level: &'static str,
    target: &'static str,
    fields: &'static [&'static str],
}

const fn span(name: &'static str, level: &'static str, fields: &'static [&'static str]) -> Row {
    Row {
        is_span: true,
        name,
        level,
        target: LOCKS,
        fields,
    }
}

const fn event(name: &'static str, level: &'static str, fields: &'static [&'static str]) -> Row {
    Row {
        is_span: false,
        ..span(name, level, fields)
    }
}

const RENEWAL: &[&str] = &["count", "left_ms", "cause"];

const ROWS: &[Row] = &[
    span(
        "lock.acquire",
        "DEBUG",
        &[
            "lock.layer",
            "lock.mode",
            "lock.keys",
            "lock.queue_position",
            "lock.via",
            "lock.outcome",
            "lock.wait_ms",
            "error.type",
            "otel.kind",
            "otel.status_code",
        ],
    ),
    event(
        "lock granted",
        "DEBUG",
        &[
            "lock.layer",
            "lock.mode",
            "lock.via",
            "lock.wait_ms",
            "lock.token",
        ],
    ),
    event("lock released", "DEBUG", &["lock.layer", "lock.hold_ms"]),
    event(
        "lock not acquired",
        "DEBUG",
        &[
            "lock.layer",
            "lock.outcome",
            "lock.wait_ms",
            "lock.queue_position",
            "cause",
        ],
    ),
    event(
        "lock wait dropped",
        "DEBUG",
        &["lock.layer", "lock.wait_ms"],
    ),
    event(
        "lock lost",
        "WARN",
        &[
            "lock.layer",
            "lock.mode",
            "lock.lost_reason",
            "lock.via",
            "lock.token",
            "lock.wait_ms",
            "lock.hold_ms",
            "lock.overdue_ms",
        ],
    ),
    event("renewal failed", "WARN", RENEWAL),
    event("renewal failed", "DEBUG", RENEWAL),
    event("renewals succeed again", "INFO", &[]),
    span(
        "EVALSHA",
        "TRACE",
        &[
            "otel.kind",
            "db.system.name",
            "db.operation.name",
            "db.stored_procedure.name",
            "db.operation.batch.size",
            "server.address",
            "server.port",
            "error.type",
            "db.response.status_code",
        ],
    ),
    Row {
        target: "tower_lock::audit",
        ..event("force release", "WARN", &["operator", "reason", "outcome"])
    },
];

/// Uses the locks in each way that a row describes.
async fn use_all(server: RedisServer, seen: Seen) {
    let backend = RedisBackend::builder(server.url()).connect().await.unwrap();
    let locks = LockManager::builder(backend)
        .watchdog_timeout(4 * SECOND)
        .trace_keys(TraceKeys::with(|_| "a key".into()))
        .build()
        .unwrap();
    let acquire = || locks.acquire(KEY).name("orders");

    // A hand-off, a timeout and a key that is invalid.
    let guard = acquire().await.unwrap();
    let mut next = acquire().into_future();
    assert!(poll!(&mut next).is_pending());
    drop(guard);
    let guard = next.await.unwrap();
    acquire().wait(20 * MS).await.unwrap_err();
    let mut dropped = acquire().into_future();
    assert!(poll!(&mut dropped).is_pending());
    drop(dropped);
    locks.acquire("").await.unwrap_err();
    force_release(&locks, &guard.owner().to_string()).await;
    assert!(!guard.is_held());

    // One call for several locks. While the server replies to none, at most two calls are sent for the first ones.
    let mut several = pin!(join_all(
        (0..10).map(|n| locks.acquire(format!("{KEY}:{n}")).into_future())
    ));
    server.stop_process();
    assert!(poll!(&mut several).is_pending());
    server.continue_process();
    for guard in several.await {
        guard.unwrap().release().await.unwrap();
    }

    // The other modes, with a wait of each.
    let reader = acquire().shared().await.unwrap();
    acquire().permits(2).wait(20 * MS).await.unwrap_err();
    drop(reader);
    let permit = acquire().permits(2).await.unwrap();
    acquire().shared().wait(20 * MS).await.unwrap_err();
    permit.release().await.unwrap();

    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    acquire().wait(100 * MS).await.unwrap_err();
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);

    // A renewal, an outage, and another one until the holder is lost.
    let guard = acquire().await.unwrap();
    eventually("a renewal", || called(&seen).contains("renew")).await;
    let is_logged = |message| seen.all().keys().any(|kind| kind.name == message);
    server.stop_process();
    eventually("a failure", || is_logged("renewal failed")).await;
    server.continue_process();
    eventually("a success", || is_logged("renewals succeed again")).await;
    server.stop_process();
    guard.lost().await;
    server.continue_process();
}

async fn force_release(locks: &LockManager, owner: &str) {
    let board = Dashboard::new(locks.clone()).allow_force_release(|_| Ok(()));
    let board = board.router().layer(Extension(Operator::new("ada")));
    let body = json!({ "key": KEY, "owner": owner, "reason": "its handler hangs" });
    let request = Request::post("/ops/api/v1/force-release")
        .header("host", "ops.example.com")
        .header("origin", "https://ops.example.com")
        .header("content-type", "application/json")
        .header("x-tower-lock", "1");
    let request = request.body(Body::from(body.to_string())).unwrap();
    let app: Router = Router::new().nest("/ops", board);
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

/// Returns the scripts that were called.
fn called(seen: &Seen) -> BTreeSet<String> {
    let all = seen.all();
    let mut calls = all.iter().filter(|(kind, _)| kind.name == "EVALSHA");
    let scripts = calls
        .next()
        .and_then(|(_, values)| values.get("db.stored_procedure.name"));
    scripts.cloned().unwrap_or_default()
}

fn seen() -> Seen {
    let seen = Seen::default();
    ask_each_subscriber();
    let subscriber = tracing_subscriber::registry().with(seen.clone());
    let server = RedisServer::start();
    tracing::subscriber::with_default(subscriber, || {
        current_thread().block_on(use_all(server, seen.clone()));
    });
    seen
}

#[test]
fn each_span_and_event_has_all_fields() {
    let seen = seen();
    let all = seen.all();
    for row in ROWS {
        let kind = Kind {
            is_span: row.is_span,
            name: row.name.to_owned(),
            level: row.level,
            target: row.target.to_owned(),
        };
        let values = all
            .get(&kind)
            .unwrap_or_else(|| panic!("no {kind:?} in {all:#?}"));
        let fields: BTreeSet<_> = values.keys().copied().collect();
        let expected = row.fields.iter().copied().collect();
        assert_eq!(fields, expected, "{kind:?}: {values:#?}");
        for (name, values) in values {
            let has_key = values.iter().any(|value| value.contains(KEY));
            assert!(!has_key, "{kind:?} {name}: {values:?}");
        }
    }
    let of_locks = [LOCKS, "tower_lock::audit"];
    let others = all.keys().filter(|kind| of_locks.contains(&&*kind.target));
    let is_listed = |kind: &&Kind| ROWS.iter().any(|row| row.name == kind.name);
    let unlisted: Vec<_> = others.filter(|kind| !is_listed(kind)).collect();
    assert!(unlisted.is_empty(), "{unlisted:?}");

    for name in ["lock.acquire", "lock granted"] {
        let (_, values) = all.iter().find(|(kind, _)| kind.name == name).unwrap();
        let modes: Vec<_> = values["lock.mode"].iter().map(String::as_str).collect();
        assert_eq!(modes, ["exclusive", "permit", "shared"], "{name}");
    }

    let calls = all
        .iter()
        .find(|(kind, _)| kind.name == "EVALSHA")
        .unwrap()
        .1;
    let has = |field: &str, value: &str| calls[field].contains(value);
    for script in ["acquire", "release", "renew", "force_release"] {
        assert!(has("db.stored_procedure.name", script), "{calls:#?}");
    }
    for error in ["OOM", "timeout"] {
        assert!(has("error.type", error), "{calls:#?}");
    }
    assert!(has("db.response.status_code", "OOM") && has("db.system.name", "redis"));
    assert!(has("server.address", "127.0.0.1") && has("db.operation.name", "EVALSHA"));
}

#[test]
fn guide_lists_each_span_and_event() {
    for row in ROWS {
        let name = format!("`{}`", row.name);
        // The text of a span extends over several lines.
        let text = GUIDE.replace("\n//!", "");
        let at = text.find(&name).unwrap_or_else(|| panic!("no {name}"));
        let described = &text[at..];
        for field in row.fields {
            let field = format!("`{field}`");
            assert!(described.contains(&field), "{name}: no {field}");
        }
    }
}

/// The thread of the manager sends it, because this runtime may idle.
#[test]
fn attempt_is_logged_by_subscriber_of_caller() {
    ask_each_subscriber();
    let (server, runtime, seen) = (RedisServer::start(), current_thread(), Seen::default());
    let locks = runtime.block_on(LockManager::connect(&server.url()));
    let subscriber = tracing_subscriber::registry().with(seen.clone());
    tracing::subscriber::with_default(subscriber, || {
        let acquire = locks.unwrap().acquire(KEY).into_future();
        drop(runtime.block_on(acquire).unwrap());
    });
    assert!(called(&seen).contains("acquire"), "{seen:?}");
}
