//! Where connections come from.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::{
    Connection as Pooled, Manager, Pool, PoolConfig, PoolError, Runtime, Timeouts,
};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, RedisError};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::backend::redis::command::{Cause, CommandError, kind_of_connecting};
use crate::backend::redis::connection::{Link, Outage, Recovery, Target};
use crate::backend::redis::topology::{MinReplicas, Replicas, Sentinels, require_primary};
use crate::backend::{BackendError, BackendErrorKind};
use crate::task::Spawner;

/// redis-rs holds back callers beyond this many unsent commands. Its default of 50 is less than
/// one busy process has in flight.
const UNSENT_COMMANDS: usize = 4_096;
/// redis-rs' own timer for answers, out of the way.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3_600);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What all connections of a backend have in common.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) spawner: Spawner,
    pub(crate) recovery: Recovery,
    pub(crate) min_replicas: Option<MinReplicas>,
}

/// What a connection leads to.
pub(crate) enum Origin {
    /// Whatever the pool of somebody else leads to.
    Given(Pool),
    Server(Box<Target>),
    /// The server that is the primary at the moment.
    Sentinel(Arc<Sentinels>),
}

/// Everything that is needed to open, and to give up on, a connection for commands.
pub(crate) struct Connector {
    origin: Origin,
    /// Where the last connection came from, and the pool for it.
    pool: Mutex<Option<(String, Pool)>>,
    /// For errors and logs.
    pub(crate) address: String,
    /// How many are taken out of the pool for good.
    connections: usize,
    /// Where grants wait for replicas.
    pub(crate) replicas: Option<Replicas>,
    /// That it grants nothing, over any of its connections.
    pub(crate) outage: Outage,
    pub(crate) network: Arc<Network>,
}

impl Connector {
    pub(crate) fn new(
        origin: Origin,
        address: String,
        connections: usize,
        network: Arc<Network>,
    ) -> Self {
        let checked_out = match &origin {
            // Those that are taken out for good must find room in it, too.
            Origin::Given(pool) => pool.status().max_size.saturating_sub(connections),
            _ => Replicas::CONNECTIONS,
        };
        let replicas = network
            .min_replicas
            .map(|asked| Replicas::new(asked, checked_out));
        let outage = Outage::new(
            "locks cannot be acquired",
            "locks can be acquired again",
            &address,
        );
        Self {
            origin,
            pool: Mutex::default(),
            address,
            connections,
            replicas,
            outage,
            network,
        }
    }

    /// Opens one connection and takes it out of its pool for good, within the connect timeout.
    ///
    /// # Cancel safety
    ///
    /// A connection that was about to open is closed.
    pub(crate) async fn connect(&self) -> Result<Link, BackendError> {
        let link = async {
            let connection = match &self.origin {
                Origin::Given(pool) => without_timeout(taken(pool).await?),
                Origin::Server(target) => taken(&self.pool(target)?).await?,
                Origin::Sentinel(sentinels) => {
                    let open = |primary: Target| async move {
                        let connection = taken(&self.pool(&primary)?).await?;
                        let connection = require_primary(connection).await?;
                        Ok(Link::new(connection, primary.address))
                    };
                    return sentinels.primary(open).await;
                }
            };
            Ok(Link::new(connection, self.address.clone()))
        };
        // A pool from outside may have no timeouts of its own, and then waits for ever.
        within(self.network.connect_timeout, link).await
    }

    /// Whether the locks are at another server by now than the one that the connection leads to.
    pub(crate) fn is_left_behind(&self, link: &Link) -> bool {
        match &self.origin {
            Origin::Given(_) | Origin::Server(_) => false,
            Origin::Sentinel(sentinels) => sentinels.have_left(&link.address),
        }
    }

    /// Takes a connection to where `shared` leads out of the pool, that goes back when it is dropped.
    /// Bounded by the caller.
    ///
    /// # Cancel safety
    ///
    /// A connection that was about to open is closed.
    pub(crate) async fn checkout(&self, shared: &Link) -> Result<Pooled, BackendError> {
        match &self.origin {
            Origin::Given(pool) => checkout(pool).await,
            Origin::Server(target) => checkout(&self.pool(target)?).await,
            // Those for good look for the primary when it moves, and to ask the sentinels for every
            // grant would be too much.
            Origin::Sentinel(_) => match self.last_pool(&shared.address) {
                Some(pool) => checkout(&pool).await,
                None => Err(CommandError::unavailable(Cause::NotPrimary).into()),
            },
        }
    }

