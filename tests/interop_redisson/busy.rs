//! Clients that acquire one lock again and again, on each side.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::sides::{Lent, Sides};
use crate::table::Latencies;

/// The hold of each client.
pub(crate) const HOLD: Duration = Duration::from_millis(5);

/// A manager whose one client acquires again as soon as it has released, until this is dropped.
pub(crate) struct Busy {
    client: JoinHandle<()>,
    waits: Arc<Mutex<Waits>>,
}

#[derive(Default)]
struct Waits {
    ended: Latencies,
    /// The start of the wait that has not ended.
    since: Option<Instant>,
}

impl Busy {
    pub(crate) async fn start(sides: &Sides, name: &str, managers: usize) -> Vec<Self> {
        let mut all = Vec::new();
        for _ in 0..managers {
            let (locks, name) = (sides.rust().await, name.to_owned());
            let waits = Arc::<Mutex<Waits>>::default();
            let seen = Arc::clone(&waits);
            let client = tokio::spawn(async move {
                loop {
                    let asked = Instant::now();
                    of(&seen).since = Some(asked);
                    let guard = locks.acquire(&*name).await.expect("in its turn");
                    {
                        let mut waits = of(&seen);
                        waits.ended.add(asked.elapsed());
                        waits.since = None;
                    }
                    sleep(HOLD).await;
                    drop(guard);
                }
            });
            all.push(Self { client, waits });
        }
        all
    }

    /// Returns the waits that have ended since the last call, and the present one.
    pub(crate) fn take(&self) -> Latencies {
        assert!(!self.client.is_finished(), "an acquire has panicked");
        let mut waits = of(&self.waits);
        let mut ended = std::mem::take(&mut waits.ended);
        if let Some(since) = waits.since {
            ended.add(since.elapsed());
        }
        ended
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.client.abort();
    }
}

fn of(waits: &Mutex<Waits>) -> MutexGuard<'_, Waits> {
    waits.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The waits of a Java thread.
#[derive(Default)]
pub(crate) struct Thread {
    pub(crate) waits: Latencies,
    /// The times of the grants, by a clock that all JVMs share.
    pub(crate) granted: Vec<Duration>,
}

impl Thread {
    /// Parses the value of the command `repeat`.
    fn of(value: &str) -> Self {
        let micros = |word: &str| Duration::from_micros(word.parse().expect("a number"));
        let times: Vec<_> = value.split(' ').map(micros).collect();
        let mut thread = Self::default();
        for wait in times.chunks(2) {
            let &[asked, granted] = wait else {
                panic!("a wait without an end: {value}");
            };
            thread.waits.add(granted - asked);
            thread.granted.push(granted);
        }
        thread
    }
}

/// Lets so many threads of each JVM lock and unlock until the window ends, with a pause after each unlock.
pub(crate) async fn repeat(
    javas: &mut [Lent],
    threads: usize,
    name: &str,
    window: Duration,
    pause: Duration,
) -> Vec<Thread> {
    let [window, hold, pause] = [window, HOLD, pause].map(|it| it.as_millis());
    let mut calls = Vec::new();
    for java in javas {
        for thread in 0..threads {
            let thread = format!("t{thread}");
            calls.push(java.send(&thread, "repeat", name, &[&window, &hold, &pause]));
        }
    }
    let mut threads = Vec::new();
    for call in calls {
        threads.push(Thread::of(&call.value().await));
    }
    threads
}
