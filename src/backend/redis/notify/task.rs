//! The task that owns a subscription connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{PushInfo, PushKind};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep_until};

use super::pub_sub::ping;
use super::rejections::{Rejections, STEADY, pause_after};
use super::shared::{Shared, text_of};
use super::topics::MAX_BATCH;
use crate::backend::redis::command::{Cause, unavailable};
use crate::backend::redis::connection::{Messages, within};
use crate::backend::{BackendError, Hints};
use crate::jitter::jittered;
use crate::task::Background;

/// How long the connection outlives its last subscription.
const IDLE: Duration = Duration::from_secs(5);
/// The interval at which waiters that left are dropped.
const SWEEP: Duration = Duration::from_millis(250);
/// The interval of probes on a silent connection.
const PING: Duration = Duration::from_secs(3);
/// The interval of hints to waiters without notifications.
const POLL: Duration = Duration::from_millis(500);

/// The reason that a connection is no longer served.
enum End {
    /// There is no waiter, or the notifier was dropped.
    Finished,
    Broken,
}

/// The task. After every exit, the next watch can start another.
///
/// It begins in the runtime of a caller that has threads of its own: that of the first watch, or the one that drives a
/// connection for commands. A message then causes an attempt without a change of threads. If that runtime ends, a task
/// on the thread of this crate serves the waiters of other runtimes. If all its threads block, these wait for their next
/// attempt.
pub(super) struct Task {
    shared: Arc<Shared>,
    /// The task runs in the runtime of a caller, which may end.
    near: bool,
    /// The task is over. The topics belong to the next one.
    over: AtomicBool,
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.over.load(Ordering::Relaxed) {
            return;
        }
        let mut topics = self.shared.topics.lock();
        topics.disconnected();
        let is_needed = !topics.is_empty() || self.shared.outage.ends_when_reached();
        topics.running = self.near && !topics.closed && is_needed;
        if topics.running {
            drop(topics);
            Background.spawn(Self::new(&self.shared, false).run());
        }
    }
}

impl Task {
    fn new(shared: &Arc<Shared>, near: bool) -> Self {
        Self {
            shared: Arc::clone(shared),
            near,
            over: AtomicBool::new(false),
        }
    }

    /// Starts the task. The caller has set `running`.
    pub(super) fn start(shared: &Arc<Shared>) {
        shared
            .context
            .spawn_near_commands(Self::new(shared, true).run());
    }

    pub(super) async fn run(self) {
        if self.shared.server.is_none() {
            return self.poll().await;
        }
        let mut failures = 0;
        let mut recoveries = self.shared.context.recovery.hints();
        loop {
            if self.is_over(Duration::ZERO, Instant::now()) {
                return;
            }
            let listening = self.shared.listen(true, self.near);
            let messages = within(self.shared.context.connect_timeout, listening).await;
            let connected = Instant::now();
            let end = match messages {
                Ok(messages) => {
                    let link = (messages.connection.clone(), messages.address.clone());
                    tokio::select! {
                        end = self.serve(messages) => end,
                        // `serve` may be dropped at any await: all channels become wanted below.
                        error = self.shared.left_behind(&mut recoveries, link) => Err(error),
                    }
                }
                Err(error) => Err(error),
            };
            if let Ok(End::Finished) = end {
                return;
            }
            self.shared.topics.lock().disconnected();
            // In a cluster, another node may have the channels now.
            if !self.shared.topics.lock().is_empty() {
                self.shared.report_moved();
            }
            if connected.elapsed() > STEADY {
                failures = 0;
            }
            failures += 1;
            let error = match end {
                Ok(_) => unavailable(Cause::HungUp),
                Err(error) => error,
            };
            self.shared.outage.begin(&error);
            if self
                .pause(pause_after(&error, failures), &mut recoveries)
                .await
            {
                return;
            }
        }
    }

    /// Waits for this long or until a recovery. Returns `true` if there is no waiter any more.
    async fn pause(&self, pause: Duration, recoveries: &mut Hints) -> bool {
        let until = Instant::now() + pause;
        loop {
            let now = Instant::now();
            if now >= until {
                return false;
            }
            // A new topic does not shorten the pause. The end of the last topic does.
            tokio::select! {
                () = sleep_until((now + SWEEP).min(until)) => {}
                _ = recoveries.next() => return false,
            }
            self.shared.topics.lock().sweep(Instant::now());
            if self.is_over(Duration::ZERO, Instant::now()) {
                return true;
            }
        }
    }

