//! One connection for commands, replaced when it fails.
//!
//! | state | a new command | leads to |
//! |---|---|---|
//! | none | one task connects, and commands wait for it within the connect timeout | sound or failed |
//! | sound | is sent, behind a check of the role if the link is [doubtful](crate::backend::redis::connection::address) | reply: sound; timeout: suspect; end, also without a command: none; reply for a wrong server: none |
//! | suspect | one task connects, and commands wait for it, or for a reply on the old link, within the response timeout | sound |
//! | left: the locks are at another server | as in none, even if the link answers | sound or failed |
//! | failed | is rejected until the backoff has passed | the next attempt |
//!
//! A command starts the next attempt, which is repeated in the background until the server is reached: an idle
//! process must notice the end of an outage too. While recoveries have a subscriber, the end of a link also starts
//! one: a waiter or a holder may send no command for a long time. A link that ends within 2 s of the
//! end before is replaced after a backoff, so holders hear of a restart behind it later.
//!
//! A server that replied to no command is asked until it does, with a call that it answers only if it executes
//! scripts.

use std::error::Error;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::connecting::Connecting;
use super::link_state::LinkState;
use crate::backend::BackendError;
use crate::backend::outage::Outage;
use crate::backend::redis::command::{Cause, CommandError, unavailable};
use crate::backend::redis::connection::{
    CallSpan, ClientContext, Connector, Link, OneTask, Progress, Request, Resend, request::undo,
};
use crate::mutex::Mutex;
use crate::observe::Part;
use crate::task::{Background, timeout};

pub(crate) struct Connection {
    pub(crate) connector: Arc<Connector>,
    pub(super) state: Mutex<LinkState>,
    /// Notified when a link was opened, could not be opened, or answered again.
    pub(super) changed: Notify,
    /// `None` for a server whose outages are not logged.
    outage: Option<Outage>,
    /// A command timed out, and no command was answered since. A new link or the reply to `PING` does
    /// not reset it: a server whose writes are paused provides both.
    pub(super) silent: AtomicBool,
    /// Asks the server until it replies.
    pub(super) asking: OneTask,
}

