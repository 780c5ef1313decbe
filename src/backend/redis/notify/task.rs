//! The task that owns a subscription connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{Cmd, PushInfo, PushKind, Value};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep_until};

use super::notifier::Shared;
use super::pub_sub::{PubSub, ask, ping};
use super::topics::MAX_BATCH;
use crate::backend::redis::command::{Cause, CommandError};
use crate::backend::redis::connection::{Messages, backoff};
use crate::backend::{BackendError, BackendErrorKind, Hints};
use crate::jitter::jittered;

/// How long the connection outlives its last subscription.
const IDLE: Duration = Duration::from_secs(5);
/// How often watchers that left are looked for.
const SWEEP: Duration = Duration::from_millis(250);
/// How often a silent connection must prove that it is alive.
const PING: Duration = Duration::from_secs(3);
/// How often watchers are told to try where there are no notifications.
const POLL: Duration = Duration::from_millis(500);
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_millis(500);
/// A server that hung up sooner than this after the last time is failing.
const STEADY: Duration = Duration::from_secs(2);
/// A refused client is mended by a person, not by a retry.
const REFUSED_BACKOFF: Duration = Duration::from_secs(5);

/// Why a connection is not served any more.
enum End {
    /// Nobody watches, or the notifier is gone.
    Finished,
    Broken,
}

/// The task. On every exit, also with its runtime, the next watch can start another.
pub(super) struct Task {
    shared: Arc<Shared>,
    /// The task has signed off. From then on the topics belongs to the next one.
    over: AtomicBool,
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.over.load(Ordering::Relaxed) {
            let mut topics = self.shared.topics();
            topics.running = false;
            topics.disconnected();
        }
    }
}

