//! The stores of the tests in `on_stores`.

use std::sync::Arc;

use deadpool_redis::{Config, Runtime};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{LockManager, LockManagerBuilder, RedisBackend};

use crate::support::engine::connected;
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
    let by_url = || RedisBackend::builder(&url);
    let by_pool = || {
        let pool = Config::from_url(&url).create_pool(Some(Runtime::Tokio1));
        RedisBackend::from_pool(pool.unwrap()).notify(&url)
    };
    let builders: [(_, &dyn Fn() -> RedisBackendBuilder); 2] =
        [("server", &by_url), ("pool", &by_pool)];
    builders.map(|(name, builder)| Store {
        name,
        processes: [1, 2].map(|_| process(|| builder().prefix(name))),
        kept: Arc::clone(&server),
    })
}

/// Connects, and closes the connections with their runtime.
fn process(builder: impl Fn() -> RedisBackendBuilder) -> LockManagerBuilder {
    LockManager::builder(current_thread().block_on(connected(builder)))
}
