//! Requirements on both sides. Each case panics or reports its figures.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tower_lock::{ErrorKind, LockKey, RedisBackend};

use crate::child::Child;
use crate::sides::{LEASE, Sides, channel, manager};
use crate::support::engine::{MS, SECOND};
use crate::table::Latencies;

pub(crate) const BOTH: &str = "both";
pub(crate) const JAVA_RUST: &str = "Java → Rust";
pub(crate) const RUST_JAVA: &str = "Rust → Java";
pub(crate) const NO_LEASE: i64 = -1;
/// The limits for the median and the 99th percentile of waiters that are notified. A waiter of this crate polls after
/// 0.9 s, and Java waits for the end of the lease. On a busy machine, some processes run late.
const WOKEN_WITHIN: [(f64, Duration); 2] = [
    (0.5, Duration::from_millis(20)),
    (0.99, Duration::from_millis(500)),
];

/// Reads a counter, and later writes its successor. The count is exact only if no other worker runs
/// concurrently.
pub(crate) async fn exclusion(sides: &Sides, managers: usize, jvms: usize) {
    const THREADS: u64 = 4;
    const TIMES: u64 = 100;
    let (name, counter) = ("interop:counted", "interop:counter");
    let mut javas = Vec::new();
    for _ in 0..jvms {
        let mut java = sides.java().await;
        // A JVM is slow at first, and would begin after all others have ended.
        sides.node_of(counter).cli(&["SET", counter, "0 0 none"]);
        java.call("t0", "count", name, &[&counter, &20]).await;
        javas.push(java);
    }
    sides.node_of(counter).cli(&["SET", counter, "0 0 none"]);
    let start = Instant::now();
    let mut workers = Vec::new();
    for _ in 0..managers {
        let locks = sides.rust().await;
        for _ in 0..THREADS {
            let locks = locks.clone();
            let client = redis::Client::open(sides.node_of(counter).url()).expect("a URL");
            workers.push(tokio::spawn(async move {
                let connection = client.get_multiplexed_async_connection().await;
                let mut connection = connection.expect("the server is there");
                for _ in 0..TIMES {
                    let guard = locks.acquire(name).await.expect("in its turn");
                    let get = redis::cmd("GET").arg(counter).to_owned();
                    let before: String = get.query_async(&mut connection).await.expect("a value");
                    let (before, turns, last) = counted(&before);
                    sleep(MS).await;
                    let mut set = redis::cmd("SET");
                    let turns = turns + u64::from(last != "rust");
                    set.arg(counter).arg(format!("{} {turns} rust", before + 1));
                    set.exec_async(&mut connection).await.expect("written");
                    drop(guard);
                }
            }));
        }
    }
    let mut calls = Vec::new();
    for java in &mut javas {
        for thread in 0..THREADS {
            let thread = format!("t{thread}");
            calls.push(java.send(&thread, "count", name, &[&counter, &TIMES]));
        }
    }
    for call in calls {
        call.value().await;
    }
    for worker in workers {
        worker.await.expect("no worker panics");
    }
    let took = start.elapsed().as_secs_f64();
    let value = sides.node_of(counter).cli(&["GET", counter]);
    let (counted, turns, _) = counted(&value);
    let expected = THREADS * TIMES * (managers + jvms) as u64;
    assert_eq!(counted, expected, "updates were lost");
    // If the sides ran one after the other, there would be two turns.
    assert!(turns > 3, "{turns} turns: the sides did not contend");
    let result = format!(
        "{managers} managers, {jvms} JVMs: {counted} of {expected}, {turns} turns, in {took:.0} s"
    );
    sides.row("mutual exclusion", BOTH, result);
}

/// The counter, the number of turns between the sides, and the last writer.
fn counted(value: &str) -> (u64, u64, &str) {
    let mut words = value.split(' ');
    let mut number = || words.next()?.parse().ok();
    let numbers = number().zip(number());
    let (counter, turns) = numbers.expect("two numbers");
    (counter, turns, words.next().expect("a side"))
}

