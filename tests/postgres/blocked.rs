//! Runtimes of callers all of whose threads block during a dial. Their manager has a home of its own.

use std::sync::mpsc::channel;
use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use futures_util::future::{BoxFuture, join_all};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep};
use tokio_postgres::NoTls;
use tower_lock::{LockGuard, LockManager, PostgresBackend};

use super::LONG;
use super::support::postgres_server::PostgresServer;
use super::support::proxy::Proxy;

const LEASE: Duration = Duration::from_secs(3);
/// Each of the round trips of a dial takes twice this time.
const DELAY: Duration = Duration::from_millis(100);

/// A call that finds its connection ended, and so dials. `LockGuard` is that of the key "other".
type Call = fn(LockManager, LockGuard) -> BoxFuture<'static, ()>;

const CALLS: [Call; 4] = [
    |locks, _other| {
        Box::pin(async move {
            drop(locks.inspect("free").await);
        })
    },
    |locks, _other| {
        Box::pin(async move {
            drop(locks.force_release("free").await);
        })
    },
    |_, mut other| {
        Box::pin(async move {
            drop(other.downgrade().await);
        })
    },
    // A waiter of the same manager receives the lease.
    |_, other| {
        Box::pin(async move {
            drop(other.release().await);
        })
    },
];

async fn until(condition: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < LONG);
        sleep(Duration::from_millis(2)).await;
    }
}

fn caller() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

async fn holds_lock(server: &PostgresServer, number: usize, call: Call) -> bool {
    let proxy = Proxy::start(server.port()).await;
    let name = format!("case_{number}");
    let url = format!("{}?application_name={name}", server.url_at(proxy.port()));
    let backend = PostgresBackend::builder(url).connect().await.unwrap();
    let locks = LockManager::builder(backend).watchdog_timeout(LEASE);
    let locks = locks.build().unwrap();
    let key = |what: &str| format!("{what}:{number}");
    let held = locks.acquire(key("held")).await.unwrap();
    let other = locks.acquire(key("other")).await.unwrap();
    let waiting = tokio::spawn(locks.acquire(key("other")).wait(LONG).into_future());
    until(async || locks.snapshot().waiting > 0).await;
    let client = server.client().await;
    // The connection of all commands but grants, after a renewal.
    const SESSION: &str = "SELECT pid FROM pg_stat_activity
        WHERE application_name = $1 AND strpos(query, 'tower_lock.renew') > 0";
    let sessions = async || client.query(SESSION, &[&name]).await.unwrap();
    until(async || sessions().await.len() == 1).await;
    // The renewals of both locks are over, and the next ones are not due.
    sleep(LEASE / 10).await;
    let session: i32 = sessions().await[0].get(0);
    let dials = proxy.accepted();
    let end = "SELECT pg_terminate_backend($1)";
    client.query_one(end, &[&session]).await.unwrap();
    until(async || sessions().await.is_empty()).await;
    // Until the end has arrived, a call would not dial.
    sleep(DELAY).await;
    let caller = caller();
    proxy.delay(DELAY);
    let _called = caller.spawn(call(locks, other));
    until(async || proxy.accepted() > dials).await;
    let (over, is_over) = channel::<()>();
    let (blocks, is_blocked) = channel();
    caller.spawn(async move {
        blocks.send(()).unwrap();
        is_over.recv().unwrap_err();
    });
    is_blocked.recv().unwrap();
    proxy.heal();
    sleep(2 * LEASE).await;
    let is_held = held.is_held();
    drop(over);
    caller.shutdown_background();
    waiting.abort();
    is_held
}

#[tokio::test]
async fn blocked_caller_delays_no_renewal() {
    let server = PostgresServer::start(&[]).await;
    let cases = CALLS.into_iter().enumerate();
    let cases = cases.map(|(number, call)| holds_lock(&server, number, call));
    assert_eq!(join_all(cases).await, [true; 4]);
}

/// The connections that a pool keeps idle run in the runtime that opened them.
#[test]
fn blocked_user_of_pool_delays_no_renewal() {
    let server = caller().block_on(PostgresServer::start(&[]));
    let caller = caller();
    let pool = Pool::builder(Manager::new(server.url().parse().unwrap(), NoTls));
    let pool = pool.max_size(4).build().unwrap();
    let guard = caller.block_on(async {
        let opened = join_all((0..4).map(|_| pool.get())).await;
        assert!(opened.iter().all(Result::is_ok));
        drop(opened);
        let backend = PostgresBackend::from_pool(pool).connect().await.unwrap();
        let locks = LockManager::builder(backend).watchdog_timeout(LEASE);
        locks.build().unwrap().acquire("held").await.unwrap()
    });
    // Nothing drives the runtime any more.
    let (over, is_over) = channel::<()>();
    caller.spawn(async move { is_over.recv().unwrap_err() });
    std::thread::sleep(2 * LEASE);
    assert!(guard.is_held());
    drop(over);
}
