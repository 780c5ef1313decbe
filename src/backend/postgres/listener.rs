//! One task per process that receives the notifications of releases and transfers.
//!
//! Some proxies accept LISTEN and deliver nothing. So the task sends itself a notification after LISTEN and every 30 s.
//! Without an echo, it polls: it notifies all waiters of this process at short intervals.
//!
//! A process that has not held or waited for a lock for a while has no such task, so that its server can be suspended.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::Client;
use uuid::Uuid;

use super::batch::MAX_BATCH;
use super::error::{Cause, of_connect};
use super::line::Line;
use super::source::{Server, in_background};
use super::watchers::Watchers;
use crate::LockKey;
use crate::backend::outage::Outage;
use crate::backend::{BackendError, Hints};
use crate::jitter::jittered;
use crate::observe::Part;
use crate::task::Background;

/// The interval at which waiters attempt without notifications.
const POLL: Duration = Duration::from_millis(100);
/// The interval at which the waiters that ended are removed.
const PRUNE: Duration = Duration::from_millis(500);
/// The interval at which the rows of the waiters are refreshed. They count for 30 s.
const REFRESH: Duration = Duration::from_secs(10);
const SWEEP: Duration = Duration::from_secs(60);
/// The interval of the self-test, and of the next LISTEN after one that delivered nothing.
const PROBE: Duration = Duration::from_secs(30);
/// The longest time until the echo of a self-test.
const ECHO: Duration = Duration::from_secs(1);
/// The pause after a connection that failed.
const RECONNECT: Duration = Duration::from_millis(500);
/// The text of the self-test.
const PROBE_TEXT: &str = "p";

/// The waiters of a backend, and the task that notifies them. The task ends with the backend, or rests.
pub(super) struct Listener {
    watchers: Arc<Mutex<Watchers>>,
    channel: String,
    /// Whether notifications arrive.
    delivers: Arc<AtomicBool>,
    asks: mpsc::UnboundedSender<Ask>,
    /// Whether a lock was held or waited for since the last sweep.
    is_used: Arc<AtomicBool>,
    resting: Arc<Resting>,
}

/// The task, before the first lock and after a while without one.
type Resting = Mutex<Option<Task>>;

/// A manager that waits for a key, or that ended to.
struct Ask {
    watches: bool,
    key: String,
    manager: Uuid,
}

type Dial = BoxFuture<'static, Result<Link, BackendError>>;
/// Returns what has to be repeated.
type Work = BoxFuture<'static, Vec<Ask>>;

struct Link {
    /// The connection closes when it is dropped.
    client: Arc<Client>,
    messages: mpsc::UnboundedReceiver<String>,
    /// When the echo must have arrived, until it has.
    echo_by: Option<Instant>,
    next_probe: Instant,
}

impl Listener {
    pub(super) fn new(line: Arc<Line>, server: Option<Server>) -> Self {
        let (asks, receiver) = mpsc::unbounded_channel();
        let watchers = Arc::default();
        let delivers = Arc::default();
        let is_used = Arc::default();
        let resting = Arc::<Resting>::default();
        // The name shows the functions of the schema that this process is of the version with the queue.
        let channel = format!("tower_lock_queue_{}", Uuid::new_v4().simple());
        let outage = server.as_ref().map(|server| {
            Outage::new(
                Part::Notifications,
                "release notifications unavailable",
                "release notifications available again",
                &server.address(),
            )
        });
        let task = Task {
            watchers: Arc::clone(&watchers),
            delivers: Arc::clone(&delivers),
            asks: receiver,
            queue: VecDeque::new(),
            channel: channel.clone(),
            line,
            server,
            outage,
            is_recovery: false,
            is_used: Arc::clone(&is_used),
            resting: Arc::downgrade(&resting),
        };
        *lock(&resting) = Some(task);
        Self {
            watchers,
            channel,
            delivers,
            asks,
            is_used,
            resting,
        }
    }

    /// Returns the channel of this process if notifications arrive.
    pub(super) fn channel(&self) -> Option<String> {
        let delivers = self.delivers.load(Ordering::Relaxed);
        delivers.then(|| self.channel.clone())
    }

    /// Starts the task, unless it runs. Its caller has added a waiter or a holder, without which it soon rests.
    pub(super) fn start(&self) {
        self.is_used.store(true, Ordering::Relaxed);
        let task = lock(&self.resting).take();
        if let Some(task) = task {
            Background.spawn(task.run());
        }
    }

