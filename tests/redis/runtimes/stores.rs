//! The stores of the tests in `on_stores`.

use std::sync::Arc;

use deadpool_redis::{Config, Runtime};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{LockManager, LockManagerBuilder, RedisBackend};

use crate::support::other_runtime::current_thread;
use crate::support::redis_server::RedisServer;

/// A store, with two managers as of two processes.
pub(crate) struct Store<T> {
    pub(crate) name: &'static str,
    pub(crate) processes: [LockManagerBuilder; 2],
    /// Dropped after the test.
    pub(crate) kept: T,
}

/// Returns a new server by its URL, and by a pool. The first command dials.
pub(crate) fn stores() -> [Store<impl Send>; 2] {
    let server = Arc::new(RedisServer::start());
    let url = server.url();
    let pool = || {
        let pool = Config::from_url(&url).create_pool(Some(Runtime::Tokio1));
        RedisBackend::from_pool(pool.unwrap()).notify(&url)
    };
    [
        ("server", [1, 2].map(|_| RedisBackend::builder(&url))),
        ("pool", [1, 2].map(|_| pool())),
    ]
    .map(|(name, processes)| Store {
        name,
        processes: processes.map(|process| connected(process.prefix(name))),
        kept: Arc::clone(&server),
    })
}

/// Connects, and closes the connections with their runtime.
fn connected(builder: RedisBackendBuilder) -> LockManagerBuilder {
    let backend = current_thread().block_on(builder.connect());
    LockManager::builder(backend.unwrap())
}
