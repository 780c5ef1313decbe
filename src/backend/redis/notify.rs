//! One subscription connection for all watched keys.
//!
//! A background task owns it: started by the first watch, gone some seconds after the last watcher
//! left, restarted by the next watch if it died with its runtime. A topic is *confirmed* while the
//! server is known to deliver its messages.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep_until};

use super::backoff::backoff;
use super::cluster::Cluster;
use super::connect::{Messages, Network, listen, within};
use super::fault::{Fault, Trouble, check, kind_of_connecting};
use super::outage::Outage;
use super::sentinel::{Sentinels, require_primary};
use super::target::Target;
use crate::backend::{BackendError, BackendErrorKind, HintSender, Hints};
use crate::jitter::jittered;

/// How long a subscription outlives its last watcher: a busy key is watched again and again.
const LINGER: Duration = Duration::from_secs(1);
/// How long the connection outlives its last subscription.
const IDLE: Duration = Duration::from_secs(5);
/// How often watchers that left are looked for.
const SWEEP: Duration = Duration::from_millis(250);
/// How often a silent connection must prove that it is alive.
const PING: Duration = Duration::from_secs(3);
/// How often watchers are told to try where there are no notifications.
const POLL: Duration = Duration::from_millis(500);
/// How many channels are subscribed to at a time.
const MAX_BATCH: usize = 500;
/// What an outage of the subscription means: waiters fall back to polling.
const UNHEARD: &str = "releases are not heard";
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_millis(500);
/// A server that hung up sooner than this after the last time is failing.
const STEADY: Duration = Duration::from_secs(2);
/// A refused client is mended by a person, not by a retry.
const REFUSED_BACKOFF: Duration = Duration::from_secs(5);

/// Tells watchers when to try. Dropping it ends the task, whoever still watches.
pub(super) struct Notifier {
    shared: Arc<Shared>,
}

/// Where releases are heard.
#[derive(Clone)]
pub(super) enum Ear {
    Server(Target),
    /// At the primary of the moment.
    Sentinel(Arc<Sentinels>),
    /// At a node of a cluster, which has some of the channels.
    Node(Target, Weak<Cluster>),
    /// At any node of a cluster: each repeats what is published at another.
    AnyNode(Weak<Cluster>),
}

/// By which commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speech {
    Plain,
    /// Messages stay in the part of a cluster that has the channel's slot. Since Redis 7.0.
    Sharded,
}

struct Shared {
    network: Arc<Network>,
    /// `None`: nothing to subscribe to, watchers are told at intervals.
    ear: Option<Ear>,
    speech: Speech,
    /// For the logs.
    address: String,
    table: Mutex<Table>,
    /// There is a new topic, or the notifier was dropped.
    changed: Notify,
    outage: Outage,
}

#[derive(Default)]
struct Table {
    topics: HashMap<String, Topic>,
    /// Channels to subscribe to: all that are not confirmed, and perhaps some that are not watched
    /// any more. Kept apart so that a new watch does not cost a look at every topic.
    wanted: Vec<String>,
    running: bool,
    closed: bool,
}

#[derive(Default)]
struct Topic {
    watchers: Vec<HintSender>,
    confirmed: bool,
    /// When the last watcher was found gone.
    abandoned: Option<Instant>,
}

impl Notifier {
    pub(super) fn new(network: Arc<Network>, ear: Option<Ear>, speech: Speech) -> Self {
        let address = match &ear {
            Some(Ear::Server(target) | Ear::Node(target, _)) => target.address.clone(),
            Some(Ear::Sentinel(sentinels)) => sentinels.address(),
            Some(Ear::AnyNode(_)) => "any node".to_owned(),
            None => String::new(),
        };
        Self {
            shared: Arc::new(Shared {
                network,
                ear,
                speech,
                address,
                table: Mutex::default(),
                changed: Notify::new(),
                outage: Outage::default(),
            }),
        }
    }