    pub(super) fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        let (sender, hints) = Hints::channel();
        let ask = Ask {
            watches: true,
            key: key.as_str().to_owned(),
            manager,
        };
        // The row of the last subscriber may still be there.
        if !lock(&self.watchers).add(&ask.key, manager, sender) {
            // Without the task, the waiter polls.
            drop(self.asks.send(ask));
        }
        self.start();
        hints
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Task {
    watchers: Arc<Mutex<Watchers>>,
    delivers: Arc<AtomicBool>,
    asks: mpsc::UnboundedReceiver<Ask>,
    /// The rows to write, in order.
    queue: VecDeque<Ask>,
    channel: String,
    line: Arc<Line>,
    /// The server to listen at, or `None` if it is unknown.
    server: Option<Server>,
    /// From a failed dial or a missing echo to the next echo.
    outage: Option<Outage>,
    /// Whether the next connection follows one that ended.
    is_recovery: bool,
    is_used: Arc<AtomicBool>,
    resting: Weak<Resting>,
}

impl Task {
    async fn run(mut self) {
        self.is_used.store(false, Ordering::Relaxed);
        let mut link: Option<Link> = None;
        let mut dial: Option<Dial> = self.dial();
        let mut redial_at: Option<Instant> = None;
        let mut work: Option<Work> = None;
        let mut proof: Option<BoxFuture<'static, bool>> = None;
        let mut refresh_at = Instant::now() + REFRESH;
        let mut sweep_at = Instant::now() + jittered(SWEEP);
        let mut tick_at = Instant::now() + PRUNE;
        loop {
            if work.is_none() {
                work = self.next_work(link.is_some() || dial.is_none());
            }
            let probe_at = link.as_ref().map(Link::due);
            tokio::select! {
                ask = self.asks.recv() => match ask {
                    Some(ask) => {
                        self.queue.push_back(ask);
                        tick_at = tick_at.min(Instant::now() + PRUNE);
                    }
                    None => return,
                },
                message = next_message(&mut link) => match message {
                    Some(text) if text == PROBE_TEXT => {
                        if let Some(link) = &mut link {
                            link.echo_by = None;
                            if !self.delivers.load(Ordering::Relaxed) {
                                proof = Some(link.prove(&self.channel));
                            }
                        }
                    }
                    Some(text) => lock(&self.watchers).received(&text),
                    None => {
                        (link, proof) = (None, None);
                        self.delivers.store(false, Ordering::Relaxed);
                        tick_at = Instant::now();
                        self.is_recovery = true;
                        self.line.recovery.ended();
                        redial_at = Some(Instant::now());
                    }
                },
                opened = optional(&mut dial) => {
                    dial = None;
                    match opened {
                        Ok(opened) => {
                            link = Some(opened);
                            self.connected();
                        }
                        Err(error) => {
                            self.silent(&error);
                            self.check_commands();
                            redial_at = Some(Instant::now() + RECONNECT);
                        }
                    }
                },
                proved = optional(&mut proof) => {
                    proof = None;
                    self.delivers.store(proved, Ordering::Relaxed);
                    if proved && let Some(outage) = &self.outage {
                        outage.end();
                    }
                }
                failed = optional(&mut work) => {
                    work = None;
                    self.queue.extend(failed);
                }
                () = at(redial_at) => {
                    redial_at = None;
                    dial = self.dial();
                },
                () = at(probe_at) => if let Some(known) = &mut link {
                    if known.echo_by.is_some() {
                        // It delivers nothing.
                        self.silent(&Cause::Silent);
                        (link, proof) = (None, None);
                        self.delivers.store(false, Ordering::Relaxed);
                        redial_at = Some(Instant::now() + PROBE);
                    } else {
                        known.probe(&self.line, &self.channel);
                    }
                },
                () = sleep_until(tick_at) => {
                    tick_at = Instant::now() + self.tick();
                },
                () = sleep_until(refresh_at) => {
                    refresh_at = Instant::now() + REFRESH;
                    self.refresh();
                },
                () = sleep_until(sweep_at) => {
                    sweep_at = Instant::now() + jittered(SWEEP);
                    let line = Arc::clone(&self.line);
                    Background.spawn(async move {
                        drop(line.query("SELECT tower_lock.sweep_2()", &[]).await);
                    });
                    let is_used = self.is_used.swap(false, Ordering::Relaxed);
                    if !is_used && work.is_none() && self.queue.is_empty() {
                        match self.rest() {
                            Some(task) => self = task,
                            None => return,
                        }
                    }
                },
            }
        }
    }

    /// Ends the task until the next start. Returns it if there are waiters or holders, or an outage whose end no other command
    /// would show.
    fn rest(self) -> Option<Self> {
        let resting = self.resting.upgrade()?;
        // A caller that adds one starts the task afterwards, under this mutex.
        let mut resting = lock(&resting);
        if !lock(&self.watchers).is_empty()
            || self.line.recovery.is_awaited()
            || self.line.outage.lasts()
        {
            return Some(self);
        }
        self.delivers.store(false, Ordering::Relaxed);
        *resting = Some(self);
        None
    }

    fn dial(&self) -> Option<Dial> {
        let server = self.server.clone()?;
        let channel = self.channel.clone();
        let limit = server.connect_limit();
        Some(Box::pin(in_background(limit, async move {
            let (client, messages) = server.listen().await?;
            let listen = format!("LISTEN {channel}");
            client.batch_execute(&listen).await.map_err(of_connect)?;
            Ok(Link {
                client: Arc::new(client),
                messages,
                echo_by: None,
                next_probe: Instant::now(),
            })
        })))
    }

