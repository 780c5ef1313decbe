//! One place for commands: the connection of the moment, and its replacement.
//!
//! | connection | a new command | ends with |
//! |---|---|---|
//! | none | one task connects, all wait for it up to the connect timeout | sound, or failed |
//! | sound | goes out | an answer; a timeout: suspect; an end: none |
//! | suspect | one task connects; all wait for it, or for a sign of life of the old one, up to the response timeout | sound |
//! | failed | is refused at once until the backoff has passed | none |

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::backoff::backoff;
use super::connect::Connector;
use super::fault::{Fault, Trouble, check};
use super::link::Link;
use super::outage::Outage;
use crate::backend::{BackendError, BackendErrorKind};

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// A connection that has been asked for a sign of life is given up after so many response
/// timeouts, also if nothing could replace it.
const PROBE_PATIENCE: u32 = 10;

pub(super) struct Shard {
    connector: Arc<Connector>,
    state: Mutex<State>,
    /// A connection came, failed, or answered again.
    changed: Notify,
    outage: Outage,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    connecting: bool,
    failures: u32,
    failed: Option<(Instant, BackendError)>,
}

enum Demand {
    Ready(Arc<Link>),
    Refused(BackendError),
    Wait,
}

impl Shard {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        Self {
            connector,
            state: Mutex::default(),
            changed: Notify::new(),
            outage: Outage::default(),
        }
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
    pub(super) async fn send(self: &Arc<Self>, command: &Cmd) -> Result<Value, Fault> {
        match self.attempt(command).await {
            Err(Fault::Died(_)) => match self.attempt(command).await {
                Err(Fault::Refused(error)) => Err(Fault::Died(BackendError::unknown(error))),
                other => other,
            },
            other => other,
        }
    }

    async fn attempt(self: &Arc<Self>, command: &Cmd) -> Result<Value, Fault> {
        let link = match self.sound_link() {
            Some(link) => link,
            None => self.await_link().await.map_err(Fault::Refused)?,
        };
        let waited = self.connector.response_timeout;
        let mut connection = link.connection();
        match timeout(waited, connection.send_packed_command(command)).await {
            Ok(Ok(answer)) => {
                self.answered(&link);
                let checked = check(answer);
                self.observe(&checked);
                checked
            }
            Ok(Err(error)) => {
                self.discard(&link);
                Err(Fault::Died(BackendError::unknown(error)))
            }
            Err(_elapsed) => {
                link.distrust();
                let cause = Trouble::NoAnswer(waited);
                let address = &self.connector.address;
                self.outage.begin("locks cannot be taken", address, &cause);
                Err(Fault::NoAnswer { link, waited })
            }
        }
    }

    /// Tells when the server begins, and when it ends, to refuse what locks need.
    fn observe(&self, answer: &Result<Value, Fault>) {
        let address = &self.connector.address;
        match answer {
            Ok(_) => self.outage.end("locks can be taken again", address),
            Err(Fault::Refused(error)) if error.kind() != BackendErrorKind::Conflict => {
                self.outage.begin("locks cannot be taken", address, error);
            }
            Err(_) => {}
        }
    }

    /// Sends what undoes a command without an answer behind that command, on its connection, which
    /// is kept for as long as that takes, at most for `patience`.
    pub(super) fn settle(self: &Arc<Self>, link: Arc<Link>, command: Cmd, patience: Duration) {
        let shard = Arc::clone(self);
        self.connector.spawner.spawn(async move {
            let mut connection = link.connection();
            match timeout(patience, connection.send_packed_command(&command)).await {
                // A refusal undoes nothing: what the link may still carry ends with it.
                Ok(Ok(Value::ServerError(_)) | Err(_)) | Err(_) => shard.discard(&link),
                Ok(Ok(_answer)) => shard.answered(&link),
            }
        });
    }

    /// Asks a suspect connection for a sign of life, where no one else does.
    pub(super) fn probe(self: &Arc<Self>, link: Arc<Link>) {
        if !link.start_probe() {
            return;
        }
        let shard = Arc::clone(self);
        let patience = self.connector.response_timeout * PROBE_PATIENCE;
        self.connector.spawner.spawn(async move {
            let mut connection = link.connection();
            let ping = redis::cmd("PING");
            match timeout(patience, connection.send_packed_command(&ping)).await {
                Ok(Ok(_pong)) => {
                    link.end_probe();
                    shard.answered(&link);
                }
                Ok(Err(_)) | Err(_) => shard.discard(&link),
            }
        });
    }

    fn sound_link(&self) -> Option<Arc<Link>> {
        let state = self.state();
        state
            .link
            .as_ref()
            .filter(|link| !link.is_suspect())
            .cloned()
    }

    /// Waits for a connection that answers. What comes back as an error was not sent.
    pub(super) async fn await_link(self: &Arc<Self>) -> Result<Arc<Link>, BackendError> {
        let patience = if self.state().link.is_some() {
            self.connector.response_timeout
        } else {
            self.connector.connect_timeout
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
            Err(_elapsed) => Err(Fault::unavailable(Trouble::NoConnection(patience)).into()),
        }
    }

    fn demand(self: &Arc<Self>) -> Demand {
        let mut state = self.state();
        if let Some(link) = state.link.as_ref().filter(|link| !link.is_suspect()) {
            return Demand::Ready(Arc::clone(link));
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
                shard: Arc::clone(self),
                over: false,
            };
            self.connector.spawner.spawn(attempt.run());
        }
        Demand::Wait
    }

    fn answered(&self, link: &Link) {
        if link.trust() {
            self.changed.notify_waiters();
        }
    }

    fn discard(&self, link: &Arc<Link>) {
        let mut state = self.state();
        if state
            .link
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(now, link))
        {
            state.link = None;
        }
    }
}

/// The one attempt to connect. It runs in a task of its own, so that no caller who leaves takes it
/// along, and on every exit, also unstarted in a runtime that shuts down, lets the next one try.
struct Connecting {
    shard: Arc<Shard>,
    over: bool,
}

impl Connecting {
    async fn run(mut self) {
        let outcome = self.shard.connector.connect().await;
        self.over = true;
        let shard = &self.shard;
        if let Err(error) = &outcome {
            let address = &shard.connector.address;
            shard.outage.begin("locks cannot be taken", address, error);
        }
        let mut state = shard.state();
        match outcome {
            Ok(connection) => {
                state.failures = 0;
                state.failed = None;
                // The old one may have come back meanwhile: then everything stays in its order.
                if state.link.as_ref().is_none_or(|link| link.is_suspect()) {
                    state.link = Some(Arc::new(Link::new(connection)));
                }
            }
            Err(error) => {
                state.failed(error);
            }
        }
    }
}

impl State {
    fn failed(&mut self, error: BackendError) {
        self.failures = self.failures.saturating_add(1);
        let pause = backoff(self.failures, FIRST_BACKOFF, LONGEST_BACKOFF);
        self.failed = Some((Instant::now() + pause, error));
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let mut state = self.shard.state();
        state.connecting = false;
        if !self.over {
            // In a runtime that shuts down, the next attempt would end as this one, at once and
            // within one poll: whoever waits for it would never give its thread back.
            state.failed(Fault::unavailable(Trouble::NoRuntime).into());
        }
        drop(state);
        self.shard.changed.notify_waiters();
    }
}
