//! Locks at the primary of a Sentinel service: failovers, dead, silent or wrong Sentinels, and
//! passwords.

use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::conformance;
use tower_lock::{
    ConnectError, Error, ErrorKind, FencingToken, LockGuard, LockManager, RedisBackend,
};

use crate::support::engine::{
    MS, PATIENCE, SECOND, by, eventually, fails_at_its_deadline, lost_at_its_deadline, manager,
    nothing_is_left, pttl, subscribers, within,
};
use crate::support::errors::debug_chain;
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::SentinelSet;

/// For locks that must expire without a primary: shorter than a failover.
const SHORT: Duration = SECOND;
/// For locks that must survive a failover.
const LONG: Duration = Duration::from_secs(20);
/// The limit for the next grant once most Sentinels name the new primary.
const NEXT_GRANT: Duration = SECOND;
/// Attempts with an unknown outcome are released by retries up to a second apart.
const GIVEN_BACK: Duration = Duration::from_secs(2);
/// The second failover starts from the state after the first.
const FAILOVERS: usize = 2;

fn url(set: &SentinelSet) -> String {
    set.url(set.service())
}

/// Spawns an acquire and returns once it is in the queue.
async fn waiter(locks: &LockManager, key: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let before = locks.snapshot().waiting;
    let waiter = tokio::spawn(locks.acquire(key).wait_forever().into_future());
    eventually("it waits", || locks.snapshot().waiting > before).await;
    waiter
}