    /// Watches a channel.
    pub(super) fn watch(&self, channel: String, watchers: Vec<HintSender>) {
        let mut guard = self.shared.table();
        let table = &mut *guard;
        let topic = match table.topics.entry(channel) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                table.wanted.push(new.key().clone());
                new.insert(Topic::default())
            }
        };
        if topic.confirmed {
            watchers.iter().for_each(HintSender::hint);
        }
        topic.watchers.retain(|watcher| !watcher.is_closed());
        topic.watchers.extend(watchers);
        topic.abandoned = None;
        let start = !std::mem::replace(&mut table.running, true);
        drop(guard);
        if start {
            let task = Task {
                shared: Arc::clone(&self.shared),
                over: AtomicBool::new(false),
            };
            self.shared.network.spawner.spawn(task.run());
        } else {
            self.shared.changed.notify_one();
        }
    }

    /// Takes away the watchers of all channels that do not live here, and wants those again that
    /// do and have been refused.
    pub(super) fn evict(
        &self,
        lives_here: impl Fn(&str) -> bool,
    ) -> Vec<(String, Vec<HintSender>)> {
        let mut guard = self.shared.table();
        let table = &mut *guard;
        let mut evicted = Vec::new();
        table.wanted.clear();
        table.topics.retain(|channel, topic| {
            let stays = lives_here(channel);
            if !stays {
                evicted.push((channel.clone(), std::mem::take(&mut topic.watchers)));
            } else if !topic.confirmed {
                table.wanted.push(channel.clone());
            }
            stays
        });
        let wanted = !table.wanted.is_empty();
        drop(guard);
        if wanted {
            self.shared.changed.notify_one();
        }
        evicted
    }

    /// How many of the channel's subscribers the server counts are this notifier's; `None` if the
    /// server cannot know who watches.
    pub(super) fn own_subscribers(&self, channel: &str) -> Option<u8> {
        match self.shared.ear.as_ref()? {
            Ear::Server(_) | Ear::Sentinel(_) | Ear::Node(..) => {}
            // The node that is asked does not count the subscribers of the others.
            Ear::AnyNode(_) => return None,
        }
        let table = self.shared.table();
        let confirmed = table
            .topics
            .get(channel)
            .is_some_and(|topic| topic.confirmed);
        Some(confirmed.into())
    }

    /// Where it subscribes.
    pub(super) fn address(&self) -> &str {
        &self.shared.address
    }

    /// Opens a connection, sends once whatever will be sent over such a one and closes it, within the
    /// connect timeout: what a self-test can learn.
    pub(super) async fn try_out(&self, channel: &str) -> Result<(), BackendError> {
        if self.shared.ear.is_none() {
            return Ok(());
        }
        let speech = self.shared.speech;
        let trial = async {
            let messages = self.shared.listen().await?;
            let ping = redis::cmd("PING");
            for command in [speech.subscribe(channel), ping, speech.unsubscribe(channel)] {
                ask(&messages.connection, &command).await?;
            }
            Ok(())
        };
        within(self.shared.network.connect_timeout, trial).await
    }
}

impl Speech {
    fn command(self, plain: &str, sharded: &str, channel: &str) -> Cmd {
        let mut command = redis::cmd(match self {
            Self::Plain => plain,
            Self::Sharded => sharded,
        });
        // One channel a command: one answer a command, and in a cluster one slot.
        command.arg(channel);
        command
    }

    fn subscribe(self, channel: &str) -> Cmd {
        self.command("SUBSCRIBE", "SSUBSCRIBE", channel)
    }

    fn unsubscribe(self, channel: &str) -> Cmd {
        self.command("UNSUBSCRIBE", "SUNSUBSCRIBE", channel)
    }
}

/// Sends a command over a connection for subscriptions.
async fn ask(connection: &MultiplexedConnection, command: &Cmd) -> Result<(), Fault> {
    let answer = connection.clone().send_packed_command(command).await;
    let answer = answer.map_err(|error| {
        Fault::Refused(BackendError::refused(kind_of_connecting(&error), error))
    })?;
    let answer = check(answer)?;
    if is_answer(command, &answer) {
        return Ok(());
    }
    // A subscription that the server ended by itself was taken for the answer.
    Err(Fault::Refused(BackendError::refused(
        BackendErrorKind::Unavailable,
        Trouble::answer(&answer),
    )))
}

