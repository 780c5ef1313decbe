//! Reads the state once per second, for the history and for all open pages together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::backend::Incidents;
use super::frame::{Frame, millis};
use super::history::History;
use super::recorder::Recorder;
use crate::LockManager;
use crate::lock::{Order, WeakManager};
use crate::mutex::Mutex;
use crate::task::spawn_here;

const INTERVAL: Duration = Duration::from_secs(1);

/// A stream that opens within this time after a frame begins with that frame.
const RECENT: Duration = Duration::from_millis(500);

/// The most streams that are open at a time.
const STREAMS: usize = 16;

/// Each stream ends after this time, and the page opens the next one. A client whose credentials were revoked does not
/// keep its stream.
pub(in crate::dashboard) const LONGEST_STREAM: Duration = Duration::from_secs(60);

/// The number of keys of one frame.
const TOP: usize = 100;
const HOT: usize = 20;

/// The latest frame. A slow reader misses frames, and queues none.
#[derive(Debug, Clone)]
pub(in crate::dashboard) enum Latest {
    Nothing,
    Frame(Bytes, Instant),
    /// The manager is shutting down.
    Ended,
}

/// A stream of frames. It counts as open until it is dropped, or should have ended: the server polls no stream whose
/// client reads nothing.
#[derive(Debug)]
pub(in crate::dashboard) struct Subscription {
    pub(in crate::dashboard) frames: watch::Receiver<Latest>,
    _open: Arc<()>,
}

#[derive(Debug)]
pub(in crate::dashboard) struct Publisher {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    locks: WeakManager,
    instance: String,
    latest: watch::Sender<Latest>,
    /// The open streams, and when they were opened.
    streams: Mutex<Vec<(Instant, Weak<()>)>>,
    /// Notified when a stream opens, so that it need not wait for the next second.
    opened: Arc<Notify>,
    history: Mutex<History>,
    incidents: Incidents,
    running: AtomicBool,
}

impl Publisher {
    pub(in crate::dashboard) fn new(locks: &LockManager, instance: &str) -> Self {
        locks.hot_keys().enable();
        Self {
            shared: Arc::new(Shared {
                locks: locks.downgrade(),
                instance: instance.to_owned(),
                latest: watch::Sender::new(Latest::Nothing),
                streams: Mutex::default(),
                opened: Arc::default(),
                history: Mutex::default(),
                incidents: Incidents::default(),
                running: AtomicBool::new(false),
            }),
        }
    }

    /// Starts the task unless it runs. Outside a runtime, a later call starts it.
    pub(in crate::dashboard) fn ensure_running(&self) {
        let running = &self.shared.running;
        if running.load(Ordering::Relaxed) || running.swap(true, Ordering::SeqCst) {
            return;
        }
        let task = ReaderTask(Arc::downgrade(&self.shared));
        spawn_here(async move { task.run().await });
    }

    /// Opens a stream, or returns `None` if too many are open or the manager is shutting down.
    pub(in crate::dashboard) fn subscribe(&self) -> Option<Subscription> {
        let open = self.shared.open_stream()?;
        let mut frames = self.shared.latest.subscribe();
        let latest = frames.borrow_and_update().clone();
        match latest {
            Latest::Ended => return None,
            Latest::Frame(_, at) if at.elapsed() < RECENT => frames.mark_changed(),
            Latest::Frame(..) | Latest::Nothing => self.shared.opened.notify_one(),
        }
        Some(Subscription {
            frames,
            _open: open,
        })
    }

    pub(in crate::dashboard) fn history(&self) -> MutexGuard<'_, History> {
        self.shared.history.lock()
    }

    pub(in crate::dashboard) fn incidents(&self) -> &Incidents {
        &self.shared.incidents
    }
}

impl Shared {
    /// Returns the streams that are open and should be.
    fn open_streams(&self) -> MutexGuard<'_, Vec<(Instant, Weak<()>)>> {
        let mut streams = self.streams.lock();
        streams.retain(|(since, open)| open.strong_count() > 0 && since.elapsed() < LONGEST_STREAM);
        streams
    }

    /// Counts a stream until its count is dropped, or returns `None` if too many are open.
    fn open_stream(&self) -> Option<Arc<()>> {
        let mut streams = self.open_streams();
        if streams.len() >= STREAMS {
            return None;
        }
        let open = Arc::new(());
        streams.push((Instant::now(), Arc::downgrade(&open)));
        Some(open)
    }

    /// Publishes a frame if a stream is open: for each second, and for streams that have opened since.
    async fn publish(&self, locks: &LockManager, recorder: &mut Recorder, is_tick: bool) {
        let latest = self.latest.borrow().clone();
        let is_recent = matches!(latest, Latest::Frame(_, at) if at.elapsed() < RECENT);
        if (is_recent && !is_tick) || self.open_streams().is_empty() {
            return;
        }
        let walk = locks.walk(Order::Waiters, TOP).await;
        recorder.walked(&walk);
        let frame = Frame {
            instance: &self.instance,
            at: millis(SystemTime::now()),
            counted_at: recorder.at(),
            walk: &walk,
            reading: &recorder.reading,
            figures: &recorder.figures,
            servers: &recorder.servers,
            hot: locks.hot_keys().top(HOT),
        };
        let frame = Latest::Frame(frame.event(), Instant::now());
        self.latest.send_replace(frame);
    }
}

/// The task. It keeps neither the manager nor the dashboard.
struct ReaderTask(Weak<Shared>);

impl ReaderTask {
    async fn run(self) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        let (opened, locks) = (Arc::clone(&shared.opened), shared.locks.clone());
        let incidents = shared.incidents.clone();
        drop(shared);
        let recorder = (locks.upgrade()).map(|manager| Recorder::new(&manager, incidents));
        let Some(mut recorder) = recorder else {
            return;
        };
        let mut is_tick = false;
        let mut ticks = tokio::time::interval_at(Instant::now() + INTERVAL, INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut closed = std::pin::pin!(locks.closed().notified());
            // Registers before the check, so a change in between is not missed.
            closed.as_mut().enable();
            let (Some(shared), Some(manager)) = (self.0.upgrade(), locks.upgrade()) else {
                return;
            };
            if manager.is_shutting_down() {
                shared.latest.send_replace(Latest::Ended);
                return;
            }
            if is_tick {
                let points = recorder.tick(&manager).await;
                let mut history = shared.history.lock();
                points.for_each(|(range, point)| history.push(range, point));
            }
            shared.publish(&manager, &mut recorder, is_tick).await;
            drop((shared, manager));
            is_tick = tokio::select! {
                () = closed => false,
                () = opened.notified() => false,
                _ = ticks.tick() => true,
            };
        }
    }
}

impl Drop for ReaderTask {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.running.store(false, Ordering::SeqCst);
        }
    }
}
