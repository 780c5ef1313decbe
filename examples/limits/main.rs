//! Shows: at most ten requests of each tenant at a time, over three processes.
//! Run: `cargo run --example limits -- --locks redis://127.0.0.1:6379`.
//! Look at: `app` in `service.rs`, which sets the limit in one line.
//!
//! Three tenants send their requests all at once. Each request goes to one of three processes, which share only the
//! backend of the locks. A request above the limit of its tenant receives 429 and `Retry-After`. Other tenants
//! are not affected. Without `--locks`, the three services run in this process, with their locks in memory.
//!
//! ```text
//! tenant     requests   admitted   rejected   most at a time
//! acme             40         10         30               10
//! globex           12         10          2               10
//! initech           5          5          0                5
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a program with output.

mod send;
mod service;
#[allow(dead_code)] // This example ends without a signal.
#[path = "../shared/mod.rs"]
mod shared;

use std::error::Error;
use std::process::ExitCode;

use lexopt::prelude::*;
use tower_lock::{LockManager, Memory};

use send::Seen;
use service::{LIMIT, Service};
use shared::with_causes;

const HELP: &str = "\
At most ten requests of each tenant at a time, over three processes.

Usage: cargo run --example limits -- [options]

  --locks URL  start three processes that keep the permits there, for
               instance redis://127.0.0.1:6379 (default: three services in
               this process, with the permits in its memory)
  --serve      be one of the three processes: print the port, and end with
               the standard input
  --help       show this
";

const SERVICES: usize = 3;
/// The tenants, and how many requests each sends at once.
const TENANTS: [(&str, usize); 3] = [("acme", 40), ("globex", 12), ("initech", 5)];

type Failure = Box<dyn Error + Send + Sync>;

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
            eprintln!("limits: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Failure> {
    if options.serve {
        let url = options.locks.ok_or("--serve requires --locks")?;
        return service::serve_until_input_ends(LockManager::connect(&url).await?).await;
    }
    let memory = Memory::new();
    let mut services = Vec::new();
    for _ in 0..SERVICES {
        services.push(match &options.locks {
            Some(url) => Service::process(url).await?,
            // Managers share only the store, as processes do.
            None => Service::task(LockManager::builder(memory.clone()).build()?).await?,
        });
    }
    let ports: Vec<u16> = services.iter().map(|it| it.port).collect();
    let seen = send::send(&ports).await?;
    for service in services {
        service.stop().await?;
    }
    print(&seen)
}

/// Prints the table. Returns an error if a limit was exceeded, or a request below it was rejected.
fn print(all: &[Seen]) -> Result<(), Failure> {
    println!("tenant     requests   admitted   rejected   most at a time");
    for ((tenant, count), seen) in TENANTS.into_iter().zip(all) {
        let (admitted, most) = (seen.reports.len(), seen.most_at_a_time());
        let rejected = seen.rejected;
        println!("{tenant:<8}{count:>11}{admitted:>11}{rejected:>11}{most:>17}");
        let limit = LIMIT as usize;
        if most > limit || admitted < count.min(limit) {
            return Err(format!("{tenant} has a limit of {LIMIT}: this is a bug").into());
        }
    }
    Ok(())
}

struct Options {
    locks: Option<String>,
    serve: bool,
}

impl Options {
    /// Returns `None` if help was requested.
    fn from_args() -> Result<Option<Self>, lexopt::Error> {
        let mut options = Self {
            locks: None,
            serve: false,
        };
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Long("locks") => options.locks = Some(args.value()?.string()?),
                Long("serve") => options.serve = true,
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        Ok(Some(options))
    }
}
