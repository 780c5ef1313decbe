//! Tells an outage once when it begins and once when it is over, however many commands it takes.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

/// What of a server may be out of order, and whether that has been told.
#[derive(Debug)]
pub(crate) struct Outage {
    begins: &'static str,
    ends: &'static str,
    address: String,
    told: AtomicBool,
}

impl Outage {
    /// The texts for its beginning and for its end.
    pub(crate) fn new(begins: &'static str, ends: &'static str, address: &str) -> Self {
        Self {
            begins,
            ends,
            address: address.to_owned(),
            told: AtomicBool::new(false),
        }
    }

    pub(crate) fn begin(&self, cause: &(dyn Error + 'static)) {
        if self.told.swap(true, Ordering::Relaxed) {
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

    fn over(&self, how: &str) {
        // The load keeps the usual case free of writes.
        if !self.told.load(Ordering::Relaxed) || !self.told.swap(false, Ordering::Relaxed) {
            return;
        }
        #[cfg(feature = "tracing")]
        tracing::info!(address = self.address, "{how}");
        let _unused_without_the_feature = how;
    }
}

/// Nobody would ever tell its end: a node that left the cluster would stay down in the log.
impl Drop for Outage {
    fn drop(&mut self) {
        self.over("server removed");
    }
}
