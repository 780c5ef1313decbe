use std::time::Duration;

use super::request_span::RequestSpan;
use super::via::{LostReason, Via};

/// The loss of a key that was held.
#[derive(Debug)]
pub(crate) struct Loss<'a> {
    pub(crate) layer: Option<&'a str>,
    pub(crate) reason: LostReason,
    pub(crate) via: Via,
    pub(crate) token: i64,
    pub(crate) waited: Duration,
    pub(crate) held: Duration,
    /// The time from the end of the lease, or from its limit, to this report.
    pub(crate) overdue: Duration,
    pub(crate) span: RequestSpan,
}

/// Reports the loss of a held lock, in the span of the request that lost it.
pub(crate) fn lost(loss: &Loss<'_>) {
    #[cfg(feature = "tracing")]
    {
        let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
        tracing::warn!(
            target: "tower_lock",
            parent: loss.span.id(),
            {
            lock.layer = loss.layer,
            lock.lost_reason = loss.reason.as_str(),
            lock.via = loss.via.as_str(),
            lock.token = loss.token,
            lock.wait_ms = millis(loss.waited),
            lock.hold_ms = millis(loss.held),
            lock.overdue_ms = millis(loss.overdue),
            },
            "lock lost"
        );
    }
    #[cfg(not(feature = "tracing"))]
    let _unused_without_features = loss;
}