/// Commands about a channel are answered by a push that repeats both, and no others are.
fn is_answer(command: &Cmd, answer: &Value) -> bool {
    let mut words = command.args_iter().filter_map(|word| match word {
        Arg::Simple(word) => Some(word),
        _ => None,
    });
    let name = words.next().unwrap_or_default();
    match (answer, words.next()) {
        (Value::Push { kind, data }, Some(channel)) => {
            name.eq_ignore_ascii_case(kind.to_string().as_bytes())
                && matches!(data.first(), Some(Value::BulkString(it)) if it == channel)
        }
        (Value::Push { .. }, None) | (_, Some(_)) => false,
        (_, None) => true,
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.shared.table().closed = true;
        self.shared.changed.notify_one();
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier")
            .field("channels", &self.shared.table().topics.len())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told_again(&self) {
        self.outage.end("releases are heard again", &self.address);
    }

    async fn within<T>(
        &self,
        answer: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        within(self.network.connect_timeout, answer).await
    }

    /// A new connection to where releases are heard. Bounded by the caller.
    async fn listen(&self) -> Result<Messages, BackendError> {
        let nowhere = || BackendError::from(Fault::unavailable(Trouble::Nowhere));
        match self.ear.as_ref().ok_or_else(nowhere)? {
            Ear::Server(target) | Ear::Node(target, _) => listen(target).await,
            Ear::Sentinel(sentinels) => {
                let open = |primary| async move {
                    let messages = listen(&primary).await?;
                    require_primary(messages.connection.clone()).await?;
                    Ok(messages)
                };
                sentinels.primary(open).await
            }
            Ear::AnyNode(cluster) => {
                let target = cluster.upgrade().and_then(|cluster| cluster.any_target());
                listen(&target.ok_or_else(nowhere)?).await
            }
        }
    }

    /// Waits until the connection turns out to be dead, or to lead to a server that was replaced.
    ///
    /// Commands find out by themselves, and tell when they found their way again. A subscription
    /// has no reason to expect an answer, and would be silent until its next `PING`.
    async fn left_behind(
        &self,
        recoveries: &mut Hints,
        (connection, address): (MultiplexedConnection, String),
    ) -> BackendError {
        loop {
            recoveries.next().await;
            if let Some(Ear::Sentinel(sentinels)) = &self.ear
                && sentinels.have_left(&address)
            {
                return Fault::unavailable(Trouble::NotPrimary).into();
            }
            let ping = redis::cmd("PING");
            let alive = async { ask(&connection, &ping).await.map_err(Into::into) };
            if let Err(error) = within(self.network.response_timeout, alive).await {
                return error;
            }
        }
    }

    /// A node says that it does not have a channel.
    fn doubt(&self) {
        if let Some(Ear::Node(_, cluster)) = &self.ear
            && let Some(cluster) = cluster.upgrade()
        {
            cluster.doubt();
        }
    }
}

impl Table {
    /// Forgets watchers that left, and topics that nobody came back to; returns the latter.
    fn sweep(&mut self, now: Instant) -> Vec<String> {
        let mut left = Vec::new();
        self.topics.retain(|channel, topic| {
            topic.watchers.retain(|watcher| !watcher.is_closed());
            if !topic.watchers.is_empty() {
                return true;
            }
            let keep = now < *topic.abandoned.get_or_insert(now) + LINGER;
            if !keep && topic.confirmed {
                left.push(channel.clone());
            }
            keep
        });
        left
    }

    /// Takes the next channels to subscribe to.
    fn next_wanted(&mut self) -> Vec<String> {
        let rest = self.wanted.len().saturating_sub(MAX_BATCH);
        let mut batch = self.wanted.split_off(rest);
        batch.retain(|channel| {
            let topic = self.topics.get(channel);
            topic.is_some_and(|topic| !topic.confirmed)
        });
        batch
    }

    fn confirm(&mut self, channels: &[String]) {
        for channel in channels {
            if let Some(topic) = self.topics.get_mut(channel) {
                topic.confirmed = true;
                topic.watchers.iter().for_each(HintSender::hint);
            }
        }
    }

    /// The server dropped a subscription by itself: true if it was not asked to.
    fn dropped(&mut self, channel: &str) -> bool {
        let topic = self.topics.get_mut(channel);
        topic.is_some_and(|topic| std::mem::replace(&mut topic.confirmed, false))
    }

    fn disconnected(&mut self) {
        self.wanted = self.topics.keys().cloned().collect();
        let topics = self.topics.values_mut();
        topics.for_each(|topic| topic.confirmed = false);
    }

    fn hint(&mut self, channel: &str) {
        if let Some(topic) = self.topics.get(channel) {
            topic.watchers.iter().for_each(HintSender::hint);
        }
    }

    fn hint_all(&mut self) {
        let watchers = self.topics.values().flat_map(|topic| &topic.watchers);
        watchers.for_each(HintSender::hint);
    }
}

/// Why a connection is not served any more.
enum End {
    /// Nobody watches, or the notifier is gone.
    Finished,
    Broken,
}

/// The task. On every exit, also with its runtime, the next watch can start another.
struct Task {
    shared: Arc<Shared>,
    /// The task has signed off. From then on the table belongs to the next one.
    over: AtomicBool,
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.over.load(Ordering::Relaxed) {
            let mut table = self.shared.table();
            table.running = false;
            table.disconnected();
        }
    }
}

