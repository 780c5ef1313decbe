#[cfg(feature = "tracing")]
use super::outcome::Outcome;
use crate::Error;

/// Reports a request that a layer would have rejected, and that ran without its lock because the layer only
/// observes.
pub(crate) fn observed(error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        outcome = Outcome::of(Err(error)).as_str(),
        "request would be rejected"
    );
}

/// Reports a request that ran without its lock because the backend is unavailable. The first one of an outage
/// is a warning.
pub(crate) fn passed(error: &Error, is_first: bool) {
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
}