    fn last_pool(&self, address: &str) -> Option<Pool> {
        let last = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let there = last.as_ref().filter(|(last, _)| last == address);
        there.map(|(_, pool)| pool.clone())
    }

    fn pool(&self, target: &Target) -> Result<Pool, BackendError> {
        let mut last = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((address, pool)) = &*last
            && *address == target.address
        {
            return Ok(pool.clone());
        }
        let checked_out = self.replicas.as_ref().map_or(0, |_| Replicas::CONNECTIONS);
        let pool = pool(
            target,
            self.connections + checked_out,
            self.network.connect_timeout,
        )
        .map_err(|error| BackendError::refused(BackendErrorKind::Misconfigured, error))?;
        *last = Some((target.address.clone(), pool.clone()));
        Ok(pool)
    }
}

async fn taken(pool: &Pool) -> Result<MultiplexedConnection, BackendError> {
    Ok(Pooled::take(checkout(pool).await?))
}

/// Those of our own pools have none. Our own timers have to keep the connection.
pub(crate) fn without_timeout(mut connection: MultiplexedConnection) -> MultiplexedConnection {
    connection.set_response_timeout(NO_TIMEOUT);
    connection
}

async fn checkout(pool: &Pool) -> Result<Pooled, BackendError> {
    match pool.get().await {
        Ok(connection) => Ok(connection),
        Err(PoolError::Backend(error)) => Err(not_connected(error)),
        Err(error @ (PoolError::Closed | PoolError::NoRuntimeSpecified)) => Err(
            BackendError::refused(BackendErrorKind::Misconfigured, error),
        ),
        Err(error) => Err(BackendError::refused(BackendErrorKind::Unavailable, error)),
    }
}

/// A connection for subscriptions, and what is pushed through it. Its end is pushed, too.
pub(crate) struct Messages {
    pub(crate) connection: MultiplexedConnection,
    /// The server it leads to.
    pub(crate) address: String,
    pub(crate) pushed: UnboundedReceiver<PushInfo>,
}

/// Opens a connection for subscriptions. Bounded by the caller.
pub(crate) async fn listen(target: &Target) -> Result<Messages, BackendError> {
    // Opening a client connects nothing.
    let client = Client::open(target.for_messages()).map_err(not_connected)?;
    let (sender, pushed) = unbounded_channel();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(UNSENT_COMMANDS)
        .set_push_sender(sender);
    let connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .map_err(not_connected)?;
    Ok(Messages {
        connection,
        address: target.address.clone(),
        pushed,
    })
}

fn not_connected(error: RedisError) -> BackendError {
    BackendError::refused(kind_of_connecting(&error), error)
}

/// The outcome, or that there was no connection in time.
pub(crate) async fn within<T>(
    limit: Duration,
    outcome: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match tokio::time::timeout(limit, outcome).await {
        Ok(outcome) => outcome,
        Err(_elapsed) => Err(BackendError::refused(
            BackendErrorKind::Unavailable,
            Cause::NoConnection(limit),
        )),
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The pool would print its connection info.
        f.debug_struct("Connector")
            .field("address", &self.address)
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}

/// A pool for `connections` connections to `target`.
///
/// Most are taken out of it and kept, so its size bounds how many of those open at a time, besides
/// those that are checked out.
fn pool(target: &Target, connections: usize, connect_timeout: Duration) -> Result<Pool, BoxError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connect_timeout))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(UNSENT_COMMANDS);
    let manager = Manager::new_with_config(target.info.clone(), config)?;
    let mut pool = PoolConfig::new(connections);
    pool.timeouts = Timeouts {
        wait: Some(connect_timeout),
        create: Some(connect_timeout),
        recycle: Some(connect_timeout),
    };
    let pool = Pool::builder(manager).config(pool);
    Ok(pool.runtime(Runtime::Tokio1).build()?)
}
