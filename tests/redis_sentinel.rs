//! Locks at the primary of a service: through failovers, with Sentinels that are gone, silent or
//! wrong, and with passwords.
// Helpers of tests are tests.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

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

use support::engine::{
    MS, PATIENCE, SECOND, by, eventually, fails_at_its_deadline, lost_at_its_deadline, manager,
    nothing_is_left, pttl, subscribers, within,
};
use support::redis_server::RedisServer;
use support::sentinel::SentinelSet;

/// For locks that are to be lost while there is no primary: less than a failover takes.
const SHORT: Duration = SECOND;
/// For locks that are to survive a failover.
const LONG: Duration = Duration::from_secs(20);
/// From the moment at which most Sentinels name the new primary.
const NEXT_GRANT: Duration = SECOND;
/// Tries whose outcome is not known are given back by attempts up to a second apart.
const GIVEN_BACK: Duration = Duration::from_secs(2);
/// The second begins where the first has ended.
const FAILOVERS: usize = 2;

fn url(set: &SentinelSet) -> String {
    set.url(set.service())
}

/// Waits for a lock in a task of its own, and is in its queue.
async fn waiter(locks: &LockManager, key: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let before = locks.snapshot().waiting;
    let waiter = tokio::spawn(locks.acquire(key).wait_forever().into_future());
    eventually("it waits", || locks.snapshot().waiting > before).await;
    waiter
}

