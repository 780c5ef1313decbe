//! Forced releases.

use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::{Extension, Router};
use futures_util::poll;
use http::StatusCode;
use serde_json::{Value, json};
use tower_lock::backend::BackendErrorKind;
use tower_lock::dashboard::{Dashboard, ForceRelease, Operator, Veto};
use tower_lock::manager::LostReason;
use tower_lock::{LockManager, Memory};
use tracing_subscriber::filter::LevelFilter;

use super::support::{MOUNT, ask, post};
use crate::support::broken::broken;
use crate::support::engine::MS;
use crate::support::log::Log;
use crate::support::simulated::Simulated;

const REASON: &str = "the handler of this order hangs";

type Audited = Arc<Mutex<Vec<ForceRelease>>>;

/// Returns a dashboard for the operator `ada`, and the requests that its audit has seen.
fn allowed(locks: &LockManager) -> (Router, Audited) {
    let audited = Audited::default();
    let seen = Arc::clone(&audited);
    let board = Dashboard::new(locks.clone()).allow_force_release(move |release| {
        seen.lock().unwrap().push(release.clone());
        match release.reason.contains("veto") {
            true => Err(Veto::new("ask the team of the orders first")),
            false => Ok(()),
        }
    });
    let board = board.router().layer(Extension(Operator::new("ada")));
    (Router::new().nest(MOUNT, board), audited)
}

async fn force(app: &Router, key: &str, owner: &str, reason: &str) -> (StatusCode, Value) {
    let body = json!({ "key": key, "owner": owner, "reason": reason });
    ask(app, post("/api/v1/force-release", &body)).await
}

#[tokio::test]
async fn forced_release_frees_key_of_seen_owner() {
    let locks = LockManager::in_memory();
    let (app, audited) = allowed(&locks);
    let guard = locks.acquire("order:42").await.unwrap();
    let mut waiter = locks.acquire("order:42").into_future();
    assert!(poll!(&mut waiter).is_pending());
    let owner = guard.owner().to_string();
    let (status, body) = force(&app, "order:42", &owner, REASON).await;
    assert_eq!((status, &body["released"]), (StatusCode::OK, &json!(true)));
    assert!(!guard.is_held());
    assert_eq!(guard.lost_reason(), Some(LostReason::Forced));
    let next = waiter.await.unwrap();
    assert!(next.is_held() && next.fencing_token() > guard.fencing_token());

    let audited = audited.lock().unwrap();
    let [release] = &audited[..] else {
        panic!("one release: {audited:?}");
    };
    assert_eq!(release.operator, Some(Operator::new("ada")));
    assert_eq!(
        (release.key.as_str(), &*release.owner),
        ("order:42", &*owner)
    );
    assert_eq!(release.reason, REASON);
}

/// The operator has seen the first owner, and the second one holds the key by now.
#[tokio::test(start_paused = true)]
async fn forced_release_spares_next_owner() {
    let locks = LockManager::in_memory();
    let (app, _) = allowed(&locks);
    let first = locks.acquire("order:42").await.unwrap();
    let owner = first.owner().to_string();
    let mut waiter = locks.acquire("order:42").into_future();
    assert!(poll!(&mut waiter).is_pending());
    // The second owner has the lease of the first one.
    drop(first);
    let second = waiter.await.unwrap();
    assert_eq!(
        force(&app, "order:42", &owner, REASON).await.0,
        StatusCode::CONFLICT
    );
    assert!(second.is_held());
    drop(second);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(
        force(&app, "order:42", &owner, REASON).await.0,
        StatusCode::CONFLICT
    );
}

#[tokio::test]
async fn holder_of_other_process_is_compared() {
    let store = Memory::new();
    let manager = || LockManager::builder(store.clone()).build().unwrap();
    let (here, there) = (manager(), manager());
    let guard = there.acquire("order:42").await.unwrap();
    let owner = here.inspect("order:42").await.unwrap().unwrap().owner;
    let other = format!("{owner}0");
    assert!(
        !here
            .force_release_held_by("order:42", &other)
            .await
            .unwrap()
    );
    assert!(here.is_locked("order:42").await.unwrap());
    let (app, _) = allowed(&here);
    assert_eq!(
        force(&app, "order:42", &owner, REASON).await.0,
        StatusCode::OK
    );
    assert!(!here.is_locked("order:42").await.unwrap());
    drop(guard);
}

