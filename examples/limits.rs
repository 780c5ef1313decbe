//! Shows: at most ten requests of each tenant at a time, over three processes.
//! Run: `cargo run --example limits`, or with `-- --locks redis://127.0.0.1:6379`.
//! Look at: `app`, which sets the limit in one line.
//!
//! Three tenants send their requests all at once. Each request goes to one of three services, which share only the
//! store of the locks. A request above the limit of its tenant receives 429 and `Retry-After`. Other tenants
//! are not affected.
//!
//! ```text
//! tenant     requests   admitted   rejected   most at a time
//! acme             40         10         30               10
//! globex           12         10          2               10
//! initech           5          5          0                5
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a program with output.

#[allow(dead_code)] // It ends without a signal.
mod shared;

use std::collections::HashMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::get;
use lexopt::prelude::*;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::ServiceExt as _;
use tower_lock::{LockLayer, LockManager, Memory};

use shared::with_causes;

const HELP: &str = "\
At most ten requests of each tenant at a time, over three processes.

Usage: cargo run --example limits -- [options]

  --locks URL  keep the permits there (default: in memory), for instance
               redis://127.0.0.1:6379
  --help       show this
";

const PROCESSES: usize = 3;
const LIMIT: u32 = 10;
/// The tenants, and how many requests each sends at once.
const TENANTS: [(&str, usize); 3] = [("acme", 40), ("globex", 12), ("initech", 5)];
/// How long a report takes.
const WORK: Duration = Duration::from_millis(200);

type Failure = Box<dyn Error + Send + Sync>;

/// The service. Each process runs one.
fn app(locks: LockManager, running: Running) -> Router {
    let limit = LockLayer::by_header(locks, "x-tenant")
        .permits(LIMIT)
        .no_wait();
    Router::new()
        .route("/report", get(report).route_layer(limit))
        .with_state(running)
}

/// Returns how many reports of the tenant run, this one included.
async fn report(State(running): State<Running>, headers: HeaderMap) -> String {
    let tenant = String::from_utf8_lossy(headers["x-tenant"].as_bytes());
    let count = running.add(&tenant, 1);
    sleep(WORK).await;
    running.add(&tenant, -1);
    count.to_string()
}

/// The reports that run, by tenant, over all processes. It checks the locks, and no lock reads it.
#[derive(Clone, Default)]
struct Running(Arc<Mutex<HashMap<String, i32>>>);

impl Running {
    fn add(&self, tenant: &str, more: i32) -> i32 {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(tenant.to_owned()).or_default();
        *count += more;
        *count
    }
}

/// What one tenant has seen.
#[derive(Default)]
struct Seen {
    admitted: usize,
    rejected: usize,
    most: u32,
}

/// Sends all requests at once, in turns to the services.
async fn send(apps: &[Router]) -> Result<[Seen; TENANTS.len()], Failure> {
    let mut requests = JoinSet::new();
    for (at, (tenant, count)) in TENANTS.into_iter().enumerate() {
        for n in 0..count {
            let app = apps[n % apps.len()].clone();
            let request = Request::get("/report").header("x-tenant", tenant);
            let request = request.body(Body::empty())?;
            requests.spawn(async move { (at, app.oneshot(request).await) });
        }
    }
    let mut all: [Seen; TENANTS.len()] = Default::default();
    while let Some(outcome) = requests.join_next().await {
        let (at, Ok(response)) = outcome?;
        let (seen, status) = (&mut all[at], response.status());
        let body = to_bytes(response.into_body(), usize::MAX).await?;
        let body = String::from_utf8_lossy(&body);
        match status {
            StatusCode::OK => {
                seen.admitted += 1;
                seen.most = seen.most.max(body.parse()?);
            }
            StatusCode::TOO_MANY_REQUESTS => seen.rejected += 1,
            _ => return Err(format!("{status}: {body}").into()),
        }
    }
    Ok(all)
}

/// Prints the table. Returns an error if a limit was exceeded, or a request below it was rejected.
fn print(all: &[Seen]) -> Result<(), Failure> {
    println!("tenant     requests   admitted   rejected   most at a time");
    for ((tenant, count), seen) in TENANTS.into_iter().zip(all) {
        let Seen {
            admitted,
            rejected,
            most,
        } = seen;
        println!("{tenant:<8}{count:>11}{admitted:>11}{rejected:>11}{most:>17}");
        if *most > LIMIT || *admitted < count.min(LIMIT as usize) {
            return Err(format!("{tenant} has a limit of {LIMIT}: this is a bug").into());
        }
    }
    Ok(())
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
            eprintln!("limits: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Failure> {
    let (running, memory) = (Running::default(), Memory::new());
    let mut apps = Vec::new();
    for _ in 0..PROCESSES {
        // A process has one manager. Managers share only the store.
        let locks = match &options.locks {
            Some(url) => LockManager::connect(url).await?,
            None => LockManager::builder(memory.clone()).build()?,
        };
        apps.push(app(locks, running.clone()));
    }
    print(&send(&apps).await?)
}

struct Options {
    locks: Option<String>,
}

impl Options {
    /// Returns `None` if help was requested.
    fn from_args() -> Result<Option<Self>, lexopt::Error> {
        let mut options = Self { locks: None };
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Long("locks") => options.locks = Some(args.value()?.string()?),
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        Ok(Some(options))
    }
}
