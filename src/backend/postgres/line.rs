//! One shared connection, which is replaced when it ends.

use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row, SimpleQueryMessage, SimpleQueryRow};

use super::error::{Cause, is_late, is_read_only, is_stale, is_unprepared, of_command};
use super::single::Single;
use super::source::{Connected, Source};
use crate::backend::BackendError;
use crate::backend::outage::Outage;
use crate::backend::recovery::Recovery;
use crate::observe::Part;
use crate::task::{Background, timeout_at};

/// How long a failed dial rejects further commands.
const BACKOFF: Duration = Duration::from_millis(50);

/// The age at which a reading of the server's clock is old.
const DRIFTED: Duration = Duration::from_secs(60);

/// The first statement of a connection. Returns the server's clock in seconds.
const PREPARE: &str = "SELECT extract(epoch FROM pg_catalog.clock_timestamp())::float8,
    CASE WHEN current_setting('default_transaction_isolation') <> 'read committed'
    THEN set_config('default_transaction_isolation', 'read committed', false) END";

pub(super) type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// A connection that commands share. PostgreSQL runs them in the order in which they are sent.
pub(super) struct Line {
    pub(super) source: Source,
    pub(super) response_timeout: Duration,
    pub(super) recovery: Arc<Recovery>,
    /// Begins without a connection or a reply. Ends with a reply, some time after the last command without one.
    pub(super) outage: Arc<Outage>,
    /// Locked during a dial. After the connect, only tasks on the thread of the crate lock it, so no caller holds it up.
    state: tokio::sync::Mutex<LineState>,
    /// Whether a proxy sends statements to several sessions, of this line or another one.
    is_spread: Arc<AtomicBool>,
    turns: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct LineState {
    session: Option<Arc<Session>>,
    failed: Option<(Instant, BackendError)>,
    /// Whether the next connection follows one that ended, or a failure.
    is_recovery: bool,
}

/// A session for one command. If a proxy spreads statements, no other command shares it in the meantime: PgBouncer before
/// 1.21 keeps no session for a client that sends a command before the reply to its last one.
pub(super) struct Turn {
    session: Arc<Session>,
    _alone: Option<OwnedMutexGuard<()>>,
}

impl Deref for Turn {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

pub(super) struct Session {
    client: Connected,
    source: Source,
    outage: Arc<Outage>,
    /// The server's clock in seconds, and when it was received.
    clock: Mutex<(f64, Instant)>,
    is_broken: AtomicBool,
    /// The functions whose statements for one key were prepared.
    prepared: Mutex<Vec<&'static str>>,
    is_spread: Arc<AtomicBool>,
}

impl Line {
    pub(super) fn new(source: Source, response_timeout: Duration) -> Self {
        let outage = Outage::new(
            Part::Commands,
            "lock backend unreachable",
            "lock backend reachable again",
            &source.address(),
        );
        Self {
            source,
            response_timeout,
            recovery: Arc::default(),
            outage: Arc::new(outage),
            state: tokio::sync::Mutex::default(),
            is_spread: Arc::default(),
            turns: Arc::default(),
        }
    }

    /// Returns another connection to the same server.
    pub(super) fn another(&self) -> Self {
        Self {
            recovery: Arc::clone(&self.recovery),
            outage: Arc::clone(&self.outage),
            is_spread: Arc::clone(&self.is_spread),
            ..Self::new(self.source.clone(), self.response_timeout)
        }
    }

    /// Returns the connection for one command.
    pub(super) async fn session(&self) -> Result<Turn, BackendError> {
        let alone = match self.is_spread.load(Ordering::Relaxed) {
            true => Some(Arc::clone(&self.turns).lock_owned().await),
            false => None,
        };
        let session = self.shared().await?;
        Ok(Turn {
            session,
            _alone: alone,
        })
    }

    /// Returns the connection, which it opens if there is none.
    async fn shared(&self) -> Result<Arc<Session>, BackendError> {
        let called = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(session) = &state.session {
            if session.is_usable() {
                return Ok(Arc::clone(session));
            }
            state.session = None;
            state.is_recovery = true;
            self.recovery.ended();
        }
        // One dial for all commands that arrived before its end.
        if let Some((at, error)) = &state.failed
            && (*at >= called || at.elapsed() < BACKOFF)
        {
            return Err(error.clone());
        }
        match self.open().await {
            Ok(session) => {
                let session = Arc::new(session);
                state.session = Some(Arc::clone(&session));
                state.failed = None;
                if std::mem::replace(&mut state.is_recovery, false) {
                    self.recovery.report();
                }
                Ok(session)
            }
            Err(error) => {
                self.outage.begin(&error);
                state.failed = Some((Instant::now(), error.clone()));
                state.is_recovery = true;
                Err(error)
            }
        }
    }

    async fn open(&self) -> Result<Session, BackendError> {
        let client = self.source.open().await?;
        let session = Session {
            client,
            source: self.source.clone(),
            outage: Arc::clone(&self.outage),
            clock: Mutex::new((0.0, Instant::now())),
            is_broken: AtomicBool::default(),
            prepared: Mutex::default(),
            is_spread: Arc::clone(&self.is_spread),
        };
        session.read_clock(self.response_timeout).await?;
        Ok(session)
    }

