//! A bank that takes every account's lock before it touches the account.
//!
//! ```text
//! cargo run --example bank
//! ```
//!
//! It serves a small HTTP API and plays transfers against itself, first through a route without
//! locks, which loses updates, then through routes with locks, which must lose none. Then it goes
//! on serving.
//!
//! Start reading in `routes`: it is the part that an application of your own would have.
#![allow(clippy::print_stdout, clippy::print_stderr)] // It talks to whoever runs it.

mod bank;
mod options;
mod play;
mod routes;
mod table;

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower_lock::LockManager;

use bank::Bank;
use options::Options;

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
        stopping = told_to_stop() => {
            println!("\nClosing: requests under way may finish.");
            stopping.map_err(Into::into)
        }
    };

    // Both at once: the server takes no new connections and lets its requests finish; the manager
    // refuses those that still wait for a lock, and gives back what the others held.
    drop(stop);
    let (left, served) = tokio::join!(locks.shutdown(GRACE), timeout(GRACE, server.join_next()));
    if served.is_err() || !left.is_idle() {
        eprintln!("bank: still at work after {GRACE:?}: {left:?}");
    }
    outcome
}

/// Plays, says what came of it, and then waits to be interrupted.
async fn demonstrate(address: SocketAddr, once: bool) -> Result<(), Box<dyn Error + Send + Sync>> {
    let seen = play::play(address).await?;
    println!("{}", table::render(&seen));
    println!("{}", table::verdict(&seen)?);
    if !once {
        println!("{}", routes::things_to_try(address));
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Completes at Ctrl-C and at SIGTERM, by which service managers and containers stop a program.
async fn told_to_stop() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            interrupted = ctrl_c() => interrupted,
            _ = terminated.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    ctrl_c().await
}

/// The program was started in a way that cannot work.
fn refuse(message: &str) -> ExitCode {
    eprintln!("bank: {message}");
    ExitCode::from(2)
}

/// An error and what caused it, each of which says its own level only.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
