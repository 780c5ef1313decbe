//! The settings, the migration, and a trial before the first lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::PostgresBackend;
use super::backend::Inner;
use super::batch::Batch;
use super::commands::{Acquires, Releases};
use super::error::{Cause, lacks_schema};
use super::line::{Line, Session};
use super::listener::Listener;
use super::schema::{MIGRATION, VERSION};
#[cfg(feature = "postgres-tls")]
use super::source::authorities;
use super::source::{Server, Source};
use crate::backend::outage::Outage;
use crate::backend::{BackendError, BackendErrorKind};
use crate::observe::Part;
use crate::{ConfigError, ConnectError};

/// The lock of the script as well, which commits the transaction.
const LOCK: &str =
    "BEGIN; SET LOCAL lock_timeout = '30s'; SELECT pg_advisory_xact_lock(1953459813, 1)";
const PRODUCT: &str = "SELECT version()";
const PROCESS: &str = "SELECT pg_catalog.pg_backend_pid()";
const EXISTS: &str = "SELECT to_regclass('tower_lock.version') IS NOT NULL";
const READ_VERSION: &str = "SELECT max(version) FROM tower_lock.version";
// Before the trial, which would compile functions under the mutex of the counter. The path is that of the functions. A
// commit that waited for a standby would delay the grants of other processes: a later durable grant flushes this record.
const BEGIN_COUNTER: &str = "SELECT set_config('search_path', 'pg_catalog, pg_temp', true),
        set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '0', true);
    SELECT tower_lock.draw(0)";
// The second item is none of the usual ones, and a third one waits, so that each function is compiled.
const TRY: &str = "SELECT a.counter, c.counter
    FROM tower_lock.acquire(ARRAY[$1, $1], ARRAY[$2, $2], '{x, x}', '{1000, 1000}', $3, $4) a,
    LATERAL tower_lock.contend($1, (ARRAY['waits1', 'waits2'])[a.n::int4], 'x', NULL, 1000, true, NULL, $3, $4, true) c";
const END: &str = "SELECT tower_lock.release_one_2($1, 'waits2', true), outcome, tower_lock.release_one_2($1, 'waits1', true)
    FROM tower_lock.release_2(ARRAY[$1, $1], ARRAY[$2, $2], '{false, true}')";

const TRIAL: Duration = Duration::from_secs(10);
/// The time for a migration, which waits for that of another process first.
const MIGRATES: Duration = Duration::from_secs(60);

const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The builder of a [`PostgresBackend`].
#[must_use]
pub struct PostgresBackendBuilder {
    source: Result<Source, ConfigError>,
    listen: Option<String>,
    #[cfg(feature = "postgres-tls")]
    ca: Option<Vec<u8>>,
    response_timeout: Duration,
    durable: bool,
    migrates: bool,
}

impl PostgresBackendBuilder {
    pub(super) fn from_url(url: String) -> Self {
        let server = Server::parse("url", &url);
        Self::new(server.map(|it| Source::Url(Box::new(it))))
    }

    pub(super) fn from_pool(pool: Pool) -> Self {
        Self::new(Ok(Source::Pool(pool)))
    }

    fn new(source: Result<Source, ConfigError>) -> Self {
        Self {
            source,
            listen: None,
            #[cfg(feature = "postgres-tls")]
            ca: None,
            response_timeout: Duration::from_secs(1),
            durable: true,
            migrates: true,
        }
    }

    /// Sets the URL of the server to listen at for releases. Defaults to the URL of the backend.
    ///
    /// Set it if the backend is [from a pool](PostgresBackend::from_pool), or if its URL is that of a proxy that
    /// delivers no notifications, such as PgBouncer in transaction mode.
    pub fn listen(mut self, url: impl Into<String>) -> Self {
        self.listen = Some(url.into());
        self
    }

