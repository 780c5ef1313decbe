//! One subscription connection for all watched keys.
//!
//! A background task owns it: started by the first watch, gone some seconds after the last watcher
//! left, restarted by the next watch if it died with its runtime. A topic is *confirmed* while the
//! server is known to deliver its messages.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::{Client, RedisError};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::backoff::backoff;
use super::connect::Connector;
use super::fault::kind_of_connecting;
use super::outage::Outage;
use super::target::Target;
use crate::backend::{BackendErrorKind, HintSender, Hints};
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
/// How many channels one SUBSCRIBE names.
const MAX_BATCH: usize = 500;
/// What an outage of the subscription means: waiters fall back to polling.
const UNHEARD: &str = "releases are not heard";
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);
/// A refused client is mended by a person, not by a retry.
const REFUSED_BACKOFF: Duration = Duration::from_secs(5);

/// Tells watchers when to try. Dropping it ends the task, whoever still watches.
pub(super) struct Notifier {
    shared: Arc<Shared>,
}

struct Shared {
    connector: Arc<Connector>,
    /// `None`: nothing to subscribe to, watchers are told at intervals.
    server: Option<Server>,
    table: Mutex<Table>,
    /// There is a new topic, or the notifier was dropped.
    changed: Notify,
    outage: Outage,
}

struct Server {
    client: Client,
    address: String,
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
    pub(super) fn new(connector: Arc<Connector>, target: Option<Target>) -> Self {
        let server = target.and_then(|target| {
            // Opening a client connects nothing and cannot fail for what was parsed already.
            let client = Client::open(target.info).ok()?;
            let address = target.address;
            Some(Server { client, address })
        });
        Self {
            shared: Arc::new(Shared {
                connector,
                server,
                table: Mutex::default(),
                changed: Notify::new(),
                outage: Outage::default(),
            }),
        }
    }

    /// Watches a channel.
    pub(super) fn watch(&self, channel: String) -> Hints {
        let (sender, hints) = Hints::channel();
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
            sender.hint();
        }
        topic.watchers.retain(|watcher| !watcher.is_closed());
        topic.watchers.push(sender);
        topic.abandoned = None;
        let start = !std::mem::replace(&mut table.running, true);
        drop(guard);
        if start {
            let task = Task {
                shared: Arc::clone(&self.shared),
                over: AtomicBool::new(false),
            };
            self.shared.connector.spawner.spawn(task.run());
        } else {
            self.shared.changed.notify_one();
        }
        hints
    }

    /// How many of the channel's subscribers the server counts are this notifier's; `None` if the
    /// server cannot know who watches.
    pub(super) fn own_subscribers(&self, channel: &str) -> Option<u8> {
        self.shared.server.as_ref()?;
        let table = self.shared.table();
        let confirmed = table
            .topics
            .get(channel)
            .is_some_and(|topic| topic.confirmed);
        Some(confirmed.into())
    }

    /// Where it subscribes, if anywhere.
    pub(super) fn address(&self) -> Option<&str> {
        let server = self.shared.server.as_ref()?;
        Some(&server.address)
    }

    /// Opens a connection, subscribes once and closes it, within the connect timeout: what a
    /// self-test can learn.
    pub(super) async fn try_out(&self, channel: &str) -> Result<(), RedisError> {
        let Some(server) = &self.shared.server else {
            return Ok(());
        };
        let trial = async {
            let mut connection = server.client.get_async_pubsub().await?;
            connection.subscribe(channel).await
        };
        self.shared.within(trial).await
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
        if let Some(server) = &self.server {
            self.outage.end("releases are heard again", &server.address);
        }
    }

    async fn within<T>(
        &self,
        answer: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        match timeout(self.connector.connect_timeout, answer).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
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
        let Some(server) = &self.shared.server else {
            return self.poll().await;
        };
        let mut failures = 0;
        loop {
            if self.is_over(Duration::ZERO, Instant::now()) {
                return;
            }
            let connection = self.shared.within(server.client.get_async_pubsub()).await;
            let connected = Instant::now();
            let end = match connection {
                Ok(connection) => self.serve(connection).await,
                Err(error) => Err(error),
            };
            if let Ok(End::Finished) = end {
                return;
            }
            self.shared.table().disconnected();
            // A server that hangs up on every connection is a failing one.
            if connected.elapsed() > LONGEST_BACKOFF {
                failures = 0;
            }
            failures += 1;
            let error = match end {
                Ok(_) => std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into(),
                Err(error) => error,
            };
            self.shared.outage.begin(UNHEARD, &server.address, &error);
            let refused = kind_of_connecting(&error) == BackendErrorKind::Misconfigured;
            let pause = if refused {
                backoff(failures, LONGEST_BACKOFF, REFUSED_BACKOFF)
            } else {
                backoff(failures, FIRST_BACKOFF, LONGEST_BACKOFF)
            };
            if self.pause(pause).await {
                return;
            }
        }
    }

    /// Waits, and says whether there is nothing to wait for any more.
    async fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            let now = Instant::now();
            if now >= until {
                return false;
            }
            // A new wish to subscribe does not shorten the pause; the end of all wishes does.
            tokio::time::sleep_until((now + SWEEP).min(until)).await;
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

    /// Serves one connection. All awaits here end with the connection or in bounded time; nothing
    /// of this is ever cancelled but with the runtime.
    async fn serve(&self, connection: PubSub) -> Result<End, RedisError> {
        let (mut sink, mut messages) = connection.split();
        let mut last_busy = Instant::now();
        let mut last_heard = Instant::now();
        let mut next_sweep = Instant::now();
        loop {
            if Instant::now() >= next_sweep {
                let abandoned = self.shared.table().sweep(Instant::now());
                for channels in abandoned.chunks(MAX_BATCH) {
                    self.shared.within(sink.unsubscribe(channels)).await?;
                    last_heard = Instant::now();
                }
                next_sweep = Instant::now() + SWEEP;
            }
            while !self.shared.table().wanted.is_empty() {
                let wanted = self.shared.table().next_wanted();
                if !wanted.is_empty() {
                    self.shared.within(sink.subscribe(&wanted)).await?;
                    self.shared.table().confirm(&wanted);
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
                self.ping(&mut sink).await?;
                last_heard = Instant::now();
            }
            if !self
                .listen(&mut messages, &mut last_heard, next_sweep)
                .await
            {
                return Ok(End::Broken);
            }
        }
    }

    /// Passes messages on until it is time to sweep or there is a new topic. False when the
    /// connection ended.
    async fn listen(
        &self,
        messages: &mut PubSubStream,
        last_heard: &mut Instant,
        next_sweep: Instant,
    ) -> bool {
        let sweep = tokio::time::sleep_until(next_sweep);
        tokio::pin!(sweep);
        loop {
            // Each branch may be dropped: a message stays in the stream, a wish in the table.
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => {
                        *last_heard = Instant::now();
                        self.shared.table().hint(message.get_channel_name());
                    }
                    None => return false,
                },
                () = self.shared.changed.notified() => return true,
                () = &mut sweep => return true,
            }
        }
    }

    /// Asks a silent connection for a sign of life: a half-open one never ends by itself.
    async fn ping(&self, sink: &mut PubSubSink) -> Result<(), RedisError> {
        let pong = self.shared.within(sink.ping::<redis::Value>()).await;
        pong.map(drop)
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
