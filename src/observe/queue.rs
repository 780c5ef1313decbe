use std::time::Duration;

/// Reports the transfer of a released lock to the first waiting process.
pub(crate) fn transferred() {
    #[cfg(feature = "metrics")]
    metrics::counter!("tower_lock_transfers_total").increment(1);
}

/// Reports waiters that were passed over because their processes have ended or hang.
pub(crate) fn passed_over(waiters: u64) {
    #[cfg(feature = "metrics")]
    if waiters > 0 {
        metrics::counter!("tower_lock_passed_over_total").increment(waiters);
    }
    #[cfg(not(feature = "metrics"))]
    let _unused_without_features = waiters;
}

/// Reports that a process confirmed the transfer of a lock by a command, and how long the lock was idle before.
pub(crate) fn confirmed(idle: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("tower_lock_transfer_seconds").record(idle.as_secs_f64());
    #[cfg(not(feature = "metrics"))]
    let _unused_without_features = idle;
}
