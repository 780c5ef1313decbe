//! Logs the beginning and the end of an outage once each, however many commands fail.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::observe::{Part, Reporter};

/// How long no key may fail until the success of another key ends an outage.
const QUIET: Duration = Duration::from_secs(10);

/// A service of a server that can fail, and whether its failure has been logged.
#[derive(Debug)]
pub(crate) struct Outage {
    begins: &'static str,
    ends: &'static str,
    address: String,
    server: Reporter,
    reported: AtomicBool,
    /// The hash of the key that failed last, and the time of its failure.
    failing: Mutex<Option<(u64, Instant)>>,
}

impl Outage {
    /// Creates an outage of a part of a server that has not begun, from its two log messages.
    pub(crate) fn new(part: Part, begins: &'static str, ends: &'static str, address: &str) -> Self {
        Self {
            begins,
            ends,
            address: address.to_owned(),
            server: Reporter::new(address, part),
            reported: AtomicBool::new(false),
            failing: Mutex::default(),
        }
    }

    fn failing(&self) -> MutexGuard<'_, Option<(u64, Instant)>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with the failure of a key, perhaps of this key alone.
    pub(crate) fn begin_for(&self, key: u64, cause: &(dyn Error + 'static)) {
        *self.failing() = Some((key, Instant::now()));
        self.begin(cause);
    }

    /// Ends with the success of the key that failed last, or of any key if none has failed for a while. Each
    /// success of another key would otherwise end an outage that the next failure begins again.
    pub(crate) fn end_for(&self, key: u64) {
        // The load keeps the usual case free of the lock.
        if !self.reported.load(Ordering::Relaxed) {
            return;
        }
        let failing = *self.failing();
        if failing.is_none_or(|(last, at)| last == key || at.elapsed() >= QUIET) {
            self.end();
        }
    }

    /// Ends unless a key has failed. Its outage ends as [`end_for`](Self::end_for) describes.
    pub(crate) fn end_unless_for_key(&self) {
        if self.failing().is_none() {
            self.end();
        }
    }

    pub(crate) fn begin(&self, cause: &(dyn Error + 'static)) {
        if self.reported.swap(true, Ordering::Relaxed) {
            return;
        }
        self.server.outage_begins(cause);
        #[cfg(feature = "tracing")]
        {
            let cause = crate::error::with_causes(cause);
            tracing::warn!(address = self.address, %cause, "{}", self.begins);
        }
        let _unused_without_the_feature = (self.begins, &self.address, cause);
    }

    pub(crate) fn end(&self) {
        self.over(self.ends);
    }

    fn over(&self, message: &str) {
        // The load keeps the usual case free of writes.
        if !self.reported.load(Ordering::Relaxed) || !self.reported.swap(false, Ordering::Relaxed) {
            return;
        }
        self.server.outage_ends();
        *self.failing() = None;
        #[cfg(feature = "tracing")]
        tracing::info!(address = self.address, "{message}");
        let _unused_without_the_feature = message;
    }
}

/// A node that left the cluster would otherwise stay unreachable in the log.
impl Drop for Outage {
    fn drop(&mut self) {
        self.over("server removed");
    }
}
