//! The random schedules of the simulation on a server, in real time, each with keys of its own.
//!
//! Their callers acquire keys in each mode, with and without a wait, re-enter them, stop to poll, drop what they wait for,
//! downgrade and release. Faults and forced releases have their own tests. `SCHEDULES=n` runs other schedules after the first ones.

use std::collections::HashSet;
use std::future::{Future, IntoFuture as _, pending, poll_fn};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tower_lock::backend::Mode;
use tower_lock::{Held, LockGuard, LockKeys, LockManager, Owner, PostgresBackend};

use super::LONG;
use super::draw::{self, CLASSES, Weights};
use super::plan::{self, Acquire, Fate, Plan, Release, Step, Wait};
use super::support::postgres_server::PostgresServer;

/// What a schedule has in real time.
const ON: [&str; 16] = [
    "single",
    "several",
    "nested",
    "terms",
    "owners",
    "shared",
    "permits",
    "downgrade",
    "lease",
    "max_hold",
    "dropped",
    "stalled",
    "forgotten",
    "outside",
    "shutdown",
    "bounds",
];
/// How many schedules run at a time.
const AT_A_TIME: usize = 12;

fn ms(time: plan::Ms) -> Duration {
    Duration::from_millis(time)
}

#[tokio::test(flavor = "multi_thread")]
async fn random_schedules_have_no_overlap() {
    let schedules = std::env::var("SCHEDULES").ok();
    let schedules = schedules.map_or(AT_A_TIME as u64, |it| it.parse().unwrap());
    let off: Vec<_> = CLASSES
        .iter()
        .filter(|it| !ON.contains(it))
        .copied()
        .collect();
    let weights = Weights::without(&off).unwrap();
    let server = Arc::new(PostgresServer::start(&["max_connections=200"]).await);
    let counts = Arc::new(Counts::default());
    let all = (0..schedules).map(|seed| {
        let (server, counts) = (Arc::clone(&server), Arc::clone(&counts));
        let plan = draw::draw(seed, &weights);
        tokio::spawn(run(server, plan, counts))
    });
    let mut all = stream::iter(all).buffer_unordered(AT_A_TIME);
    while let Some(ended) = all.next().await {
        ended.unwrap();
    }
    println!("{schedules} schedules: {counts:?}");
    for count in [
        &counts.grants,
        &counts.beside,
        &counts.failed,
        &counts.dropped,
    ] {
        assert!(count.load(Ordering::Relaxed) > 0, "{counts:?}");
    }
}

/// What happened in all schedules.
#[derive(Debug, Default)]
struct Counts {
    grants: AtomicUsize,
    /// Grants beside other owners.
    beside: AtomicUsize,
    failed: AtomicUsize,
    dropped: AtomicUsize,
    downgraded: AtomicUsize,
    forced: AtomicUsize,
}

fn count(of: &AtomicUsize) {
    of.fetch_add(1, Ordering::Relaxed);
}

async fn run(server: Arc<PostgresServer>, plan: Plan, counts: Arc<Counts>) {
    let mut managers = Vec::new();
    for manager in &plan.managers {
        let builder = PostgresBackend::builder(server.url()).relaxed();
        let backend = builder.response_timeout(LONG / 10).connect().await.unwrap();
        let builder = LockManager::builder(backend);
        let builder = builder.watchdog_timeout(ms(manager.watchdog));
        let builder = builder.max_waiters(manager.max_waiters);
        let builder = builder.max_waiters_per_key(manager.max_waiters_per_key);
        managers.push(builder.build().unwrap());
    }
    let owners: Vec<Vec<_>> = managers
        .iter()
        .map(|locks| (0..2).map(|_| locks.new_owner()).collect())
        .collect();
    let seen = Arc::new(Seen {
        seed: plan.seed,
        keys: (0..plan.keys).map(|_| Mutex::default()).collect(),
        counts,
    });
    let mut actors = JoinSet::new();
    for actor in plan.actors {
        let caller = Caller {
            locks: managers[actor.manager].clone(),
            owners: owners[actor.manager].clone(),
            manager: actor.manager,
            seen: Arc::clone(&seen),
        };
        actors.spawn(async move {
            sleep(ms(actor.start)).await;
            caller.run(actor.steps).await;
        });
    }
    let end = Instant::now() + ms(plan.length);
    // The others end in the middle of their steps.
    while let Ok(Some(ended)) = timeout_at(end, actors.join_next()).await {
        ended.unwrap();
    }
    actors.abort_all();
    while let Some(ended) = actors.join_next().await {
        if let Err(Ok(panic)) = ended.map_err(JoinError::try_into_panic) {
            resume_unwind(panic);
        }
    }
    seen.nothing_is_left(&server, &managers).await;
}

