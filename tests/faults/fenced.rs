//! Fenced transactions of several processes in one PostgreSQL. The rows that they commit judge the locks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, Error, NoTls};
use tower_lock::backend::postgres::PostgresBackendBuilder;
use tower_lock::{LockGuard, LockManager, PostgresBackend};

use crate::load::{millis, random};
use crate::run::Run;
use crate::support::engine::{MS, SECOND};
use crate::support::postgres_server::PostgresServer;
use crate::support::proxy::Proxy;

const PROCESSES: usize = 3;
const WORKERS: usize = 3;
const KEYS: u64 = 3;
/// A lease that many owners outlive before their transaction begins.
const SLOW: Duration = Duration::from_millis(300);
/// The longest time for a transaction, after which its connection is dropped.
const PATIENCE: Duration = Duration::from_secs(3);

/// Each row is what one owner read, plus one. Two owners that overlap commit the same number.
const TABLE: &str = "CREATE TABLE entry (key text NOT NULL, n int NOT NULL, token bigint NOT NULL)";

/// The proxies of one process.
pub(crate) struct Gate {
    pub(crate) locks: Proxy,
    pub(crate) notifications: Proxy,
    pub(crate) data: Proxy,
}

#[derive(Default)]
struct Seen {
    over: AtomicBool,
    /// The commits that a client saw confirmed.
    confirmed: Mutex<Vec<(String, i32)>>,
    stale: AtomicU64,
    failed: AtomicU64,
    unlocked: AtomicU64,
}

/// The processes under load, and their server.
pub(crate) struct Fenced {
    pub(crate) server: PostgresServer,
    pub(crate) gates: Vec<Gate>,
    pub(crate) managers: Vec<LockManager>,
    lease: Duration,
    seen: Arc<Seen>,
    workers: Vec<JoinHandle<()>>,
}

async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

impl Fenced {
    /// Starts the load. `durable`: grants are on disk before their reply.
    pub(crate) async fn start(run: &Run, server: PostgresServer, durable: bool) -> Self {
        let settings = |builder: PostgresBackendBuilder| match durable {
            true => builder,
            false => builder.relaxed(),
        };
        Self::start_by(run, server, |gate, server| {
            let url = server.url_at(gate.locks.port());
            settings(PostgresBackend::builder(url))
        })
        .await
    }

    /// Starts the load over the backends that a function builds.
    pub(crate) async fn start_by(
        run: &Run,
        server: PostgresServer,
        builder: impl Fn(&Gate, &PostgresServer) -> PostgresBackendBuilder,
    ) -> Self {
        server.run(TABLE).await;
        let mut fenced = Self {
            server,
            gates: Vec::new(),
            managers: Vec::new(),
            lease: run.row.lease,
            seen: Arc::default(),
            workers: Vec::new(),
        };
        for _ in 0..PROCESSES {
            let port = fenced.server.port();
            let gate = Gate {
                locks: Proxy::start(port).await,
                notifications: Proxy::start(port).await,
                data: Proxy::start(port).await,
            };
            let listen = fenced.server.url_at(gate.notifications.port());
            let backend = builder(&gate, &fenced.server).listen(listen).connect();
            let locks = fenced.manage(backend.await.expect("the server is there"));
            for _ in 0..WORKERS {
                let work = Worker {
                    locks: locks.clone(),
                    url: fenced.server.url_at(gate.data.port()),
                    seen: Arc::clone(&fenced.seen),
                    client: None,
                };
                fenced.workers.push(tokio::spawn(work.run()));
            }
            fenced.gates.push(gate);
        }
        fenced.recovers(run, "start").await;
        fenced
    }

    pub(crate) fn manage(&mut self, backend: PostgresBackend) -> LockManager {
        let builder = LockManager::builder(backend).watchdog_timeout(self.lease);
        let locks = builder.build().expect("valid settings");
        self.managers.push(locks.clone());
        locks
    }