    /// Sets the trusted authorities for `sslmode=require`, as one or more PEM certificates. Defaults to the public ones that
    /// Mozilla trusts, which these replace.
    ///
    /// They apply to commands and notifications. The certificate of a server must contain the host of its URL.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_lock::PostgresBackend;
    ///
    /// let backend = PostgresBackend::builder("postgres://app@db.internal/shop?sslmode=require")
    ///     .ca_certificate(std::fs::read("ca.pem")?)
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "postgres-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "postgres-tls")))]
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// Sets the timeout of one command. Defaults to 1 s, from 1 ms to 10 min.
    ///
    /// After it, the result is unknown. The server refuses an attempt that reaches it later.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Makes grants return before they are on disk, as releases and renewals always do.
    ///
    /// A crash of the server then loses the grants of its last 0.6 s. The fence still holds: a fenced transaction that
    /// commits to disk takes its grant along.
    pub fn relaxed(mut self) -> Self {
        self.durable = false;
        self
    }

    /// Sets whether [`connect`](Self::connect) creates the schema if it is missing or old. Defaults to `true`.
    ///
    /// With `false`, `connect` fails, and the cause of its error contains the SQL.
    pub fn migrate(mut self, migrates: bool) -> Self {
        self.migrates = migrates;
        self
    }

    /// Opens the connections, creates the schema if necessary, and acquires and releases a key of its own.
    ///
    /// # Errors
    ///
    /// - [`ConnectError::Config`]: the URL is invalid, or a setting is out of its bounds.
    /// - [`ConnectError::Unreachable`]: no connection opened within the connect timeout, or no reply arrived within the
    ///   [response timeout](Self::response_timeout) to the first statement, 10 s to others, and 1 min to a migration.
    /// - [`ConnectError::Refused`]: the password is wrong, a right or the schema is missing, or a certificate is not
    ///   trusted.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the opened connections are closed. A key of the trial may remain for 2 s.
    pub async fn connect(self) -> Result<PostgresBackend, ConnectError> {
        let timeout = self.response_timeout;
        ConfigError::within(MIN_TIMEOUT..=MAX_TIMEOUT, "response_timeout", timeout)?;
        let source = self.source?;
        let listen = self.listen.map(|url| Server::parse("listen", &url));
        let listen = listen.transpose()?;
        #[cfg(feature = "postgres-tls")]
        let (mut source, mut listen) = (source, listen);
        #[cfg(feature = "postgres-tls")]
        if let Some(pem) = &self.ca {
            let roots = authorities(pem)?;
            source.trust(&roots)?;
            listen.as_mut().map_or(Ok(()), |it| it.trust(&roots))?;
        }
        let listen = match (listen, &source) {
            (None, Source::Url(server)) => Some((**server).clone()),
            (listen, _) => listen,
        };
        let address = source.address();
        let grants = Line::new(source, timeout);
        let others = Arc::new(grants.another());
        let outage = |part, begins, ends| Outage::new(part, begins, ends, &address);
        let releases = Batch::new(Releases {
            line: Arc::clone(&others),
            outage: outage(
                Part::Releases,
                "locks cannot be released",
                "locks can be released again",
            ),
        });
        let acquires = Batch::new(Acquires {
            line: grants,
            outage: outage(
                Part::Commands,
                "locks cannot be acquired",
                "locks can be acquired again",
            ),
            durable: self.durable,
            releases: Arc::clone(&releases),
        });
        let inner = Inner {
            acquires,
            releases,
            listener: Listener::new(Arc::clone(&others), listen),
            line: others,
            address,
        };
        match prepare(&inner, self.migrates).await {
            Ok(()) => Ok(PostgresBackend::new(inner)),
            Err(error) => {
                let (address, source) = (inner.address, Arc::new(error.clone()));
                Err(match error.kind() {
                    BackendErrorKind::Unavailable => ConnectError::Unreachable { address, source },
                    _ => ConnectError::Refused { address, source },
                })
            }
        }
    }
}

