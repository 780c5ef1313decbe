//! Leases that this crate keeps for a key that Java waits for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::cases::{JAVA_RUST, NO_LEASE};
use crate::sides::{Lent, Sides};
use crate::support::engine::{MS, scripts_called};
use crate::table::Latencies;

const KEEP: Duration = Duration::from_millis(10);
const HOLD: Duration = Duration::from_millis(2);
/// The limits beyond the kept time and one hold. On a busy machine, some processes run late.
const BEYOND: [(f64, Duration); 2] = [
    (0.5, Duration::from_millis(20)),
    (0.99, Duration::from_millis(500)),
];

/// A Java thread waits for a key that a process of this crate repeats without a pause.
pub(crate) async fn beside_waiting_thread(sides: &Sides) {
    const TIMES: u32 = 200;
    const WARM_UP: u32 = 20;
    let name = "interop:kept";
    let mut java = sides.java().await;
    let mut free = Latencies::default();
    for time in 0..WARM_UP + TIMES {
        let took = lock(&mut java, name).await;
        java.call("a", "unlock", name, &[]).await;
        if time >= WARM_UP {
            free.add(took);
        }
    }
    let locks = sides.keeping(KEEP).await;
    let is_javas = Arc::<AtomicBool>::default();
    let holds = Arc::<Mutex<Latencies>>::default();
    let before = scripts_called(sides.server());
    let repeats = tokio::spawn({
        let (is_javas, holds) = (Arc::clone(&is_javas), Arc::clone(&holds));
        async move {
            loop {
                let guard = locks.acquire(name).await.expect("in its turn");
                let start = Instant::now();
                let before = is_javas.load(Ordering::SeqCst);
                sleep(HOLD).await;
                let after = is_javas.load(Ordering::SeqCst);
                assert!(!before && !after, "held on both sides");
                drop(guard);
                of(&holds).add(start.elapsed());
            }
        }
    });
    let mut waits = Latencies::default();
    for time in 0..WARM_UP + TIMES {
        // In any part of a turn.
        sleep(40 * MS + time % 10 * MS).await;
        let waited = lock(&mut java, name).await;
        if time >= WARM_UP {
            waits.add(waited);
        }
        is_javas.store(true, Ordering::SeqCst);
        sleep(HOLD).await;
        is_javas.store(false, Ordering::SeqCst);
        java.call("a", "unlock", name, &[]).await;
    }
    assert!(!repeats.is_finished(), "held on both sides");
    repeats.abort();
    let sent = scripts_called(sides.server()) - before;
    for (part, beyond) in BEYOND {
        assert!(waits.at(part) <= KEEP + HOLD + beyond, "{waits}");
    }
    let holds = of(&holds);
    let count = holds.count() as u64;
    assert!(
        count > sent,
        "{count} holds by {sent} scripts of both sides"
    );
    let result = format!(
        "waits: {waits}; p99 of a hold in Rust {:.1?}, of a free lock in Java {:.1?}; {count} holds by {sent} scripts, \
         with `keep_released` of {KEEP:?}",
        holds.at(0.99),
        free.at(0.99),
    );
    sides.row("a key whose lease is kept", JAVA_RUST, result);
}

/// Returns the wait of the Java thread.
async fn lock(java: &mut Lent, name: &str) -> Duration {
    let asked = Instant::now();
    let waiting = java.send("a", "tryLock", name, &[&30_000, &NO_LEASE]);
    let (locked, granted) = waiting.timed().await;
    assert_eq!(locked, "true");
    granted - asked
}

fn of(holds: &Mutex<Latencies>) -> MutexGuard<'_, Latencies> {
    holds.lock().unwrap_or_else(PoisonError::into_inner)
}
