//! Opens connections for commands: directly, or for replicas from a pool.
//!
//! A connection from a pool announces no end: all connections of a pool have one sender of push messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_redis::{Connection as Pooled, Pool};
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Client, ProtocolVersion, PushInfo, PushKind, Value};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::opening::{admitted, confirmed, open_at};
use super::pools::{Pools, checkout, drop_idle};
use super::spread::Spread;
use crate::backend::BackendError;
use crate::backend::redis::command::{Names, check, not_connected, not_dialed, unavailable};
use crate::backend::redis::connection::{
    ClientContext, Link, Locate, Target, Visit, address::Address, in_background, within,
};
use crate::task::with_caller_logs;

/// The most links per connection: one that hangs, whose commands may still take effect, and its replacement.
const LINKS: usize = 2;
/// Disables the response timeout of redis-rs.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The source of the connections for commands.
pub(crate) enum Origin {
    /// The pool of the program, to an unknown server.
    Given(Pool),
    Server(Arc<dyn Locate>),
}

/// Opens the connections for commands.
pub(crate) struct Connector {
    origin: Origin,
    /// The unknown server of a given pool.
    given: Arc<Address>,
    /// Empty if the pool is given.
    pub(in crate::backend::redis::connection) pools: Arc<Pools>,
    /// A permit for each open link, suspect ones included.
    links: Arc<Semaphore>,
    /// The name for errors and logs.
    pub(crate) address: String,
    pub(crate) context: Arc<ClientContext>,
    pub(crate) spread: Spread,
}

impl Connector {
    /// `connections` share the links. `checked_out` connections are open besides them. `probed` are the names of the
    /// keys that probe a server.
    pub(crate) fn new(
        origin: Origin,
        connections: usize,
        checked_out: usize,
        context: Arc<ClientContext>,
        probed: Option<Names>,
    ) -> Self {
        let address = match &origin {
            Origin::Given(_) => "the given pool",
            Origin::Server(server) => server.address(),
        };
        Self {
            address: address.to_owned(),
            origin,
            given: Arc::default(),
            pools: Arc::new(Pools::new(
                connections + checked_out,
                context.connect_timeout,
            )),
            links: Arc::new(Semaphore::new(LINKS * connections)),
            context,
            spread: Spread::new(probed),
        }
    }

    /// The number of connections that can be open at a time.
    pub(crate) fn pool_size(&self) -> usize {
        match &self.origin {
            Origin::Given(pool) => pool.status().max_size,
            Origin::Server(_) => self.pools.size(),
        }
    }

    /// Opens one connection within the connect timeout. It calls `on_end` when it ends, unless it is from
    /// the program's pool or the URL demands RESP2. It opens `again` after another one: the first may lead to a
    /// replica, which the self-test reports.
    ///
    /// # Cancel safety
    ///
    /// If dropped, a connection that was being opened is closed.
    pub(crate) async fn connect(
        &self,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
        again: bool,
    ) -> Result<Link, BackendError> {
        let begun = Instant::now();
        let link = async {
            let permit = Arc::clone(&self.links).acquire_owned().await;
            let permit = permit.map_err(unavailable)?;
            let (mut connection, address, ended, visit) = match &self.origin {
                Origin::Given(pool) => {
                    let visit = admitted(&self.given, again).await?;
                    if let Some(wrong_at) = visit.wrong_at() {
                        drop_idle(pool, wrong_at);
                    }
                    let connection = without_timeout(taken(pool).await?);
                    let connection = confirmed(connection, &visit, false, again).await?;
                    (connection, self.address.clone(), Arc::default(), visit)
                }
                Origin::Server(server) => {
                    let open = |target: Target| {
                        let on_end = on_end.clone();
                        async move {
                            let target = target.with_login().await?;
                            // For the connections that are checked out later.
                            self.pools.prepare(&target)?;
                            let (mut connection, ended) = dial(target, on_end).await?;
                            server.check(&mut connection).await?;
                            Ok((connection, ended))
                        }
                    };
                    open_at(&**server, again, open).await?
                }
            };
            self.spread.probe(&mut connection).await?;
            Ok(Link::new(connection, address, visit, ended, permit))
        };
        // The program's pool may have no timeouts.
        let opened = within(self.context.connect_timeout, link).await;
        if opened.is_err() {
            // Each idle connection to a server that hangs would take that time.
            self.drop_idle(begun);
        }
        opened
    }

