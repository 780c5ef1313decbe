//! One pair of acquire and release, by each way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(feature = "distributed-postgres")]
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
#[cfg(feature = "distributed-postgres")]
use distributed_lock_postgres::PostgresLockProvider;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_postgres::{Client, Statement};
use tower_lock::LockManager;

use super::client;
use crate::postgres_server::PostgresServer;
use crate::table::Series;
use crate::work::Failure;

/// The rows that `SELECT … FOR UPDATE` locks.
const ROWS: u64 = 10_000;

pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) rate: Series,
    /// One worker per pair in flight.
    workers: Vec<Worker>,
}

enum Worker {
    Ours(LockManager),
    /// The two statements of a session.
    Advisory(Client, [Statement; 2]),
    /// The statement in a transaction.
    Row(Client, Statement),
    /// With the defaults: at most ten connections, each for one lock that is held or waits.
    #[cfg(feature = "distributed-postgres")]
    Distributed(Arc<PostgresLockProvider>),
    /// A commit to disk and a round trip.
    Commit(Client, [Statement; 2]),
}

static KEYS: AtomicU64 = AtomicU64::new(0);

impl Peer {
    fn new(name: &'static str, workers: Vec<Worker>) -> Self {
        Self {
            name,
            rate: Series::default(),
            workers,
        }
    }

    pub(super) fn ours(name: &'static str, locks: &LockManager, in_flight: usize) -> Self {
        let workers = (0..in_flight).map(|_| Worker::Ours(locks.clone()));
        Self::new(name, workers.collect())
    }

    pub(super) async fn advisory(
        server: &PostgresServer,
        in_flight: usize,
    ) -> Result<Self, Failure> {
        let mut workers = Vec::new();
        for _ in 0..in_flight {
            let client = client(server).await?;
            let lock = client.prepare("SELECT pg_advisory_lock($1)").await?;
            let unlock = client.prepare("SELECT pg_advisory_unlock($1)").await?;
            workers.push(Worker::Advisory(client, [lock, unlock]));
        }
        Ok(Self::new("session advisory lock", workers))
    }

    pub(super) async fn row(server: &PostgresServer, in_flight: usize) -> Result<Self, Failure> {
        let rows = format!(
            "CREATE TABLE IF NOT EXISTS lockable (id bigint PRIMARY KEY);
             INSERT INTO lockable SELECT generate_series(0, {ROWS} - 1) ON CONFLICT DO NOTHING"
        );
        server.run(&rows).await;
        let mut workers = Vec::new();
        for _ in 0..in_flight {
            let client = client(server).await?;
            let select = "SELECT FROM lockable WHERE id = $1 FOR UPDATE";
            let select = client.prepare(select).await?;
            workers.push(Worker::Row(client, select));
        }
        Ok(Self::new("`SELECT … FOR UPDATE`", workers))
    }

    /// `None` in a build without the feature `distributed-postgres`.
    #[cfg(feature = "distributed-postgres")]
    pub(super) async fn distributed(
        server: &PostgresServer,
        in_flight: usize,
    ) -> Result<Option<Self>, Failure> {
        let provider = Arc::new(PostgresLockProvider::new(server.url()).await?);
        let workers = (0..in_flight).map(|_| Worker::Distributed(Arc::clone(&provider)));
        Ok(Some(Self::new("distributed-lock", workers.collect())))
    }

    #[cfg(not(feature = "distributed-postgres"))]
    pub(super) async fn distributed(_: &PostgresServer, _: usize) -> Result<Option<Self>, Failure> {
        Ok(None)
    }

    pub(super) async fn commit(server: &PostgresServer) -> Result<Self, Failure> {
        let table = "CREATE TABLE IF NOT EXISTS committed (id bigint)";
        server.run(table).await;
        let client = client(server).await?;
        let write = client.prepare("INSERT INTO committed VALUES ($1)").await?;
        let read = client.prepare("SELECT $1::bigint").await?;
        let worker = Worker::Commit(client, [write, read]);
        Ok(Self::new("one commit and a round trip", vec![worker]))
    }

    /// Runs pairs for a time, and adds their rate.
    pub(super) async fn run(&mut self, window: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        let pairs = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for mut worker in self.workers.drain(..) {
            let pairs = Arc::clone(&pairs);
            tasks.spawn(async move {
                while begun.elapsed() < window {
                    worker.pair(KEYS.fetch_add(1, Ordering::Relaxed)).await?;
                    pairs.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, Failure>(worker)
            });
        }
        while let Some(worker) = tasks.join_next().await {
            self.workers.push(worker??);
        }
        let pairs = pairs.load(Ordering::Relaxed) as f64;
        self.rate.add(pairs / begun.elapsed().as_secs_f64());
        Ok(())
    }
}

impl Worker {
    async fn pair(&mut self, key: u64) -> Result<(), Failure> {
        let id = i64::try_from(key % ROWS)?;
        match self {
            Self::Ours(locks) => {
                let guard = locks.acquire(format!("pair:{key}")).await?;
                guard.release().await?;
            }
            Self::Advisory(client, [lock, unlock]) => {
                client.query(lock, &[&id]).await?;
                client.query(unlock, &[&id]).await?;
            }
            Self::Row(client, select) => {
                let transaction = client.transaction().await?;
                transaction.query(select, &[&id]).await?;
                transaction.commit().await?;
            }
            #[cfg(feature = "distributed-postgres")]
            Self::Distributed(provider) => {
                let lock = provider.create_lock(&format!("pair:{key}"));
                lock.acquire(None).await?.release().await?;
            }
            Self::Commit(client, [write, read]) => {
                client.execute(write, &[&id]).await?;
                client.query(read, &[&id]).await?;
            }
        }
        Ok(())
    }
}
