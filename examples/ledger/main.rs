//! Shows: accounts and locks in one PostgreSQL, written by processes that are stopped for longer than their lease, and
//! killed.
//! Run: `cargo run --features postgres --example ledger`, and again with `-- --unfenced`.
//! Look at: `transfer`, whose transaction begins with the fence of its lock, and the sum at the end.
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a program with output.

mod server;

use std::error::Error;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use lexopt::prelude::*;
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, NoTls};
use tower_lock::{LockKey, LockManager, PostgresBackend};

use server::Server;

const HELP: &str = "\
Transfers between accounts, by processes that are stopped and killed.

Usage: cargo run --features postgres --example ledger -- [options]

  --locks URL        locks are there, and the table `ledger_account`, which is
                     replaced (default: a server in a temporary folder, from
                     the programs of PostgreSQL)
  --unfenced         transactions without the fence, until a cent is lost
  --seconds SECONDS  how long it runs (default 15; 120 without the fence)
  --help             show this
";

/// A process that is stopped for longer has lost its locks.
const LEASE: Duration = Duration::from_secs(1);
const STOP: Duration = Duration::from_millis(1800);
/// The time between the read and the write of a transfer.
const WORK: Duration = Duration::from_millis(30);
const WORKERS: usize = 4;
const ACCOUNTS: i32 = 3;
const CENTS: i32 = 1000;

/// Moves a cent. Without the fence, a process that was stopped in between writes what it read before.
async fn transfer(
    client: &mut Client,
    locks: &LockManager,
    (from, to): (i32, i32),
    is_fenced: bool,
) -> Result<(), Box<dyn Error>> {
    let keys = [from, to].map(|id| LockKey::from_parts(("account", id)));
    let guard = locks.acquire(keys).await?;
    let transaction = client.transaction().await?;
    if is_fenced {
        let (fence, keys, tokens) = guard.fence();
        transaction.execute(fence, &[&keys, &tokens]).await?;
    }
    let mut balances = Vec::new();
    for id in [from, to] {
        let row = transaction
            .query_one("SELECT cents FROM ledger_account WHERE id = $1", &[&id])
            .await?;
        balances.push(row.get::<_, i32>(0));
    }
    sleep(WORK).await;
    for (id, cents) in [(from, balances[0] - 1), (to, balances[1] + 1)] {
        let write = "UPDATE ledger_account SET cents = $1, transfers = transfers + 1 WHERE id = $2";
        transaction.execute(write, &[&cents, &id]).await?;
    }
    transaction.commit().await?;
    guard.release().await?;
    Ok(())
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// Transfers until the process is killed. A transfer that fails has changed nothing.
async fn work(url: &str, is_fenced: bool) -> Result<(), Box<dyn Error>> {
    let backend = PostgresBackend::builder(url).connect().await?;
    let locks = LockManager::builder(backend)
        .watchdog_timeout(LEASE)
        .build()?;
    let mut client = connect(url).await?;
    loop {
        let from = fastrand::i32(0..ACCOUNTS);
        let to = (from + fastrand::i32(1..ACCOUNTS)) % ACCOUNTS;
        if transfer(&mut client, &locks, (from, to), is_fenced)
            .await
            .is_err()
            && client.is_closed()
        {
            client = connect(url).await?;
        }
    }
}

fn start(url: &str, is_fenced: bool) -> Result<Child, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--worker", "--locks", url]);
    if !is_fenced {
        command.arg("--unfenced");
    }
    Ok(command.spawn()?)
}

fn signal(child: &Child, signal: &str) -> Result<(), Box<dyn Error>> {
    Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status()?;
    Ok(())
}

/// Returns by how many cents the sum has changed, and the number of transfers.
async fn changed(client: &Client) -> Result<(i64, i64), tokio_postgres::Error> {
    let sums = "SELECT sum(cents), sum(transfers) / 2 FROM ledger_account";
    let row = client.query_one(sums, &[]).await?;
    let (sum, transfers): (i64, i64) = (row.get(0), row.get(1));
    Ok((sum - i64::from(ACCOUNTS * CENTS), transfers))
}

/// Stops and kills workers, and returns by how many cents the sum has changed.
async fn run(url: &str, is_fenced: bool, time: Duration) -> Result<i64, Box<dyn Error>> {
    let client = connect(url).await?;
    let accounts = format!(
        "DROP TABLE IF EXISTS ledger_account;
         CREATE TABLE ledger_account (id int PRIMARY KEY, cents int NOT NULL,
           transfers int NOT NULL);
         INSERT INTO ledger_account SELECT id, {CENTS}, 0 FROM generate_series(0, {ACCOUNTS} - 1) id"
    );
    client.batch_execute(&accounts).await?;
    let workers: Result<Vec<_>, _> = (0..WORKERS).map(|_| start(url, is_fenced)).collect();
    let mut workers = workers?;
    let end = Instant::now() + time;
    loop {
        let (changed, transfers) = changed(&client).await?;
        let is_over = Instant::now() >= end;
        // With the fence, a slow machine needs more time for a transfer. Without it, a later loss could undo the first one.
        let is_shown = if is_fenced {
            is_over && transfers > 0
        } else {
            is_over || changed != 0
        };
        if is_shown {
            break;
        }
        sleep(Duration::from_millis(300)).await;
        let one = fastrand::usize(0..WORKERS);
        if fastrand::u8(0..4) > 0 {
            // One continues. A stopped process that held the lock loses it to that one.
            let others = || {
                workers
                    .iter()
                    .enumerate()
                    .filter(|(index, _)| *index != one)
            };
            others().try_for_each(|(_, worker)| signal(worker, "-STOP"))?;
            sleep(STOP).await;
            others().try_for_each(|(_, worker)| signal(worker, "-CONT"))?;
        } else {
            workers[one].kill()?;
            workers[one].wait()?;
            workers[one] = start(url, is_fenced)?;
        }
    }
    for worker in &mut workers {
        worker.kill()?;
        worker.wait()?;
    }
    // Transactions of killed processes end.
    sleep(LEASE).await;
    let (changed, transfers) = changed(&client).await?;
    println!("{transfers} transfers");
    Ok(changed)
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (mut url, mut is_fenced, mut is_worker) = (None, true, false);
    let mut seconds = None;
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("locks") => url = Some(arguments.value()?.string()?),
            Long("unfenced") => is_fenced = false,
            Long("seconds") => seconds = Some(arguments.value()?.parse()?),
            Long("worker") => is_worker = true,
            Long("help") => {
                print!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            _ => return Err(argument.unexpected().into()),
        }
    }
    let server = match &url {
        Some(_) => None,
        None => Some(Server::start()?),
    };
    let url = url.unwrap_or_else(|| server.as_ref().map(Server::url).unwrap_or_default());
    if is_worker {
        work(&url, is_fenced).await?;
    }
    if let Some(server) = &server {
        server.ready().await?;
    }
    let default = if is_fenced { 15 } else { 120 };
    let time = Duration::from_secs(seconds.unwrap_or(default));
    let changed = run(&url, is_fenced, time).await?;
    match (changed, is_fenced) {
        (0, true) => println!("no cent is lost"),
        (0, false) => println!("no cent is lost this time: repeat it, or run it for longer"),
        (_, false) => {
            println!("without the fence, the sum of all accounts has changed by {changed}");
        }
        (_, true) => {
            eprintln!("the sum of all accounts has changed by {changed}");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
