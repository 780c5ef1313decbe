//! Shows: a job that runs at intervals, in one process at a time of any number.
//! Run: `cargo run --example jobs -- --locks redis://127.0.0.1:6379` in two terminals, and end the one that prints.
//! Look at: `every`, which holds the lock from the first run to the last, and waits for it in all other processes.
//!
//! A process that ends by Ctrl-C or SIGTERM finishes its run and releases the lock, so another one continues at once.
//! If it is killed, another one continues after `--lease`.
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a program with output.

mod shared;

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::prelude::*;
use tokio::fs;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tower_lock::{ErrorKind, FencingToken, LockManager};

use shared::{stop_requested, with_causes};

const HELP: &str = "\
A job that runs at intervals, in one process at a time.

Usage: cargo run --example jobs -- [options]

  --locks URL      keep the locks there (default memory://, which is for one
                   process), for instance redis://127.0.0.1:6379
  --file FILE      append a line per run there (default: jobs.txt in the folder
                   for temporary files)
  --every SECONDS  the time from one run to the next (default 1)
  --lease SECONDS  how long the job pauses after the process that ran it died
                   (default 30)
  --help           show this
";

/// How long a run may take after a signal.
const GRACE: Duration = Duration::from_secs(10);

/// How long a run takes.
const WORK: Duration = Duration::from_millis(20);

/// Runs the job every `period` while this process holds its lock, and waits for the lock otherwise.
///
/// Ends without an error when the sender of `stop` is dropped and the manager shuts down.
async fn every(
    period: Duration,
    locks: &LockManager,
    file: &Path,
    mut stop: watch::Receiver<()>,
) -> Result<(), Box<dyn Error>> {
    loop {
        let acquire = locks.acquire("job:count").wait_forever();
        let turn = acquire.run(async |held| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                // A run is not in the `select!`, so a signal does not cut it short.
                tokio::select! {
                    biased;
                    _ = stop.changed() => return Ok(()),
                    _ = ticks.tick() => {}
                }
                count(file, held.fencing_token()).await?;
            }
        });
        match turn.await {
            Ok(ended) => return ended,
            // This process paused, or did not reach the server. The run was dropped; another process continues.
            Err(error) if error.kind() == ErrorKind::Lost => eprintln!("jobs: {error}"),
            Err(error) if error.kind() == ErrorKind::ShuttingDown => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The job: reads how many runs there were, works, and appends what follows. Two concurrent runs would have the same
/// number.
///
/// A database would also reject the write of a stale holder by its token, as in the example `orders`.
async fn count(file: &Path, token: FencingToken) -> io::Result<()> {
    let runs = match fs::read_to_string(file).await {
        Ok(lines) => lines.lines().count(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    sleep(WORK).await;
    let process = std::process::id();
    let line = format!("run {} in process {process} with token {token}", runs + 1);
    println!("{line}");
    let mut file = fs::File::options()
        .create(true)
        .append(true)
        .open(file)
        .await?;
    file.write_all(format!("{line}\n").as_bytes()).await?;
    file.flush().await
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Options::from_args() {
        Ok(Some(options)) => run(options).await,
        Ok(None) => {
            print!("{HELP}");
            Ok(())
        }
        Err(error) => Err(format!("{error}; try --help").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jobs: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let locks = LockManager::builder_at(&options.locks)
        .await?
        .watchdog_timeout(options.lease)
        .build()?;
    println!("Runs go to {}. Ctrl-C to end.", options.file.display());
    let (stop, stopped) = watch::channel(());
    let stopping = async {
        stop_requested().await?;
        drop(stop);
        // Rejects a process that waits, and lets one that holds the lock release it.
        let left = locks.shutdown(GRACE).await;
        if !left.is_idle() {
            eprintln!("jobs: still at work after {GRACE:?}: {left:?}");
        }
        Ok(())
    };
    let jobs = every(options.every, &locks, &options.file, stopped);
    tokio::try_join!(stopping, jobs)?;
    Ok(())
}

struct Options {
    locks: String,
    file: PathBuf,
    every: Duration,
    lease: Duration,
}

impl Options {
    /// Returns `None` if help was requested.
    fn from_args() -> Result<Option<Self>, lexopt::Error> {
        let mut options = Self {
            locks: "memory://".to_owned(),
            file: std::env::temp_dir().join("jobs.txt"),
            every: Duration::from_secs(1),
            lease: Duration::from_secs(30),
        };
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Long("locks") => options.locks = args.value()?.string()?,
                Long("file") => options.file = args.value()?.into(),
                Long("every") => options.every = args.value()?.parse_with(seconds)?,
                Long("lease") => options.lease = args.value()?.parse_with(seconds)?,
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        Ok(Some(options))
    }
}

/// Parses a duration that is not zero.
fn seconds(text: &str) -> Result<Duration, Box<dyn Error + Send + Sync>> {
    match Duration::try_from_secs_f64(text.parse()?)? {
        Duration::ZERO => Err("must be more than 0".into()),
        duration => Ok(duration),
    }
}
