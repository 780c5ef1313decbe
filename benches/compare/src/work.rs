//! A worker: a process that reads jobs and runs them with the locks of one contender.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use crate::job::{Done, Job, Mode};
use crate::keys::KeySource;
use crate::waits::Waits;

/// How long after its window a job may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Locks of one kind.
pub(crate) trait Locks: Clone + Send + Sync + 'static {
    type Held: Send;

    /// Waits until the key is free.
    fn lock(&self, key: &str) -> impl Future<Output = Result<Self::Held, Failure>> + Send;

    /// Waits until no exclusive lock holds the key.
    fn share(&self, _key: &str) -> impl Future<Output = Result<Self::Held, Failure>> + Send {
        async { Err("it has no shared locks".into()) }
    }

    fn unlock(&self, held: Self::Held) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits for the work that `unlock` left for later.
    fn settled(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Connects so many managers, prints `ready`, and then replies to each job with `done` or `failed`. Clients
/// of different managers exclude each other only through the server.
pub(crate) async fn serve<L: Locks>(
    managers: usize,
    connect: impl AsyncFn() -> Result<L, Failure>,
) -> Result<(), Failure> {
    let mut locks = Vec::new();
    for _ in 0..managers {
        locks.push(connect().await?);
    }
    println!("ready");
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match answer(&locks, &line).await {
            Ok(done) => println!("done {done}"),
            Err(failure) => println!("failed {}", failure.to_string().replace('\n', " ")),
        }
    }
    Ok(())
}

async fn answer(locks: &[impl Locks], line: &str) -> Result<Done, Failure> {
    let job: Job = line.parse()?;
    timeout(job.window + PATIENCE, run(locks, &job))
        .await
        .map_err(|_| format!("not done {} s after its time", PATIENCE.as_secs()))?
}

async fn run(locks: &[impl Locks], job: &Job) -> Result<Done, Failure> {
    let keys = Arc::new(KeySource::of(job));
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    let end = start + job.window;
    for task in 0..job.in_flight {
        let client = Client {
            locks: locks[task % locks.len()].clone(),
            keys: Arc::clone(&keys),
            task,
            end,
            hold: job.hold,
            spread: job.spread,
            pause: job.pause,
            mode: job.mode,
        };
        tasks.spawn(client.pairs());
    }
    let mut parts = Vec::new();
    while let Some(part) = tasks.join_next().await {
        parts.push(part??);
    }
    for manager in locks {
        manager.settled().await;
    }
    Ok(sum(&parts, start.elapsed()))
}

/// The observations of one task.
struct Part {
    waits: Vec<Duration>,
    in_window: u64,
}

/// One task, which requests a lock as soon as the last one is released.
struct Client<L> {
    locks: L,
    keys: Arc<KeySource>,
    task: usize,
    end: Instant,
    hold: Duration,
    spread: Duration,
    pause: Duration,
    mode: Mode,
}

impl<L: Locks> Client<L> {
    async fn pairs(self) -> Result<Part, Failure> {
        let mut part = Part {
            waits: Vec::new(),
            in_window: 0,
        };
        let mut asked = Instant::now();
        while asked < self.end {
            let key = self.keys.key(self.task, part.waits.len());
            let held = match self.mode {
                Mode::Exclusive => self.locks.lock(&key).await?,
                Mode::Shared => self.locks.share(&key).await?,
            };
            let granted = Instant::now();
            part.waits.push(granted - asked);
            part.in_window += u64::from(granted < self.end);
            // A sleep of zero yields to other tasks.
            let hold = self.hold + self.spread.mul_f64(fastrand::f64());
            if !hold.is_zero() {
                sleep(hold).await;
            }
            self.locks.unlock(held).await?;
            if !self.pause.is_zero() {
                sleep(self.pause).await;
            } else if self.keys.come_back() {
                // Else the releaser would have no time before the next acquire.
                yield_now().await;
            }
            asked = Instant::now();
        }
        Ok(part)
    }
}

/// Sums up after the work, because filling the histogram would take time from it.
fn sum(parts: &[Part], elapsed: Duration) -> Done {
    let mut waits = Waits::default();
    for wait in parts.iter().flat_map(|part| &part.waits) {
        waits.record(*wait);
    }
    let in_window = || parts.iter().map(|part| part.in_window);
    Done {
        pairs: waits.count(),
        in_window: in_window().sum(),
        least: in_window().min().unwrap_or(0),
        seconds: elapsed.as_secs_f64(),
        waits,
    }
}
