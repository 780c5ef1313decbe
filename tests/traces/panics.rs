//! A subscriber that panics.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use tower_lock::{LockManager, Memory};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::support::engine::{MS, eventually};
use crate::support::log::ask_each_subscriber;
use crate::support::other_runtime::current_thread;

/// Panics at the first event of a level.
#[derive(Clone)]
struct PanicsAt(Level, Arc<AtomicBool>);

impl<S: Subscriber> Layer<S> for PanicsAt {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == self.0 && !self.1.swap(true, Ordering::SeqCst) {
            resume_unwind(Box::new("a subscriber"));
        }
    }
}

/// Runs `work` under a subscriber that panics at the first event of the level.
fn under(level: Level, work: impl FnOnce()) {
    ask_each_subscriber();
    let panics = PanicsAt(level, Arc::default());
    let subscriber = tracing_subscriber::registry().with(panics.clone());
    tracing::subscriber::with_default(subscriber, work);
    assert!(panics.1.load(Ordering::SeqCst));
}

#[tokio::test]
async fn panic_at_report_of_grant_releases_lock() {
    let locks = LockManager::in_memory();
    under(Level::DEBUG, || {
        let acquire = locks.acquire("k").into_future();
        let polled = catch_unwind(AssertUnwindSafe(|| acquire.now_or_never()));
        assert!(polled.is_err());
    });
    assert!(locks.snapshot().is_idle(), "{:?}", locks.snapshot());
}

/// The watchdog reports the loss in the event that also returns the lease.
#[test]
fn panic_at_report_of_loss_returns_lease() {
    let runtime = current_thread();
    let _entered = runtime.enter();
    let locks = LockManager::builder(Memory::new()).runtime(runtime.handle().clone());
    let locks = locks.build().unwrap();
    let acquire = locks.acquire("k").max_hold(20 * MS).into_future();
    let held = acquire.now_or_never().unwrap().unwrap();
    under(Level::WARN, || {
        let returned = eventually("returned", || locks.snapshot().is_idle());
        runtime.block_on(returned);
    });
    assert!(!held.is_held());
}