    /// Returns `true` if there has been no topic since `since` for `idle`, or the notifier was dropped. The
    /// task then counts as ended, so that the next watch starts another.
    ///
    /// An outage goes on without a topic, or nothing would show its end.
    fn is_over(&self, idle: Duration, since: Instant) -> bool {
        let mut topics = self.shared.topics.lock();
        let is_idle = topics.is_empty() && since.elapsed() >= idle;
        let over = topics.closed || (is_idle && !self.shared.outage.ends_when_reached());
        if over {
            // Under the lock of the check: a watch is either seen here, or finds no running task.
            topics.clear();
            topics.running = false;
            self.over.store(true, Ordering::Relaxed);
        }
        over
    }

    /// Serves one connection. Every await ends with the connection or within a limit.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the connection must be dropped as well.
    async fn serve(&self, mut messages: Messages) -> Result<End, BackendError> {
        let mut rejections = Rejections::default();
        // The channels to unsubscribe from again, and the backoff until then.
        let (mut unended, mut again) = (Vec::new(), Rejections::default());
        let mut last_busy = Instant::now();
        let mut last_message = Instant::now();
        let mut next_sweep = Instant::now();
        loop {
            if Instant::now() >= next_sweep {
                self.shared.topics.lock().sweep(Instant::now());
                next_sweep = Instant::now() + SWEEP;
            }
            let mut left = std::mem::take(&mut self.shared.topics.lock().left);
            if again.are_due() {
                left.append(&mut unended);
            }
            for ended in left.chunks(MAX_BATCH) {
                let rejected = self.shared.unsubscribe(&messages, ended).await?;
                self.shared.topics.lock().unsubscribed(ended);
                last_message = Instant::now();
                if let Some(error) = rejected.rejection {
                    again.add(&error);
                    unended.extend(rejected.subscriptions);
                    // A new connection has none of them.
                    if unended.len() > MAX_BATCH {
                        return Err(error);
                    }
                }
            }
            again.are_over();
            // Push messages about the old subscriptions come before the new subscriptions.
            while let Ok(pushed) = messages.pushed.try_recv() {
                if !self.apply(&pushed) {
                    return Ok(End::Broken);
                }
            }
            if rejections.are_due() {
                self.shared.topics.lock().want_unconfirmed();
            }
            while !self.shared.topics.lock().wanted.is_empty() {
                let wanted = self.shared.topics.lock().next_wanted();
                if !wanted.is_empty() {
                    if let Some(error) = self.shared.subscribe(&messages, wanted).await? {
                        rejections.add(&error);
                    }
                    last_message = Instant::now();
                }
            }
            if rejections.are_over() {
                self.shared.outage.end_for_any();
            }
            if !self.shared.topics.lock().is_empty() {
                last_busy = Instant::now();
            }
            if self.is_over(IDLE, last_busy) {
                return Ok(End::Finished);
            }
            if self.shared.heard.swap(false, Ordering::Relaxed) {
                last_message = Instant::now();
            }
            if last_message.elapsed() >= PING {
                // A half-open connection never reports its end.
                self.shared.replied(ping(&messages.connection)).await?;
                last_message = Instant::now();
            }
            let pushed = &mut messages.pushed;
            if !self.listen(pushed, &mut last_message, next_sweep).await {
                return Ok(End::Broken);
            }
        }
    }

    /// Applies push messages until the next sweep or the next change of the topics. Returns `false` when the
    /// connection ends.
    async fn listen(
        &self,
        pushed: &mut UnboundedReceiver<PushInfo>,
        last_message: &mut Instant,
        next_sweep: Instant,
    ) -> bool {
        let sweep = sleep_until(next_sweep);
        tokio::pin!(sweep);
        loop {
            // Each branch may be dropped: messages stay in the channel, and changes in the topics.
            tokio::select! {
                message = pushed.recv() => {
                    *last_message = Instant::now();
                    if !message.is_some_and(|message| self.apply(&message)) {
                        return false;
                    }
                }
                () = self.shared.changed.notified() => return true,
                () = &mut sweep => return true,
            }
        }
    }

    /// Applies a push message that is no message of a channel. Returns `false` when the connection ends.
    fn apply(&self, pushed: &PushInfo) -> bool {
        match pushed.kind {
            // The slot of the channel has moved. The reply to an own command looks the same, but then
            // the topic is gone or unconfirmed.
            PushKind::SUnsubscribe if self.shared.topics.lock().dropped(&text_of(pushed, 0)) => {
                self.shared.report_moved();
            }
            PushKind::Disconnection => return false,
            _ => {}
        }
        true
    }

    /// Hints to all waiters at intervals, without notifications.
    async fn poll(&self) {
        let mut last_busy = Instant::now();
        loop {
            {
                let mut topics = self.shared.topics.lock();
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
