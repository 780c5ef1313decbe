//! A subscriber that blocks the thread of a manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::{LockManager, Memory};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::log::ask_each_subscriber;
use crate::support::other_runtime::current_thread;
use crate::support::simulated::Simulated;

const LEASE: Duration = SECOND;
/// The tolerance for a busy machine.
const LATE: Duration = Duration::from_millis(300);

/// Blocks the thread of the first manager that reports something there, for twice the lease.
#[derive(Clone, Default)]
struct Blocking(Arc<AtomicBool>);

impl<S: Subscriber> Layer<S> for Blocking {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        let at_home = thread::current().name() == Some("tower-lock");
        if at_home && !self.0.swap(true, Ordering::SeqCst) {
            thread::sleep(2 * LEASE);
        }
    }
}

#[test]
fn blocking_subscriber_harms_only_its_manager() {
    ask_each_subscriber();
    let blocking = Blocking::default();
    let subscriber = tracing_subscriber::registry().with(blocking.clone());
    let harmed = tracing::subscriber::with_default(subscriber, || {
        let locks = LockManager::builder(Memory::new()).watchdog_timeout(LEASE);
        locks.build().unwrap()
    });
    let spared = manager_on(&Simulated::new(MS));
    current_thread().block_on(async {
        // The watchdog reports the end of the first one.
        let _reported = harmed.acquire("reported").lease(100 * MS).await.unwrap();
        let lost = harmed.acquire("k").await.unwrap();
        let kept = spared.acquire("k").lease(10 * LEASE).await.unwrap();
        let began = Instant::now();
        while began.elapsed() < 2 * LEASE {
            let asked = Instant::now();
            let guard = spared.acquire("other").await.unwrap();
            guard.release().await.unwrap();
            let took = asked.elapsed();
            assert!(took < LATE, "delayed for {took:?}");
            assert!(kept.is_held());
            sleep(20 * MS).await;
        }
        assert!(blocking.0.load(Ordering::SeqCst), "nothing was reported");
        assert!(!lost.is_held());
        let next = harmed.acquire("k").wait(2 * LEASE).await.unwrap();
        assert!(next.is_held());
    });
}
