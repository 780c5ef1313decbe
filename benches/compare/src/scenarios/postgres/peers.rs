//! One pair of acquire and release, by each way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(feature = "distributed-postgres")]
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
#[cfg(feature = "distributed-postgres")]
use distributed_lock_postgres::PostgresLockProvider;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
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
    /// The statements of a pair of this crate without the crate.
    Bare(Client, [Statement; 2]),
    /// These statements in batches.
    Batches(Client, [Statement; 2]),
    /// These batches for callers with one key each: where acquires and releases are collected.
    Caller([UnboundedSender<Call>; 2]),
}

/// A key, and the answer to its caller.
type Call = (String, oneshot::Sender<()>);

/// The items of each of two batches while 64 are in flight.
const BATCH: u64 = 32;

const LEASE: &str = "00000000-0000-4000-8000-000000000000";

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

    /// What the server can do for a client that does nothing else: one pair after the other.
    pub(super) async fn bare(server: &PostgresServer) -> Result<Self, Failure> {
        let client = client(server).await?;
        let acquire =
            "SELECT counter FROM tower_lock.acquire_one($1, $2, 'x', 30000, 1e11, true, true)";
        let acquire = client.prepare(acquire).await?;
        let release = client
            .prepare("SELECT tower_lock.release_one($1, $2)")
            .await?;
        let worker = Worker::Bare(client, [acquire, release]);
        Ok(Self::new("the bare statements", vec![worker]))
    }

    /// These statements in batches from two connections at once, 64 in flight in all.
    pub(super) async fn batches(
        name: &'static str,
        server: &PostgresServer,
        durable: bool,
    ) -> Result<Self, Failure> {
        let mut workers = Vec::new();
        for _ in 0..2 {
            let client = client(server).await?;
            let statements = batched(&client, durable).await?;
            workers.push(Worker::Batches(client, statements));
        }
        Ok(Self::new(name, workers))
    }

    /// These batches for callers that have one key each, as those of a lock do. A connection sends the acquires that have
    /// come since its last reply, and another one the releases. More connections make smaller batches and fewer pairs.
    pub(super) async fn callers(
        name: &'static str,
        server: &PostgresServer,
        in_flight: usize,
    ) -> Result<Self, Failure> {
        let (acquire, acquires) = unbounded_channel();
        let (release, releases) = unbounded_channel();
        for (calls, at) in [(acquires, 0), (releases, 1)] {
            let client = client(server).await?;
            let statement = batched(&client, true).await?[at].clone();
            tokio::spawn(serve(client, statement, calls));
        }
        let workers = (0..in_flight).map(|_| Worker::Caller([acquire.clone(), release.clone()]));
        Ok(Self::new(name, workers.collect()))
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
                    let number = worker.pairs_at_once();
                    worker
                        .run(KEYS.fetch_add(number, Ordering::Relaxed))
                        .await?;
                    pairs.fetch_add(number, Ordering::Relaxed);
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

/// Prepares the statements that acquire and release keys.
async fn batched(client: &Client, durable: bool) -> Result<[Statement; 2], Failure> {
    let acquire = format!(
        "SELECT n, counter FROM tower_lock.acquire($1, $2, array_fill('x'::text, ARRAY[cardinality($1::text[])]),
            array_fill(30000::int8, ARRAY[cardinality($1::text[])]), 1e11, {durable})"
    );
    let release = "SELECT n, was_held FROM tower_lock.release($1, $2)";
    Ok([
        client.prepare(&acquire).await?,
        client.prepare(release).await?,
    ])
}

/// Answers the calls, at most [`BATCH`] with each statement. A caller whose batch fails finds that its answer is dropped.
async fn serve(client: Client, statement: Statement, mut calls: UnboundedReceiver<Call>) {
    let mut batch = Vec::new();
    while calls.recv_many(&mut batch, BATCH as usize).await > 0 {
        let keys: Vec<_> = batch.iter().map(|(key, _)| key.as_str()).collect();
        let leases = vec![LEASE; keys.len()];
        let Ok(_) = client.query(&statement, &[&keys, &leases]).await else {
            return;
        };
        for (_, caller) in batch.drain(..) {
            // The caller has not ended: it waits.
            let _ = caller.send(());
        }
    }
}

impl Worker {
    fn pairs_at_once(&self) -> u64 {
        match self {
            Self::Batches(..) => BATCH,
            _ => 1,
        }
    }

    /// Makes its pairs, under keys from `key` on.
    async fn run(&mut self, key: u64) -> Result<(), Failure> {
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
            Self::Bare(client, [acquire, release]) => {
                let key = format!("pair:{key}");
                client.query_one(acquire, &[&key, &LEASE]).await?;
                client.query_one(release, &[&key, &LEASE]).await?;
            }
            Self::Batches(client, [acquire, release]) => {
                let keys: Vec<_> = (key..key + BATCH)
                    .map(|key| format!("pair:{key}"))
                    .collect();
                let leases = vec![LEASE; keys.len()];
                client.query(acquire, &[&keys, &leases]).await?;
                client.query(release, &[&keys, &leases]).await?;
            }
            Self::Caller(calls) => {
                for collected in calls {
                    let (answer, answered) = oneshot::channel();
                    collected.send((format!("pair:{key}"), answer))?;
                    answered.await?;
                }
            }
        }
        Ok(())
    }
}