impl Task {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            over: AtomicBool::new(false),
        }
    }

    pub(super) async fn run(self) {
        if self.shared.endpoint.is_none() {
            return self.poll().await;
        }
        let mut failures = 0;
        let mut recoveries = self.shared.network.recovery.hints();
        loop {
            if self.is_over(Duration::ZERO, Instant::now()) {
                return;
            }
            let messages = self.shared.within(self.shared.listen()).await;
            let connected = Instant::now();
            let end = match messages {
                Ok(messages) => {
                    let link = (messages.connection.clone(), messages.address.clone());
                    tokio::select! {
                        end = self.serve(messages) => end,
                        // Serving may be dropped anywhere: below, all channels are wanted again.
                        error = self.shared.left_behind(&mut recoveries, link) => Err(error),
                    }
                }
                Err(error) => Err(error),
            };
            if let Ok(End::Finished) = end {
                return;
            }
            self.shared.topics().disconnected();
            // In a cluster another node may have the channels by now.
            self.shared.mark_suspect();
            if connected.elapsed() > STEADY {
                failures = 0;
            }
            failures += 1;
            let error = match end {
                Ok(_) => CommandError::unavailable(Cause::HungUp).into(),
                Err(error) => error,
            };
            self.shared.outage.begin(&error);
            let pause = match error.kind() {
                BackendErrorKind::Unavailable => backoff(failures, FIRST_BACKOFF, LONGEST_BACKOFF),
                _ => backoff(failures, STEADY, REFUSED_BACKOFF),
            };
            if self.pause(pause, &mut recoveries).await {
                return;
            }
        }
    }

    /// Waits for so long or until the store is back, and says whether there is nothing to wait for
    /// any more.
    async fn pause(&self, pause: Duration, recoveries: &mut Hints) -> bool {
        let until = Instant::now() + pause;
        loop {
            let now = Instant::now();
            if now >= until {
                return false;
            }
            // A new wish to subscribe does not shorten the pause; the end of all wishes does.
            tokio::select! {
                () = sleep_until((now + SWEEP).min(until)) => {}
                () = recoveries.next() => return false,
            }
            self.shared.topics().sweep(Instant::now());
            if self.is_over(Duration::ZERO, Instant::now()) {
                return true;
            }
        }
    }

    /// Whether there has been no topic since `since` for `idle`, or the notifier is gone. Then the
    /// task is no longer running: a watch that comes now starts the next one.
    fn is_over(&self, idle: Duration, since: Instant) -> bool {
        let mut topics = self.shared.topics();
        let over = topics.closed || (topics.is_empty() && since.elapsed() >= idle);
        if over {
            // Under the same lock as the look: a watch either was seen, or finds nobody running.
            topics.clear();
            topics.running = false;
            self.over.store(true, Ordering::Relaxed);
        }
        over
    }

    /// Serves one connection. All awaits here end with the connection or in bounded time; it is
    /// cancelled only together with the connection.
    async fn serve(&self, mut messages: Messages) -> Result<End, BackendError> {
        let mut last_busy = Instant::now();
        let mut last_heard = Instant::now();
        let mut next_sweep = Instant::now();
        loop {
            if Instant::now() >= next_sweep {
                self.shared.topics().sweep(Instant::now());
                next_sweep = Instant::now() + SWEEP;
            }
            let left = self.shared.topics().take_left();
            for channels in left.chunks(MAX_BATCH) {
                self.unsubscribe(&messages, channels).await?;
                self.shared.topics().unsubscribed(channels);
                last_heard = Instant::now();
            }
            // What the server said of them comes before what is subscribed to anew.
            while let Ok(pushed) = messages.pushed.try_recv() {
                if !self.heard(&pushed) {
                    return Ok(End::Broken);
                }
            }
            while self.shared.topics().are_wanted() {
                let wanted = self.shared.topics().next_wanted();
                if !wanted.is_empty() {
                    self.subscribe(&messages, wanted).await?;
                    self.shared.outage.end();
                    last_heard = Instant::now();
                }
            }
            if !self.shared.topics().is_empty() {
                last_busy = Instant::now();
            }
            if self.is_over(IDLE, last_busy) {
                return Ok(End::Finished);
            }
            if last_heard.elapsed() >= PING {
                // A half-open connection never ends by itself: it must prove that it is alive.
                self.shared.within(ping(&messages.connection)).await?;
                last_heard = Instant::now();
            }
            let pushed = &mut messages.pushed;
            if !self.listen(pushed, &mut last_heard, next_sweep).await {
                return Ok(End::Broken);
            }
        }
    }

    /// Sends commands for all channels side by side, waits for all their answers, and says of each
    /// channel whether this server has it.
    async fn commands(
        &self,
        messages: &Messages,
        channels: &[String],
        command: fn(PubSub, &str) -> Cmd,
    ) -> Result<Vec<bool>, BackendError> {
        let answers = channels.iter().map(|channel| async move {
            let kinds = self.shared.kinds.iter().map(|&kind| async move {
                match ask(&messages.connection, &command(kind, channel)).await {
                    Ok(()) => Ok(true),
                    Err(CommandError::Elsewhere { .. }) => Ok(false),
                    Err(fault) => Err(BackendError::from(fault)),
                }
            });
            let here = try_join_all(kinds).await?;
            Ok(here.iter().all(|&here| here))
        });
        self.shared.within(try_join_all(answers)).await
    }

    async fn subscribe(
        &self,
        messages: &Messages,
        mut channels: Vec<String>,
    ) -> Result<(), BackendError> {
        let answers = self.commands(messages, &channels, PubSub::subscribe);
        let mut here = answers.await?.into_iter();
        let all = channels.len();
        channels.retain(|_| here.next().unwrap_or_default());
        self.shared.topics().confirm(&channels);
        if channels.len() < all {
            // They stay unconfirmed and unwanted until the cluster has a new map.
            self.shared.mark_suspect();
        }
        Ok(())
    }

    async fn unsubscribe(
        &self,
        messages: &Messages,
        channels: &[String],
    ) -> Result<(), BackendError> {
        let answers = self.commands(messages, channels, PubSub::unsubscribe);
        answers.await.map(drop)
    }

    /// Passes messages on until it is time to sweep or there is a new topic. False when the
    /// connection ended.
    async fn listen(
        &self,
        pushed: &mut UnboundedReceiver<PushInfo>,
        last_heard: &mut Instant,
        next_sweep: Instant,
    ) -> bool {
        let sweep = sleep_until(next_sweep);
        tokio::pin!(sweep);
        loop {
            // Each branch may be dropped: a message stays in the channel, a wish in the topics.
            tokio::select! {
                message = pushed.recv() => {
                    *last_heard = Instant::now();
                    if !message.is_some_and(|message| self.heard(&message)) {
                        return false;
                    }
                }
                () = self.shared.changed.notified() => return true,
                () = &mut sweep => return true,
            }
        }
    }

    /// What the server pushed. False when the connection ended.
    fn heard(&self, pushed: &PushInfo) -> bool {
        let channel = match pushed.data.first() {
            Some(Value::BulkString(name)) => String::from_utf8_lossy(name),
            _ => "".into(),
        };
        match pushed.kind {
            PushKind::Message | PushKind::SMessage => self.shared.topics().hint(&channel),
            // The slot of the channel has moved away. (Answers to our own are pushed, too; then
            // the topic is gone, or not confirmed.)
            PushKind::SUnsubscribe if self.shared.topics().dropped(&channel) => {
                self.shared.mark_suspect();
            }
            PushKind::Disconnection => return false,
            _ => {}
        }
        true
    }

    /// Without notifications: tells everybody to try, at intervals.
    async fn poll(&self) {
        let mut last_busy = Instant::now();
        loop {
            {
                let mut topics = self.shared.topics();
                topics.sweep(Instant::now());
                topics.want_nothing();
                topics.hint_all();
                if !topics.is_empty() {
                    last_busy = Instant::now();
                }
            }
            if self.is_over(IDLE, last_busy) {
                return;
            }
            tokio::time::sleep(jittered(POLL)).await;
        }
    }
}
