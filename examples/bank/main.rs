//! Shows: a bank whose transfers lose updates without locks, and none with locks. The same for torn statements.
//! Run: `cargo run --example bank`.
//! Look at: `routes`, the part that a service of your own would have.
//!
//! The program serves a small HTTP API and sends transfers to itself, first through a route without locks, then
//! through routes with locks. Beside the transfers, statements read all accounts under shared locks. It prints a table
//! of lost updates and torn statements, and stays open for customers. With `--features dashboard`, it shows its locks
//! at `/ops/locks`:
//!
//! ```text
//! route                             requests   lost or torn  busy        p50        p99
//! POST /unlocked/transfers               320     595 of 640     0     5.5 ms     9.3 ms
//! POST /accounts/{account}/deposit       320       0 of 320     0     8.0 ms   485.5 ms
//! POST /transfers                        320       0 of 640     0   238.9 ms   489.4 ms
//! GET /statement                         320       0 of 320     0   295.7 ms   478.8 ms
//! GET /unlocked/statement                320      82 of 320     0    16.7 ms    45.0 ms
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a program with output.

mod bank;
mod options;
mod play;
mod routes;
#[path = "../shared/mod.rs"]
mod shared;
mod table;

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower_lock::LockManager;

use bank::Bank;
use options::Options;
use shared::{stop_requested, with_causes};

/// How long requests have to finish after a signal.
const GRACE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::from_args() {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{}", options::HELP);
            return ExitCode::SUCCESS;
        }
        Err(error) => return refuse(&format!("{error}; try --help")),
    };
    let locks = match LockManager::connect(&options.locks).await {
        Ok(locks) => locks,
        Err(error) => return refuse(&format!("--locks: {}", with_causes(&error))),
    };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => return refuse(&format!("--port: cannot listen on {address}: {error}")),
    };
    match run(listener, locks, options.once).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bank: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run(
    listener: TcpListener,
    locks: LockManager,
    once: bool,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let address = listener.local_addr()?;
    let app = routes::app(Arc::new(Bank::open()), locks.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let mut server = JoinSet::new();
    server.spawn(
        axum::serve(listener, app)
            .with_graceful_shutdown(async { drop(stopped.await) })
            .into_future(),
    );
    println!("The bank is open at http://{address}.\n");

    let outcome = tokio::select! {
        outcome = demonstrate(address, once) => outcome,
        stopping = stop_requested() => {
            println!("\nClosing: requests under way may finish.");
            stopping.map_err(Into::into)
        }
    };

    // Both run concurrently. The server accepts no connections and lets its requests finish. The manager serves
    // those that wait, and releases the locks of the requests that finish.
    drop(stop);
    let (left, served) = tokio::join!(locks.shutdown(GRACE), timeout(GRACE, server.join_next()));
    if served.is_err() || !left.is_idle() {
        eprintln!("bank: still at work after {GRACE:?}: {left:?}");
    }
    outcome
}

/// Sends the transfers, prints the result, and then waits to be interrupted.
async fn demonstrate(address: SocketAddr, once: bool) -> Result<(), Box<dyn Error + Send + Sync>> {
    let seen = play::play(address).await?;
    println!("{}", table::render(&seen));
    println!("{}", table::verdict(&seen)?);
    if !once {
        println!("{}", routes::things_to_try(address));
        play::keep_busy(address).await?;
    }
    Ok(())
}

/// The program was started in a way that cannot work.
fn refuse(message: &str) -> ExitCode {
    eprintln!("bank: {message}");
    ExitCode::from(2)
}
