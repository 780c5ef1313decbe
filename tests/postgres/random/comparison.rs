//! Random steps on a server and on the reference.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::SystemTime;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, NoTls, Row, Statement};
use tower_lock::backend::{Backend as _, ForceReleased, Mode};
use tower_lock::{LockKey, PostgresBackend};

use super::draw::{COUNTERS, Draw, LOCKS, MANAGERS, Step, channel};
use super::model::{Attempt, Contended, Kept, Lock, OUTSIDE, World};
use crate::support::postgres_server::PostgresServer;

/// What many steps reach.
pub(super) const CASES: [&str; 9] = [
    "granted",
    "transferred",
    "kept",
    "downgraded",
    "wanted",
    "turn",
    "fenced",
    "blocked",
    "locked",
];

/// Expired leases that remain, and no transaction has, are no part of the comparison.
const LEASES: &str =
    "SELECT key, counter, last, lease, mode = 's', (extract(epoch FROM until) * 1000)::int8
    FROM tower_lock.lease WHERE until > clock_timestamp() ORDER BY key, counter";
const PLACES: &str =
    "SELECT key, lease, mode, places, channel, (extract(epoch FROM seen) * 1000)::int8
    FROM tower_lock.waiter ORDER BY key, place";
const NOT_AFTER: f64 = 1e12;

pub(super) struct Comparison {
    server: PostgresServer,
    backend: PostgresBackend,
    client: Client,
    /// Its prepared statements.
    statements: HashMap<&'static str, Statement>,
    /// The client that notifications reach.
    observer: Client,
    notifications: UnboundedReceiver<(String, String)>,
    /// The sessions of the processes.
    processes: Vec<Client>,
    fenced: Client,
    /// The lock that the open transaction fences.
    fence: Option<usize>,
    draw: Draw,
    world: World,
    locks: Vec<Lock>,
    /// The last counter of each lock, and those of its released leases.
    counters: Vec<i64>,
    released: Vec<Vec<i64>>,
    last: VecDeque<Step>,
    pub(super) reached: BTreeMap<&'static str, usize>,
}