/// A waiter is notified by the message of the other side.
pub(crate) async fn wake_ups(sides: &Sides) {
    const ROUNDS: usize = 200;
    /// The warm-up rounds: a JVM compiles at run time, and connects to each node at its first use.
    const WARM_UP: usize = 20;
    let (locks, mut java) = (sides.rust().await, sides.java().await);
    let (mut rust_woken, mut java_woken) = (Latencies::default(), Latencies::default());
    for round in 0..WARM_UP + ROUNDS {
        // A subscription outlives its last waiter briefly, and still counts.
        let name = &*format!("interop:woken:{round}");
        java.call("a", "lock", name, &[]).await;
        let waiting = {
            let (locks, name) = (locks.clone(), name.to_owned());
            tokio::spawn(async move {
                let guard = locks.acquire(name).await.expect("it is released");
                (guard, Instant::now())
            })
        };
        sides.listened_to(name, sides.own_subscriptions()).await;
        // The waiter attempts again after it has subscribed.
        sleep(5 * MS).await;
        let released = Instant::now();
        let unlock = java.send("a", "unlock", name, &[]);
        let (guard, woken) = waiting.await.expect("no panic");
        if round >= WARM_UP {
            rust_woken.add(after(woken, released));
        }
        unlock.value().await;

        let listeners = sides.listeners(name);
        let waiting = java.send("b", "tryLock", name, &[&30_000, &NO_LEASE]);
        sides.listened_to(name, listeners + 1).await;
        sleep(5 * MS).await;
        let released = Instant::now();
        drop(guard);
        let (locked, woken) = waiting.timed().await;
        assert_eq!(locked, "true");
        if round >= WARM_UP {
            java_woken.add(after(woken, released));
        }
        java.call("b", "unlock", name, &[]).await;
    }
    for (direction, latencies) in [(JAVA_RUST, rust_woken), (RUST_JAVA, java_woken)] {
        for (part, limit) in WOKEN_WITHIN {
            assert!(latencies.at(part) <= limit, "{direction}: {latencies}");
        }
        sides.row("a waiter is woken", direction, latencies.to_string());
    }
}

fn after(woken: Instant, released: Instant) -> Duration {
    let latency = woken.checked_duration_since(released);
    latency.expect("no grant before the release")
}

/// The watchdog of each side keeps a lock beyond its lease.
pub(crate) async fn watchdogs(sides: &Sides) {
    let name = "interop:kept";
    let (locks, mut java) = (sides.rust().await, sides.java().await);
    java.call("a", "lock", name, &[]).await;
    let end = Instant::now() + 2 * LEASE;
    while Instant::now() < end {
        let tried = locks.acquire(name).no_wait().await;
        assert_eq!(tried.expect_err("Java has it").kind(), ErrorKind::Busy);
        sleep(50 * MS).await;
    }
    java.call("a", "unlock", name, &[]).await;
    let guard = locks.acquire(name).await.expect("it is free");
    let end = Instant::now() + 2 * LEASE;
    while Instant::now() < end {
        let tried = java.call("b", "tryLock", name, &[&0, &NO_LEASE]).await;
        assert_eq!(tried, "false", "we have it");
        sleep(50 * MS).await;
    }
    assert!(guard.is_held());
    let result = format!("kept for {:?} under a lease of {LEASE:?}", 2 * LEASE);
    sides.row("a watchdog renews", BOTH, result);
}

