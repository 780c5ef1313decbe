//! Fenced transactions of several processes in one PostgreSQL. The rows that they commit judge the locks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, Error, NoTls};
use tower_lock::backend::postgres::PostgresBackendBuilder;
use tower_lock::{LockManager, PostgresBackend};

use crate::load::{millis, random};
use crate::old_process::OldProcess;
use crate::run::Run;
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::errors::chain;
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

/// The statement of [`tower_lock::Held::fence`], which processes of version 1 send as well.
const FENCE: &str = "SELECT tower_lock.fence($1::text[], $2::bigint[])";

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
    confirmed: Mutex<Vec<(String, i32, i64)>>,
    stale: AtomicU64,
    failed: AtomicU64,
    unlocked: AtomicU64,
    /// The drops that left a kept lease.
    kept: AtomicU64,
    /// The releases that failed because the queue of notifications was full.
    unreleased: AtomicU64,
    /// The commits of processes of version 1.
    old: AtomicU64,
    /// The highest token of a grant of each key.
    tokens: Mutex<[i64; KEYS as usize]>,
    /// The grants with a token that is not higher than that of a grant from before their attempt.
    decreased: Mutex<Vec<String>>,
}

impl Seen {
    fn confirm(&self, commit: (String, i32, i64)) {
        let confirmed = self.confirmed.lock();
        let mut confirmed = confirmed.unwrap_or_else(PoisonError::into_inner);
        confirmed.push(commit);
    }

    fn token(&self, key: u64) -> i64 {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens[usize::try_from(key).unwrap()]
    }

    /// `before`: the highest token at the attempt.
    fn granted(&self, key: u64, token: i64, before: i64) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let highest = &mut tokens[usize::try_from(key).unwrap()];
        *highest = token.max(*highest);
        if token <= before {
            let decreased = self.decreased.lock();
            let mut decreased = decreased.unwrap_or_else(PoisonError::into_inner);
            decreased.push(format!("{}: token {token} after {before}", name(key)));
        }
    }
}

/// The processes under load, and their server.
pub(crate) struct Fenced {
    pub(crate) server: PostgresServer,
    pub(crate) gates: Vec<Gate>,
    pub(crate) managers: Vec<LockManager>,
    /// The standby, whose connections have no proxies.
    standby: Option<PostgresServer>,
    /// The primary before the promotion, which may hang.
    former: Option<PostgresServer>,
    /// The longest time until a connection leads to the standby.
    pub(crate) dial: Duration,
    /// Whether commits that clients saw confirmed may be gone.
    pub(crate) loses_commits: bool,
    lease: Duration,
    keep: Duration,
    seen: Arc<Seen>,
    workers: Vec<JoinHandle<()>>,
}

/// Connects to the first server that accepts writes.
async fn connect(urls: &[String]) -> Option<Client> {
    for url in urls {
        let url = format!("{url}?target_session_attrs=read-write");
        let connected = timeout(SECOND, tokio_postgres::connect(&url, NoTls)).await;
        if let Ok(Ok((client, connection))) = connected {
            tokio::spawn(async move { drop(connection.await) });
            return Some(client);
        }
    }
    None
}

impl Fenced {
    /// Starts the load. `durable`: grants are on disk before their reply.
    pub(crate) async fn start(run: &Run, server: PostgresServer, durable: bool) -> Self {
        Self::start_by(run, server, None, settings(durable)).await
    }

    /// Starts the load, whose URLs name a standby as well.
    pub(crate) async fn start_with_standby(
        run: &Run,
        server: PostgresServer,
        standby: PostgresServer,
        durable: bool,
    ) -> Self {
        Self::start_by(run, server, Some(standby), settings(durable)).await
    }