impl Comparison {
    pub(super) async fn new(seed: u64) -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = i64::try_from(since_epoch.unwrap().as_millis()).unwrap();
        let server = PostgresServer::start_with_frozen_clock(now).await;
        let backend = crate::backend(&server).await;
        let (observer, mut connection) =
            tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        let (sender, notifications) = unbounded_channel();
        tokio::spawn(async move {
            let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
            while let Some(message) = futures_util::StreamExt::next(&mut messages).await {
                if let Ok(AsyncMessage::Notification(it)) = message {
                    drop(sender.send((it.channel().to_owned(), it.payload().to_owned())));
                }
            }
        });
        let channels = (0..MANAGERS).filter_map(channel);
        for channel in channels.chain([OUTSIDE.to_owned(), "steps".to_owned()]) {
            let listen = format!("LISTEN {channel}");
            observer.batch_execute(&listen).await.unwrap();
        }
        let mut processes = Vec::new();
        for _ in 0..MANAGERS {
            processes.push(server.client().await);
        }
        let fenced = server.client().await;
        let patient = "SET idle_in_transaction_session_timeout = '1 d'";
        fenced.batch_execute(patient).await.unwrap();
        let locks = (0..LOCKS).map(|it| Lock {
            name: format!("k{it}"),
            ..Lock::default()
        });
        Self {
            client: server.client().await,
            statements: HashMap::new(),
            server,
            backend,
            observer,
            notifications,
            processes,
            fenced,
            fence: None,
            draw: Draw::new(seed),
            world: World {
                now,
                ..World::default()
            },
            locks: locks.collect(),
            counters: vec![0; LOCKS],
            released: vec![Vec::new(); LOCKS],
            last: VecDeque::new(),
            reached: BTreeMap::new(),
        }
    }

    /// Returns the last steps.
    pub(super) fn history(&self) -> impl std::fmt::Debug {
        &self.last
    }

    async fn query(&mut self, call: &'static str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        if !self.statements.contains_key(call) {
            let statement = self.client.prepare(call).await.unwrap();
            self.statements.insert(call, statement);
        }
        let statement = &self.statements[call];
        self.client.query(statement, parameters).await.unwrap()
    }

    async fn query_one(&mut self, call: &'static str, parameters: &[&(dyn ToSql + Sync)]) -> Row {
        self.query(call, parameters).await.remove(0)
    }

    fn note(&mut self, case: &'static str) {
        *self.reached.entry(case).or_insert(0) += 1;
    }

    /// Takes one step. Panics if the server and the reference differ.
    pub(super) async fn step(&mut self) {
        let repeated = self.last.back().cloned();
        let repeated = repeated.filter(|_| self.draw.random.u8(..6) == 0);
        let step = repeated.filter(|step| self.is_repeatable(step));
        let step = step.unwrap_or_else(|| {
            let (draw, world) = (&mut self.draw, &self.world);
            draw.step(&self.locks, world.now, self.fence.is_some())
        });
        if self.last.len() == 30 {
            self.last.pop_front();
        }
        self.last.push_back(step.clone());
        self.take(step).await;
        self.compare().await;
    }

    /// A command whose reply was lost is sent again.
    fn is_repeatable(&self, step: &Step) -> bool {
        match step {
            Step::Contend(attempts) | Step::Acquire(attempts) => attempts.iter().all(|it| {
                // It does not outlive the end of its lease.
                let mut leases = self.locks[it.key].leases.iter();
                !leases.any(|lease| lease.is_fenced && lease.name.ends_with(&it.lease))
            }),
            Step::Fence(..) | Step::Commit | Step::ReleaseOrKeep { .. } => false,
            _ => true,
        }
    }

    async fn take(&mut self, step: Step) {
        let name = |key: usize| format!("k{key}");
        match step {
            Step::Contend(attempts) => self.contend(attempts).await,
            Step::Acquire(attempts) => self.acquire(attempts).await,
            Step::Release(releases) => self.release(releases).await,
            Step::ReleaseOrKeep {
                key,
                lease,
                manager,
                ttl,
                following,
            } => {
                let call = "SELECT kept, others, outcome
                    FROM tower_lock.release_or_keep_2($1, $2, $3, $4, $5, $6, $7)";
                let next = following.as_ref().map(|it| it.lease.clone());
                let at = following.as_ref().and_then(|it| it.channel.clone());
                let manager = format!("m{manager}");
                let parameters: [&(dyn ToSql + Sync); 7] =
                    [&name(key), &lease, &manager, &ttl, &COUNTERS, &next, &at];
                let row = self.query_one(call, &parameters).await;
                let kept: Option<i64> = row.get(0);
                let outcome = match (kept, row.get::<_, Option<String>>(2)) {
                    (Some(_), _) => Kept::Extended,
                    (None, Some(outcome)) => Kept::Passed(row.get(1), outcome),
                    (None, None) => Kept::NotHeld,
                };
                let (lock, world) = (&mut self.locks[key], &mut self.world);
                let expected = lock.release_or_keep(world, &lease, &manager, ttl, following);
                assert_eq!(outcome, expected);
                self.released[key].append(&mut self.world.released);
                if let Some(last) = kept {
                    self.counted(key, last - i64::from(COUNTERS) + 1, last);
                    self.note("kept");
                }
            }
            Step::Renew(renewals) => {
                let keys: Vec<_> = renewals.iter().map(|it| name(it.0)).collect();
                let names = renewals.iter().map(|(_, lease, mode, _)| match mode {
                    'p' => format!("p{lease}"),
                    _ => lease.clone(),
                });
                let names: Vec<_> = names.collect();
                let modes = renewals
                    .iter()
                    .map(|it| if it.2 == 's' { "s" } else { "x" });
                let modes: Vec<_> = modes.collect();
                let ttls: Vec<_> = renewals.iter().map(|it| it.3).collect();
                let call = "SELECT n, wanted FROM tower_lock.renew_2($1, $2, $3, $4)";
                let parameters: [&(dyn ToSql + Sync); 4] = [&keys, &names, &modes, &ttls];
                let rows = self.query(call, &parameters).await;
                let rows = by_ordinal(rows);
                for (n, (key, lease, mode, ttl)) in renewals.iter().enumerate() {
                    let wanted = rows.get(&n).map(|it| it.get::<_, bool>(1));
                    let expected = self.locks[*key].renew(self.world.now, lease, *mode, *ttl);
                    assert_eq!(wanted, expected);
                    if wanted == Some(true) {
                        self.note("wanted");
                    }
                }
            }
            Step::Downgrade(key, lease, ttl) => {
                let call = "SELECT tower_lock.downgrade_2($1, $2, $3)";
                let parameters: [&(dyn ToSql + Sync); 3] = [&name(key), &lease, &ttl];
                let row = self.query_one(call, &parameters).await;
                let counter: Option<i64> = row.get(0);
                let held = self.locks[key].downgrade(&mut self.world, &lease, ttl);
                assert_eq!(counter.is_some(), held);
                if held {
                    self.note("downgraded");
                }
            }
            Step::ForceRelease(key, lease) => {
                let key_name = LockKey::new(name(key));
                let forced = self.backend.force_release(&key_name, lease.as_deref());
                let forced = forced.await.unwrap() == ForceReleased::Released;
                let (lock, world) = (&mut self.locks[key], &mut self.world);
                let expected = lock.release(world, lease.as_deref(), false);
                assert_eq!(forced, expected != "n");
                self.released[key].append(&mut self.world.released);
            }
            Step::Watch(key, manager) => {
                let (manager, channel) = watcher(manager);
                let call = "SELECT tower_lock.watch($1, $2, $3)";
                let parameters: [&(dyn ToSql + Sync); 3] = [&name(key), &manager, &channel];
                self.query(call, &parameters).await;
                let entry = (channel, self.world.now);
                self.locks[key].watchers.insert(manager, entry);
            }
            Step::Unwatch(key, manager) => {
                let (manager, channel) = watcher(manager);
                let call = "SELECT tower_lock.unwatch($1, $2, $3)";
                let parameters: [&(dyn ToSql + Sync); 3] = [&name(key), &manager, &channel];
                self.query(call, &parameters).await;
                self.locks[key].watchers.remove(&manager);
            }
            Step::Inspect(key) => self.inspect(key).await,
            Step::Sweep => {
                let sweep = "SELECT tower_lock.sweep_2()";
                self.client.batch_execute(sweep).await.unwrap();
                for lock in &mut self.locks {
                    lock.sweep(self.world.now);
                }
                let tables = "VACUUM tower_lock.lease, tower_lock.waiter, tower_lock.watcher";
                self.client.batch_execute(tables).await.unwrap();
            }
            Step::Fence(key, lease) => {
                let leases = &mut self.locks[key].leases;
                let held = leases.iter().find(|it| it.name == lease);
                let last = held.unwrap().last;
                let fence =
                    format!("BEGIN; SELECT tower_lock.fence('k{key}', {last}::bigint * 256 + 7)");
                self.fenced.batch_execute(&fence).await.unwrap();
                // After repeated downgrades, the counters of others that share the lock can include this one.
                let fenced = leases.iter_mut();
                for held in fenced.filter(|it| (it.first..=it.last).contains(&last)) {
                    held.is_fenced = true;
                }
                self.fence = Some(key);
                self.note("fenced");
            }
            Step::Commit => {
                self.fenced.batch_execute("COMMIT").await.unwrap();
                let key = self.fence.take().unwrap();
                for held in &mut self.locks[key].leases {
                    held.is_fenced = false;
                }
            }
            Step::FenceReleased(key) => {
                // It would wait for the end of an open transaction.
                let is_open = self.fence == Some(key);
                let last = self.draw.random.choice(&self.released[key]);
                let mut leases = self.locks[key].leases.iter();
                let shares = last.is_some_and(|last| {
                    leases.any(|it| it.is_shared && (it.first..=it.last).contains(last))
                });
                if let Some(last) = last.filter(|_| !is_open && !shares) {
                    let fence = format!("SELECT tower_lock.fence('k{key}', {last}::bigint * 256)");
                    let stale = self.client.batch_execute(&fence).await.unwrap_err();
                    assert_eq!(stale.code().map(SqlState::code), Some("TL001"));
                }
            }
            Step::Toggle(manager) => {
                let channel = channel(manager).unwrap();
                let ends = self.world.listening.remove(&channel);
                let function = match ends {
                    true => "pg_advisory_unlock_shared",
                    false => "pg_advisory_lock_shared",
                };
                let call = format!("SELECT {function}(1953459814, hashtext('{channel}'))");
                let process = &self.processes[manager];
                process.batch_execute(&call).await.unwrap();
                if !ends {
                    self.world.listening.insert(channel);
                }
            }
            Step::Advance(pause) => {
                self.world.now += pause;
                self.server.step_clock(self.world.now);
            }
        }
    }

    /// Checks the counters of a grant.
    fn counted(&mut self, key: usize, first: i64, last: i64) {
        let known = &mut self.counters[key];
        assert!(first > *known, "{first} after {known}");
        *known = last;
    }

    async fn contend(&mut self, attempts: Vec<Attempt>) {
        let is_alone = attempts.len() == 1 && self.draw.random.bool();
        let outcomes = self.contend_once(&attempts, is_alone).await;
        for (attempt, is_blocked) in attempts.into_iter().zip(outcomes) {
            if is_blocked {
                self.note("blocked");
                self.receive().await;
                let again = self.contend_once(&[attempt], true).await;
                assert_eq!(again, [false]);
            }
        }
    }

    /// Returns which attempts have to be sent alone.
    async fn contend_once(&mut self, attempts: &[Attempt], is_alone: bool) -> Vec<bool> {
        let keys: Vec<_> = attempts.iter().map(|it| format!("k{}", it.key)).collect();
        let leases: Vec<_> = attempts.iter().map(|it| &*it.lease).collect();
        let modes: Vec<_> = attempts.iter().map(|it| it.mode.to_string()).collect();
        let limits: Vec<_> = attempts.iter().map(|it| it.most).collect();
        let ttls: Vec<_> = attempts.iter().map(|it| it.ttl).collect();
        let waits: Vec<_> = attempts.iter().map(|it| it.waits).collect();
        let channels: Vec<_> = attempts.iter().map(|it| it.channel.clone()).collect();
        let call = "SELECT i.n, c.counter, c.ttl_ms, c.queued
            FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::int8[], $6::bool[], $7::text[])
                WITH ORDINALITY i(key, lease, mode, most, ttl, waits, at, n),
            LATERAL tower_lock.contend(key, lease, mode, most, ttl, waits, at, $8, true, $9) c";
        let parameters: [&(dyn ToSql + Sync); 9] = [
            &keys, &leases, &modes, &limits, &ttls, &waits, &channels, &NOT_AFTER, &is_alone,
        ];
        let rows = self.query(call, &parameters).await;
        let rows = by_ordinal(rows);
        let mut blocked = Vec::new();
        for (n, attempt) in attempts.iter().enumerate() {
            let row = &rows[&n];
            let outcome = contended(row);
            let (lock, world) = (&mut self.locks[attempt.key], &mut self.world);
            let expected = lock.contend(world, attempt, is_alone);
            assert_eq!(outcome, expected, "{attempt:?}");
            blocked.push(outcome == Contended::Blocked);
            self.granted(row, attempt);
        }
        blocked
    }

    fn granted(&mut self, row: &Row, attempt: &Attempt) {
        let counter: Option<i64> = row.get(1);
        if let Some(counter) = counter {
            self.note("granted");
            // A repeat, or a confirmation, of a lease that others hold as well.
            if attempt.mode == 'x' || counter > self.counters[attempt.key] {
                self.counted(attempt.key, counter, counter);
            }
        }
    }

    async fn acquire(&mut self, attempts: Vec<Attempt>) {
        let keys: Vec<_> = attempts.iter().map(|it| format!("k{}", it.key)).collect();
        let leases: Vec<_> = attempts.iter().map(|it| &*it.lease).collect();
        let modes: Vec<_> = attempts.iter().map(|it| it.mode.to_string()).collect();
        let ttls: Vec<_> = attempts.iter().map(|it| it.ttl).collect();
        let is_alone = attempts.len() == 1 && self.draw.random.bool();
        let rows = if is_alone {
            let call = "SELECT 1::int8, counter, ttl_ms, NULL::int
                FROM tower_lock.acquire_one($1, $2, $3, $4, $5, true, true)";
            let parameters: [&(dyn ToSql + Sync); 5] =
                [&keys[0], &leases[0], &modes[0], &ttls[0], &NOT_AFTER];
            self.query(call, &parameters).await
        } else {
            let call = "SELECT n, counter, ttl_ms, NULL::int
                FROM tower_lock.acquire($1, $2, $3, $4, $5, true)";
            let parameters: [&(dyn ToSql + Sync); 5] = [&keys, &leases, &modes, &ttls, &NOT_AFTER];
            self.query(call, &parameters).await
        };
        let rows = by_ordinal(rows);
        for (n, attempt) in attempts.iter().enumerate() {
            let row = &rows[&n];
            let expected = self.locks[attempt.key].acquire(self.world.now, attempt);
            assert_eq!(contended(row), expected, "{attempt:?}");
            self.granted(row, attempt);
        }
    }

    async fn release(&mut self, releases: Vec<(usize, String, bool)>) {
        let outcomes: Vec<Option<String>> = match &releases[..] {
            [(key, lease, leaves)] if self.draw.random.bool() => {
                let call = "SELECT tower_lock.release_one_2($1, $2, $3)";
                let key = format!("k{key}");
                let row = self.query_one(call, &[&key, lease, leaves]).await;
                vec![row.get(0)]
            }
            _ => {
                let keys: Vec<_> = releases.iter().map(|it| format!("k{}", it.0)).collect();
                let leases: Vec<_> = releases.iter().map(|it| &*it.1).collect();
                let leaves: Vec<_> = releases.iter().map(|it| it.2).collect();
                let call = "SELECT n, outcome FROM tower_lock.release_2($1, $2, $3)";
                let parameters: [&(dyn ToSql + Sync); 3] = [&keys, &leases, &leaves];
                let rows = self.query(call, &parameters).await;
                let rows = by_ordinal(rows);
                assert_eq!(rows.len(), releases.len());
                rows.values().map(|it| it.get(1)).collect()
            }
        };
        let (done, locked): (Vec<_>, Vec<_>) = releases
            .into_iter()
            .zip(outcomes)
            .partition(|it| it.1.is_some());
        for (release, outcome) in done {
            self.released(release, &outcome.unwrap());
        }
        // A transaction has the row. The release is sent alone.
        for ((key, lease, leaves), _) in locked {
            self.note("locked");
            assert_eq!(self.fence, Some(key));
            self.receive().await;
            let call = "SELECT tower_lock.release_one_2($1, $2, $3)";
            let name = format!("k{key}");
            let row = self.query_one(call, &[&name, &lease, &leaves]).await;
            let outcome: String = row.get(0);
            self.released((key, lease, leaves), &outcome);
        }
    }

    fn released(&mut self, (key, lease, leaves): (usize, String, bool), outcome: &str) {
        let (lock, world) = (&mut self.locks[key], &mut self.world);
        let expected = lock.release(world, Some(&lease), leaves);
        assert_eq!(outcome, expected, "{lease}");
        self.released[key].append(&mut self.world.released);
    }

    async fn inspect(&mut self, key: usize) {
        let name = LockKey::new(format!("k{key}"));
        let found = self.backend.inspect(&name).await.unwrap();
        let (lock, now) = (&self.locks[key], self.world.now);
        let holders: Vec<_> = lock.holders(now).collect();
        let Some(until) = holders.iter().map(|it| it.until).max() else {
            assert_eq!(found, None);
            return;
        };
        let found = found.expect("a holder");
        let latest = holders.iter().find(|it| {
            let id = it.name.strip_prefix('p').unwrap_or(&it.name);
            it.until == until && id == found.id
        });
        let latest = latest.expect("one with the latest end");
        let places = lock.places.iter().filter(|it| it.lease != "~");
        let alive = places.filter(|it| it.seen > now - super::model::ALIVE);
        assert_eq!(found.ttl.as_millis(), u128::try_from(until - now).unwrap());
        assert_eq!(usize::try_from(found.leases).unwrap(), holders.len());
        assert_eq!(usize::try_from(found.queued).unwrap(), alive.count());
        let mode = match (latest.is_shared, latest.name.strip_prefix('p')) {
            (true, _) => Mode::Shared,
            (false, Some(_)) => Mode::Permit,
            (false, None) => Mode::Exclusive,
        };
        assert_eq!(found.mode, mode);
    }

    /// Compares the notifications since the last call.
    async fn receive(&mut self) {
        self.observer.batch_execute("NOTIFY steps").await.unwrap();
        let mut received = BTreeSet::new();
        while let Some(notification) = self.notifications.recv().await {
            if notification.0 == "steps" {
                break;
            }
            assert!(
                received.insert(notification.clone()),
                "{notification:?} again"
            );
        }
        assert_eq!(received, std::mem::take(&mut self.world.notified));
    }

    /// Compares the tables with the reference.
    async fn compare(&mut self) {
        self.receive().await;
        for (case, count) in [
            ("turn", self.world.turns),
            ("transferred", self.world.transfers),
        ] {
            *self.reached.entry(case).or_insert(0) += count;
        }
        (self.world.turns, self.world.transfers) = (0, 0);
        let now = self.world.now;
        let rows = self.query(LEASES, &[]).await;
        let mut rows = rows.into_iter();
        for (key, lock) in self.locks.iter_mut().enumerate() {
            let (mut begun, mut newest) = (0, 0);
            for lease in lock.leases.iter_mut().filter(|it| it.until > now) {
                let row = rows.next().expect("a lease");
                let stored = (row.get(0), row.get(3), row.get(4), row.get(5));
                let expected = (
                    lock.name.clone(),
                    lease.name.clone(),
                    lease.is_shared,
                    lease.until,
                );
                assert_eq!(stored, expected);
                let (first, last): (i64, i64) = (row.get(1), row.get(2));
                // After a repeated downgrade, the counters include those of leases that share the lock.
                assert!(first > begun && last >= first, "{lease:?} from {first}");
                assert!(first > newest || lease.is_shared, "{lease:?} from {first}");
                begun = first;
                lease.first = first;
                newest = newest.max(last);
                lease.last = last;
            }
            self.counters[key] = self.counters[key].max(newest);
        }
        assert!(rows.next().is_none(), "a lease too many");
        let rows = self.query(PLACES, &[]).await;
        let mut rows = rows.into_iter();
        for lock in &self.locks {
            for place in &lock.places {
                let row = rows.next().expect("a place");
                let mode: String = row.get(2);
                let stored = (
                    row.get(0),
                    row.get(1),
                    mode,
                    row.get(3),
                    row.get(4),
                    row.get(5),
                );
                let expected = place.clone();
                let expected = (
                    lock.name.clone(),
                    expected.lease,
                    expected.mode.to_string(),
                    expected.most,
                    expected.channel,
                    expected.seen,
                );
                assert_eq!(stored, expected);
            }
        }
        assert!(rows.next().is_none(), "a place too many");
    }
}

fn watcher(manager: Option<usize>) -> (String, String) {
    match manager {
        None => ("outside".to_owned(), OUTSIDE.to_owned()),
        // One that polls has a channel as well.
        Some(manager) => (
            format!("m{manager}"),
            format!("tower_lock_queue_{}", manager % (MANAGERS - 1)),
        ),
    }
}

fn contended(row: &Row) -> Contended {
    match (row.get::<_, Option<i64>>(1), row.get(2)) {
        (Some(_), _) => Contended::Granted,
        (None, Some(ttl)) => Contended::Waiting(ttl, row.get(3)),
        (None, None) => Contended::Blocked,
    }
}

/// Returns the rows by the indices of their items.
fn by_ordinal(rows: Vec<Row>) -> BTreeMap<usize, Row> {
    let index = |row: &Row| usize::try_from(row.get::<_, i64>(0) - 1).unwrap();
    rows.into_iter().map(|row| (index(&row), row)).collect()
}
