//! The panics of tasks, which Tokio catches.

use std::cell::RefCell;
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};

thread_local! {
    static WATCHED_BY: RefCell<Option<Panics>> = const { RefCell::new(None) };
}

/// Counts the panics on the threads that it watches.
#[derive(Clone, Default)]
pub(crate) struct Panics(Arc<AtomicUsize>);

impl Panics {
    /// Watches this thread. The hook of the process stays, and calls the previous one.
    pub(crate) fn watch() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let previous = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                WATCHED_BY.with_borrow(|watcher| {
                    if let Some(Self(count)) = watcher {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                });
                previous(panic);
            }));
        });
        let panics = Self::default();
        panics.watch_thread();
        panics
    }

    /// Watches another thread, which calls this.
    pub(crate) fn watch_thread(&self) {
        WATCHED_BY.set(Some(self.clone()));
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns a runtime whose threads are watched.
    pub(crate) fn watched_runtime(&self, threads: usize) -> tokio::runtime::Runtime {
        let panics = self.clone();
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .on_thread_start(move || panics.watch_thread())
            .enable_all()
            .build()
            .unwrap()
    }
}
