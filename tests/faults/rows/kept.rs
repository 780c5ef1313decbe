//! Leases that a process keeps for keys that come back, while it fails or loses its server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{LEASE, OTHER, Row};
use crate::keeper::{HOLD, KEEP, Keeper};
use crate::load::millis;
use crate::referee::{BACKSTOP, Hold, Outage};
use crate::run::{PROCESSES, Run};
use crate::store::Topology::Single;
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::proxy::Proxy;

/// No error contains such a name by chance.
const KEYS: [&str; 6] = [
    "again:1", "again:2", "again:3", "again:4", "again:5", "again:6",
];
/// The number of kept leases at which a fault begins. Some are taken back until it has begun.
const ENOUGH: usize = 3;
/// A turn of a kept lease, the hold that it ends with, and one of a rival.
const TURN: Duration = Duration::from_millis(100 + 3 + 10);
/// The delay of another process on a busy machine, which the referee cannot measure.
const BUSY: Duration = Duration::from_millis(400);

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Single(&[]), name, fault);
    vec![
        // No process is left to leave the queues, which therefore expire.
        row("process killed while it keeps leases", |run| {
            Box::pin(killed(run))
        })
        .clears_within(7 * SECOND),
        row("process stopped while it keeps leases", |run| {
            Box::pin(stopped(run))
        }),
        row("process ended while it keeps leases", |run| {
            Box::pin(ended(run))
        }),
        Row::new(
            Single(&["--appendonly", "yes", "--appendfsync", "no"]),
            "connections cut and server restarted while leases are kept",
            |run| Box::pin(restarted(run)),
        )
        .lease(3 * SECOND),
        row("connections and data lost while leases are kept", |run| {
            Box::pin(lost(run))
        })
        .loses_data(),
        row("kept leases forced open by another process", |run| {
            Box::pin(forced(run))
        })
        // The first renewal is due later than the end of a turn.
        .lease(3 * SECOND)
        .loses_data(),
    ]
}

/// A process that keeps leases, and one waiter for each of its keys in the others.
struct Kept {
    keeper: Keeper,
    rivals: JoinSet<()>,
}

impl Kept {
    /// Starts the process, and checks that it keeps leases and that no waiter waits for longer than a turn.
    async fn start(run: &mut Run, url: &str) -> Self {
        let begin = Instant::now();
        let keeper = Keeper::start(run, url, &KEYS, OTHER).await;
        let mut rivals = JoinSet::new();
        for key in KEYS {
            rivals.spawn(rival(run, rival_of(key), key));
        }
        let granted = || of_rivals(run, begin).len();
        eventually("the rivals have had turns", || granted() > 20).await;
        let holds = keeper.holds().len();
        let sent = run.wire_with(&keeper.name());
        let sent = sent.iter().filter(|line| !line.contains(" lua] ")).count();
        run.proof(holds > sent, format!("{holds} holds by {sent} commands"));
        let waits = of_rivals(run, begin).into_iter();
        let mut waits: Vec<_> = waits.map(|hold| waited(run, &hold)).collect();
        waits.sort_unstable();
        let [median, longest] = [waits.len() / 2, waits.len() - 1].map(|at| waits[at]);
        let in_time = median <= KEEP + HOLD + 20 * MS && longest <= TURN + BUSY;
        run.referee.expect(in_time, "turn", || {
            format!("waits of {median:?}, the longest {longest:?}")
        });
        Self { keeper, rivals }
    }

