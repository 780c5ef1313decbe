//! What the engine tells `tracing` and `metrics`, where those features are on.
//!
//! Never a key or an owner: keys come from requests, and both would make a series each.

use super::moment::Moment;
use crate::{Error, LockGuard};

/// An acquire has ended. `waiting_since` is when it began to wait, if it had to.
pub(super) fn acquired(outcome: &Result<LockGuard, Error>, waiting_since: Option<Moment>) {
    #[cfg(feature = "metrics")]
    {
        let waited = waiting_since.map_or(0.0, |since| Moment::now().since(since).as_secs_f64());
        metrics::counter!("tower_lock_acquires_total", "outcome" => name(outcome)).increment(1);
        metrics::histogram!("tower_lock_wait_seconds").record(waited);
    }
    #[cfg(feature = "tracing")]
    if let Err(error) = outcome {
        // Only made where somebody listens.
        let cause = || std::error::Error::source(error).map(crate::error::with_causes);
        tracing::debug!(
            outcome = name(outcome),
            cause = cause().map(display),
            "no lock"
        );
    }
    let _unused_without_features = (outcome, waiting_since);
}

/// A lock was lost while it was held.
pub(super) fn lost() {
    #[cfg(feature = "metrics")]
    metrics::counter!("tower_lock_lost_total").increment(1);
    #[cfg(feature = "tracing")]
    tracing::warn!("a lock was lost while it was held");
}

#[cfg(any(feature = "metrics", feature = "tracing"))]
fn name(outcome: &Result<LockGuard, Error>) -> &'static str {
    use crate::ErrorKind;

    match outcome {
        Ok(_) => "granted",
        Err(error) => match error.kind() {
            ErrorKind::Busy => "busy",
            ErrorKind::TooManyWaiters => "too_many_waiters",
            ErrorKind::Overloaded => "overloaded",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Misconfigured => "misconfigured",
            ErrorKind::Lost => "lost",
            ErrorKind::ShuttingDown => "shutting_down",
            ErrorKind::InvalidKey => "invalid_key",
            ErrorKind::InvalidOption => "invalid_option",
            ErrorKind::KeyConflict => "key_conflict",
            ErrorKind::ReentrancyLimit => "reentrancy_limit",
        },
    }
}