    /// Starts the load over the backends that a function builds.
    pub(crate) async fn start_by(
        run: &Run,
        server: PostgresServer,
        standby: Option<PostgresServer>,
        builder: impl Fn(String) -> PostgresBackendBuilder,
    ) -> Self {
        server.run(TABLE).await;
        let mut fenced = Self {
            server,
            gates: Vec::new(),
            managers: Vec::new(),
            standby,
            former: None,
            dial: Duration::ZERO,
            loses_commits: false,
            lease: run.row.lease,
            keep: run.row.keep,
            seen: Arc::default(),
            workers: Vec::new(),
        };
        for process in 0..PROCESSES as u64 {
            let port = fenced.server.port();
            let gate = Gate {
                locks: Proxy::start(port).await,
                notifications: Proxy::start(port).await,
                data: Proxy::start(port).await,
            };
            let listen = fenced.url_at(&gate.notifications);
            let backend = builder(fenced.url_at(&gate.locks)).listen(listen).connect();
            let locks = fenced.manage(backend.await.expect("the server is there"));
            // The lease of a key that another worker waits for is not kept.
            let workers = if fenced.keep.is_zero() { WORKERS } else { 1 };
            for _ in 0..workers {
                let work = Worker {
                    locks: locks.clone(),
                    own: (!fenced.keep.is_zero()).then_some(process),
                    urls: fenced.urls_at(&gate.data),
                    seen: Arc::clone(&fenced.seen),
                    client: None,
                };
                fenced.workers.push(tokio::spawn(work.run()));
            }
            fenced.gates.push(gate);
        }
        fenced.recovers(run, "start").await;
        if !fenced.keep.is_zero() {
            let kept = || fenced.seen.kept.load(Ordering::SeqCst);
            eventually("leases are kept", || kept() > 10).await;
        }
        fenced
    }

    pub(crate) fn manage(&mut self, backend: PostgresBackend) -> LockManager {
        let builder = LockManager::builder(backend).watchdog_timeout(self.lease);
        let locks = builder
            .keep_released(self.keep)
            .build()
            .expect("valid settings");
        self.managers.push(locks.clone());
        locks
    }

    fn ports_at(&self, proxy: &Proxy) -> impl Iterator<Item = u16> {
        let standby = self.standby.as_ref().map(PostgresServer::port);
        [proxy.port()].into_iter().chain(standby)
    }

    /// Adds a process that calls the functions of version 1.
    pub(crate) fn add_old_process(&mut self) {
        let (url, seen) = (self.server.url(), Arc::clone(&self.seen));
        self.workers.push(tokio::spawn(async move {
            let mut process = OldProcess::start(&url).await;
            let mut client = connect(&[url]).await.expect("the server is there");
            while !seen.over.load(Ordering::SeqCst) {
                let number = random(KEYS);
                let (key, before) = (name(number), seen.token(number));
                let Some(token) = process.acquire(&key).await else {
                    seen.unlocked.fetch_add(1, Ordering::SeqCst);
                    continue;
                };
                seen.granted(number, token, before);
                let n = transact(&mut client, &key, token)
                    .await
                    .expect("it is held");
                seen.old.fetch_add(1, Ordering::SeqCst);
                seen.confirm((key.clone(), n, token));
                process.release(&key).await;
                sleep(millis(0..20)).await;
            }
        }));
    }

    /// Returns the number of releases that failed because the queue of notifications was full.
    pub(crate) fn unreleased(&self) -> u64 {
        self.seen.unreleased.load(Ordering::SeqCst)
    }

    /// Returns the number of commits of processes of version 1, and of all.
    pub(crate) fn commits(&self) -> (u64, u64) {
        let all = self.confirmed().len() as u64;
        (self.seen.old.load(Ordering::SeqCst), all)
    }

    /// Returns the URL of each server.
    fn urls_at(&self, proxy: &Proxy) -> Vec<String> {
        let ports = self.ports_at(proxy);
        ports.map(|port| self.server.url_at(port)).collect()
    }

    fn url_at(&self, proxy: &Proxy) -> String {
        let ports: Vec<_> = self.ports_at(proxy).collect();
        PostgresServer::url_of_hosts(&ports) + "?target_session_attrs=read-write"
    }

    /// Promotes the standby after a fault of the server, which it replaces.
    pub(crate) async fn fail_over(&mut self, fault: impl AsyncFn(&mut PostgresServer)) {
        let standby = self.standby.take().expect("a standby");
        let mut former = std::mem::replace(&mut self.server, standby);
        fault(&mut former).await;
        self.server.promote().await;
        self.former = Some(former);
    }