    /// Returns the keys between two holds whose leases it has.
    fn kept(&self, run: &mut Run) -> Vec<&'static str> {
        let (name, holds) = (self.keeper.name(), self.keeper.holds());
        let last = |key: &str| holds.iter().rev().find(|hold| hold.key == key);
        let mut keys = KEYS.to_vec();
        keys.retain(|key| last(key).is_some_and(|hold| hold.released.is_some()));
        keys.retain(|key| run.cli(&format!("HKEYS lock:{key}")).starts_with(&name));
        keys
    }

    /// Returns the keys whose leases it keeps, once there are enough. It may use some of them again.
    async fn keeps(&self, run: &mut Run) -> Vec<&'static str> {
        let mut kept = Vec::new();
        eventually("it keeps leases", || {
            kept = self.kept(run);
            kept.len() >= ENOUGH
        })
        .await;
        kept
    }

    /// Expects that another process acquires each key in time.
    async fn expect_free(run: &Run, since: Instant, limit: Duration) {
        let takes = KEYS.map(|key| run.holder(0, key, Duration::ZERO));
        join_all(takes).await;
        let took = since.elapsed();
        let net = took.saturating_sub(run.referee.stall_detector.delay(since, since + took));
        run.referee.expect(net <= limit, "I7", || {
            format!("all acquired after {took:?}, allowed {limit:?}")
        });
    }

    /// Ends the waiters and the process, and leaves its holds to the referee.
    async fn finish(mut self, run: &Run) {
        self.rivals.shutdown().await;
        if self.keeper.runs() {
            let (is_idle, _) = self.keeper.end("shutdown").await;
            run.referee
                .expect(is_idle, "shutdown", || "it is not idle".to_owned());
            self.keeper.kill();
        }
        run.referee.log().holds.extend(self.keeper.holds());
    }
}

/// Returns the process that acquires the key at times.
fn rival_of(key: &str) -> usize {
    KEYS.iter().position(|it| *it == key).unwrap_or(0) % PROCESSES
}

/// Acquires the key at times.
fn rival(run: &Run, process: usize, key: &'static str) -> impl Future<Output = ()> + use<> {
    const WAIT: Duration = Duration::from_secs(3);
    let (referee, locks) = (run.referee.clone(), run.managers[process].clone());
    let lease = run.row.lease;
    async move {
        loop {
            sleep(millis(50..400)).await;
            let asked = referee.asks();
            match locks.acquire(key).wait(WAIT).await {
                Ok(guard) => {
                    let checked = referee.granted(guard, process, asked, (lease, true));
                    checked.keep(millis(0..10)).await;
                }
                Err(error) => referee.refused(key, process, (Some(WAIT), asked), &error),
            }
        }
    }
}

fn of_rivals(run: &Run, since: Instant) -> Vec<Hold> {
    let log = run.referee.log();
    let holds = log
        .holds
        .iter()
        .filter(|it| it.granted > since && KEYS.contains(&&*it.key));
    holds.cloned().collect()
}

fn waited(run: &Run, hold: &Hold) -> Duration {
    let waited = hold.granted - hold.asked;
    waited.saturating_sub(run.referee.stall_detector.delay(hold.asked, hold.granted))
}

async fn killed(run: &mut Run) {
    let url = run.server().url();
    let mut it = Kept::start(run, &url).await;
    it.keeps(run).await;
    let begun = run.begin(Some(OTHER));
    it.keeper.kill();
    let kept = it.kept(run).len();
    run.end(&begun, 0);
    run.evidence(format!("{kept} kept"));
    Kept::expect_free(run, begun.at, LEASE + BACKSTOP).await;
    it.finish(run).await;
}

/// It wakes up with leases whose time is over, or that have expired.
async fn stopped(run: &mut Run) {
    let url = run.server().url();
    let it = Kept::start(run, &url).await;
    for time in [KEEP / 2, 3 * KEEP, LEASE / 2, 2 * LEASE] {
        it.keeps(run).await;
        let begun = run.begin(Some(OTHER));
        it.keeper.signal("-STOP");
        // Its last lines arrive.
        sleep(20 * MS).await;
        let kept = it.kept(run).len();
        run.evidence(format!("{kept} kept"));
        if time > LEASE {
            Kept::expect_free(run, begun.at, LEASE + BACKSTOP).await;
        }
        sleep((begun.at + time).saturating_duration_since(Instant::now())).await;
        run.end(&begun, 0);
        let resumed = Instant::now();
        it.keeper.signal("-CONT");
        Kept::expect_free(run, resumed, TURN + BUSY).await;
        sleep(300 * MS).await;
    }
    it.finish(run).await;
}

