//! Processes that wait in the queue of one key, and the turns that they receive.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::manager::Acquire;

use crate::referee::Referee;
use crate::run::Run;
use crate::store::Store;
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::redis_server::RedisServer;

/// The key of the queue.
pub(crate) const PRIZE: &str = "prize";
pub(crate) const BODY: &str = "lock:prize";
pub(crate) const QUEUE: &str = "lock:{lock:prize}%queue";
const CHANNEL: &str = "redisson_lock__channel:{lock:prize}";

/// How long each waiter holds the key.
const HOLD: Duration = Duration::from_millis(5);
/// A turn of a process that is notified, on a busy machine.
pub(crate) const TURN: Duration = Duration::from_millis(5 + 50);
/// The TTL of a transferred lease that no process confirms.
pub(crate) const CONFIRM: Duration = Duration::from_millis(1_500);
/// The time after which a queue without live processes expires.
const QUEUE_EXPIRES: Duration = Duration::from_millis(6_000);
const PATIENCE: Duration = Duration::from_secs(20);

impl Run {
    /// Runs a command at the server of the prize.
    pub(crate) fn ask(&self, args: &[&str]) -> String {
        self.server_of_prize().cli(args)
    }

    fn server_of_prize(&self) -> &RedisServer {
        match &self.store {
            Store::Single(server) => server,
            Store::Sentinel(set) => set.node(set.primary()),
            Store::Cluster(cluster) => cluster.node(cluster.node_of(BODY)),
            Store::Service(_) | Store::Quorum(_) | Store::Own => panic!("no queue"),
        }
    }

    /// Returns the leases in the queue, the first one first.
    pub(crate) fn places(&self) -> Vec<String> {
        let members = self.ask(&["ZRANGE", QUEUE, "0", "-1"]);
        let leases = members
            .lines()
            .filter(|it| !it.starts_with(['!', '?', '~']));
        leases.map(ToOwned::to_owned).collect()
    }

    pub(crate) async fn queued(&self, count: usize) {
        eventually("they are in the queue", || self.places().len() == count).await;
    }

    /// Returns the lease that has the prize.
    pub(crate) fn holder_of_prize(&self) -> String {
        self.ask(&["HKEYS", BODY])
    }

    /// Returns the number of subscribers that a transfer to this lease reaches.
    pub(crate) fn receivers(&self, lease: &str) -> String {
        let manager = lease.split(':').next().unwrap_or_default();
        let count = self.ask(&["PUBSUB", "NUMSUB", &format!("{CHANNEL}%{manager}")]);
        count.lines().last().unwrap_or_default().to_owned()
    }

    /// Expects that neither the body nor the queue outlives the waiters. `dead`: processes that cannot leave.
    pub(crate) async fn expect_cleared(&self, dead: usize) {
        let start = Instant::now();
        let limit = match dead {
            0 => SECOND,
            _ => QUEUE_EXPIRES + 200 * MS,
        };
        loop {
            let late = start.elapsed();
            let body = self.ask(&["EXISTS", BODY]) == "1";
            let members = self.ask(&["ZRANGE", QUEUE, "0", "-1"]);
            let is_left = body || self.places().len() > dead;
            let is_over = late > limit || is_left && late > SECOND;
            if members.is_empty() && !body {
                return;
            }
            if is_over {
                self.referee
                    .violation("queue", format!("left after {late:?}: {body}, {members:?}"));
                return;
            }
            sleep(5 * MS).await;
        }
    }
}

/// A process that holds the prize until the test releases it.
pub(crate) struct Holder {
    release: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Holder {
    pub(crate) async fn acquire(run: &Run, process: usize) -> Self {
        Self::by(run, process, run.managers[process].acquire(PRIZE)).await
    }

    pub(crate) async fn share(run: &Run, process: usize) -> Self {
        Self::by(run, process, run.managers[process].acquire(PRIZE).shared()).await
    }

    /// Waits for a permit of the prize.
    pub(crate) async fn permit(run: &Run, process: usize, limit: u32) -> Self {
        let acquire = run.managers[process].acquire(PRIZE).permits(limit);
        Self::below(run, process, acquire.wait(PATIENCE), limit).await
    }

    async fn by(run: &Run, process: usize, acquire: Acquire) -> Self {
        Self::below(run, process, acquire, 0).await
    }

    async fn below(run: &Run, process: usize, acquire: Acquire, limit: u32) -> Self {
        let asked = run.referee.asks();
        let guard = acquire.await.expect("no owner excludes it");
        let terms = (run.row.lease, true);
        let checked = run.referee.granted(guard, process, asked, terms);
        let checked = checked.below(limit);
        let (release, released) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            tokio::select! {
                _ = checked.keep(60 * SECOND) => {}
                _ = released => {}
            }
            drop(checked.release().await);
        });
        Self { release, task }
    }

    /// Returns a moment before the release.
    pub(crate) fn release(self) -> Instant {
        let now = Instant::now();
        drop(self.release);
        now
    }

    pub(crate) fn is_over(&self) -> bool {
        self.task.is_finished()
    }
}

