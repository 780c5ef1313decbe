//! One place for commands: the connection of the moment, and its replacement.
//!
//! | connection | a new command | ends with |
//! |---|---|---|
//! | none | one task connects, all wait for it up to the connect timeout | sound, or failed |
//! | sound | goes out | an answer; a timeout: suspect; an end: none; a replica's answer: none, the second time failed |
//! | suspect | one task connects; all wait for it, or for a sign of life of the old one, up to the response timeout | sound |
//! | left behind: the locks are at another server | as with none, whether it answers or not | sound, or failed |
//! | failed | is refused at once until the backoff has passed | the next attempt |
//!
//! The next attempt is made when a command asks for one, or by itself while anybody listens for the
//! recovery: who waits or holds may send nothing for a long time.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::redis::command::{AcquireBatch, Cause, CommandError, check, is_demoted};
use crate::backend::redis::connection::{Connector, Link, Outage, backoff};
use crate::backend::{BackendError, BackendErrorKind};

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_millis(400);
/// A refused client is mended by a person, not by a retry.
const REFUSED_BACKOFF: Duration = Duration::from_secs(1);
/// A server that turned out to be a replica sooner than this after the last time still is one.
const STEADY: Duration = Duration::from_secs(2);
/// A connection that has been asked for a sign of life is given up after so many response
/// timeouts, also if nothing could replace it.
const PROBE_PATIENCE: u32 = 10;

pub(crate) struct Connection {
    pub(crate) connector: Arc<Connector>,
    /// Acquires that wait for a call.
    pub(crate) acquire_batch: AcquireBatch,
    state: Mutex<State>,
    /// A connection came, failed, or answered again.
    changed: Notify,
    /// That there is no answer, which only who is asked in passing does not tell.
    outage: Option<Outage>,
    /// A command has run out of time and none was answered since. A connection, or the answer to a
    /// `PING`, is no end of that: a server whose writes are paused gives both.
    silent: AtomicBool,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    connecting: bool,
    /// There was a connection before.
    connected: bool,
    failures: u32,
    /// How often in a row the connection led to a replica, and when it last did.
    demotions: u32,
    demoted_at: Option<Instant>,
    failed: Option<(Instant, BackendError)>,
}

enum Demand {
    Ready(Arc<Link>),
    Refused(BackendError),
    Wait,
}

