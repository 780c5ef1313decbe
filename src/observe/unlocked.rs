use crate::Error;

/// Reports a request that a layer would have rejected, and that ran without its lock because the layer only
/// observes.
pub(crate) fn observed(error: &Error) {
    count(error, "observe_only");
    #[cfg(feature = "tracing")]
    tracing::info!(
        outcome = super::acquired::name(Err(error)),
        "request would be rejected"
    );
}

/// Reports a request that ran without its lock because the backend is unavailable. The first one of an outage
/// is a warning.
pub(crate) fn passed(error: &Error, is_first: bool) {
    count(error, "on_unavailable");
    #[cfg(feature = "tracing")]
    {
        let cause = || std::error::Error::source(error).map(crate::error::with_causes);
        if is_first {
            let cause = cause().map(tracing::field::display);
            tracing::warn!(cause, "requests run without their lock");
        } else {
            tracing::debug!(
                cause = cause().map(tracing::field::display),
                "request runs without its lock"
            );
        }
    }
    #[cfg(not(feature = "tracing"))]
    let _unused_without_features = is_first;
}

fn count(error: &Error, option: &'static str) {
    #[cfg(feature = "metrics")]
    {
        let outcome = super::acquired::name(Err(error));
        metrics::counter!("tower_lock_unlocked_total", "option" => option, "outcome" => outcome)
            .increment(1);
    }
    #[cfg(not(feature = "metrics"))]
    let _unused_without_features = (error, option);
}