/// The owners of each key.
struct Seen {
    seed: u64,
    keys: Vec<Mutex<Key>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Key {
    holds: Vec<Hold>,
    /// The largest token of all grants, and of the exclusive ones.
    last: i64,
    last_exclusive: i64,
    /// The owner of the last grant.
    last_owner: Option<(usize, Owner)>,
    /// The largest limit of the permits.
    most: u16,
    /// Until when a forced release can leave owners that do not know it.
    forced: Option<Instant>,
}

struct Hold {
    guard: usize,
    owner: (usize, Owner),
    held: Held,
    mode: Mode,
    limit: Option<u16>,
    since: Instant,
}

impl Seen {
    /// Locks a key. Guards outlive a failed check, so its panic changes nothing.
    fn lock(&self, n: usize) -> MutexGuard<'_, Key> {
        self.keys[n].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, n: usize) -> String {
        format!("{}:{n}", self.seed)
    }

    /// Compares a new guard with those of other owners.
    fn enters(&self, guard: &LockGuard, acquire: &Acquire, manager: usize) -> usize {
        static GUARDS: AtomicUsize = AtomicUsize::new(0);
        let id = GUARDS.fetch_add(1, Ordering::Relaxed);
        let (_, keys, tokens) = guard.fence();
        for n in &acquire.keys {
            let name = self.key(*n);
            let at = keys.iter().position(|it| *it == name).unwrap();
            let mode = match acquire.permits {
                Some(_) => Mode::Permit,
                None if acquire.shared.contains(n) => Mode::Shared,
                None => Mode::Exclusive,
            };
            let hold = Hold {
                guard: id,
                owner: (manager, guard.owner()),
                held: guard.held(),
                mode,
                limit: acquire.permits,
                since: Instant::now(),
            };
            self.enters_key(*n, hold, tokens[at]);
        }
        count(&self.counts.grants);
        id
    }

    fn enters_key(&self, n: usize, hold: Hold, token: i64) {
        let mut key = self.lock(n);
        // Its clock is read after that of the others, so they held the key at the same time.
        key.holds.retain(|it| it.held.is_held());
        if !hold.held.is_held() {
            return;
        }
        let forced = key.forced;
        let others = key.holds.iter().filter(|it| it.owner != hold.owner);
        let others = others.filter(|it| forced.is_none_or(|at| it.since > at));
        let others: Vec<_> = others.map(|it| (it.mode, it.owner)).collect();
        let is_alike = hold.mode != Mode::Exclusive && others.iter().all(|it| it.0 == hold.mode);
        assert!(
            others.is_empty() || is_alike,
            "{}: {:?} beside {others:?}",
            self.key(n),
            hold.mode
        );
        // Each acquire may have another limit, and a nested one keeps the permit of the first.
        let most = hold.limit.unwrap_or(0).max(key.most);
        let owners: HashSet<_> = others.iter().map(|it| it.1).collect();
        let is_full = hold.limit.is_some() && owners.len() >= usize::from(most);
        assert!(!is_full, "{}: a permit beside {others:?}", self.key(n));
        key.most = most;
        if !others.is_empty() {
            count(&self.counts.beside);
        }
        if key.holds.iter().all(|it| it.owner != hold.owner) {
            let last = match hold.mode {
                Mode::Exclusive => key.last,
                _ => key.last_exclusive,
            };
            // Another guard of this owner has left the key, and was not released before this one nested.
            let is_nested = token == key.last && key.last_owner == Some(hold.owner);
            let name = self.key(n);
            assert!(
                token > last || is_nested,
                "{name}: token {token} after {last}"
            );
            key.last = key.last.max(token);
            key.last_owner = Some(hold.owner);
            if hold.mode == Mode::Exclusive {
                key.last_exclusive = token;
            }
        }
        key.holds.push(hold);
    }

    fn leaves(&self, guard: usize) {
        for n in 0..self.keys.len() {
            self.lock(n).holds.retain(|it| it.guard != guard);
        }
    }

    /// Others may share the keys from now on.
    fn downgrades(&self, guard: usize) {
        for n in 0..self.keys.len() {
            let mut key = self.lock(n);
            let holds = key.holds.iter_mut().filter(|it| it.guard == guard);
            for hold in holds.filter(|it| it.mode == Mode::Exclusive) {
                hold.mode = Mode::Shared;
            }
        }
    }