/// Checks the schema, begins the counter, and tries a grant and its release. So each connection has compiled the functions
/// before the first lock: a session that compiles them in the mutex of a key would delay others.
async fn prepare(inner: &Inner, migrates: bool) -> Result<(), BackendError> {
    let session = inner.line.session().await?;
    // No lock depends on the connect, so a busy server has more time for it than for a command.
    let deadline = Instant::now() + TRIAL;
    let product = session.query(PRODUCT, &[], deadline).await?;
    let product = product.first().and_then(|row| row.try_get(0).ok());
    if let Some(name) = product.and_then(unsupported) {
        let kind = BackendErrorKind::Misconfigured;
        return Err(BackendError::refused(kind, Cause::Unsupported(name)));
    }
    let version = match session.query(READ_VERSION, &[], deadline).await {
        Ok(rows) => rows.first().and_then(|row| row.try_get(0).ok()),
        Err(error) if lacks_schema(&error) => None,
        Err(error) => return Err(error),
    };
    if version.is_none_or(|version: i32| version < VERSION) {
        if !migrates {
            let kind = BackendErrorKind::Misconfigured;
            return Err(BackendError::refused(kind, Cause::NoSchema));
        }
        migrate(&session, Instant::now() + MIGRATES).await?;
    }
    let deadline = Instant::now() + TRIAL;
    session.run(BEGIN_COUNTER, deadline).await?;
    let (key, lease) = (format!("tower-lock:{}", Uuid::new_v4()), "trial");
    let grants = inner.acquires.command.line.session().await?;
    let mut processes = [None; 5];
    let sessions = [&session, &session, &grants, &grants, &session];
    for (process, session) in processes.iter_mut().zip(sessions) {
        let rows = session.query(PROCESS, &[], deadline).await?;
        *process = rows.first().and_then(|row| row.try_get::<_, i32>(0).ok());
    }
    let [here, again, other, other_again, last] = processes;
    // A direct connection has one process, and no other connection has it. The pool of a proxy may grow in the meantime.
    if [again, last] != [here; 2] || other != other_again || other == here {
        session.found_spread();
    }
    let not_after = grants.clock_at(deadline);
    let durable = inner.acquires.command.durable;
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&key, Type::TEXT),
        (&lease, Type::TEXT),
        (&not_after, Type::FLOAT8),
        (&durable, Type::BOOL),
    ];
    grants.query(TRY, &parameters, deadline).await?;
    let session = inner.line.session().await?;
    session.query(END, &parameters[..2], deadline).await?;
    Ok(())
}

/// Returns the name of a product that speaks the protocol of PostgreSQL, and on which the locks are not tested.
fn unsupported(version: &str) -> Option<&'static str> {
    let others = [("CockroachDB", "CockroachDB"), ("-YB-", "YugabyteDB")];
    let mut others = others.into_iter();
    let found = others.find(|(part, _)| version.contains(part));
    found.map(|(_, name)| name)
}

/// Creates the schema, unless another process has done so since the caller looked. A repeat would make all sessions
/// compile the functions again.
async fn migrate(session: &Session, deadline: Instant) -> Result<(), BackendError> {
    session.run(LOCK, deadline).await?;
    let exists = session.query(EXISTS, &[], deadline).await?;
    if exists.first().is_some_and(|row| row.get(0)) {
        let rows = session.query(READ_VERSION, &[], deadline).await?;
        let version = rows.first().and_then(|row| row.try_get(0).ok());
        if version.is_some_and(|version: i32| version >= VERSION) {
            return session.run("COMMIT", deadline).await;
        }
    }
    session.run(MIGRATION, deadline).await
}

impl fmt::Debug for PostgresBackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs and pools contain passwords.
        f.debug_struct("PostgresBackendBuilder")
            .field("response_timeout", &self.response_timeout)
            .field("durable", &self.durable)
            .field("migrates", &self.migrates)
            .finish_non_exhaustive()
    }
}
