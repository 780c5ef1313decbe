//! The [`Backend`] on PostgreSQL.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use deadpool_postgres::Pool;
use futures_util::future::join_all;
use uuid::Uuid;

use super::PostgresBackendBuilder;
use super::batch::{Batch, MAX_BATCH};
use super::commands::{Acquires, Attempt, Leaver, Releases};
use super::error::Cause;
use super::line::Line;
use super::listener::Listener;
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, Capabilities, Contended, Downgraded,
    ForceReleased, Hints, Holder, KeepRequest, Release, Released, ReleasedOrKept, Renewal, Renewed,
};
use crate::task::{Background, with_output};

/// Leases in PostgreSQL 13 or newer.
///
/// A cheap handle: clones share the connections, which close with the last clone. A process has two connections for
/// commands, and a third one while it holds or waits for a lock. They run on a thread of this crate, so any
/// [runtime](crate::guide::runtimes) can use them.
///
/// # Guarantees
///
/// A grant is on disk before its reply, unless [`relaxed`](PostgresBackendBuilder::relaxed) is set. A failover to an
/// asynchronous standby can lose the last grants. A transaction that begins with the
/// [fence](crate::guide::postgres#the-fence) of its lock commits only while no other owner can hold the lock, whatever
/// fails.
///
/// Waiters of all processes have a queue: a release transfers the lock to the first one, as the page
/// [`order`](crate::guide::order) describes.
///
/// ```no_run
/// # async fn example() -> Result<(), tower_lock::ConnectError> {
/// use tower_lock::{LockManager, PostgresBackend};
///
/// let backend = PostgresBackend::builder("postgres://app@localhost/shop").connect().await?;
/// let locks = LockManager::builder(backend).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresBackend {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) acquires: Arc<Batch<Acquires>>,
    pub(super) releases: Arc<Batch<Releases>>,
    /// The connection of all commands but grants.
    pub(super) line: Arc<Line>,
    pub(super) listener: Listener,
    pub(super) address: String,
}

impl PostgresBackend {
    /// The SQL that creates the schema of locks. A repeat changes nothing.
    ///
    /// [`connect`](PostgresBackendBuilder::connect) runs it if necessary, unless
    /// [`migrate(false)`](PostgresBackendBuilder::migrate) is set.
    pub const MIGRATION: &'static str = super::schema::MIGRATION;

    /// Creates a builder for a backend at `url`, as in
    /// `postgres://user:password@host:5432/database?sslmode=require`.
    ///
    /// The URL takes the parameters of `libpq` that tokio-postgres supports. It can name several hosts, as in
    /// `postgres://app@one,two/shop?target_session_attrs=read-write`: each connection is to the first one that accepts
    /// writes. The `connect_timeout` of a host, log-in included, defaults to 2 s. A connection uses TLS only with
    /// `sslmode=require` (feature `postgres-tls`). The certificate of the server must then be valid for its host, and come from a
    /// public authority or one that `PostgresBackendBuilder::ca_certificate` names.
    ///
    /// [`PostgresBackendBuilder::connect`] reports an invalid URL.
    pub fn builder(url: impl Into<String>) -> PostgresBackendBuilder {
        PostgresBackendBuilder::from_url(url.into())
    }

    /// Creates a builder for a backend that takes its connections from the program's pool.
    ///
    /// It takes two. They never return, so the pool has room for others again. It closes the idle ones that it finds before:
    /// they run in the runtime that opened them, which may block. The server of a pool is unknown: set
    /// [`listen`](PostgresBackendBuilder::listen) to receive notifications. Otherwise, waiters poll.
    pub fn from_pool(pool: Pool) -> PostgresBackendBuilder {
        PostgresBackendBuilder::from_pool(pool)
    }

    pub(super) fn new(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    fn line(&self) -> Arc<Line> {
        Arc::clone(&self.inner.line)
    }

    async fn attempt(&self, attempt: Attempt) -> Result<Contended, BackendError> {
        let outcome = self.inner.acquires.call(attempt).await;
        if outcome.is_err() {
            // It shows the end of an outage that leaves this process without locks and waiters.
            self.inner.listener.start();
        }
        outcome
    }

    async fn end(&self, leases: &[Release], leaves: bool) -> Vec<Result<Released, BackendError>> {
        let leavers = leases.iter().map(|lease| {
            let lease = lease.clone();
            self.inner.releases.call(Leaver { lease, leaves })
        });
        join_all(leavers).await
    }
}

impl Backend for PostgresBackend {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        let attempt = Attempt {
            request: request.clone(),
            waits: false,
            channel: None,
        };
        Ok(match self.attempt(attempt).await? {
            Contended::Granted { counter } => Acquired::granted(counter),
            Contended::Waiting { ttl, .. } => Acquired::busy(ttl),
        })
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Contended, BackendError> {
        let attempt = Attempt {
            request: request.clone(),
            waits: true,
            channel: self.inner.listener.channel(),
        };
        self.attempt(attempt).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        let batches = renewals.chunks(MAX_BATCH).map(async |batch| {
            let (line, renewals) = (self.line(), batch.to_vec());
            match run(async move { line.renew(&renewals).await }).await {
                Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error); batch.len()],
            }
        });
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.end(leases, false).await
    }

    async fn leave(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.end(leases, true).await
    }

    async fn release_or_keep(
        &self,
        leases: &[KeepRequest],
    ) -> Vec<Result<ReleasedOrKept, BackendError>> {
        let decided = leases.iter().map(|lease| {
            let (line, lease) = (self.line(), lease.clone());
            let channel = self.inner.listener.channel();
            run(async move { line.release_or_keep(&lease, channel).await })
        });
        join_all(decided).await
    }

    async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        let (line, lease) = (self.line(), lease.clone());
        run(async move { line.downgrade(&lease).await }).await
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        self.inner.listener.watch(key, manager)
    }

    fn recoveries(&self) -> Hints {
        let hints = self.inner.line.recovery.hints_of_holder();
        self.inner.listener.start();
        hints
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE
            .with_shared()
            .with_permits()
            .with_response_timeout(self.inner.line.response_timeout)
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        let (line, key) = (self.line(), key.clone());
        run(async move { line.inspect(&key).await }).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        let (line, key, holder) = (self.line(), key.clone(), holder.map(str::to_owned));
        let forced = run(async move { line.force_release(&key, holder.as_deref()).await });
        Ok(match forced.await? {
            true => ForceReleased::Released,
            false => ForceReleased::NotHeld,
        })
    }
}

/// Starts a command on the thread of the crate. Others wait for its dial, which a blocked runtime of its caller would hold
/// up.
fn run<T: Send + 'static>(
    command: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> impl Future<Output = Result<T, BackendError>> + Send {
    let (task, outcome) = with_output(command);
    Background.spawn(task);
    async move {
        let outcome = outcome.await;
        outcome.unwrap_or_else(|| Err(BackendError::unknown(Cause::NoThread)))
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend")
            .field("address", &self.inner.address)
            .finish_non_exhaustive()
    }
}