    fn confirmed(&self) -> Vec<(String, i32, i64)> {
        let confirmed = self.seen.confirmed.lock();
        confirmed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Expects a confirmed commit under each key, all from now on. Returns the time that it took.
    pub(crate) async fn recovers(&self, run: &Run, after: &str) -> Duration {
        let begun = Instant::now();
        let before = self.confirmed().len();
        // A transaction may run into its timeout, a lease may have to expire, and a waiter attempts once a second.
        let limit = PATIENCE + self.lease + 2 * SECOND + self.dial;
        loop {
            let confirmed = self.confirmed();
            let has_one = |key: u64| {
                let mut new = confirmed[before..].iter();
                new.any(|(it, ..)| *it == name(key))
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
        if let Some(mut former) = self.former.take() {
            former.kill();
        }
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
        let gone = confirmed.iter().filter(|it| !rows.contains(it)).count();
        run.referee
            .expect(gone == 0 || self.loses_commits, "durability", || {
                format!("{gone} confirmed commits are gone")
            });
        let decreased = self.seen.decreased.lock();
        for grant in &*decreased.unwrap_or_else(PoisonError::into_inner) {
            run.referee.violation("I4", grant.clone());
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        if !self.keep.is_zero() {
            run.evidence(format!("{} leases kept", count(&self.seen.kept)));
        }
        run.evidence(format!(
            "{} rows, {} confirmed, {gone} of them gone, {} stale, {} failed, {} without a lock, recovered in {took:.0?}",
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

fn settings(durable: bool) -> impl Fn(String) -> PostgresBackendBuilder {
    move |url| {
        let builder = PostgresBackend::builder(url);
        if durable { builder } else { builder.relaxed() }
    }
}

fn name(key: u64) -> String {
    format!("account:{key}")
}

struct Worker {
    locks: LockManager,
    /// The key that it mostly acquires, so that its lease is kept.
    own: Option<u64>,
    urls: Vec<String>,
    seen: Arc<Seen>,
    client: Option<Client>,
}

impl Worker {
    async fn run(mut self) {
        while !self.seen.over.load(Ordering::SeqCst) {
            let number = self.own.filter(|_| random(20) > 0).unwrap_or(random(KEYS));
            let key = name(number);
            let before = self.seen.token(number);
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
            let token = guard.fencing_token().get();
            self.seen.granted(number, token, before);
            if is_slow {
                sleep(millis(100..600)).await;
            }
            // The loss of the lock does not stop the owner: the fence has to.
            if self.client.is_none() {
                self.client = connect(&self.urls).await;
            }
            let transaction = async {
                let client = self.client.as_mut()?;
                Some(transact(client, &key, token).await)
            };
            match timeout(PATIENCE, transaction).await {
                Ok(Some(Ok(n))) => {
                    self.seen.confirm((key, n, token));
                }
                Ok(Some(Err(error))) if error.code().is_some_and(|it| it.code() == "TL001") => {
                    self.seen.stale.fetch_add(1, Ordering::SeqCst);
                }
                _ => {
                    self.client = None;
                    self.seen.failed.fetch_add(1, Ordering::SeqCst);
                    sleep(10 * MS).await;
                }
            }
            if self.own.is_some() {
                drop(guard);
                let kept = self.locks.snapshot().kept as u64;
                self.seen.kept.fetch_add(kept, Ordering::SeqCst);
                sleep(millis(0..20)).await;
            } else if let Err(error) = guard.release().await
                && chain(&error).contains("54000")
            {
                self.seen.unreleased.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

/// Commits a row under the fence of a grant. Returns its number.
async fn transact(client: &mut Client, key: &str, token: i64) -> Result<i32, Error> {
    let transaction = client.transaction().await?;
    transaction
        .execute(FENCE, &[&[key].as_slice(), &[token].as_slice()])
        .await?;
    let read = "SELECT coalesce(max(n), 0) FROM entry WHERE key = $1";
    let last: i32 = transaction.query_one(read, &[&key]).await?.get(0);
    sleep(millis(1..15)).await;
    let write = "INSERT INTO entry VALUES ($1, $2, $3)";
    transaction
        .execute(write, &[&key, &(last + 1), &token])
        .await?;
    transaction.commit().await?;
    Ok(last + 1)
}