impl Task {
    async fn run(self) {
        if self.shared.ear.is_none() {
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
            self.shared.table().disconnected();
            // In a cluster another node may have the channels by now.
            self.shared.doubt();
            if connected.elapsed() > STEADY {
                failures = 0;
            }
            failures += 1;
            let error = match end {
                Ok(_) => Fault::unavailable(Trouble::HungUp).into(),
                Err(error) => error,
            };
            let address = &self.shared.address;
            self.shared.outage.begin(UNHEARD, address, &error);
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
            self.shared.table().sweep(Instant::now());
            if self.is_over(Duration::ZERO, Instant::now()) {
                return true;
            }
        }
    }

    /// Whether there has been no topic since `since` for `idle`, or the notifier is gone. Then the
    /// task is no longer running: a watch that comes now starts the next one.
    fn is_over(&self, idle: Duration, since: Instant) -> bool {
        let mut table = self.shared.table();
        let over = table.closed || (table.topics.is_empty() && since.elapsed() >= idle);
        if over {
            // Under the same lock as the look: a watch either was seen, or finds nobody running.
            table.topics.clear();
            table.running = false;
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
                let abandoned = self.shared.table().sweep(Instant::now());
                for channels in abandoned.chunks(MAX_BATCH) {
                    self.unsubscribe(&messages, channels).await?;
                    last_heard = Instant::now();
                }
                next_sweep = Instant::now() + SWEEP;
            }
            // What the server said of them comes before what is subscribed to anew.
            while let Ok(pushed) = messages.pushed.try_recv() {
                if !self.heard(&pushed) {
                    return Ok(End::Broken);
                }
            }
            while !self.shared.table().wanted.is_empty() {
                let wanted = self.shared.table().next_wanted();
                if !wanted.is_empty() {
                    self.subscribe(&messages, wanted).await?;
                    self.shared.told_again();
                    last_heard = Instant::now();
                }
            }
            if !self.shared.table().topics.is_empty() {
                last_busy = Instant::now();
            }
            if self.is_over(IDLE, last_busy) {
                return Ok(End::Finished);
            }
            if last_heard.elapsed() >= PING {
                // A half-open connection never ends by itself: it must prove that it is alive.
                self.commands(&messages, vec![redis::cmd("PING")]).await?;
                last_heard = Instant::now();
            }
            let pushed = &mut messages.pushed;
            if !self.listen(pushed, &mut last_heard, next_sweep).await {
                return Ok(End::Broken);
            }
        }
    }

    /// Sends commands side by side, and waits for all their answers.
    async fn commands(
        &self,
        messages: &Messages,
        commands: Vec<Cmd>,
    ) -> Result<Vec<Option<Fault>>, BackendError> {
        let answers = commands.iter().map(|command| async {
            match ask(&messages.connection, command).await {
                Ok(()) => Ok(None),
                Err(fault @ Fault::Elsewhere { .. }) => Ok(Some(fault)),
                Err(fault) => Err(BackendError::from(fault)),
            }
        });
        self.shared.within(try_join_all(answers)).await
    }

    async fn subscribe(
        &self,
        messages: &Messages,
        mut channels: Vec<String>,
    ) -> Result<(), BackendError> {
        let speech = self.shared.speech;
        let commands = channels.iter().map(|it| speech.subscribe(it)).collect();
        let mut elsewhere = self.commands(messages, commands).await?.into_iter();
        let all = channels.len();
        channels.retain(|_| elsewhere.next().flatten().is_none());
        self.shared.table().confirm(&channels);
        if channels.len() < all {
            // They stay unconfirmed and unwanted until the cluster has a new map.
            self.shared.doubt();
        }
        Ok(())
    }

    async fn unsubscribe(
        &self,
        messages: &Messages,
        channels: &[String],
    ) -> Result<(), BackendError> {
        let speech = self.shared.speech;
        let commands = channels.iter().map(|it| speech.unsubscribe(it)).collect();
        self.commands(messages, commands).await.map(drop)
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
            // Each branch may be dropped: a message stays in the channel, a wish in the table.
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
            PushKind::Message | PushKind::SMessage => self.shared.table().hint(&channel),
            // The slot of the channel has moved away. (Answers to our own are pushed, too; then
            // the topic is gone, or not confirmed.)
            PushKind::SUnsubscribe if self.shared.table().dropped(&channel) => {
                self.shared.doubt();
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
                let mut table = self.shared.table();
                table.sweep(Instant::now());
                table.wanted.clear();
                table.hint_all();
                if !table.topics.is_empty() {
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
