use std::num::NonZeroU32;
use std::time::Duration;

#[cfg(feature = "tracing")]
use super::millis::millis;
#[cfg(feature = "tracing")]
use super::outcome::Outcome;
use crate::Error;

/// Reports an acquire that failed, after it waited.
pub(crate) fn not_acquired<'a>(
    error: &Error,
    waited: Duration,
    queue_position: Option<NonZeroU32>,
    layer: impl FnOnce() -> Option<&'a str>,
) {
    #[cfg(feature = "tracing")]
    {
        // A closure, so that the text is built only for a subscriber.
        let cause = || match std::error::Error::source(error) {
            Some(source) => Some(crate::error::with_causes(source)),
            // The handler may wait for its own request, and its client gets no more than a 409.
            None => error.is_held_here().then(|| error.to_string()),
        };
        tracing::debug!(
            target: "tower_lock",
            {
                lock.layer = layer(),
                lock.outcome = Outcome::of(Err(error)).as_str(),
                lock.wait_ms = millis(waited),
                lock.queue_position = queue_position.map(NonZeroU32::get),
                cause = cause().map(tracing::field::display),
            },
            "lock not acquired"
        );
    }
}

/// Reports an acquire whose caller dropped it while it waited.
pub(crate) fn wait_dropped<'a>(waited: Duration, layer: impl FnOnce() -> Option<&'a str>) {
    #[cfg(feature = "tracing")]
    tracing::debug!(
        target: "tower_lock",
        {
            lock.layer = layer(),
            lock.wait_ms = millis(waited),
        },
        "lock wait dropped"
    );
}

/// Reports a request whose handler extracts what no layer provides. No manager counts it, and the program may have
/// none, so the recorder gets it at once.
#[cfg(feature = "axum")]
pub(crate) fn not_provided(error: &Error) {
    not_acquired(error, Duration::ZERO, None, || None);
    #[cfg(feature = "metrics")]
    super::metrics::rejected_at_once(error);
}
