//! The pool of the server that the connections lead to.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{
    Connection as Pooled, Manager, Pool, PoolConfig, PoolError, Runtime, Timeouts,
};

use tokio::time::Instant;

use crate::backend::redis::command::{Cause, not_connected, unavailable};
use crate::backend::redis::connection::Target;
use crate::backend::{BackendError, BackendErrorKind};
use crate::mutex::Mutex;

/// The pool for the server of the last connection.
pub(in crate::backend::redis::connection) struct Pools {
    /// The server, with the login of the pool.
    last: Mutex<Option<(Arc<Target>, Pool)>>,
    /// The number of connections that a pool must have room for.
    size: usize,
    connect_timeout: Duration,
}

impl Pools {
    pub(super) fn new(size: usize, connect_timeout: Duration) -> Self {
        Self {
            last: Mutex::default(),
            size,
            connect_timeout,
        }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Returns the pool for a server, which has its login, and creates it if there is none.
    ///
    /// The manager of a pool has one login. A later login has another pool. Connections of the former pool are
    /// closed when they return.
    pub(super) fn prepare(&self, target: &Target) -> Result<Pool, BackendError> {
        let mut last = self.last.lock();
        if let Some((known, pool)) = &*last
            && known.is_same(target)
        {
            return Ok(pool.clone());
        }
        let pool = pool(target, self.size, self.connect_timeout)
            .map_err(|error| BackendError::refused(BackendErrorKind::Misconfigured, error))?;
        *last = Some((Arc::new(target.clone()), pool.clone()));
        Ok(pool)
    }

    pub(in crate::backend::redis::connection) fn drop_idle(&self, opened: Instant) {
        if let Some((_, pool)) = &*self.last.lock() {
            drop_idle(pool, opened);
        }
    }

    /// Takes a connection to the server at `address`. The caller sets the time limit.
    ///
    /// The pool opens connections with the login of the last connection. If the server rejects it, it may have
    /// expired, and the provider is asked once for another.
    ///
    /// # Cancel safety
    ///
    /// If dropped, a connection that is being opened goes to the pool.
    pub(super) async fn checkout(&self, address: &str) -> Result<Pooled, BackendError> {
        let last = self.last.lock().clone();
        let last = last.filter(|(target, _)| target.address == address);
        let (target, pool) = last.ok_or_else(|| unavailable(Cause::NotPrimary))?;
        match checkout(&pool).await {
            Err(error)
                if error.kind() == BackendErrorKind::Misconfigured
                    && target.credentials.is_some() =>
            {
                let pool = self.prepare(&target.with_login().await?)?;
                checkout(&pool).await
            }
            outcome => outcome,
        }
    }
}

/// Closes the idle connections of a pool that were opened before this time. The others stay, and those in use.
pub(super) fn drop_idle(pool: &Pool, opened: Instant) {
    drop(pool.retain(|_, metrics| Instant::from_std(metrics.created) >= opened));
}

/// Takes a connection from a pool, which opens one if none is idle.
pub(super) async fn checkout(pool: &Pool) -> Result<Pooled, BackendError> {
    match pool.get().await {
        Ok(connection) => Ok(connection),
        Err(PoolError::Backend(error)) => Err(not_connected(error)),
        Err(error @ (PoolError::Closed | PoolError::NoRuntimeSpecified)) => Err(
            BackendError::refused(BackendErrorKind::Misconfigured, error),
        ),
        Err(error) => Err(unavailable(error)),
    }
}

/// Creates a pool for `size` connections to `target`.
///
/// Only acquires that wait for replicas check connections out.
fn pool(
    target: &Target,
    size: usize,
    connect_timeout: Duration,
) -> Result<Pool, Box<dyn Error + Send + Sync>> {
    let (info, config) = target.clone().settings();
    let config = config.set_connection_timeout(Some(connect_timeout));
    let manager = Manager::new_with_config(info, config)?;
    let mut pool = PoolConfig::new(size);
    pool.timeouts = Timeouts {
        wait: Some(connect_timeout),
        create: Some(connect_timeout),
        recycle: Some(connect_timeout),
    };
    let pool = Pool::builder(manager).config(pool);
    Ok(pool.runtime(Runtime::Tokio1).build()?)
}
