//! Shows: a job that runs at intervals, in one process at a time of any number.
//! Run: `cargo run --example jobs -- --locks redis://127.0.0.1:6379` in two terminals, and end the one that prints.
//! Look at: `run_every`, which holds the lock between the runs, and waits for it in all other processes.
//!
//! A process that ends by Ctrl-C or SIGTERM finishes its run and releases the lock. Another one then runs the job one
//! interval later. If the first one is killed, `--lease` passes before.
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
use tokio::time::sleep;
use tower_lock::{FencingToken, LockManagerBuilder};

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
    let locks = LockManagerBuilder::new()
        .watchdog_timeout(options.lease)
        .connect(&options.locks)
        .await?;
    println!("Runs go to {}. Ctrl-C to end.", options.file.display());
    let stopping = async {
        stop_requested().await?;
        // Ends the wait of a process that waits, and lets one that holds the lock release it.
        let left = locks.shutdown(GRACE).await;
        if !left.is_idle() {
            eprintln!("jobs: still at work after {GRACE:?}: {left:?}");
        }
        Ok::<_, Box<dyn Error>>(())
    };
    let job = locks.acquire("job:count").run_every(options.every, |held| {
        let run = count(&options.file, held.fencing_token());
        async move {
            // The next run may succeed.
            if let Err(error) = run.await {
                eprintln!("jobs: {error}");
            }
        }
    });
    let job = async { job.await.map_err(Box::<dyn Error>::from) };
    tokio::try_join!(stopping, job)?;
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
