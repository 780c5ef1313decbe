use std::time::Duration;

#[cfg(feature = "tracing")]
use super::millis::millis;
use super::spans::RequestSpan;
use super::via::Via;
use crate::mode::Mode;

/// The grant of a key, and what later events need of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrantInfo<'a> {
    pub(crate) layer: Option<&'a str>,
    pub(crate) mode: Mode,
    pub(crate) via: Via,
    pub(crate) token: i64,
    pub(crate) waited: Duration,
    pub(crate) span: RequestSpan,
}

/// Reports a fresh grant, in the span of its acquire.
#[inline]
pub(crate) fn granted<'a>(grant: impl FnOnce() -> GrantInfo<'a>) {
    #[cfg(feature = "tracing")]
    if tracing::enabled!(target: "tower_lock", tracing::Level::DEBUG) {
        let grant = grant();
        tracing::debug!(
            target: "tower_lock",
            parent: grant.span.id(),
            {
                lock.layer = grant.layer,
                lock.mode = grant.mode.as_str(),
                lock.via = grant.via.as_str(),
                lock.wait_ms = millis(grant.waited),
                lock.token = grant.token,
            },
            "lock granted"
        );
    }
}

/// Reports the release of the last hold of a key.
#[inline]
pub(crate) fn released<'a>(layer: impl FnOnce() -> Option<&'a str>, held: Duration) {
    #[cfg(feature = "tracing")]
    tracing::debug!(
        target: "tower_lock",
        {
            lock.layer = layer(),
            lock.hold_ms = millis(held),
        },
        "lock released"
    );
}
