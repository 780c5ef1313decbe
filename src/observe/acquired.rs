use std::time::Duration;

use crate::Error;

/// Reports the end of an acquire, and the time it waited.
pub(crate) fn acquired(outcome: Result<(), &Error>, waited: impl FnOnce() -> Duration) {
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("tower_lock_acquires_total", "outcome" => name(outcome)).increment(1);
        metrics::histogram!("tower_lock_wait_seconds").record(waited().as_secs_f64());
    }
    #[cfg(feature = "tracing")]
    if let Err(error) = outcome {
        // A closure, so that the text is built only for a subscriber.
        let cause = || std::error::Error::source(error).map(crate::error::with_causes);
        tracing::debug!(
            outcome = name(outcome),
            cause = cause().map(tracing::field::display),
            "lock not acquired"
        );
    }
    #[cfg(not(feature = "metrics"))]
    let _unused_without_features = (outcome, waited);
}

#[cfg(any(feature = "metrics", feature = "tracing"))]
pub(super) fn name(outcome: Result<(), &Error>) -> &'static str {
    use crate::ErrorKind;

    match outcome {
        Ok(()) => "granted",
        Err(error) => match error.kind() {
            ErrorKind::Busy => "busy",
            ErrorKind::TooManyWaiters => "too_many_waiters",
            ErrorKind::Overloaded => "overloaded",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Misconfigured => "misconfigured",
            ErrorKind::Lost => "lost",
            ErrorKind::ShuttingDown => "shutting_down",
            ErrorKind::InvalidKey => "invalid_key",
            ErrorKind::InvalidSetup => "invalid_setup",
            ErrorKind::NoRoute => "no_route",
            ErrorKind::BodyTooLarge => "body_too_large",
            ErrorKind::BodyTimeout => "body_timeout",
            ErrorKind::BodyFailed => "body_failed",
            ErrorKind::InvalidOption => "invalid_option",
            ErrorKind::KeyConflict => "key_conflict",
            ErrorKind::ReentrancyLimit => "reentrancy_limit",
        },
    }
}