    /// Returns `true` if a redirection names the server that redirects.
    pub(crate) fn is_named_by(&self, redirection: &str) -> bool {
        match &self.origin {
            Origin::Given(_) => false,
            Origin::Server(server) => server.is_named_by(redirection),
        }
    }

    /// Closes the idle connections of the pool that were opened before this time.
    pub(in crate::backend::redis::connection) fn drop_idle(&self, opened: Instant) {
        match &self.origin {
            Origin::Given(pool) => drop_idle(pool, opened),
            Origin::Server(_) => self.pools.drop_idle(opened),
        }
    }

    /// Returns `true` if the locks are at another server than the one that the connection leads to.
    pub(crate) fn has_left(&self, link: &Link) -> bool {
        match &self.origin {
            Origin::Given(_) => false,
            Origin::Server(server) => server.has_left(&link.address),
        }
    }

    /// Starts to report a new server as a recovery.
    pub(crate) fn look_out(&self) {
        if let Origin::Server(server) = &self.origin {
            Arc::clone(server).look_out();
        }
    }

    /// Takes a second connection to the server of `shared` from the pool, within the connect timeout. It
    /// returns to the pool when it is dropped.
    ///
    /// # Cancel safety
    ///
    /// If dropped, a connection that is being opened goes to the pool.
    pub(crate) async fn checkout(&self, shared: &Link) -> Result<(Pooled, Visit), BackendError> {
        let limit = self.context.connect_timeout;
        let (given, at) = match &self.origin {
            Origin::Given(pool) => (Some(pool.clone()), Arc::clone(&self.given)),
            Origin::Server(_) => (None, Address::named(&shared.address)),
        };
        let (pools, address) = (Arc::clone(&self.pools), shared.address.clone());
        // The runtime that opens a connection also drives it for the next acquire, of any runtime.
        in_background(async move {
            let pooled = async {
                let visit = at.admit().await?;
                let pooled = match given {
                    Some(pool) => {
                        let mut pooled = checkout(&pool).await?;
                        select(&mut pooled).await?;
                        pooled
                    }
                    // The pool of `shared`: a request to the sentinels for each grant would be too many.
                    None => pools.checkout(&address).await?,
                };
                Ok((pooled, visit))
            };
            // The program's pool may have no timeouts.
            within(limit, pooled).await
        })
        .await
    }
}

/// Opens a connection for commands. At its end, the flag is set and `on_end` is called.
async fn dial(
    target: Target,
    on_end: impl Fn() + Send + Sync + 'static,
) -> Result<(MultiplexedConnection, Arc<AtomicBool>), BackendError> {
    let (info, mut config) = target.settings();
    let ended = Arc::<AtomicBool>::default();
    let flag = Arc::clone(&ended);
    let on_end = with_caller_logs(on_end);
    let announce = move |message: PushInfo| {
        if message.kind == PushKind::Disconnection {
            flag.store(true, Ordering::Relaxed);
            on_end();
        }
        Ok::<_, ()>(())
    };
    if info.redis_settings().protocol() == ProtocolVersion::RESP3 {
        config = config.set_push_sender(announce);
    }
    let client = Client::open(info).map_err(not_connected)?;
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    Ok((connection.await.map_err(not_dialed)?, ended))
}

async fn taken(pool: &Pool) -> Result<MultiplexedConnection, BackendError> {
    let mut connection = Pooled::take(checkout(pool).await?);
    select(&mut connection).await?;
    Ok(connection)
}

/// Selects the database of the pool's configuration: the program may have selected another one, and the pool
/// does not reset it.
async fn select(connection: &mut MultiplexedConnection) -> Result<(), BackendError> {
    let mut select = redis::cmd("SELECT");
    select.arg(connection.get_db());
    let reply = connection.send_packed_command(&select).await;
    match reply.map_err(not_connected)? {
        // Where the command is denied or unknown, the program has not selected another one either.
        Value::ServerError(error) if matches!(error.code(), "ERR" | "NOPERM") => Ok(()),
        reply => Ok(check(reply).map(drop)?),
    }
}

/// Disables the response timeout of a connection. The timers of this crate keep the connection, and
/// the program's pool may have set one.
pub(crate) fn without_timeout(mut connection: MultiplexedConnection) -> MultiplexedConnection {
    connection.set_response_timeout(NO_TIMEOUT);
    connection
}