    async fn nothing_is_left(&self, server: &PostgresServer, managers: &[LockManager]) {
        let client = server.client().await;
        let rows = "SELECT (SELECT count(*) FROM tower_lock.lease WHERE key LIKE $1 AND until > clock_timestamp())
            + (SELECT count(*) FROM tower_lock.waiter WHERE key LIKE $1)";
        let keys = format!("{}:%", self.seed);
        let start = Instant::now();
        loop {
            let left: i64 = client.query_one(rows, &[&keys]).await.unwrap().get(0);
            if left == 0 && managers.iter().all(|it| it.snapshot().is_idle()) {
                return;
            }
            assert!(start.elapsed() < LONG, "{keys} {left} rows, {managers:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A process's caller, with the guards that it has.
struct Caller {
    locks: LockManager,
    /// The owners that callers of this manager share.
    owners: Vec<Owner>,
    manager: usize,
    seen: Arc<Seen>,
}

/// A guard that leaves the keys before its release.
struct Kept {
    seen: Arc<Seen>,
    id: usize,
    guard: Option<LockGuard>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.seen.leaves(self.id);
    }
}

impl Caller {
    async fn run(self, steps: Vec<Step>) {
        let mut guards: Vec<Kept> = Vec::new();
        for step in steps {
            match step {
                Step::Pause(pause) | Step::Block(pause) => sleep(ms(pause)).await,
                Step::Acquire(acquire) => {
                    guards.extend(self.acquire(&acquire, guards.last()).await);
                }
                Step::Release(how) => {
                    if let Some(guard) = guards.pop() {
                        guard.release(how).await;
                    }
                }
                Step::Downgrade(polls) => {
                    if let Some(kept) = guards.last_mut() {
                        kept.downgrade(polls).await;
                    }
                }
                Step::Inspect(n) => drop(self.locks.inspect(self.seen.key(n)).await),
                Step::Force(n) => self.force(n).await,
                Step::Shutdown(grace) => drop(self.locks.shutdown(ms(grace)).await),
            }
        }
        // In the order in which a caller's variables are dropped.
        while guards.pop().is_some() {}
    }

    async fn force(&self, n: usize) {
        let forced = |at| self.seen.lock(n).forced = Some(at);
        forced(Instant::now() + LONG);
        let released = self.locks.force_release(self.seen.key(n)).await;
        forced(Instant::now());
        if released.unwrap() {
            count(&self.seen.counts.forced);
        }
    }

    async fn acquire(&self, acquire: &Acquire, latest: Option<&Kept>) -> Option<Kept> {
        let keys = acquire.keys.iter().fold(LockKeys::new(), |keys, n| {
            match acquire.shared.contains(n) {
                true => keys.shared(self.seen.key(*n)),
                false => keys.exclusive(self.seen.key(*n)),
            }
        });
        let mut request = self.locks.acquire(keys);
        if let Some(limit) = acquire.permits {
            request = request.permits(limit.into());
        }
        request = match acquire.wait {
            Wait::Never => request.no_wait(),
            Wait::For(wait) => request.wait(ms(wait)),
            Wait::Forever => request.wait_forever(),
        };
        if let Some(lease) = acquire.lease {
            request = request.lease(ms(lease));
        }
        if let Some(max_hold) = acquire.max_hold {
            request = request.max_hold(ms(max_hold));
        }
        let owner = match acquire.owner {
            plan::Owner::Fresh => None,
            plan::Owner::Shared(n) => Some(self.owners[n]),
            plan::Owner::Nested => latest.and_then(|it| it.guard.as_ref().map(|it| it.owner())),
        };
        if let Some(owner) = owner {
            request = request.owner(owner);
        }
        match attended(request.into_future(), acquire.fate).await {
            Some(Ok(guard)) => Some(Kept {
                id: self.seen.enters(&guard, acquire, self.manager),
                seen: Arc::clone(&self.seen),
                guard: Some(guard),
            }),
            Some(Err(_)) => {
                count(&self.seen.counts.failed);
                None
            }
            None => {
                count(&self.seen.counts.dropped);
                None
            }
        }
    }
}

/// Polls a future so many times. Returns `None` if it is still pending.
async fn polled<F: Future + Unpin>(future: &mut F, polls: u32) -> Option<F::Output> {
    let mut left = polls;
    poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => {
            left -= 1;
            if left == 0 {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        }
    })
    .await
}

/// Polls an acquire as its fate says. Returns `None` if it is dropped.
async fn attended<F: Future>(future: F, fate: Fate) -> Option<F::Output> {
    let mut future = Box::pin(future);
    match fate {
        Fate::Awaited => Some(future.await),
        Fate::DroppedAfterPolls(polls) => polled(&mut future, polls).await,
        Fate::DroppedAfter(pause) => timeout(ms(pause), future).await.ok(),
        Fate::Stalled { polls, pause } => match polled(&mut future, polls).await {
            Some(outcome) => Some(outcome),
            None => {
                sleep(ms(pause)).await;
                Some(future.await)
            }
        },
        Fate::Forgotten { polls } => match polled(&mut future, polls).await {
            Some(outcome) => Some(outcome),
            None => pending().await,
        },
    }
}

impl Kept {
    async fn downgrade(&mut self, polls: u32) {
        let Some(guard) = &mut self.guard else { return };
        self.seen.downgrades(self.id);
        if polled(&mut Box::pin(guard.downgrade()), polls)
            .await
            .is_none()
        {
            drop(guard.downgrade().await);
        }
        count(&self.seen.counts.downgraded);
    }

    async fn release(mut self, how: Release) {
        self.seen.leaves(self.id);
        let Some(guard) = self.guard.take() else {
            return;
        };
        match how {
            Release::Dropped => drop(guard),
            Release::DroppedOutside => thread::spawn(|| drop(guard)).join().unwrap(),
            Release::Awaited => drop(guard.release().await),
            Release::AwaitedForPolls(polls) => {
                drop(polled(&mut Box::pin(guard.release()), polls).await);
            }
        }
    }
}
