/// Reports the loss of a held lock.
pub(crate) fn lost() {
    #[cfg(feature = "metrics")]
    metrics::counter!("tower_lock_lost_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::warn!("lock lost while held");
}
