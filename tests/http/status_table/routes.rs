//! A server with one route for each row of the table.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::routing::{MethodRouter, any};
use axum::{Extension, Router};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower_lock::backend::BackendErrorKind;
use tower_lock::{Error, LockGuard, LockLayer, LockManager, LockScopeLayer, Memory, Quorum};

use crate::served::path_key;
use crate::support::broken::broken;
use crate::support::engine::{MS, PATIENCE, SECOND, within};

/// A server, and those that keep its resources busy.
pub(super) struct BusyServer {
    address: SocketAddr,
    _guards: Vec<LockGuard>,
    _tasks: JoinSet<()>,
}

/// Two managers with a queue of one waiter.
fn limited() -> [LockManager; 2] {
    let builder = || LockManager::builder(Memory::new());
    [
        builder().max_waiters_per_key(1).build().unwrap(),
        builder().max_waiters(1).build().unwrap(),
    ]
}

async fn unlocked() -> StatusCode {
    panic!("the handler runs without its lock")
}

/// Sends one frame, and no end.
async fn endless() -> Body {
    let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"part"))]);
    Body::from_stream(first.chain(stream::pending()))
}

async fn wrong_key(State(locks): State<LockManager>) -> Result<(), Error> {
    locks.acquire("").await.map(drop)
}

async fn wrong_option(State(locks): State<LockManager>) -> Result<(), Error> {
    locks.acquire("any").lease(Duration::ZERO).await.map(drop)
}

async fn busy_in_handler(State(locks): State<LockManager>) -> Result<(), Error> {
    let acquire = locks.acquire(path_key("/busy"));
    acquire.no_wait().await.map(drop)
}

fn no_handler() -> MethodRouter<LockManager> {
    any(unlocked)
}

impl BusyServer {
    pub(super) async fn start() -> Self {
        let busy = LockManager::in_memory();
        let [few_per_key, few] = limited();
        let stopped = LockManager::in_memory();
        stopped.shutdown(Duration::ZERO).await;

        let mut guards = Vec::new();
        for (locks, path) in [
            (&busy, "/busy"),
            (&busy, "/busy-at-once"),
            (&busy, "/busy-423"),
            (&few_per_key, "/full-key"),
            (&few, "/full"),
            (&few, "/other"),
        ] {
            guards.push(locks.acquire(path_key(path)).await.unwrap());
        }
        let deep = busy.acquire(path_key("/deep")).await.unwrap();
        let owner = deep.owner();
        guards.push(deep);
        for _ in 1..64 {
            let again = busy.acquire(path_key("/deep")).owner(owner);
            guards.push(again.await.unwrap());
        }
        for path in ["/permits", "/permits-409"] {
            let permit = busy.acquire(path_key(path)).permits(1);
            guards.push(permit.await.unwrap());
        }
        let reader = busy.acquire(path_key("/upgrade")).shared().await.unwrap();
        let reads = reader.owner();
        guards.push(reader);
        let mut tasks = JoinSet::new();
        for (locks, path) in [(&few_per_key, "/full-key"), (&few, "/other")] {
            let waiter = locks.acquire(path_key(path)).wait_forever();
            tasks.spawn(async move { drop(waiter.await) });
            within(PATIENCE, "a waiter", || locks.snapshot().waiting == 1).await;
        }

        let by_path = |locks: &LockManager| LockLayer::by_path(locks.clone()).all_methods();
        let few_permits = || by_path(&busy).permits(1);
        // It has no permits.
        let quorum = [(); 3]
            .iter()
            .fold(Quorum::builder(), |it, ()| it.node(Memory::new()));
        let quorum = LockManager::builder(quorum.build().unwrap())
            .build()
            .unwrap();
        let down = |kind| LockLayer::by_path(broken(kind)).all_methods();
        let body_first = |limit| by_path(&busy).read_body_first(limit, 200 * MS);
        let routes = Router::new()
            .route("/busy", no_handler().layer(by_path(&busy).wait(50 * MS)))
            .route(
                "/busy-at-once",
                no_handler().layer(by_path(&busy).no_wait()),
            )
            .route(
                "/busy-423",
                no_handler().layer(by_path(&busy).no_wait().status(StatusCode::LOCKED)),
            )
            .route("/permits", no_handler().layer(few_permits().wait(50 * MS)))
            .route(
                "/permits-409",
                no_handler().layer(few_permits().no_wait().status(StatusCode::CONFLICT)),
            )
            .route(
                "/upgrade",
                no_handler().layer((Extension(reads), by_path(&busy))),
            )
            .route(
                "/unsupported",
                no_handler().layer(by_path(&quorum).permits(1)),
            )
            .route("/full-key", no_handler().layer(by_path(&few_per_key)))
            .route("/full", no_handler().layer(by_path(&few)))
            .route(
                "/down",
                no_handler().layer(down(BackendErrorKind::Unavailable).wait(50 * MS)),
            )
            .route(
                "/refused",
                no_handler().layer(down(BackendErrorKind::Misconfigured)),
            )
            .route(
                "/foreign",
                no_handler().layer(down(BackendErrorKind::Conflict)),
            )
            .route("/stopped", no_handler().layer(by_path(&stopped)))
            .route(
                "/lost",
                any(pending::<()>).layer(by_path(&busy).max_hold(50 * MS).wait(PATIENCE)),
            )
            .route(
                "/lost-in-body",
                any(endless).layer(by_path(&busy).max_hold(SECOND).wait(PATIENCE)),
            )
            .route(
                "/no-key",
                no_handler().layer(LockLayer::by_header(busy.clone(), "x-id").all_methods()),
            )
            .route(
                "/wrong",
                no_handler().layer(LockLayer::by_path_param(busy.clone(), "id").all_methods()),
            )
            .route("/large", no_handler().layer(body_first(1)))
            .route("/late", no_handler().layer(body_first(1 << 20)))
            .route("/broken", no_handler().layer(body_first(1 << 20)))
            .route(
                "/deep",
                no_handler().layer((Extension(owner), by_path(&busy))),
            )
            .route(
                "/handler-busy",
                any(busy_in_handler).layer(LockScopeLayer::new()),
            )
            .route(
                "/handler-option",
                any(wrong_option).layer(LockScopeLayer::new()),
            )
            .route("/handler-key", any(wrong_key).layer(LockScopeLayer::new()));
        let by_id = LockLayer::by_path_param(busy.clone(), "id").all_methods();
        let unmatched = Router::new()
            .route("/{id}", no_handler())
            .fallback(unlocked)
            .layer(by_id);
        let app = routes.nest("/nested", unmatched).with_state(busy);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tasks.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            address,
            _guards: guards,
            _tasks: tasks,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}