/// The writes so far are at both replicas: no failover loses them.
fn replicated(set: &SentinelSet) {
    // The count of `WAIT` is of its own connection's writes.
    set.cli(set.primary(), &["PUBLISH", "nobody", ""]);
    assert_eq!(set.cli(set.primary(), &["WAIT", "2", "5000"]), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_of_a_service_keeps_the_contract() {
    let set = SentinelSet::start();
    let connect = || {
        let builder = RedisBackend::builder(url(&set));
        // A busy machine is not what the contract is about.
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
    /// It accepts connections and answers nothing. Later it takes itself for the primary still.
    Stopped,
    /// `SENTINEL FAILOVER`: the old primary goes on as one, until it is told.
    Commanded,
}

impl Failover {
    /// Returns which was the primary.
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

    /// The old primary comes back, and becomes a replica.
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

/// Takes locks until one is at this node. Tells how long that took.
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

/// Nobody here has a connection to this server: not to subscribe, and not for commands, all of which
/// are scripts.
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
                // There is nothing to be had meanwhile, and nobody waits longer for it.
                let other = brief.acquire("other");
                let error = fails_at_its_deadline(other, 200 * MS).await;
                assert_eq!(error.kind(), ErrorKind::Unavailable);
            }
        };
        // Contends from the beginning of the outage to its end.
        let fresh = tokio::spawn(there.acquire("fresh").wait(PATIENCE).into_future());
        let (_took, ()) = futures_util::join!(set.failover(), unserved);
        let start = Instant::now();
        let new = set.primary();
        let next = by(start + NEXT_GRANT, "a waiter", fresh).await.unwrap();
        let waited = start.elapsed();
        let granted = next_grant_at(&set, new, &brief);
        let granted = by(start + NEXT_GRANT, "a newcomer", granted).await;
        if failover == Failover::Commanded {
            // It goes on as if nothing had happened, but all have left. (A release there would be
            // lost, and the lock stay taken until its lease has run out.)
            let all_left = eventually("all left", || is_unused(set.node(old)));
            by(start + NEXT_GRANT, "all left", all_left).await;
        }
        // The holder is known at the new primary, and goes on.
        within(SECOND, "renewed", || pttl(set.node(new), "k") > 19_000).await;
        assert!(guard.is_held(), "lost a lease that was replicated");
        // So is the subscription.
        let new = set.node(new);
        let moved = eventually("subscribed", || subscribers(new, "k") == 1);
        by(start + NEXT_GRANT, "the subscription", moved).await;
        let subscribed = start.elapsed();
        eprintln!("{failover:?}: waiter {waited:?}, newcomer {granted:?} later, {subscribed:?}");
        // The next try by the clock is 900 ms away: the message is what wakes.
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
async fn locks_waiters_and_subscriptions_follow_when_the_primary_is_killed() {
    is_followed(Failover::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_waiters_and_subscriptions_follow_when_the_primary_stands_still() {
    is_followed(Failover::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_waiters_and_subscriptions_follow_a_failover_by_command() {
    is_followed(Failover::Commanded).await;
}

/// It does not know that it was replaced, and grants what somebody holds elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_slept_through_a_failover_hears_of_it_before_the_old_primary_does() {
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
            told.expect("told that the lock is somebody else's");
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
        "told before it could be asked: {role}"
    );
    assert!(guard.is_held());
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    set.in_order_again().await;
    nothing_is_left(set.node(old), &[&asleep, &awake], GIVEN_BACK, "the end").await;
}

/// How many connections the server has ever taken.
fn connections(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "stats"]);
    let prefix = "total_connections_received:";
    let count = stats.lines().find_map(|line| line.strip_prefix(prefix));
    count.unwrap().trim().parse().unwrap()
}

/// `stale`: whether a replica out of touch answers from what it has.
async fn is_left_as_a_replica(stale: &str) {
    let mut set = SentinelSet::start_with(&["--replica-serve-stale-data", stale], &[]);
    let locks = manager(url(&set), LONG).await;
    let old = set.primary();
    // Not by the Sentinels, which take it for down in a while.
    set.cli(old, &["REPLICAOF", "127.0.0.1", "1"]);
    set.replace_primary();
    let acquire = tokio::spawn(locks.acquire("k").wait(PATIENCE).into_future());
    within(2 * SECOND, "left", || is_unused(set.node(old))).await;
    let (before, start) = (connections(set.node(old)), Instant::now());
    set.failover().await;
    // It says itself that it is none, which is a failure as any other: for commands and messages,
    // at most two and a half a second each. The others are Sentinels.
    let tried = connections(set.node(old)) - before;
    let allowed = 15 + 6 * start.elapsed().as_secs();
    assert!(tried <= allowed, "{tried} in {:?}", start.elapsed());
    let deadline = Instant::now() + NEXT_GRANT;
    let guard = by(deadline, "a waiter", acquire).await.unwrap().unwrap();
    assert!(pttl(set.node(set.primary()), "k") > 0);
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_made_a_replica_is_left_and_the_next_one_found() {
    is_left_as_a_replica("yes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_made_a_mute_replica_is_left_and_the_next_one_found() {
    is_left_as_a_replica("no").await;
}

// ---- mutual exclusion ----

/// One owner's time with a lock.
struct Hold {
    key: String,
    token: FencingToken,
    granted: Instant,
    /// What the guard said of its deadline, and when.
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

/// Many want few locks, before, during and after.
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
    // Knows nothing of the old primary.
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
            // One of the two is told that it has lost, or gives it back.
            let ended = old.ended.min(new.ended);
            if ended > new.granted {
                // A write was lost. Then this lasts no longer than the old guard said it would.
                overlaps.push([old.granted, old.ended, new.granted, new.ended]);
                let over = old.deadline_at(new.granted) + 10 * MS;
                assert!(ended <= over, "{:?} beyond a deadline", ended - over);
            } else if failover != Failover::Commanded {
                assert!(old.token < new.token, "a token came back");
            }
        }
    }
    let (count, of) = (overlaps.len(), holds.len());
    eprintln!("{failover:?}: {of} holds, {count} overlaps");
    // A failover takes longer than a lease lasts, unless the old primary answers until its end.
    let none = failover == Failover::Commanded || overlaps.is_empty();
    assert!(none, "followed at {followed:?}: {overlaps:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_hold_a_lock_when_the_primary_is_killed() {
    excludes_each_other(Failover::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_hold_a_lock_when_the_primary_stands_still_and_goes_on() {
    excludes_each_other(Failover::Stopped).await;
}

/// The old primary grants until it is left: what it granted is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_by_command_no_two_hold_a_lock_beyond_a_deadline() {
    excludes_each_other(Failover::Commanded).await;
}

// ---- Sentinels that are gone, silent or wrong ----

#[derive(Debug, Clone, Copy)]
enum Odd {
    Dead,
    Silent,
    /// It names another server, which is a primary, too.
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
    // Where it is waited for, it takes a quarter of the connect timeout.
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
async fn a_sentinel_that_is_dead_costs_nothing() {
    one_is_odd(Odd::Dead).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_is_silent_costs_nothing() {
    one_is_odd(Odd::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_names_another_primary_is_outvoted() {
    one_is_odd(Odd::Wrong).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_sentinel_connections_go_on_and_new_ones_wait_for_them() {
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
    // Renewed more than once.
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
async fn a_service_that_no_sentinel_knows_is_refused_by_name() {
    let mut set = SentinelSet::start();
    for dead in 0..3 {
        let error = RedisBackend::builder(set.url("unheard-of"))
            .connect()
            .await
            .unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains("unheard-of"), "{error}");
        let cause = chain(&error);
        assert!(cause.contains("do not know the service"), "{cause}");
        if dead < 2 {
            set.sentinel(dead).kill();
        }
    }
}

// ---- passwords ----

/// Everything an error says, down to its last cause.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = format!("{error:?} {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(" {cause:?} {cause}"));
        source = cause.source();
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_and_the_sentinels_have_passwords_of_their_own() {
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
        let text = chain(&error);
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
    // In the database of the URL.
    assert_eq!(pttl(set.node(set.primary()), "k"), -2);
    drop(guard);
}