#[tokio::test]
async fn vetoed_release_changes_nothing() {
    let locks = LockManager::in_memory();
    let (app, audited) = allowed(&locks);
    let guard = locks.acquire("order:42").await.unwrap();
    let owner = guard.owner().to_string();
    let (status, body) = force(&app, "order:42", &owner, "this gets a veto").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(body["error"], "ask the team of the orders first");
    assert!(guard.is_held());
    assert_eq!(audited.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn incomplete_release_is_not_audited() {
    let locks = LockManager::in_memory();
    let (app, audited) = allowed(&locks);
    let guard = locks.acquire("order:42").await.unwrap();
    let owner = guard.owner().to_string();
    let long = "x".repeat(501);
    for reason in ["", "short", "       x       ", &long] {
        let (status, _) = force(&app, "order:42", &owner, reason).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{reason}");
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let without_owner = json!({ "key": "order:42", "reason": REASON });
    let (status, _) = ask(&app, post("/api/v1/force-release", &without_owner)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(guard.is_held());
    assert!(audited.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_release_per_second_is_admitted() {
    let locks = LockManager::in_memory();
    let (app, _) = allowed(&locks);
    let forced = async || force(&app, "order:42", "x:1", REASON).await.0;
    assert_eq!(forced().await, StatusCode::CONFLICT);
    assert_eq!(forced().await, StatusCode::TOO_MANY_REQUESTS);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(forced().await, StatusCode::CONFLICT);
}

/// Returns what forced releases log, as text.
fn logged(work: impl Future<Output = ()>) -> String {
    let log = Log::default();
    log.record(LevelFilter::WARN, || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build();
        runtime.unwrap().block_on(work);
    });
    log.text()
}

#[test]
fn audit_event_has_each_outcome() {
    for (outcome, status, reason) in [
        ("released", StatusCode::OK, REASON),
        ("vetoed", StatusCode::FORBIDDEN, "this gets a veto"),
        ("not_held", StatusCode::CONFLICT, REASON),
        ("failed", StatusCode::SERVICE_UNAVAILABLE, REASON),
    ] {
        let text = logged(async {
            let locks = match outcome {
                "failed" => broken(BackendErrorKind::Unavailable),
                _ => LockManager::in_memory(),
            };
            let (app, _) = allowed(&locks);
            let owner = match outcome {
                "released" => {
                    let guard = locks.acquire("order:42").await.unwrap();
                    let owner = guard.owner().to_string();
                    // Until the operator releases it.
                    drop(tokio::spawn(async move { guard.lost().await }));
                    owner
                }
                _ => "another:1".to_owned(),
            };
            assert_eq!(force(&app, "order:42", &owner, reason).await.0, status);
        });
        let expected = format!(
            "WARN force release operator=\"ada\" reason=\"{reason}\" outcome=\"{outcome}\""
        );
        let events = text.lines().filter(|line| line.contains("force release"));
        let events: Vec<_> = events.map(str::trim).collect();
        assert_eq!(events, [expected]);
    }
}

/// The client of a dashboard hangs up while the command is in flight.
#[test]
fn audit_event_survives_hang_up() {
    let text = logged(async {
        let store = Simulated::new(10 * MS);
        let locks = LockManager::builder(store).build().unwrap();
        let (app, _) = allowed(&locks);
        let guard = locks.acquire("order:42").await.unwrap();
        let owner = guard.owner().to_string();
        let mut forced = Box::pin(force(&app, "order:42", &owner, REASON));
        let hung_up = tokio::time::timeout(5 * MS, &mut forced).await;
        assert!(hung_up.is_err(), "it received a response");
        drop(forced);
        guard.lost().await;
        tokio::time::sleep(20 * MS).await;
    });
    let events = text.lines().filter(|line| line.contains("force release"));
    let events: Vec<_> = events.map(str::trim).collect();
    let expected =
        format!("WARN force release operator=\"ada\" reason=\"{REASON}\" outcome=\"released\"");
    assert_eq!(events, [expected]);
}

/// A key that no lock can have is not sent to the backend.
#[tokio::test]
async fn invalid_key_is_bad_request() {
    let (app, audited) = allowed(&LockManager::in_memory());
    let (status, body) = force(&app, "", "x:1", REASON).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    assert_eq!(audited.lock().unwrap().len(), 0);
}

/// The audit event names the operator, the reason and the outcome, but neither key nor owner.
#[test]
fn audit_event_contains_no_key() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .finish();
    // While there is only one subscriber, a thread without it can disable an event for all threads.
    let other = tracing_subscriber::fmt().with_writer(std::io::sink);
    let _other = tracing::Dispatch::new(other.finish());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let owner = tracing::subscriber::with_default(subscriber, || {
        runtime.block_on(async {
            let locks = LockManager::in_memory();
            let (app, _) = allowed(&locks);
            let guard = locks.acquire("secret-key").await.unwrap();
            let owner = guard.owner().to_string();
            assert_eq!(
                force(&app, "secret-key", &owner, REASON).await.0,
                StatusCode::OK
            );
            owner
        })
    });
    let text = log.text();
    let events: Vec<_> = text
        .lines()
        .filter(|line| line.contains("force release"))
        .collect();
    let [event] = events[..] else {
        panic!("one event: {text}");
    };
    for part in ["WARN", "tower_lock::audit", "ada", REASON, "released"] {
        assert!(event.contains(part), "{part}: {event}");
    }
    assert!(
        !text.contains("secret-key") && !text.contains(&owner),
        "{text}"
    );
}
