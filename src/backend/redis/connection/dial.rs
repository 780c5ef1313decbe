//! Opens connections: for commands and for subscriptions directly, for replicas from a pool.
//!
//! A connection from a pool announces no end: all connections of a pool have one sender of push messages.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_redis::{Connection as Pooled, Pool};
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Client, ProtocolVersion, PushInfo, PushKind, Value};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use super::address::{Address, Visit};
use super::link::{Link, ROLE};
use super::network::{Network, within};
use super::pools::{Pools, checkout, drop_idle};
use super::server::{Locate, Target};
use super::spread::Spread;
use crate::backend::BackendError;
use crate::backend::redis::command::{
    Cause, Names, check, entry, not_connected, not_dialed, unavailable,
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
    pub(super) pools: Arc<Pools>,
    /// A permit for each open link, suspect ones included.
    links: Arc<Semaphore>,
    /// The name for errors and logs.
    pub(crate) address: String,
    pub(crate) network: Arc<Network>,
    pub(crate) spread: Spread,
}

impl Connector {
    /// `connections` share the links. `checked_out` connections are open besides them. `probed` are the names of the
    /// keys that probe a server.
    pub(crate) fn new(
        origin: Origin,
        connections: usize,
        checked_out: usize,
        network: Arc<Network>,
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
                network.connect_timeout,
            )),
            links: Arc::new(Semaphore::new(LINKS * connections)),
            network,
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
        let opened = within(self.network.connect_timeout, link).await;
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
    pub(super) fn drop_idle(&self, opened: Instant) {
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
        let limit = self.network.connect_timeout;
        let (given, at) = match &self.origin {
            Origin::Given(pool) => (Some(pool.clone()), Arc::clone(&self.given)),
            Origin::Server(_) => (None, Address::named(&shared.address)),
        };
        let (pools, address) = (Arc::clone(&self.pools), shared.address.clone());
        // The runtime that opens a connection also drives it for the next acquire, of any runtime.
        let pooled = self.network.background.run(async move {
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
        });
        let ended = || Err(unavailable(Cause::NoRuntime));
        pooled.await.unwrap_or_else(ended)
    }
}

/// A connection, the address of the server that it leads to, and what opened it.
type Opened<T> = (MultiplexedConnection, String, T, Visit);

/// Opens a connection to the server, and to the next one if the server moves in the meantime. The
/// caller sets the time limit.
///
/// # Cancel safety
///
/// If dropped, a connection that was being opened is closed.
async fn open_at<T, F>(
    server: &dyn Locate,
    again: bool,
    open: impl Fn(Target) -> F,
) -> Result<Opened<T>, BackendError>
where
    F: Future<Output = Result<(MultiplexedConnection, T), BackendError>>,
{
    let mut target = server.locate().await?;
    loop {
        let opening = async {
            let visit = admitted(&Address::named(&target.address), again).await?;
            let (connection, with) = open(target.clone()).await?;
            let connection = confirmed(connection, &visit, server.can_move(), again).await?;
            Ok((connection, target.address.clone(), with, visit))
        };
        tokio::select! {
            opened = opening => {
                // The server may have moved while the connection was being opened. While most
                // sentinels are silent, the rest may name the previous primary.
                let opened = match server.has_left(&target.address) {
                    true => Err(unavailable(Cause::NotPrimary)),
                    false => opened,
                };
                return match server.can_move() {
                    true => opened.map_err(|error| unusable(target.address.clone(), error)),
                    false => opened,
                };
            }
            next = server.moved(&target.address) => target = next,
        }
    }
}

/// Adds the address to the error: the log names only the service. No error of opening a connection
/// may have taken effect.
fn unusable(address: String, source: BackendError) -> BackendError {
    BackendError::refused(source.kind(), Cause::Primary { address, source })
}

async fn admitted(address: &Arc<Address>, again: bool) -> Result<Visit, BackendError> {
    match again {
        true => address.admit().await,
        false => Ok(address.visit()),
    }
}

/// Returns the connection if its server confirms that it is the primary, where it can change. A server
/// that does not confirm it was the primary before, or will be. In doubt, it is enough that none denies it: a proxy may
/// report no role.
async fn confirmed(
    mut connection: MultiplexedConnection,
    visit: &Visit,
    can_move: bool,
    again: bool,
) -> Result<MultiplexedConnection, BackendError> {
    if !(can_move || again && visit.is_in_doubt()) {
        return Ok(connection);
    }
    let reply = connection.send_packed_command(&redis::cmd(ROLE)).await;
    let role = match check(reply.map_err(not_connected)?) {
        Ok(reply) => entry(&reply, "role"),
        Err(error) if can_move => return Err(error.into()),
        Err(_) => None,
    };
    match role.as_deref() {
        Some("master") => Ok(connection),
        None if !can_move => Ok(connection),
        _ => {
            visit.misled();
            Err(unavailable(Cause::NotPrimary))
        }
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

/// A connection for subscriptions, and the push messages that its receiver left. Its end is one of them.
pub(crate) struct Messages {
    pub(crate) connection: MultiplexedConnection,
    /// The address of the server that it leads to.
    pub(crate) address: String,
    pub(crate) pushed: UnboundedReceiver<PushInfo>,
    pub(crate) visit: Visit,
}

/// Opens a connection for subscriptions. The caller sets the time limit.
///
/// The task that drives the connection calls `receive` with each push message, which must not block. The messages for
/// which it returns `false` are left to the caller.
///
/// # Cancel safety
///
/// If dropped, a connection that was being opened is closed.
pub(crate) async fn listen(
    server: &dyn Locate,
    again: bool,
    receive: impl Fn(&PushInfo) -> bool + Clone + Send + Sync + 'static,
) -> Result<Messages, BackendError> {
    let open = |target: Target| {
        let receive = receive.clone();
        async move {
            let target = target.with_login().await?;
            let (info, config) = target.for_messages().settings();
            let client = Client::open(info).map_err(not_connected)?;
            let (sender, pushed) = unbounded_channel();
            let config = config.set_push_sender(move |message: PushInfo| {
                let is_left = !receive(&message);
                // A caller that is gone needs no messages.
                is_left.then(|| sender.send(message)).transpose().map(drop)
            });
            let connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map_err(not_connected)?;
            Ok((connection, pushed))
        }
    };
    let (connection, address, pushed, visit) = open_at(server, again, open).await?;
    Ok(Messages {
        connection,
        address,
        pushed,
        visit,
    })
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The `Debug` of the pool prints credentials.
        f.debug_struct("Connector")
            .field("address", &self.address)
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}
