//! Logs the beginning and the end of an outage once each, however many commands fail.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

/// A service of a server that can fail, and whether its failure has been logged.
#[derive(Debug)]
pub(crate) struct Outage {
    begins: &'static str,
    ends: &'static str,
    address: String,
    reported: AtomicBool,
}

impl Outage {
    /// Creates an outage that has not begun, from its two log messages.
    pub(crate) fn new(begins: &'static str, ends: &'static str, address: &str) -> Self {
        Self {
            begins,
            ends,
            address: address.to_owned(),
            reported: AtomicBool::new(false),
        }
    }

    pub(crate) fn begin(&self, cause: &(dyn Error + 'static)) {
        if self.reported.swap(true, Ordering::Relaxed) {
            return;
        }
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
