//! Tells an outage once when it begins and once when it is over, however many commands it takes.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the outage of the moment has been told.
#[derive(Debug, Default)]
pub(super) struct Outage(AtomicBool);

impl Outage {
    pub(super) fn begin(&self, what: &'static str, address: &str, cause: &(dyn Error + 'static)) {
        if self.0.swap(true, Ordering::Relaxed) {
            return;
        }
        #[cfg(feature = "tracing")]
        {
            let cause = crate::error::with_causes(cause);
            tracing::warn!(address, %cause, "{what}");
        }
        let _unused_without_the_feature = (what, address, cause);
    }

    pub(super) fn end(&self, what: &'static str, address: &str) {
        // The load keeps the usual case free of writes.
        if !self.0.load(Ordering::Relaxed) || !self.0.swap(false, Ordering::Relaxed) {
            return;
        }
        #[cfg(feature = "tracing")]
        tracing::info!(address, "{what}");
        let _unused_without_the_feature = (what, address);
    }
}