impl Connection {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        let outage = Outage::new(
            "lock store unreachable",
            "lock store reachable again",
            &connector.address,
        );
        Self {
            outage: Some(outage),
            ..Self::quiet(connector)
        }
    }

    /// To a server that is asked in passing, again and again, and tells no outage each time.
    pub(crate) fn quiet(connector: Arc<Connector>) -> Self {
        Self {
            connector,
            acquire_batch: AcquireBatch::default(),
            state: Mutex::default(),
            changed: Notify::new(),
            outage: None,
            silent: AtomicBool::new(false),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.connector.address
    }

    /// Which connection it is.
    pub(crate) fn id(self: &Arc<Self>) -> u64 {
        Arc::as_ptr(self) as u64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one command and waits for its answer, at most twice the response timeout and once the
    /// connect timeout.
    ///
    /// A connection that broke is replaced, and the command sent again: every command here may be
    /// done twice. What is not known after that stays unknown, whatever the second try ran into.
    ///
    /// # Cancel safety
    ///
    /// A command that was written is not called back. Dropping this future leaves nothing but that
    /// behind; it must not be dropped for a command that would have to be undone.
    ///
    /// `asking`: the slot is on its way to this node of a cluster, and the command may go ahead of it.
    pub(crate) async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        asking: bool,
    ) -> Result<Value, CommandError> {
        match self.attempt(command, asking).await {
            Err(CommandError::Died(_)) => {
                let again = self.attempt(command, asking).await;
                again.map_err(|fault| fault.after(true))
            }
            other => other,
        }
    }

    async fn attempt(self: &Arc<Self>, command: &Cmd, asking: bool) -> Result<Value, CommandError> {
        let link = match self.sound_link() {
            Some(link) => link,
            None => self.await_link().await.map_err(CommandError::Unsent)?,
        };
        let waited = self.connector.network.response_timeout;
        match timeout(waited, link.send(command, asking)).await {
            Ok(Ok(answer)) => {
                self.answered(&link);
                if self.connector.is_left_behind(&link) {
                    // It takes itself for the primary still. What it granted or renewed is void.
                    self.discard(&link);
                    return Err(CommandError::Died(BackendError::unknown(Cause::NotPrimary)));
                }
                if is_demoted(&answer) {
                    self.demoted(&link);
                }
                check(answer)
            }
            Ok(Err(error)) => {
                self.discard(&link);
                Err(CommandError::Died(BackendError::unknown(error)))
            }
            Err(_elapsed) => {
                link.mark_suspect();
                self.silent.store(true, Ordering::Relaxed);
                self.unreached(&Cause::NoAnswer(waited));
                Err(CommandError::NoAnswer(Unanswered {
                    connection: Arc::clone(self),
                    link,
                    asking,
                    waited,
                }))
            }
        }
    }

    fn sound_link(&self) -> Option<Arc<Link>> {
        self.state().sound(&self.connector)
    }

    /// Waits for a connection that answers. What comes back as an error was not sent.
    pub(crate) async fn await_link(self: &Arc<Self>) -> Result<Arc<Link>, BackendError> {
        let patience = if self.state().link.is_some() {
            self.connector.network.response_timeout
        } else {
            self.connector.network.connect_timeout
        };
        let link = async {
            loop {
                // Registered before looking, or the change in between would be missed.
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                match self.demand() {
                    Demand::Ready(link) => return Ok(link),
                    Demand::Refused(error) => return Err(error),
                    Demand::Wait => changed.await,
                }
            }
        };
        match timeout(patience, link).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(CommandError::unavailable(Cause::NoConnection(patience)).into()),
        }
    }

    fn demand(self: &Arc<Self>) -> Demand {
        let mut state = self.state();
        if let Some(link) = state.sound(&self.connector) {
            return Demand::Ready(link);
        }
        if let Some((until, error)) = &state.failed
            && Instant::now() < *until
        {
            return Demand::Refused(error.clone());
        }
        if !state.connecting {
            state.connecting = true;
            drop(state);
            let attempt = Connecting {
                connection: Arc::downgrade(self),
                over: false,
            };
            self.connector.network.spawner.spawn(attempt.run());
        }
        Demand::Wait
    }

    fn reached(&self) {
        if let Some(outage) = &self.outage
            && !self.silent.load(Ordering::Relaxed)
        {
            outage.end();
        }
    }

    fn unreached(&self, cause: &(dyn Error + 'static)) {
        if let Some(outage) = &self.outage {
            outage.begin(cause);
        }
    }

    fn answered(&self, link: &Link) {
        // The load keeps the usual case free of writes.
        if self.silent.load(Ordering::Relaxed) {
            self.silent.store(false, Ordering::Relaxed);
        }
        self.reached();
        self.mark_healthy(link);
    }

    fn mark_healthy(&self, link: &Link) {
        if link.mark_healthy() {
            self.changed.notify_waiters();
        }
    }

    /// Something went wrong beside the connection: asks it for a sign of life, and until that comes
    /// looks for another.
    pub(crate) fn mark_suspect(self: &Arc<Self>, link: &Arc<Link>) {
        link.mark_suspect();
        self.probe(link);
    }

    fn probe(self: &Arc<Self>, link: &Arc<Link>) {
        if !link.start_probe() {
            return;
        }
        let (connection, link) = (Arc::clone(self), Arc::clone(link));
        let network = &self.connector.network;
        let patience = network.response_timeout * PROBE_PATIENCE;
        network.spawner.spawn(async move {
            let ping = redis::cmd("PING");
            match timeout(patience, link.send(&ping, false)).await {
                Ok(Ok(_pong)) => {
                    link.end_probe();
                    connection.mark_healthy(&link);
                }
                Ok(Err(_)) | Err(_) => connection.discard(&link),
            }
        });
    }

    pub(crate) fn discard(&self, link: &Arc<Link>) {
        self.state().discard(link);
    }

    /// What was the primary is a replica now; the way to the new one begins with a new connection.
    pub(crate) fn demoted(&self, link: &Arc<Link>) {
        let mut state = self.state();
        // Of all commands that were on it, the first one tells.
        if state.discard(link) {
            state.demoted();
        }
    }
}

/// The task that connects. It is nobody's call, so that no caller who leaves takes it along, and on
/// every exit, also unstarted in a runtime that shuts down, lets the next one try.
struct Connecting {
    /// Weak, so that it gives up with the backend, or with the node of a cluster that is no more.
    connection: Weak<Connection>,
    over: bool,
}