/// The lock of a killed process is granted again after its lease expires.
pub(crate) async fn crashes(sides: &Sides) {
    let name = "interop:crashed";
    let locks = sides.rust().await;
    let (mut java, mut survivor) = (sides.new_java().await, sides.java().await);
    java.call("a", "lock", name, &[]).await;
    java.kill();
    let start = Instant::now();
    let guard = locks.acquire(name).await.expect("in the end");
    let took = start.elapsed();
    assert!(
        (LEASE / 2..=LEASE + SECOND).contains(&took),
        "{took:?} after the JVM was killed"
    );
    sides.row(
        "a crash",
        JAVA_RUST,
        format!("passed over after {took:.1?}"),
    );
    guard.release().await.expect("it is released");

    let url = sides.url();
    let child = spawn_blocking(move || drop(Child::start(&url, name)));
    child.await.expect("it held the lock");
    let start = Instant::now();
    let locked = survivor
        .call("a", "tryLock", name, &[&30_000, &NO_LEASE])
        .await;
    let took = start.elapsed();
    assert_eq!(locked, "true");
    assert!(
        (LEASE / 2..=LEASE + SECOND).contains(&took),
        "{took:?} after our process was killed"
    );
    survivor.call("a", "unlock", name, &[]).await;
    sides.row(
        "a crash",
        RUST_JAVA,
        format!("passed over after {took:.1?}"),
    );
}

/// Each side observes a lock of the other.
pub(crate) async fn views(sides: &Sides) {
    let name = "interop:seen";
    let (locks, mut java) = (sides.rust().await, sides.java().await);
    let mut counts = Vec::new();
    for (command, count) in [("lock", 1), ("lock", 2), ("unlock", 1)] {
        java.call("a", command, name, &[]).await;
        let holder = locks.inspect(name).await.expect("a reply");
        let holder = holder.expect("Java has it");
        assert_eq!(holder.hold_count, count, "after {command}");
        let (uuid, thread) = holder.owner.split_once(':').expect("uuid:thread");
        assert!(uuid::Uuid::try_parse(uuid).is_ok() && thread.parse::<u64>().is_ok());
        assert!(holder.ttl <= LEASE && !holder.ttl.is_zero());
        counts.push(count.to_string());
    }
    java.call("a", "unlock", name, &[]).await;
    assert!(!locks.is_locked(name).await.expect("a reply"));
    let result = format!("hold counts {} seen by `inspect`", counts.join(", "));
    sides.row("nested holds", JAVA_RUST, result);

    let guard = locks.acquire(name).await.expect("it is free");
    let again = locks.acquire(name).owner(guard.owner()).await;
    let again = again.expect("its own");
    assert_eq!(sides.node_of(name).cli(&["HVALS", name]), "1");
    for (command, more, value) in [
        ("isLocked", None, "true"),
        ("isHeldByCurrentThread", None, "false"),
        ("holdCount", None, "0"),
        ("tryLock", Some([0, NO_LEASE]), "false"),
    ] {
        let answer = match more {
            Some([wait, lease]) => java.call("a", command, name, &[&wait, &lease]).await,
            None => java.call("a", command, name, &[]).await,
        };
        assert_eq!(answer, value, "{command}");
    }
    let left = java.call("a", "remainTimeToLive", name, &[]).await;
    let left: u128 = left.parse().expect("a number");
    assert!((1..=LEASE.as_millis()).contains(&left), "{left} ms");
    let unlock = java.send("a", "unlock", name, &[]);
    assert_eq!(unlock.exception().await, "IllegalMonitorStateException");
    assert!(guard.is_held());
    drop((guard, again));
    let result = "`isLocked`, `remainTimeToLive`, not the thread's own, `unlock` throws";
    sides.row("a guard", RUST_JAVA, result.to_owned());
}