    /// Registers all waiters again: the server may have lost the rows, and notifications may be lost.
    fn connected(&mut self) {
        if std::mem::replace(&mut self.is_recovery, false) {
            self.line.recovery.report();
        }
        self.register_all();
    }

    fn register_all(&mut self) {
        self.queue.retain(|ask| !ask.watches);
        let all = lock(&self.watchers).all();
        let asks = all.into_iter().map(|(key, manager)| Ask {
            watches: true,
            key,
            manager,
        });
        self.queue.extend(asks);
    }

    /// Returns the next commands for rows, which are sent together. `ready`: LISTEN is in effect, or will not be.
    fn next_work(&mut self, ready: bool) -> Option<Work> {
        let watches = self.queue.front()?.watches;
        if watches && !ready {
            return None;
        }
        let same = self.queue.iter().take_while(|it| it.watches == watches);
        let count = same.count().min(MAX_BATCH);
        let asks: Vec<_> = self.queue.drain(..count).collect();
        let (line, channel) = (Arc::clone(&self.line), self.channel.clone());
        let watchers = Arc::clone(&self.watchers);
        Some(Box::pin(async move {
            let commands = asks.into_iter().map(async |ask| {
                // The waiter may be back.
                if lock(&watchers).has(&ask.key, ask.manager) != watches {
                    return None;
                }
                let set = line.set_watch(watches, &ask.key, ask.manager, &channel);
                let is_set = set.await.is_ok();
                if watches && is_set {
                    lock(&watchers).registered(&ask.key, ask.manager);
                }
                // A row that stays without its waiter counts until the end of this process.
                (!is_set).then_some(ask)
            });
            let failed: Vec<_> = join_all(commands).await.into_iter().flatten().collect();
            if !failed.is_empty() {
                sleep(RECONNECT).await;
            }
            failed
        }))
    }

    /// Removes the waiters that ended. Returns the time until the next call.
    fn tick(&mut self) -> Duration {
        let mut watchers = lock(&self.watchers);
        let ended = watchers.prune();
        let asks = ended.into_iter().map(|(key, manager)| Ask {
            watches: false,
            key,
            manager,
        });
        self.queue.extend(asks);
        if watchers.is_empty() {
            return REFRESH;
        }
        if !self.delivers.load(Ordering::Relaxed) {
            watchers.hint_all();
            return POLL;
        }
        PRUNE
    }

    /// Refreshes the rows of the waiters. Without a connection that ends with the server, they may be lost.
    fn refresh(&mut self) {
        if self.line.outage.lasts() {
            self.check_commands();
        }
        if self.server.is_none() {
            return self.register_all();
        }
        if !lock(&self.watchers).is_empty() {
            let (line, channel) = (Arc::clone(&self.line), self.channel.clone());
            Background.spawn(async move { drop(line.refresh_watches(&channel).await) });
        }
    }

    /// Reports that notifications do not arrive, so waiters poll.
    fn silent(&self, cause: &(dyn std::error::Error + 'static)) {
        if let Some(outage) = &self.outage {
            outage.begin(cause);
        }
    }

    /// Sends a command whose reply, or its absence, shows the state of the server. An idle process sends no other.
    fn check_commands(&self) {
        let line = Arc::clone(&self.line);
        Background.spawn(async move { drop(line.query("SELECT", &[]).await) });
    }
}

impl Link {
    /// Begins a self-test. The notification takes the way of those of releases.
    fn probe(&mut self, line: &Arc<Line>, channel: &str) {
        let now = Instant::now();
        self.echo_by = Some(now + ECHO);
        self.next_probe = now + PROBE;
        let (line, channel) = (Arc::clone(line), channel.to_owned());
        Background.spawn(async move { drop(line.notify(&channel, PROBE_TEXT).await) });
    }

    /// Takes the lock by which the functions of the schema find that this process listens. It ends with the session, which no
    /// other client shares: a notification has arrived.
    fn prove(&self, channel: &str) -> BoxFuture<'static, bool> {
        let lock = format!(
            "SELECT pg_catalog.pg_advisory_lock_shared(1953459814, pg_catalog.hashtext('{channel}'))"
        );
        let client = Arc::clone(&self.client);
        Box::pin(async move { client.batch_execute(&lock).await.is_ok() })
    }

    /// Returns when the echo is late, or the next self-test is due.
    fn due(&self) -> Instant {
        self.echo_by.unwrap_or(self.next_probe)
    }
}

/// Returns the text of the next notification, or `None` at the end of the connection.
async fn next_message(link: &mut Option<Link>) -> Option<String> {
    match link {
        Some(link) => link.messages.recv().await,
        None => pending().await,
    }
}

async fn optional<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