impl Connecting {
    async fn run(mut self) {
        while let Some(connection) = self.connection.upgrade() {
            let network = Arc::clone(&connection.connector.network);
            let pause = match connection.connector.connect().await {
                Ok(link) => {
                    self.over = true;
                    connection.reached();
                    let again = connection.state().connected(link, &connection.connector);
                    drop(self);
                    if again {
                        // What happened meanwhile nobody knows: all try, all renew.
                        network.recovery.report();
                    }
                    return;
                }
                Err(error) => {
                    connection.unreached(&error);
                    let pause = connection.state().failed(error);
                    connection.changed.notify_waiters();
                    pause
                }
            };
            if !network.recovery.is_awaited() {
                self.over = true;
                return;
            }
            drop(connection);
            sleep(pause).await;
        }
    }
}

impl State {
    /// The connection, if it answers and leads to where the locks are.
    fn sound(&mut self, connector: &Connector) -> Option<Arc<Link>> {
        drop(self.link.take_if(|link| connector.is_left_behind(link)));
        let link = self.link.as_ref();
        link.filter(|link| !link.is_suspect()).cloned()
    }

    /// Whether there was a connection before.
    fn connected(&mut self, link: Link, connector: &Connector) -> bool {
        self.failures = 0;
        self.failed = None;
        // The old one may have come back meanwhile: then everything stays in its order.
        if self.sound(connector).is_none() {
            self.link = Some(Arc::new(link));
        }
        std::mem::replace(&mut self.connected, true)
    }

    /// How long to pause.
    fn failed(&mut self, error: BackendError) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let longest = match error.kind() {
            BackendErrorKind::Unavailable => LONGEST_BACKOFF,
            _ => REFUSED_BACKOFF,
        };
        let pause = backoff(self.failures, FIRST_BACKOFF, longest);
        self.failed = Some((Instant::now() + pause, error));
        pause
    }

    /// Whether it was the connection of the moment.
    fn discard(&mut self, link: &Arc<Link>) -> bool {
        self.link.take_if(|now| Arc::ptr_eq(now, link)).is_some()
    }

    /// The link led to a replica. The first time the next one may lead to the primary; when it does
    /// not, each of those that follow would be made as soon as the last one was told.
    fn demoted(&mut self) {
        let now = Instant::now();
        let is_first = self.demoted_at.is_none_or(|last| now > last + STEADY);
        self.demotions = if is_first { 0 } else { self.demotions + 1 };
        self.demoted_at = Some(now);
        if !is_first {
            let pause = backoff(self.demotions, FIRST_BACKOFF, LONGEST_BACKOFF);
            let error = CommandError::unavailable(Cause::NotPrimary).into();
            self.failed = Some((now + pause, error));
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let Some(connection) = self.connection.upgrade() else {
            return;
        };
        let mut state = connection.state();
        state.connecting = false;
        if !self.over {
            // In a runtime that shuts down, the next attempt would end as this one, at once and
            // within one poll: whoever waits for it would never give its thread back.
            state.failed(CommandError::unavailable(Cause::NoRuntime).into());
        }
        drop(state);
        connection.changed.notify_waiters();
    }
}

/// A command without an answer: it, or its answer, may still be on the way.
pub(crate) struct Unanswered {
    connection: Arc<Connection>,
    link: Arc<Link>,
    asking: bool,
    waited: Duration,
}

impl Unanswered {
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Sends what undoes the command behind it, on its connection, which is kept for as long as
    /// that takes, at most for `patience`.
    pub(crate) fn settle(&self, undo: Cmd, patience: Duration) {
        let (connection, link, asking) = (
            Arc::clone(&self.connection),
            Arc::clone(&self.link),
            self.asking,
        );
        self.connection.connector.network.spawner.spawn(async move {
            match timeout(patience, link.send(&undo, asking)).await {
                // A refusal undoes nothing: what the link may still carry ends with it.
                Ok(Ok(Value::ServerError(_)) | Err(_)) | Err(_) => connection.discard(&link),
                Ok(Ok(_answer)) => connection.answered(&link),
            }
        });
    }

    /// Asks the connection for a sign of life, where no one else does.
    pub(crate) fn probe(&self) {
        self.connection.probe(&self.link);
    }
}