/// Each side forces the release of a lock of the other, and the holder is notified.
pub(crate) async fn by_force(sides: &Sides) {
    let name = "interop:forced";
    let (locks, mut java) = (sides.rust().await, sides.java().await);
    let guard = locks.acquire(name).await.expect("it is free");
    assert_eq!(java.call("a", "forceUnlock", name, &[]).await, "true");
    let start = Instant::now();
    // The next renewal is due after a third of the lease.
    let lost = tokio::time::timeout(LEASE / 3 + 500 * MS, guard.lost()).await;
    assert!(
        lost.is_ok() && !guard.is_held(),
        "a guard that was forced open"
    );
    let took = start.elapsed();
    java.call("a", "lock", name, &[]).await;
    let released = guard.release().await;
    assert_eq!(released.expect_err("forced").kind(), ErrorKind::Lost);
    assert_eq!(
        java.call("a", "isHeldByCurrentThread", name, &[]).await,
        "true"
    );
    sides.row("`forceUnlock`", JAVA_RUST, format!("lost after {took:.1?}"));

    assert!(locks.force_release(name).await.expect("a reply"));
    let unlock = java.send("a", "unlock", name, &[]);
    assert_eq!(unlock.exception().await, "IllegalMonitorStateException");
    let result = "its `unlock` throws".to_owned();
    sides.row("`force_release`", RUST_JAVA, result);
}

/// A name is one key, one channel and one slot on both sides.
pub(crate) async fn names(sides: &Sides) {
    let names = ["order 42", "müller/日本", "{user}:1", "a{user}b", "plain"];
    let (locks, mut java) = (sides.rust().await, sides.java().await);
    for name in names {
        assert_eq!(LockKey::new(name).as_str(), name);
        let guard = locks.acquire(name).await.expect("it is free");
        assert_eq!(sides.node_of(name).cli(&["EXISTS", name]), "1", "{name}");
        let of_java = java.send("a", "tryLock", name, &[&30_000, &NO_LEASE]);
        let waiting = {
            let locks = locks.clone();
            tokio::spawn(async move { locks.acquire(name).await.map(drop) })
        };
        // Java holds this one. A waiter of this crate would wait behind a guard in the same process.
        sides.listened_to(name, 1).await;
        let channels = sides.channels();
        assert!(channels.contains(&channel(name)), "{name}: {channels:?}");
        if let Some(slot) = sides.slot(name) {
            for name in [name, &channel(name)] {
                let of_java = java.call("b", "slot", name, &[]).await;
                assert_eq!(of_java, slot.to_string(), "{name}");
            }
        }
        let start = Instant::now();
        drop(guard);
        assert_eq!(of_java.value().await, "true", "{name}");
        java.call("a", "unlock", name, &[]).await;
        waiting.await.expect("no panic").expect("in its turn");
        assert!(start.elapsed() < 500 * MS, "{name}: woken by a poll");
    }
    sides.row(
        "names",
        BOTH,
        names.map(|name| format!("`{name}`")).join(", "),
    );
}

/// The tokens of a fenced lock in Java and of this crate are one sequence.
pub(crate) async fn fenced_tokens(sides: &Sides) {
    let name = "interop:fenced";
    let backend = RedisBackend::builder(sides.server().url()).redisson_fencing_tokens();
    let (locks, mut java) = (manager(backend).await, sides.java().await);
    let before = sides.server().cli(&["KEYS", "redisson_lock_token:*"]);
    assert_eq!(before, "", "the trial at the start left a counter");
    let mut tokens = Vec::new();
    let number = |token: String| token.parse::<i64>().expect("a number");
    tokens.push(number(java.call("a", "fencingToken", name, &[]).await));
    for _ in 0..2 {
        let guard = locks.acquire(name).await.expect("it is free");
        tokens.push(guard.fencing_token().get());
        guard.release().await.expect("it is released");
    }
    let guard = locks.acquire(name).await.expect("it is free");
    tokens.push(guard.fencing_token().get());
    let waiting = java.send("a", "fencingToken", name, &[]);
    sides.listened_to(name, 1).await;
    sleep(5 * MS).await;
    let released = Instant::now();
    drop(guard);
    let (token, woken) = waiting.timed().await;
    assert!(
        after(woken, released) < 500 * MS,
        "woken by the end of the lease"
    );
    tokens.push(number(token));
    assert_eq!(tokens, [1, 2, 3, 4, 5]);
    let shown = format!("{tokens:?}, Java's the first and the last; it waited, and was woken");
    sides.row("`getFencedLock`", BOTH, shown);
}
