//! Java's `RLock` beside shared locks and permits of this crate. It is exclusive, and so excludes all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::ErrorKind;
use tower_lock::manager::Acquire;

use crate::cases::{BOTH, JAVA_RUST, NO_LEASE, RUST_JAVA};
use crate::sides::{LEASE, Sides};
use crate::support::engine::{MS, SECOND};
use crate::table::Latencies;

/// A mode in which two holders have a key together.
struct Together {
    name: &'static str,
    acquire: fn(Acquire) -> Acquire,
    refused: ErrorKind,
    cases: [&'static str; 2],
}

/// Each side waits for the other, and is notified.
pub(crate) async fn excluded(sides: &Sides) {
    let readers = Together {
        name: "interop:shared",
        acquire: Acquire::shared,
        refused: ErrorKind::Busy,
        cases: ["readers and RLock", "`forceUnlock` of readers"],
    };
    let permits = Together {
        name: "interop:permits",
        acquire: |acquire| acquire.permits(2),
        refused: ErrorKind::PermitsExhausted,
        cases: ["permits and RLock", "`forceUnlock` of permits"],
    };
    for mode in [readers, permits] {
        exclude(sides, mode).await;
    }
}

async fn exclude(sides: &Sides, mode: Together) {
    let Together {
        name,
        acquire,
        refused,
        cases: [beside, forced_out],
    } = mode;
    let (here, there) = (sides.rust().await, sides.rust().await);
    let mut java = sides.java().await;
    let first = acquire(here.acquire(name)).await.expect("it is free");
    let second = acquire(there.acquire(name)).await.expect("it is shared");
    let tried = java.call("a", "tryLock", name, &[&0, &NO_LEASE]).await;
    assert_eq!(tried, "false", "two have it");
    assert_eq!(java.call("a", "isLocked", name, &[]).await, "true");
    let listeners = sides.listeners(name);
    let waiting = java.send("a", "tryLock", name, &[&30_000, &NO_LEASE]);
    sides.listened_to(name, listeners + 1).await;
    drop(first);
    sleep(2 * LEASE).await;
    assert!(second.is_held(), "a waiting thread took it");
    let released = Instant::now();
    drop(second);
    let (locked, woken) = waiting.timed().await;
    assert_eq!(locked, "true");
    let java_after = woken - released;
    assert!(java_after < 500 * MS, "woken by the end of the lease");

    let tried = acquire(here.acquire(name)).no_wait().await;
    assert_eq!(tried.expect_err("Java has it").kind(), refused);
    let waiters = [&here, &there].map(|locks| {
        let acquire = acquire(locks.acquire(name));
        tokio::spawn(async move { (acquire.await, Instant::now()) })
    });
    sides.listened_to(name, 2 * sides.own_subscriptions()).await;
    sleep(50 * MS).await;
    let released = Instant::now();
    java.call("a", "unlock", name, &[]).await;
    let (mut guards, mut rust_after) = (Vec::new(), Duration::ZERO);
    for waiter in waiters {
        let (guard, granted) = waiter.await.expect("no panic");
        guards.push(guard.expect("it is released"));
        rust_after = rust_after.max(granted - released);
    }
    assert!(rust_after < 500 * MS, "woken by a poll");
    assert!(guards.iter().all(|guard| guard.is_held()), "together");
    let result = format!(
        "a thread waits for two holders, woken after {java_after:.1?}; they wait for it, woken after {rust_after:.1?}"
    );
    sides.row(beside, BOTH, result);

    assert_eq!(java.call("a", "forceUnlock", name, &[]).await, "true");
    let forced = Instant::now();
    assert_eq!(
        java.call("a", "tryLock", name, &[&0, &NO_LEASE]).await,
        "true"
    );
    for guard in &guards {
        let lost = timeout(LEASE / 3 + 500 * MS, guard.lost()).await;
        assert!(lost.is_ok(), "it was forced out");
    }
    let took = forced.elapsed();
    drop(guards);
    sleep(LEASE).await;
    let held = java.call("a", "isHeldByCurrentThread", name, &[]).await;
    assert_eq!(held, "true", "the guards released the thread's lock");
    java.call("a", "unlock", name, &[]).await;
    let result = format!("both guards lost after {took:.1?}");
    sides.row(forced_out, JAVA_RUST, result);
}

/// Java writes, and a reader sees the same value at its begin and at its end.
pub(crate) async fn consistent(sides: &Sides) {
    const TIMES: u64 = 100;
    let (name, counter) = ("interop:shared:read", "interop:shared:counter");
    sides.node_of(counter).cli(&["SET", counter, "0 0 none"]);
    let mut java = sides.java().await;
    let over = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    for _ in 0..4 {
        let (locks, over) = (sides.rust().await, Arc::clone(&over));
        let client = redis::Client::open(sides.node_of(counter).url()).expect("a URL");
        readers.push(tokio::spawn(async move {
            let connection = client.get_multiplexed_async_connection().await;
            let mut connection = connection.expect("the server is there");
            let mut reads = 0;
            while !over.load(Ordering::SeqCst) {
                let guard = locks.acquire(name).shared().await.expect("in its turn");
                let get = redis::cmd("GET").arg(counter).to_owned();
                let before: String = get.query_async(&mut connection).await.expect("a value");
                sleep(2 * MS).await;
                let after: String = get.query_async(&mut connection).await.expect("a value");
                assert_eq!(before, after, "Java wrote during a read");
                drop(guard);
                reads += 1;
                sleep(5 * MS).await;
            }
            reads
        }));
    }
    java.call("a", "count", name, &[&counter, &TIMES]).await;
    over.store(true, Ordering::SeqCst);
    let mut reads = Vec::new();
    for reader in readers {
        reads.push(reader.await.expect("no reader panics"));
    }
    let value = sides.node_of(counter).cli(&["GET", counter]);
    assert!(value.starts_with(&format!("{TIMES} ")), "{value}");
    assert!(reads.iter().all(|it| *it > 0), "{reads:?}");
    let result = format!("{TIMES} writes, reads of 4 managers: {reads:?}");
    sides.row("no write during a read", BOTH, result);
}

/// Managers whose one client each acquires again as soon as it has released.
struct Holders {
    over: Arc<AtomicBool>,
    holds: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

impl Holders {
    async fn start(
        sides: &Sides,
        name: &'static str,
        managers: u64,
        acquire: fn(Acquire) -> Acquire,
    ) -> Self {
        let (over, holds) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut clients = Vec::new();
        for holder in 0..managers {
            let locks = sides.rust().await;
            let (over, holds) = (Arc::clone(&over), Arc::clone(&holds));
            clients.push(tokio::spawn(async move {
                for round in 0_u64.. {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let guard = acquire(locks.acquire(name)).await;
                    let hold = 25 + (17 * holder + 29 * round) % 51;
                    sleep(Duration::from_millis(hold)).await;
                    drop(guard.expect("in its turn"));
                    holds.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        Self {
            over,
            holds,
            clients,
        }
    }

    fn holds(&self) -> u64 {
        self.holds.load(Ordering::SeqCst)
    }

    async fn stop(self) {
        self.over.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.await.expect("no holder panics");
        }
    }
}

/// A writer of each side among eight managers whose reads overlap without end, and one among as many whose permits do,
/// at the same time.
pub(crate) async fn writers_among_others(sides: &Sides) {
    let readers = (
        "interop:writers:readers",
        Acquire::shared as fn(Acquire) -> Acquire,
        "a writer among 8 readers",
    );
    let permits = (
        "interop:writers:permits",
        (|acquire| acquire.permits(6)) as fn(Acquire) -> Acquire,
        "a writer among 8 clients with 6 permits",
    );
    let [readers, permits] =
        [readers, permits].map(|(name, acquire, case)| writers_among(sides, name, acquire, case));
    tokio::join!(readers, permits);
}

async fn writers_among(
    sides: &Sides,
    name: &'static str,
    acquire: fn(Acquire) -> Acquire,
    case: &'static str,
) {
    const MANAGERS: u64 = 8;
    const TIMES: usize = 20;
    const JAVA_WITHIN: Duration = Duration::from_secs(8);
    /// The longest hold is 75 ms.
    const RUST_WITHIN: Duration = Duration::from_millis(150);
    let (locks, mut java) = (sides.rust().await, sides.java().await);
    java.call("a", "lock", name, &[]).await;
    java.call("a", "unlock", name, &[]).await;
    let holders = Holders::start(sides, name, MANAGERS, acquire).await;
    sleep(SECOND).await;
    let (mut of_java, mut of_rust) = (Latencies::default(), Latencies::default());
    let before = holders.holds();
    let start = Instant::now();
    for _ in 0..TIMES {
        let asked = Instant::now();
        let guard = locks.acquire(name).await.expect("in its turn");
        of_rust.add(asked.elapsed());
        drop(guard);
        sleep(200 * MS).await;
    }
    for _ in 0..TIMES {
        let asked = Instant::now();
        let waiting = java.send("a", "tryLock", name, &[&60_000, &NO_LEASE]);
        let (locked, granted) = waiting.timed().await;
        of_java.add(granted - asked);
        assert_eq!(locked, "true", "{of_java}");
        java.call("a", "unlock", name, &[]).await;
        sleep(200 * MS).await;
    }
    let rate = (holders.holds() - before) as f64 / start.elapsed().as_secs_f64();
    holders.stop().await;
    // On a busy machine, some processes run late.
    for (direction, waits, part, limit) in [
        (RUST_JAVA, &of_rust, 0.9, RUST_WITHIN),
        (JAVA_RUST, &of_java, 1.0, JAVA_WITHIN),
    ] {
        let result = format!("{waits}; {rate:.0} holds of others per second");
        sides.row(case, direction, result);
        assert!(waits.at(part) <= limit, "{case}, {direction}: {waits}");
        let longest = limit.max(SECOND);
        assert!(waits.at(1.0) <= longest, "{case}, {direction}: {waits}");
    }
}
