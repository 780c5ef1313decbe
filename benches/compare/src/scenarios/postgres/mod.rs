//! Locks in PostgreSQL beside those in Redis, and beside other locks of PostgreSQL.

mod fence;
mod held;
mod herd;
mod pairs;
mod peers;

use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use tower_lock::{LockManager, PostgresBackend};

use crate::bench::Bench;
use crate::postgres_server::PostgresServer;
use crate::work::Failure;

/// The length of a window.
const WINDOW: Duration = Duration::from_secs(1);

/// Commits reach the disk, as those of a real server do.
const SETTINGS: [&str; 4] = [
    "fsync=on",
    "shared_buffers=128MB",
    "max_wal_size=2GB",
    "max_connections=300",
];

/// As on a disk whose commit takes 3 ms more.
const SLOW: [&str; 2] = ["commit_delay=3000", "commit_siblings=0"];

/// The server itself writes nothing now and then.
const SILENT: [&str; 4] = [
    "autovacuum=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "bgwriter_lru_maxpages=0",
];

pub(crate) fn run(bench: &mut Bench) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Err(error) = runtime.block_on(measure(bench)) {
        (bench.table).left_out("postgres", "tower-lock", &error.to_string());
    }
}

async fn measure(bench: &mut Bench) -> Result<(), Failure> {
    let server = PostgresServer::start(&SETTINGS).await;
    pairs::many(bench, &server).await?;
    pairs::one(bench, &server, "this disk").await?;
    fence::measure(bench, &server, "this disk").await?;
    let slow = PostgresServer::start(&[&SETTINGS[..], &SLOW].concat()).await;
    pairs::one(bench, &slow, "a disk of 3 ms").await?;
    fence::measure(bench, &slow, "a disk of 3 ms").await?;
    drop((server, slow));
    held::busy(bench, &PostgresServer::start(&SILENT).await).await?;
    // Without the dead rows of the pairs, which autovacuum removes.
    let server = PostgresServer::start(&SETTINGS).await;
    held::idle(bench, &server).await?;
    held::hot(bench, &server).await?;
    drop(server);
    herd::measure(bench).await
}

async fn client(server: &PostgresServer) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

async fn manager(server: &PostgresServer, durable: bool) -> Result<LockManager, Failure> {
    let builder = PostgresBackend::builder(server.url());
    let builder = match durable {
        true => builder,
        false => builder.relaxed(),
    };
    Ok(LockManager::builder(builder.connect().await?).build()?)
}
