//! The order between a client outside the queue and the processes in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::cases::{JAVA_RUST, NO_LEASE};
use crate::sides::Sides;
use crate::support::engine::{MS, SECOND};
use crate::table::Latencies;

/// A Java thread waits among managers of this crate that acquire again without a pause.
pub(crate) async fn among_busy_managers(sides: &mut Sides, managers: usize) {
    const ROUNDS: usize = 50;
    const WARM_UP: usize = 5;
    /// A round of the queue takes about 40 ms. Without a turn, Java would wait until the managers end.
    const SERVED_WITHIN: Duration = SECOND;
    let name = "interop:turns";
    let mut java = sides.java().await;
    let mut busy = Vec::new();
    for _ in 0..managers {
        let (locks, grants) = (sides.rust().await, Arc::<AtomicUsize>::default());
        let count = Arc::clone(&grants);
        let worker = tokio::spawn(async move {
            loop {
                let guard = locks.acquire(name).await.expect("in its turn");
                count.fetch_add(1, Ordering::Relaxed);
                sleep(5 * MS).await;
                drop(guard);
            }
        });
        busy.push((worker, grants));
    }
    let mut waits = Latencies::default();
    for round in 0..WARM_UP + ROUNDS {
        let asked = Instant::now();
        let waiting = java.send("a", "tryLock", name, &[&30_000, &NO_LEASE]);
        let (locked, granted) = waiting.timed().await;
        assert_eq!(locked, "true");
        if round >= WARM_UP {
            waits.add(granted - asked);
        }
        java.call("a", "unlock", name, &[]).await;
    }
    let grants = busy.into_iter().map(|(worker, grants)| {
        assert!(!worker.is_finished(), "a manager was not served");
        worker.abort();
        grants.load(Ordering::Relaxed)
    });
    let grants: Vec<_> = grants.collect();
    assert!(waits.at(1.0) <= SERVED_WITHIN, "{waits}");
    assert!(grants.iter().all(|it| *it > ROUNDS / 5), "{grants:?}");
    let result = format!("{waits}; grants of {managers} managers: {grants:?}");
    sides.row("turns among busy managers", JAVA_RUST, result);
}
