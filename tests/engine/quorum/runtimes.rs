//! Several runtimes in one process.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep};
use tower_lock::LockManager;

use super::world::Nodes;
use crate::support::engine::{MS, SECOND};
use crate::support::simulated::Fault;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Both runtimes leave a release to repeat, and the first one then idles.
#[test]
fn idle_runtime_stops_no_repeated_release_of_others() {
    let (idles, runs) = (runtime(), runtime());
    let world = runs.block_on(Nodes::used(3));
    let locks = world.patient_manager();
    let site = &world.sites[0];
    let leave = async |key: &'static str| {
        let guard = locks.acquire(key).await.unwrap();
        // Votes may come after the grant, and a release awaits none.
        for site in &world.sites {
            while !site.holds(key).await {
                sleep(MS).await;
            }
        }
        site.fail(Fault::Refused);
        guard.release().await.unwrap();
        assert!(site.holds(key).await);
    };
    idles.block_on(leave("of the idle runtime"));
    site.fail(None);
    runs.block_on(async {
        leave("a").await;
        site.fail(None);
        let start = Instant::now();
        while site.holds("a").await {
            assert!(start.elapsed() < Duration::from_secs(2), "not released");
            sleep(MS).await;
        }
    });
}

/// The runtime idles while its release is in flight. The lease would last for 30 s.
#[test]
fn release_of_idle_runtime_is_repeated_elsewhere() {
    let (idles, runs) = (runtime(), runtime());
    let world = runs.block_on(Nodes::used(3));
    let locks = LockManager::builder(world.quorum()).build().unwrap();
    idles.block_on(async {
        drop(locks.acquire("k").await.unwrap());
        sleep(MS).await;
    });
    runs.block_on(async {
        let acquire = locks.acquire("k").wait(20 * SECOND);
        let guard = acquire.await.unwrap();
        guard.release().await.unwrap();
    });
    // The runtime continues, and so do its releases.
    idles.block_on(world.nothing_is_left_within(SECOND, "k", "after the idle runtime"));
}