impl Connection {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        let outage = Outage::new(
            Part::Commands,
            "lock backend unreachable",
            "lock backend reachable again",
            &connector.address,
        );
        Self {
            outage: Some(outage),
            ..Self::quiet(connector)
        }
    }

    /// Creates a connection that logs no outage, to a server that is asked in passing.
    pub(crate) fn quiet(connector: Arc<Connector>) -> Self {
        Self {
            connector,
            state: Mutex::default(),
            changed: Notify::new(),
            outage: None,
            silent: AtomicBool::new(false),
            asking: OneTask::default(),
        }
    }

    /// Returns `true` if the server has no locks, or another connection leads to it.
    pub(super) fn is_quiet(&self) -> bool {
        self.outage.is_none()
    }

    pub(crate) fn context(&self) -> &Arc<ClientContext> {
        &self.connector.context
    }

    pub(crate) fn address(&self) -> &str {
        &self.connector.address
    }

    /// Returns a number that no other connection has.
    pub(crate) fn id(self: &Arc<Self>) -> u64 {
        Arc::as_ptr(self) as u64
    }

    /// Sends one command and waits for its reply, within twice the response timeout and once the
    /// connect timeout, and once more of each after the reply of a wrong server.
    ///
    /// If the link ends, it is replaced and the command is sent again, as the class of each request allows. A
    /// rejection of the second attempt leaves the result unknown. A wrong server rejected the command without an effect,
    /// and it is sent once more.
    ///
    /// If no reply arrives in time, the undo of the request follows on the same link, or else a probe.
    ///
    /// # Cancel safety
    ///
    /// If dropped, a command that was written still takes effect, and is not undone.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: &Request<'_>,
        progress: &mut Progress,
    ) -> Result<Value, CommandError> {
        let (mut again, mut rejected) = (false, None);
        loop {
            let mut link = match self.sound_link() {
                Some(link) => link,
                None => match self.await_link().await {
                    Ok(link) => link,
                    Err(error) => {
                        let error = CommandError::Unsent(error);
                        return Err(rejected.unwrap_or(error).after(progress.resent));
                    }
                },
            };
            if request.undo.is_some() && self.connector.spread.found().is_some() {
                match Box::pin(self.granting(link)).await {
                    Ok(granting) => link = granting,
                    Err(error) => return Err(CommandError::Refused(error).after(progress.resent)),
                }
            }
            let span = CallSpan::begin(request, &link.address);
            // Pinned where it is made: each wrapper would move it.
            let reply = pin!(link.send(request.command, progress.asking));
            let reply = timeout(self.context().response_timeout, reply).await;
            span.end(reply.as_ref().ok());
            let outcome = match reply {
                Ok(reply) => self.replied(&link, request, reply),
                Err(_elapsed) => Err(self.unanswered(&link, request, progress.asking)),
            };
            match outcome {
                Ok(value) => return Ok(value),
                Err(CommandError::Died(_)) if !again => {
                    again = true;
                    progress.resent = true;
                }
                Err(error) if link.is_misled() && error.is_rejection() => {
                    progress.asking |= error.is_ask();
                    let error = error.by_wrong_server();
                    if rejected.is_some() {
                        return Err(error.after(progress.resent));
                    }
                    rejected = Some(error);
                }
                Err(error) => return Err(error.after(progress.resent)),
            }
        }
    }

    /// Sends the commands of an undo, each as [`send`](Self::send).
    pub(crate) async fn send_undo(
        self: &Arc<Self>,
        commands: &[Cmd],
        asking: bool,
    ) -> Result<(), CommandError> {
        undo(commands, |command| async move {
            let request = Request::new(command, Resend::Compared);
            let mut progress = Progress {
                resent: false,
                asking,
            };
            self.send(&request, &mut progress).await.map(drop)
        })
        .await
    }

    /// Sends a command as [`send`](Self::send), and returns the value of its reply.
    pub(crate) async fn query(
        self: &Arc<Self>,
        command: &Cmd,
        resend: Resend,
    ) -> Result<Value, BackendError> {
        let request = Request::new(command, resend);
        Ok(self.send(&request, &mut Progress::default()).await?)
    }

    /// Applies that no reply arrived in time.
    fn unanswered(
        self: &Arc<Self>,
        link: &Arc<Link>,
        request: &Request<'_>,
        asking: bool,
    ) -> CommandError {
        let waited = self.context().response_timeout;
        link.mark_suspect();
        // The task ends an outage, so the outage begins first.
        self.unreached(&Cause::NoReply(waited));
        self.silent.store(true, Ordering::SeqCst);
        self.ask_until_answered();
        match request.undo {
            Some(undo) => self.undo(undo, link, asking),
            None => self.probe(link),
        }
        CommandError::Unanswered(waited)
    }

    pub(super) fn sound_link(&self) -> Option<Arc<Link>> {
        self.state.lock().sound(&self.connector)
    }

    /// Waits for a link that answers. An error means that nothing was sent.
    pub(crate) async fn await_link(self: &Arc<Self>) -> Result<Arc<Link>, BackendError> {
        let limit = if self.state.lock().link.is_some() {
            self.context().response_timeout
        } else {
            self.context().connect_timeout
        };
        let link = async {
            loop {
                // Registered before the look, or a change between the two would be missed.
                let mut changed = pin!(self.changed.notified());
                changed.as_mut().enable();
                {
                    let mut state = self.state.lock();
                    if let Some(link) = state.sound(&self.connector) {
                        return Ok(link);
                    }
                    if let Some(error) = state.failure() {
                        return Err(error);
                    }
                    self.replace(state);
                }
                changed.await;
            }
        };
        match timeout(limit, link).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(unavailable(Cause::NoConnection(limit))),
        }
    }

    /// As [`await_link`](Self::await_link), and leads to a primary if its address is in doubt.
    pub(crate) async fn await_checked_link(self: &Arc<Self>) -> Result<Arc<Link>, BackendError> {
        let link = self.await_link().await?;
        if !link.visit.is_doubtful() {
            return Ok(link);
        }
        self.query(&redis::cmd("PING"), Resend::Repeatable).await?;
        self.await_link().await
    }

    fn replace(self: &Arc<Self>, mut state: MutexGuard<'_, LinkState>) {
        let number = state.connect();
        drop(state);
        if let Some(number) = number {
            Connecting::start(self, number);
        }
    }

    /// Replaces a link that ended while recoveries have a subscriber, which the next link then reports. A
    /// holder that subscribes soon after the end replaces it by a renewal. A quiet connection waits for its next
    /// command.
    pub(super) fn ended(self: &Arc<Self>) {
        if self.is_quiet() || !self.context().recovery.ended() {
            return;
        }
        let pause = self.state.lock().ended();
        let connection = Arc::downgrade(self);
        // The runtime that drove the link may be ending.
        Background.spawn(async move {
            sleep(pause).await;
            if let Some(connection) = connection.upgrade() {
                let mut state = connection.state.lock();
                if state.sound(&connection.connector).is_none() {
                    connection.replace(state);
                }
            }
        });
    }

    /// Returns `true` if a command timed out, and no command was answered since.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::SeqCst)
    }

    pub(super) fn reached(&self) {
        if let Some(outage) = &self.outage
            && !self.is_silent()
        {
            outage.end();
        }
    }

    pub(super) fn unreached(&self, cause: &(dyn Error + 'static)) {
        if let Some(outage) = &self.outage {
            outage.begin(cause);
        }
    }

    /// Drops the link, which leads to a server without the locks.
    pub(crate) fn leave(&self) {
        self.state.lock().link = None;
    }

    pub(crate) fn discard(&self, link: &Arc<Link>) {
        let is_current = |now: &mut Arc<Link>| Arc::ptr_eq(now, link);
        drop(self.state.lock().link.take_if(is_current));
    }
}
