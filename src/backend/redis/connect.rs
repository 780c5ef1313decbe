//! Where connections come from.

use std::fmt;
use std::time::Duration;

use deadpool_redis::{Connection, Manager, Pool, PoolConfig, PoolError, Runtime, Timeouts};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use super::fault::{Trouble, kind_of_connecting};
use super::target::Target;
use crate::ConfigError;
use crate::backend::{BackendError, BackendErrorKind};
use crate::task::Spawner;

/// redis-rs holds back callers beyond this many unsent commands. Its default of 50 is less than
/// one busy process has in flight.
const UNSENT_COMMANDS: usize = 4_096;
/// redis-rs' own timer for answers, out of the way: ours has to keep the connection.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Everything that is needed to open, and to give up on, a connection.
pub(super) struct Connector {
    pool: Pool,
    pub(super) address: String,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    pub(super) spawner: Spawner,
}

impl Connector {
    pub(super) fn new(
        pool: Pool,
        address: String,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Self {
        Self {
            pool,
            address,
            connect_timeout,
            response_timeout,
            spawner: Spawner::default(),
        }
    }

    /// Opens one connection and takes it out of the pool for good, within the connect timeout.
    ///
    /// # Cancel safety
    ///
    /// A connection that was about to open is closed.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, BackendError> {
        // A pool from outside may have no timeouts of its own, and then waits for ever.
        match tokio::time::timeout(self.connect_timeout, self.pool.get()).await {
            Ok(Ok(connection)) => {
                let mut connection = Connection::take(connection);
                connection.set_response_timeout(NO_TIMEOUT);
                Ok(connection)
            }
            Ok(Err(PoolError::Backend(error))) => {
                Err(BackendError::refused(kind_of_connecting(&error), error))
            }
            Ok(Err(error @ (PoolError::Closed | PoolError::NoRuntimeSpecified))) => Err(
                BackendError::refused(BackendErrorKind::Misconfigured, error),
            ),
            Ok(Err(error)) => Err(BackendError::refused(BackendErrorKind::Unavailable, error)),
            Err(_elapsed) => Err(BackendError::refused(
                BackendErrorKind::Unavailable,
                Trouble::NoConnection(self.connect_timeout),
            )),
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The pool would print its connection info.
        f.debug_struct("Connector")
            .field("address", &self.address)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}

/// A pool for `connections` connections to `target`.
///
/// Connections are taken out of it and kept, so its size bounds only how many open at a time.
pub(super) fn pool(
    target: &Target,
    connections: usize,
    connect_timeout: Duration,
) -> Result<Pool, ConfigError> {
    let invalid = |problem: &dyn fmt::Display| ConfigError::new("url", problem.to_string());
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connect_timeout))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(UNSENT_COMMANDS);
    let manager = Manager::new_with_config(target.info.clone(), config)
        .map_err(|_| invalid(&"the server's address cannot be used"))?;
    let mut pool = PoolConfig::new(connections);
    pool.timeouts = Timeouts {
        wait: Some(connect_timeout),
        create: Some(connect_timeout),
        recycle: Some(connect_timeout),
    };
    Pool::builder(manager)
        .config(pool)
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| invalid(&error))
}
