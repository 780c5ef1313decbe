use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

#[cfg(feature = "tracing")]
use super::millis::millis;
/// Whether the renewals of a manager fail, so that the first failure of an outage is a warning.
#[derive(Debug, Default)]
pub(crate) struct RenewalOutage {
    is_reported: AtomicBool,
}

impl RenewalOutage {
    /// Reports the renewals of one command that failed. The shortest time until one of the leases ends is `left`.
    pub(crate) fn failed(
        &self,
        count: usize,
        left: Option<Duration>,
        cause: &(dyn std::error::Error + 'static),
    ) {
        let is_first = !self.is_reported.swap(true, Relaxed);
        #[cfg(feature = "tracing")]
        {
            let cause = || tracing::field::display(crate::error::with_causes(cause));
            let left_ms = left.map(millis);
            if is_first {
                tracing::warn!(target: "tower_lock", { count, left_ms, cause = cause() }, "renewal failed");
            } else {
                tracing::debug!(target: "tower_lock", { count, left_ms, cause = cause() }, "renewal failed");
            }
        }
        #[cfg(not(feature = "tracing"))]
        let _unused_without_features = (is_first, count, left, cause);
    }

    /// Ends the outage.
    pub(crate) fn succeeded(&self) {
        // The load keeps the usual case free of writes.
        if self.is_reported.load(Relaxed) {
            self.is_reported.store(false, Relaxed);
        }
    }
}