    /// Sends a command and returns its rows.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the command may take effect.
    pub(super) async fn query(
        &self,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, BackendError> {
        let session = self.session().await?;
        let deadline = Instant::now() + self.response_timeout;
        session.query(statement, parameters, deadline).await
    }
}

impl Session {
    fn is_usable(&self) -> bool {
        !self.is_broken.load(Ordering::Relaxed) && !self.client.is_closed()
    }

    pub(super) async fn query(
        &self,
        statement: &str,
        parameters: Parameters<'_>,
        deadline: Instant,
    ) -> Result<Vec<Row>, BackendError> {
        // No statement has a name: a proxy may send the next one to another session.
        let reply = self.client.query_typed(statement, parameters);
        self.reply(reply, deadline).await
    }

    /// Sends the statement for one item, prepared unless a proxy prevents it, and returns its first row.
    pub(super) async fn query_one(
        &self,
        single: Single,
        arguments: &str,
        deadline: Instant,
    ) -> Result<SimpleQueryRow, BackendError> {
        let direct = || self.simple_query(single.select(arguments), deadline);
        if self.is_spread.load(Ordering::Relaxed) {
            return direct().await;
        }
        let is_first = {
            let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
            let is_known = prepared.contains(&single.function);
            if !is_known {
                prepared.push(single.function);
            }
            !is_known
        };
        // Both are sent at once, in this order. The second one fails if the first one has failed, unless another client of a
        // proxy has prepared the same statement.
        let prepare = async {
            if is_first {
                drop(self.run(&single.prepare(), deadline).await);
            }
        };
        let execute = self.simple_query(single.execute(arguments), deadline);
        match join(prepare, execute).await.1 {
            Err(error) if is_unprepared(&error) => {
                self.found_spread();
                direct().await
            }
            Err(error) if is_stale(&error) => direct().await,
            row => row,
        }
    }

    async fn simple_query(
        &self,
        statement: String,
        deadline: Instant,
    ) -> Result<SimpleQueryRow, BackendError> {
        let messages = self
            .reply(self.client.simple_query(&statement), deadline)
            .await?;
        let rows = messages.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        rows.ok_or_else(|| BackendError::unknown(Cause::Unexpected))
    }

    async fn reply<T>(
        &self,
        reply: impl Future<Output = Result<T, Error>>,
        deadline: Instant,
    ) -> Result<T, BackendError> {
        match timeout_at(deadline, reply).await {
            Ok(Ok(reply)) => {
                self.outage.end_for_any();
                Ok(reply)
            }
            Ok(Err(error)) => {
                let is_closed = error.is_closed();
                let error = of_command(error);
                // A new connection may lead to the primary.
                if is_closed || is_late(&error) || is_read_only(&error) {
                    self.retire();
                }
                Err(error)
            }
            Err(_) => {
                self.cancel();
                let error = BackendError::unknown(Cause::NoReply);
                // Others may have their reply, as before and after each commit that waits for an absent standby.
                self.outage.begin_for_some(&error);
                Err(error)
            }
        }
    }

    /// Reads the server's clock again if it may have drifted since the last command.
    pub(super) async fn refresh_clock(&self, limit: Duration) -> Result<(), BackendError> {
        let (_, received) = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        if received.elapsed() < DRIFTED {
            return Ok(());
        }
        self.read_clock(limit).await
    }

    async fn read_clock(&self, limit: Duration) -> Result<(), BackendError> {
        let rows = self.query(PREPARE, &[], Instant::now() + limit).await?;
        let clock = rows.first().and_then(|row| row.try_get(0).ok());
        self.set_clock(clock)
    }

    /// Sends a script of statements.
    pub(super) async fn run(&self, script: &str, deadline: Instant) -> Result<(), BackendError> {
        self.reply(self.client.batch_execute(script), deadline)
            .await
    }

    /// Records that a proxy sends statements to several sessions.
    pub(super) fn found_spread(&self) {
        self.is_spread.store(true, Ordering::Relaxed);
    }

    /// Makes the next command open another connection. Returns `false` if it does already.
    fn retire(&self) -> bool {
        !self.is_broken.swap(true, Ordering::Relaxed)
    }

    /// Retires the session, and cancels its command. A commit that waits for an absent standby would otherwise keep the session
    /// and the mutex of its key, whose releases would hold up the renewals on their connection.
    fn cancel(&self) {
        if self.retire() {
            let (source, token) = (self.source.clone(), self.client.cancel_token());
            Background.spawn(async move { source.cancel(token).await });
        }
    }

    /// Records the server's clock in seconds, which has just been received.
    pub(super) fn set_clock(&self, clock: Option<f64>) -> Result<(), BackendError> {
        let received = Instant::now();
        let clock = clock.ok_or_else(|| BackendError::unknown(Cause::Unexpected))?;
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = (clock, received);
        Ok(())
    }

    /// Returns the server's clock at `time` or slightly before it, in seconds.
    pub(super) fn clock_at(&self, time: Instant) -> f64 {
        let (clock, received) = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock + time.saturating_duration_since(received).as_secs_f64()
    }
}
