use std::time::Duration;

use super::held::GrantInfo;
#[cfg(feature = "tracing")]
use super::millis::millis;
use super::via::LostReason;

/// The loss of a key that was held.
#[derive(Debug)]
pub(crate) struct Loss<'a> {
    pub(crate) grant: GrantInfo<'a>,
    pub(crate) reason: LostReason,
    pub(crate) held: Duration,
    /// The time from the end of the lease, or from its limit, to this report.
    pub(crate) overdue: Duration,
}

/// Reports the loss of a held lock, in the span of the request that lost it.
pub(crate) fn lost(loss: &Loss<'_>) {
    #[cfg(feature = "tracing")]
    {
        let GrantInfo {
            layer,
            mode,
            via,
            token,
            waited,
            span,
        } = loss.grant;
        tracing::warn!(
            target: "tower_lock",
            parent: span.id(),
            {
                lock.layer = layer,
                lock.lost_reason = loss.reason.as_str(),
                lock.mode = mode.as_str(),
                lock.via = via.as_str(),
                lock.token = token,
                lock.wait_ms = millis(waited),
                lock.hold_ms = millis(loss.held),
                lock.overdue_ms = millis(loss.overdue),
            },
            "lock lost"
        );
    }
}