/// One waiter in each of several processes, in the order of their places.
pub(crate) struct Line {
    /// The numbers of the processes.
    pub(crate) processes: Vec<usize>,
    rounds: usize,
    waiters: Vec<JoinHandle<Vec<Instant>>>,
}

impl Line {
    /// Forms a line behind the processes that are in the queue. Each waiter acquires the prize `rounds` times.
    pub(crate) async fn form(run: &mut Run, count: usize, rounds: usize) -> Self {
        Self::form_under(run, count, rounds, false).await
    }

    /// As [`form`](Self::form). Waiters under a fixed lease confirm each transfer by a command.
    pub(crate) async fn form_under(
        run: &mut Run,
        count: usize,
        rounds: usize,
        fixed: bool,
    ) -> Self {
        let first = run.places().len();
        let mut line = Self {
            processes: Vec::new(),
            rounds,
            waiters: Vec::new(),
        };
        for place in first..first + count {
            let process = run.add_idle_process().await;
            line.processes.push(process);
            let locks = run.managers[process].clone();
            let (referee, lease) = (run.referee.clone(), run.row.lease);
            line.waiters.push(tokio::spawn(async move {
                let mut grants = Vec::new();
                for _ in 0..rounds {
                    let asked = referee.asks();
                    let acquire = locks.acquire(PRIZE).wait_forever();
                    let acquire = match fixed {
                        true => acquire.lease(lease),
                        false => acquire,
                    };
                    let guard = acquire.await.expect("it waits for ever");
                    grants.push(Instant::now());
                    let checked = referee.granted(guard, process, asked, (lease, !fixed));
                    checked.keep(HOLD).await;
                    drop(checked.release().await);
                }
                grants
            }));
            run.queued(place + 1).await;
        }
        line
    }

    pub(crate) fn is_served(&self) -> bool {
        self.waiters.iter().all(JoinHandle::is_finished)
    }

    /// Expects that all waiters are served within `allowed` since a moment, or `in_order`. Returns when each one was.
    pub(crate) async fn expect_served(
        self,
        run: &mut Run,
        since: Instant,
        allowed: Duration,
        in_order: bool,
    ) -> Vec<Vec<Instant>> {
        let turns = self.waiters.len() * self.rounds;
        let (mut firsts, mut all) = (Vec::new(), Vec::new());
        let mut last = since;
        for (place, waiter) in self.waiters.into_iter().enumerate() {
            let Ok(grants) = timeout(PATIENCE, waiter).await else {
                let what = format!("the waiter at place {place} was never served");
                run.referee.violation("queue", what);
                continue;
            };
            let grants = grants.expect("no panic");
            firsts.extend(grants.first().copied());
            last = grants.iter().copied().fold(last, Instant::max);
            all.push(grants);
        }
        let (took, net) = taken(&run.referee, since, last);
        run.referee.expect(net <= allowed, "queue", || {
            format!("{turns} turns took {took:?}, allowed {allowed:?}")
        });
        run.referee
            .expect(!in_order || firsts.is_sorted(), "queue", || {
                let after = firsts.iter().map(|at| *at - since);
                format!("out of order: {:?}", after.collect::<Vec<_>>())
            });
        run.evidence(format!("{turns} turns in {took:.0?}"));
        all
    }
}

/// Returns the time between two moments: by the clock, and less the delays of this runtime.
pub(crate) fn taken(referee: &Referee, since: Instant, until: Instant) -> (Duration, Duration) {
    let took = until - since;
    (
        took,
        took.saturating_sub(referee.stall_detector.delay(since, until)),
    )
}