/// Waits until both replicas have all writes so far, so that no failover loses them.
fn replicated(set: &SentinelSet) {
    // `WAIT` covers only the writes of its own connection.
    set.cli(set.primary(), &["PUBLISH", "nobody", ""]);
    assert_eq!(set.cli(set.primary(), &["WAIT", "2", "5000"]), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_primary_passes_conformance() {
    let set = SentinelSet::start();
    let connect = || {
        let builder = RedisBackend::builder(url(&set));
        // A busy machine must not cause timeouts.
        builder.response_timeout(10 * SECOND).connect()
    };
    let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
    assert_eq!(one.warnings(), <&[String]>::default());
    conformance::all(&one, &other).await;
}

// ---- failovers ----

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failover {
    /// `kill -9`.
    Killed,
    /// It accepts connections and sends no replies. When it resumes, it still acts as the primary.
    Stopped,
    /// `SENTINEL FAILOVER`: the old primary accepts writes until a Sentinel demotes it.
    Commanded,
}

impl Failover {
    /// Starts the failover and returns the old primary.
    fn begin(self, set: &mut SentinelSet) -> usize {
        match self {
            Self::Killed => set.kill_primary(),
            Self::Stopped => set.stop_primary(),
            Self::Commanded => {
                let primary = set.primary();
                let service = set.service();
                set.sentinel(0).cli(&["SENTINEL", "FAILOVER", service]);
                primary
            }
        }
    }

    /// Brings the old primary back as a replica.
    async fn end(self, set: &mut SentinelSet, old: usize) {
        match self {
            Self::Killed => set.restart(old).await,
            Self::Stopped => {
                set.continue_node(old);
                set.in_order_again().await;
            }
            Self::Commanded => set.in_order_again().await,
        }
    }
}

/// Acquires locks until one is at this node, and returns how long that took.
async fn next_grant_at(set: &SentinelSet, node: usize, locks: &LockManager) -> Duration {
    let start = Instant::now();
    for n in 0.. {
        let key = format!("probe:{n}");
        let guard = locks.acquire(&*key).wait(PATIENCE).await.unwrap();
        let took = start.elapsed();
        if pttl(set.node(node), &key) > 0 {
            return took;
        }
        drop(guard);
    }
    unreachable!("the numbers do not end");
}

/// Returns `true` if no backend of this process uses the server. Backends send only scripts and
/// subscriptions.
fn is_unused(node: &RedisServer) -> bool {
    let ours = |client: &String| client.contains("cmd=eval");
    subscribers(node, "k") == 0 && !node.clients("normal").iter().any(ours)
}

async fn is_followed(failover: Failover) {
    let mut set = SentinelSet::start();
    let (here, there, brief) = (
        manager(url(&set), LONG).await,
        manager(url(&set), LONG).await,
        manager(url(&set), SHORT).await,
    );
    for _ in 0..FAILOVERS {
        let guard = here.acquire("k").await.unwrap();
        let waiting = waiter(&there, "k").await;
        let primary = set.node(set.primary());
        eventually("subscribed", || subscribers(primary, "k") == 1).await;
        let short = brief.acquire("short").await.unwrap();
        replicated(&set);

        let old = failover.begin(&mut set);
        let unserved = async {
            if failover != Failover::Commanded {
                lost_at_its_deadline(&short.held()).await;
                // Without a primary, an acquire fails at its deadline.
                let other = brief.acquire("other");
                let error = fails_at_its_deadline(other, 200 * MS).await;
                assert_eq!(error.kind(), ErrorKind::Unavailable);
            }
        };
        // Contends for the whole outage.
        let fresh = tokio::spawn(there.acquire("fresh").wait(PATIENCE).into_future());
        let (_took, ()) = futures_util::join!(set.failover(), unserved);
        let start = Instant::now();
        let new = set.primary();
        let next = by(start + NEXT_GRANT, "a waiter", fresh).await.unwrap();
        let waited = start.elapsed();
        let granted = next_grant_at(&set, new, &brief);
        let granted = by(start + NEXT_GRANT, "a newcomer", granted).await;
        if failover == Failover::Commanded {
            // The old primary still serves, but every backend must leave it: a release there would
            // be lost, and the lock would stay held until its lease expires.
            let all_left = eventually("all left", || is_unused(set.node(old)));
            by(start + NEXT_GRANT, "all left", all_left).await;
        }
        // The new primary has the lease and renews it.
        within(SECOND, "renewed", || pttl(set.node(new), "k") > 19_000).await;
        assert!(guard.is_held(), "lost a lease that was replicated");
        // The subscription moves to the new primary.
        let new = set.node(new);
        let moved = eventually("subscribed", || subscribers(new, "k") == 1);
        by(start + NEXT_GRANT, "the subscription", moved).await;
        let subscribed = start.elapsed();
        eprintln!("{failover:?}: waiter {waited:?}, newcomer {granted:?} later, {subscribed:?}");
        // The next poll is 900 ms away, so only the message can wake the waiter in time.
        let released = Instant::now();
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        let woken = by(released + 600 * MS, "the message", waiting).await;
        let guard = woken.unwrap().unwrap();
        assert!(guard.fencing_token() > token);
        drop((guard, next, short));
        let managers = [&here, &there, &brief];
        nothing_is_left(new, &managers, GIVEN_BACK, failover).await;
        failover.end(&mut set, old).await;
        nothing_is_left(set.node(old), &managers, GIVEN_BACK, failover).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_primary_failover_keeps_locks_and_waiters() {
    is_followed(Failover::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_primary_failover_keeps_locks_and_waiters() {
    is_followed(Failover::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commanded_failover_keeps_locks_and_waiters() {
    is_followed(Failover::Commanded).await;
}

/// The old primary is unaware of the failover and grants a lock held at the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_client_after_failover_leaves_stale_primary() {
    let mut set = SentinelSet::start();
    let (asleep, awake) = (
        manager(url(&set), LONG).await,
        manager(url(&set), LONG).await,
    );
    let old = set.stop_primary();
    set.failover().await;
    let guard = awake.acquire("k").wait(PATIENCE).await.unwrap();
    set.continue_node(old);
    match asleep.acquire("k").no_wait().await {
        Err(error) => assert!(error.is_busy(), "{error:?}"),
        Ok(void) => {
            let told = timeout(500 * MS, void.lost()).await;
            told.expect("no notice that another owner has the lock");
            assert!(void.release().await.unwrap_err().is_lost());
        }
    }
    let waiting = waiter(&asleep, "k").await;
    let new = set.node(set.primary());
    within(SECOND, "subscribed", || subscribers(new, "k") == 1).await;
    assert!(is_unused(set.node(old)));
    let role = set.cli(old, &["ROLE"]);
    assert!(
        role.starts_with("master"),
        "the old primary was demoted too early: {role}"
    );
    assert!(guard.is_held());
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    set.in_order_again().await;
    nothing_is_left(set.node(old), &[&asleep, &awake], GIVEN_BACK, "the end").await;
}

/// `stale`: whether a disconnected replica replies from its own data.
async fn is_left_as_a_replica(stale: &str) {
    let mut set = SentinelSet::start_with(&["--replica-serve-stale-data", stale], &[]);
    let locks = manager(url(&set), LONG).await;
    let old = set.primary();
    set.cli(old, &["REPLICAOF", "127.0.0.1", "1"]);
    let acquire = tokio::spawn(locks.acquire("k").wait(PATIENCE).into_future());
    within(2 * SECOND, "left", || is_unused(set.node(old))).await;
    // A connection sends `HELLO` to log in, and again to read the role. Sentinels and replicas, which
    // may connect more often, send none.
    let connections = |set: &SentinelSet| set.node(old).calls("hello") / 2;
    let (before, start) = (connections(&set), Instant::now());
    set.replace_demoted_primary();
    set.failover().await;
    // The role reported by the server is a failure like any other: commands and messages each
    // connect at most 2.5 times per second.
    let tried = connections(&set) - before;
    let allowed = 15 + 5 * start.elapsed().as_secs();
    assert!(
        (1..=allowed).contains(&tried),
        "{tried} in {:?}",
        start.elapsed()
    );
    let deadline = Instant::now() + NEXT_GRANT;
    let guard = by(deadline, "a waiter", acquire).await.unwrap().unwrap();
    assert!(pttl(set.node(set.primary()), "k") > 0);
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_with_stale_reads_is_replaced() {
    is_left_as_a_replica("yes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_without_stale_reads_is_replaced() {
    is_left_as_a_replica("no").await;
}

// ---- mutual exclusion ----

/// One owner's hold of a lock.
struct Hold {
    key: String,
    token: FencingToken,
    granted: Instant,
    /// The deadlines that the guard returned, each after the time of the call.
    deadlines: Vec<(Instant, Instant)>,
    ended: Instant,
}

impl Hold {
    async fn for_a_while(key: String, guard: LockGuard, time: Duration) -> Self {
        let granted = Instant::now();
        let mut deadlines = Vec::new();
        while granted.elapsed() < time {
            let now = Instant::now();
            deadlines.push((now, now + guard.remaining()));
            tokio::select! {
                biased;
                () = guard.lost() => break,
                () = sleep(2 * MS) => {}
            }
        }
        let ended = Instant::now();
        Self {
            key,
            token: guard.fencing_token(),
            granted,
            deadlines,
            ended,
        }
    }

    fn deadline_at(&self, time: Instant) -> Instant {
        let before = self.deadlines.iter().rfind(|(at, _)| *at <= time);
        before.unwrap_or(&self.deadlines[0]).1
    }
}

/// Many owners contend for few locks before, during and after a failover.
async fn excludes_each_other(failover: Failover) {
    const WAIT: Duration = Duration::from_millis(400);
    let mut set = SentinelSet::start();
    let holds = Arc::<Mutex<Vec<Hold>>>::default();
    let managers = [
        manager(url(&set), SHORT).await,
        manager(url(&set), SHORT).await,
        manager(url(&set), SHORT).await,
    ];
    let contend = |n: u64, locks: &LockManager| {
        let (locks, holds) = (locks.clone(), Arc::clone(&holds));
        async move {
            for round in 0.. {
                let key = format!("k:{}", (n + round) % 2);
                let mut acquire = Box::pin(locks.acquire(&*key).wait(WAIT).into_future());
                let first = poll!(&mut acquire);
                // The wait counts from the first poll, which a busy machine may delay.
                let deadline = Instant::now() + WAIT + 50 * MS;
                let outcome = match first {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => by(deadline, "the end of a wait", acquire).await,
                };
                let Ok(guard) = outcome else {
                    continue;
                };
                // Some are renewed.
                let long = (n + round).is_multiple_of(7);
                let time = if long { 2 * SHORT } else { 10 * MS };
                let hold = Hold::for_a_while(key, guard, time).await;
                holds.lock().unwrap().push(hold);
            }
        }
    };
    let many = (0..9).map(|n| contend(n, &managers[n as usize % 3]));
    let mut tasks: Vec<_> = many.map(tokio::spawn).collect();
    eventually("it runs", || holds.lock().unwrap().len() > 20).await;
    let old = failover.begin(&mut set);
    set.failover().await;
    let followed = Instant::now();
    // This manager connects after the failover and never saw the old primary.
    let newcomer = manager(url(&set), SHORT).await;
    tasks.extend((9..12).map(|n| tokio::spawn(contend(n, &newcomer))));
    eventually("grants", || {
        let holds = holds.lock().unwrap();
        let later = holds.iter().filter(|hold| hold.granted > followed);
        later.count() > 20
    })
    .await;
    failover.end(&mut set, old).await;
    for task in tasks {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled(), "a wait was overrun");
    }
    let [one, two, three] = &managers;
    let managers = [one, two, three, &newcomer];
    nothing_is_left(set.node(set.primary()), &managers, GIVEN_BACK, failover).await;

    let mut holds = std::mem::take(&mut *holds.lock().unwrap());
    holds.sort_by_key(|hold| hold.granted);
    let mut overlaps = Vec::new();
    for (n, new) in holds.iter().enumerate() {
        for old in holds[..n].iter().filter(|old| old.key == new.key) {
            // One of the two guards reports a loss, or releases the lock.
            let ended = old.ended.min(new.ended);
            if ended > new.granted {
                // The failover lost a write. The overlap must end by the old guard's deadline.
                overlaps.push([old.granted, old.ended, new.granted, new.ended]);
                let over = old.deadline_at(new.granted) + 10 * MS;
                assert!(ended <= over, "{:?} beyond a deadline", ended - over);
            } else if failover != Failover::Commanded {
                assert!(old.token < new.token, "a token was reused");
            }
        }
    }
    let (count, of) = (overlaps.len(), holds.len());
    eprintln!("{failover:?}: {of} holds, {count} overlaps");
    // A failover outlasts a lease unless the old primary replies until the end of the failover.
    let none = failover == Failover::Commanded || overlaps.is_empty();
    assert!(none, "followed at {followed:?}: {overlaps:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_primary_keeps_mutual_exclusion() {
    excludes_each_other(Failover::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_primary_keeps_mutual_exclusion() {
    excludes_each_other(Failover::Stopped).await;
}

/// The old primary grants locks until its clients leave it, and the failover loses those grants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commanded_failover_bounds_overlap_by_deadline() {
    excludes_each_other(Failover::Commanded).await;
}

// ---- dead, silent or wrong Sentinels ----

#[derive(Debug, Clone, Copy)]
enum Odd {
    Dead,
    Silent,
    /// It names the primary of another service.
    Wrong,
}

async fn one_is_odd(odd: Odd) {
    let mut set = SentinelSet::start();
    let other = matches!(odd, Odd::Wrong).then(SentinelSet::start);
    let url = match &other {
        Some(other) => {
            let addresses = (other.addresses(), set.addresses());
            let (wrong, (_, right)) = (
                addresses.0.split(',').next().unwrap(),
                addresses.1.split_once(',').unwrap(),
            );
            format!("redis+sentinel://{wrong},{right}/{}", set.service())
        }
        None => url(&set),
    };
    match odd {
        Odd::Dead => set.sentinel(0).kill(),
        Odd::Silent => set.sentinel(0).stop_process(),
        Odd::Wrong => {}
    }
    // A silent Sentinel costs a quarter of the connect timeout.
    let connect = RedisBackend::builder(url).connect_timeout(40 * SECOND);
    let connect = connect.response_timeout(10 * SECOND).connect();
    let backend = by(Instant::now() + 5 * SECOND, "a connection", connect).await;
    let backend = backend.unwrap();
    let locks = LockManager::builder(backend).build().unwrap();
    let guard = locks.acquire("k").await.unwrap();
    assert!(pttl(set.node(set.primary()), "k") > 0);
    replicated(&set);
    set.kill_primary();
    let next = tokio::spawn(locks.acquire("next").wait(PATIENCE).into_future());
    set.failover().await;
    let deadline = Instant::now() + NEXT_GRANT;
    drop(by(deadline, "a waiter", next).await.unwrap().unwrap());
    let new = set.node(set.primary());
    within(NEXT_GRANT, "renewed", || pttl(new, "k") > 29_000).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    nothing_is_left(new, &[&locks], GIVEN_BACK, odd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_sentinel_does_not_delay_failover() {
    one_is_odd(Odd::Dead).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_sentinel_does_not_delay_failover() {
    one_is_odd(Odd::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_naming_other_primary_is_outvoted() {
    one_is_odd(Odd::Wrong).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_outage_delays_only_new_connections() {
    let mut set = SentinelSet::start();
    let lease = 3 * SHORT;
    let (here, there) = (
        manager(url(&set), lease).await,
        manager(url(&set), lease).await,
    );
    let guard = here.acquire("k").await.unwrap();
    let waiting = waiter(&there, "k").await;
    eventually("subscribed", || subscribers(set.node(0), "k") == 1).await;
    for sentinel in 0..3 {
        set.sentinel(sentinel).kill();
    }
    for n in 0..100 {
        drop(here.acquire(format!("other:{n}")).await.unwrap());
    }
    // The watchdog renews the lease more than once.
    let end = Instant::now() + guard.remaining();
    within(PATIENCE, "renewals", || {
        Instant::now() + guard.remaining() > end + lease
    })
    .await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let woken = by(released + 600 * MS, "the message", waiting).await;
    drop(woken.unwrap().unwrap());

    let error = RedisBackend::builder(url(&set))
        .connect()
        .await
        .unwrap_err();
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains(&set.addresses()), "{error}");

    set.cli(0, &["CLIENT", "KILL", "TYPE", "normal"]);
    let error = fails_at_its_deadline(here.acquire("k"), SECOND).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let waiting = waiter(&here, "k").await;
    for sentinel in 0..2 {
        set.sentinel(sentinel).launch_again();
    }
    let guard = timeout(2 * SECOND, waiting).await;
    drop(guard.expect("found again").unwrap().unwrap());
    nothing_is_left(set.node(0), &[&here, &there], GIVEN_BACK, "the end").await;
}

#[tokio::test]
async fn connect_to_unknown_service_is_rejected() {
    let mut set = SentinelSet::start();
    for dead in 0..3 {
        let error = RedisBackend::builder(set.url("unheard-of"))
            .connect()
            .await
            .unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains("unheard-of"), "{error}");
        let cause = debug_chain(&error);
        assert!(cause.contains("do not know the service"), "{cause}");
        if dead < 2 {
            set.sentinel(dead).kill();
        }
    }
}

// ---- passwords ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_and_sentinels_use_separate_passwords() {
    let nodes = ["--requirepass", "of-nodes", "--masterauth", "of-nodes"];
    let mut set = SentinelSet::start_with(&nodes, &["--requirepass", "of-sentinels"]);
    let url = |login: &str| {
        format!(
            "redis+sentinel://{login}{}/{}/3",
            set.addresses(),
            set.service()
        )
    };
    let right = url("default:of-nodes@");
    for (url, of_sentinels) in [
        (url(""), Some("of-sentinels")),
        (url(":wrong-one@"), Some("of-sentinels")),
        (url("stranger:of-nodes@"), Some("of-sentinels")),
        (right.clone(), Some("wrong-one")),
        (right.clone(), None),
    ] {
        let mut builder = RedisBackend::builder(url);
        if let Some(password) = of_sentinels {
            builder = builder.sentinel_auth("", password);
        }
        let error = builder.connect().await.unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        let text = debug_chain(&error);
        for secret in ["of-nodes", "of-sentinels", "wrong-one"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    let builder = RedisBackend::builder(right).sentinel_auth("default", "of-sentinels");
    assert!(!format!("{builder:?}").contains("of-sentinels"));
    let backend = builder.connect().await.unwrap();
    assert!(!format!("{backend:?}").contains("of-"), "{backend:?}");
    let locks = LockManager::builder(backend).build().unwrap();
    drop(locks.acquire("k").await.unwrap());
    set.kill_primary();
    set.failover().await;
    let guard = locks.acquire("k").await.unwrap();
    // The lock is in the database of the URL, not in database 0.
    assert_eq!(pttl(set.node(set.primary()), "k"), -2);
    drop(guard);
}
