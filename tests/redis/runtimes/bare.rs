//! Callers outside a runtime, and in a runtime without timers or without I/O.

use std::error::Error as _;
use std::fmt::Debug;

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Runtime};
use tower_lock::{ConnectError, LockManager, RedisBackend};

use crate::support::cluster::Cluster;
use crate::support::engine::{PATIENCE, SECOND, eventually, manager};
use crate::support::other_runtime::{current_thread, park_until_ready};
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::SentinelSet;

fn assert_config<T: Debug>(outcome: Option<Result<T, ConnectError>>, problem: &str) {
    let error = outcome.expect("at once").unwrap_err();
    let ConnectError::Config(config) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(config.field(), "runtime");
    assert!(config.to_string().contains(problem), "{config}");
    let source = error.source().unwrap().to_string();
    assert_eq!(source, config.to_string());
}

/// Connects in all ways, none of which reaches a server.
fn reject_connects(problem: &str) {
    for url in [
        "redis://127.0.0.1:1",
        "redis+unix:///nowhere",
        "redis+sentinel://127.0.0.1:1/service",
        "redis+cluster://127.0.0.1:1",
    ] {
        assert_config(LockManager::connect(url).now_or_never(), problem);
        let builder = || RedisBackend::builder(url);
        assert_config(builder().connect().now_or_never(), problem);
        assert_config(Some(builder().connect_lazy()), problem);
    }
    let pool = deadpool_redis::Config::from_url("redis://127.0.0.1:1");
    let pool = pool.create_pool(Some(deadpool_redis::Runtime::Tokio1));
    let builder = RedisBackend::from_pool(pool.unwrap());
    assert_config(builder.connect().now_or_never(), problem);
}

#[test]
fn connect_outside_runtime_is_misconfigured() {
    reject_connects("no Tokio runtime");
    let locks = LockManager::connect("memory://").now_or_never();
    assert!(locks.unwrap().is_ok());
}

#[test]
fn connect_without_timers_is_misconfigured() {
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    let _entered = runtime.enter();
    reject_connects("enable_time");
}

#[test]
fn manager_works_outside_runtime() {
    let server = RedisServer::start();
    let locks = current_thread().block_on(manager(server.url(), 30 * SECOND));
    let guard = park_until_ready(PATIENCE, locks.acquire("k").into_future()).unwrap();
    let both = locks.acquire(["one", "two"]).run(async |_| ());
    park_until_ready(PATIENCE, Box::pin(both)).unwrap();
    let busy = locks.acquire("k").no_wait().into_future();
    assert!(park_until_ready(PATIENCE, busy).unwrap_err().is_busy());
    assert!(park_until_ready(PATIENCE, locks.is_locked("k")).unwrap());
    let info = park_until_ready(PATIENCE, locks.inspect("k")).unwrap();
    assert!(info.is_some());
    assert!(guard.lost().now_or_never().is_none());
    park_until_ready(PATIENCE, guard.release()).unwrap();
    assert!(!park_until_ready(PATIENCE, locks.force_release("k")).unwrap());
    assert!(park_until_ready(PATIENCE, locks.shutdown(PATIENCE)).is_idle());
}

/// Acquires over connections that were opened in this runtime, and that `reset` ends.
fn use_locks(runtime: &Runtime, url: &str, reset: impl Fn()) {
    runtime.block_on(async {
        let locks = LockManager::connect(url).await.unwrap();
        let guard = locks.acquire("k").await.unwrap();
        let waits = locks.acquire("k").wait(PATIENCE);
        let waits = tokio::spawn(waits.into_future());
        eventually("queued", || locks.snapshot().waiting == 1).await;
        guard.release().await.unwrap();
        waits.await.unwrap().unwrap().release().await.unwrap();
        reset();
        let guard = locks.acquire("k").wait(PATIENCE).await.unwrap();
        guard.release().await.unwrap();
    });
}

#[test]
fn runtimes_without_io_can_use_redis() {
    let server = RedisServer::start();
    let (set, cluster) = (SentinelSet::start(), Cluster::start());
    let service = set.url(set.service());
    let runtimes = [Builder::new_current_thread(), Builder::new_multi_thread()];
    for mut builder in runtimes {
        let runtime = builder.enable_time().build().unwrap();
        use_locks(&runtime, &server.url(), || {
            server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        });
        use_locks(&runtime, &service, || ());
        use_locks(&runtime, &cluster.url(), || ());
    }
}