    fn confirmed(&self) -> Vec<(String, i32)> {
        let confirmed = self.seen.confirmed.lock();
        confirmed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Expects a confirmed commit under each key, all from now on. Returns the time that it took.
    pub(crate) async fn recovers(&self, run: &Run, after: &str) -> Duration {
        let begun = Instant::now();
        let before = self.confirmed().len();
        // A transaction may run into its timeout, a lease may have to expire, and a waiter attempts once a second.
        let limit = PATIENCE + self.lease + 2 * SECOND;
        loop {
            let confirmed = self.confirmed();
            let has_one = |key: u64| {
                let mut new = confirmed[before..].iter();
                new.any(|(it, _)| *it == name(key))
            };
            let took = begun.elapsed();
            if (0..KEYS).all(has_one) {
                return took;
            }
            let net = took.saturating_sub(run.referee.stall_detector.delay(begun, Instant::now()));
            if net > limit {
                let what = format!("{after}: no commit under each key in {took:?}");
                run.referee.violation("recovery", what);
                return took;
            }
            sleep(5 * MS).await;
        }
    }

    /// Ends the load after its recovery, and judges the rows.
    pub(crate) async fn finish(mut self, run: &mut Run) {
        let took = self.recovers(run, "fault").await;
        self.seen.over.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            let ended = timeout(10 * SECOND, worker).await;
            let is_well = matches!(ended, Ok(Ok(())));
            (run.referee).expect(is_well, "worker", || format!("{ended:?}"));
        }
        self.is_left_idle(run).await;
        let client = self.server.client().await;
        let rows = client
            .query(
                "SELECT key, n, token FROM entry ORDER BY key, n, token",
                &[],
            )
            .await
            .expect("rows");
        let rows = rows.iter().map(|it| (it.get(0), it.get(1), it.get(2)));
        let rows: Vec<(String, i32, i64)> = rows.collect();
        for key in (0..KEYS).map(name) {
            let of_key: Vec<_> = rows.iter().filter(|row| row.0 == key).collect();
            for (row, n) in of_key.iter().zip(1..) {
                run.referee.expect(row.1 == n, "fence", || {
                    format!("{key}: {} instead of {n}: two owners read the same", row.1)
                });
            }
            let in_order = of_key.is_sorted_by_key(|row| row.2);
            run.referee
                .expect(in_order, "I4", || format!("{key}: tokens decrease"));
        }
        let confirmed = self.confirmed();
        let is_there = |(key, n): &(String, i32)| rows.iter().any(|it| it.0 == *key && it.1 == *n);
        run.referee
            .expect(confirmed.iter().all(is_there), "durability", || {
                "a confirmed commit is gone".to_owned()
            });
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        run.evidence(format!(
            "{} rows, {} confirmed, {} stale, {} failed, {} without a lock, recovered in {took:.0?}",
            rows.len(),
            confirmed.len(),
            count(&self.seen.stale),
            count(&self.seen.failed),
            count(&self.seen.unlocked),
        ));
    }

    /// I10: neither leases nor holders outlive the load for longer than a lease.
    async fn is_left_idle(&self, run: &Run) {
        let begun = Instant::now();
        let client = self.server.client().await;
        let live = "SELECT count(*) FROM tower_lock.lease WHERE until > clock_timestamp()";
        loop {
            let row = client.query_one(live, &[]).await.expect("a count");
            let left: i64 = row.get(0);
            let idle = self.managers.iter().all(|it| it.snapshot().is_idle());
            if left == 0 && idle {
                return;
            }
            if begun.elapsed() > self.lease + 2 * SECOND {
                let snapshots: Vec<_> = self.managers.iter().map(LockManager::snapshot).collect();
                let what = format!("{left} leases left: {snapshots:?}");
                return run.referee.violation("I10", what);
            }
            sleep(5 * MS).await;
        }
    }
}

fn name(key: u64) -> String {
    format!("account:{key}")
}

struct Worker {
    locks: LockManager,
    url: String,
    seen: Arc<Seen>,
    client: Option<Client>,
}

impl Worker {
    async fn run(mut self) {
        while !self.seen.over.load(Ordering::SeqCst) {
            let key = name(random(KEYS));
            let acquire = self.locks.acquire(&*key).wait(2 * SECOND);
            let is_slow = random(6) == 0;
            let acquire = match is_slow {
                true => acquire.lease(SLOW),
                false => acquire,
            };
            let Ok(guard) = acquire.await else {
                self.seen.unlocked.fetch_add(1, Ordering::SeqCst);
                sleep(10 * MS).await;
                continue;
            };
            if is_slow {
                sleep(millis(100..600)).await;
            }
            // The loss of the lock does not stop the owner: the fence has to.
            match timeout(PATIENCE, self.transact(&key, &guard)).await {
                Ok(Ok(n)) => {
                    let confirmed = self.seen.confirmed.lock();
                    let mut confirmed = confirmed.unwrap_or_else(PoisonError::into_inner);
                    confirmed.push((key, n));
                }
                Ok(Err(error)) if error.code().is_some_and(|it| it.code() == "TL001") => {
                    self.seen.stale.fetch_add(1, Ordering::SeqCst);
                }
                _ => {
                    self.client = None;
                    self.seen.failed.fetch_add(1, Ordering::SeqCst);
                    sleep(10 * MS).await;
                }
            }
            drop(guard.release().await);
        }
    }

    async fn transact(&mut self, key: &str, guard: &LockGuard) -> Result<i32, Error> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(connect(&self.url).await?),
        };
        let transaction = client.transaction().await?;
        let (fence, keys, tokens) = guard.fence();
        transaction.execute(fence, &[&keys, &tokens]).await?;
        let read = "SELECT coalesce(max(n), 0) FROM entry WHERE key = $1";
        let last: i32 = transaction.query_one(read, &[&key]).await?.get(0);
        sleep(millis(1..15)).await;
        let write = "INSERT INTO entry VALUES ($1, $2, $3)";
        transaction
            .execute(write, &[&key, &(last + 1), &tokens[0]])
            .await?;
        transaction.commit().await?;
        Ok(last + 1)
    }
}