/// A shutdown, and a drop of the last handle.
async fn ended(run: &mut Run) {
    const FIRST: Duration = Duration::from_millis(50);
    let url = run.server().url();
    for how in ["shutdown", "drop"] {
        let mut it = Kept::start(run, &url).await;
        it.keeps(run).await;
        let (is_idle, took) = it.keeper.end(how).await;
        let end = Instant::now();
        run.referee.expect(is_idle && took < FIRST, "shutdown", || {
            format!("idle: {is_idle}, after {took:?}")
        });
        let mut left = it.kept(run);
        while !left.is_empty() && how == "drop" && end.elapsed() < BUSY {
            sleep(5 * MS).await;
            left = it.kept(run);
        }
        run.referee.expect(left.is_empty(), "shutdown", || {
            format!("left after a {how}: {left:?}")
        });
        it.finish(run).await;
    }
}

/// No lease is lost.
async fn restarted(run: &mut Run) {
    const TIMES: u64 = 10;
    let gate = Proxy::start(run.port()).await;
    let it = Kept::start(run, &gate.url()).await;
    let begun = run.begin(Some(OTHER));
    let mut cut = 0;
    for _ in 0..TIMES {
        it.keeps(run).await;
        gate.cut();
        cut += it.kept(run).len();
        sleep(50 * MS).await;
    }
    run.end(&begun, TIMES);
    run.proof(cut > 0, format!("{cut} kept"));
    sleep(300 * MS).await;
    it.keeps(run).await;
    let begun = run.begin(None);
    run.server().kill();
    sleep(20 * MS).await;
    run.server().launch_again();
    let outage = run.end(&begun, 1);
    run.expect_all_kept(outage).await;
    Kept::expect_free(run, Instant::now(), TURN + BUSY).await;
    it.finish(run).await;
}

/// The process notices a recovery of its connection, and then confirms each lease before it takes it back.
async fn lost(run: &mut Run) {
    const TIMES: usize = 3;
    let gate = Proxy::start(run.port()).await;
    let it = Kept::start(run, &gate.url()).await;
    for _ in 0..TIMES {
        // The next end of the connection is replaced at once.
        sleep(2_100 * MS).await;
        let kept = it.keeps(run).await;
        let begin = Instant::now();
        for key in &kept {
            run.cli(&format!("DEL lock:{key}"));
        }
        gate.cut();
        join_all(kept.iter().map(|key| run.holder(0, key, KEEP))).await;
        eventually("it notices", || it.keeper.recovered_after(begin).is_some()).await;
        let usable = it.keeper.recovered_after(begin).unwrap_or(begin);
        run.referee.outage(Outage {
            begin,
            usable,
            process: None,
        });
    }
    it.finish(run).await;
}

/// The process notices it at the end of the turn, at the latest.
async fn forced(run: &mut Run) {
    let url = run.server().url();
    let it = Kept::start(run, &url).await;
    let begun = run.begin(None);
    let mut forced = Vec::new();
    for _ in 0..10 {
        it.keeps(run).await;
        let Some(key) = it.kept(run).pop() else {
            continue;
        };
        // Neither process waits for this key.
        let [taker, forcer] = [1, 2].map(|other| (rival_of(key) + other) % PROCESSES);
        let (at, since) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH));
        let outcome = run.managers[forcer].force_release(key).await;
        if outcome.is_ok_and(|released| released) {
            let held = run.holder(taker, key, 2 * KEEP).await;
            let held = held.await.expect("no panic");
            run.referee.expect(held, "I1", || format!("{key} was lost"));
            forced.push((key, at, since.expect("after 1970").as_micros()));
        }
    }
    run.end(&begun, 0);
    run.proof(forced.len() > 5, format!("{} times", forced.len()));
    for (key, at, by_the_server) in forced {
        // The token has the time of the grant by the server.
        let is_old = |it: &Hold| u128::from((it.token >> 8).unsigned_abs()) < by_the_server;
        let stale = |it: &Hold| it.key == key && it.granted > at + KEEP + BUSY && is_old(it);
        let stale = it.keeper.holds().into_iter().find(stale);
        run.referee.expect(stale.is_none(), "turn", || {
            format!("{key}: forced open at {} ms: {stale:?}", run.referee.ms(at))
        });
    }
    it.finish(run).await;
}
