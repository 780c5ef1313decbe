//! A worker: a process of its own that reads jobs and does them with one contender's locks.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::job::{Done, Job};
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

    fn unlock(&self, held: Self::Held) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits for what `unlock` has left for later.
    fn settled(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Says `ready`, then answers each job with `done` or `failed`, until there are no more.
pub(crate) async fn serve(locks: impl Locks) -> Result<(), Failure> {
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

async fn answer(locks: &impl Locks, line: &str) -> Result<Done, Failure> {
    let job: Job = line.parse()?;
    timeout(job.window + PATIENCE, run(locks, &job))
        .await
        .map_err(|_| format!("not done {} s after its time", PATIENCE.as_secs()))?
}

async fn run(locks: &impl Locks, job: &Job) -> Result<Done, Failure> {
    let keys = Arc::new(KeySource::of(job));
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    let end = start + job.window;
    for task in 0..job.in_flight {
        tasks.spawn(pairs(locks.clone(), Arc::clone(&keys), task, end));
    }
    let mut parts = Vec::new();
    while let Some(part) = tasks.join_next().await {
        parts.push(part??);
    }
    locks.settled().await;
    Ok(sum(&parts, start.elapsed()))
}

/// What one task has seen.
struct Part {
    waits: Vec<Duration>,
    in_window: u64,
}

async fn pairs(
    locks: impl Locks,
    keys: Arc<KeySource>,
    task: usize,
    end: Instant,
) -> Result<Part, Failure> {
    let mut part = Part {
        waits: Vec::new(),
        in_window: 0,
    };
    let mut asked = Instant::now();
    while asked < end {
        let held = locks.lock(&keys.key(task, part.waits.len())).await?;
        let granted = Instant::now();
        part.waits.push(granted - asked);
        part.in_window += u64::from(granted < end);
        locks.unlock(held).await?;
        asked = Instant::now();
    }
    Ok(part)
}

/// After the work, so that filling the histogram takes nothing from it.
fn sum(parts: &[Part], elapsed: Duration) -> Done {
    let mut waits = Waits::default();
    for wait in parts.iter().flat_map(|part| &part.waits) {
        waits.record(*wait);
    }
    Done {
        pairs: waits.count(),
        in_window: parts.iter().map(|part| part.in_window).sum(),
        seconds: elapsed.as_secs_f64(),
        waits,
    }
}
