//! The log of failed renewals.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

#[cfg(feature = "tracing")]
use super::millis::millis;

use crate::mutex::Mutex;

/// The shortest time between two warnings, and the time since the last failure after which any success ends an outage.
const PAUSE: Duration = Duration::from_secs(10);

/// Logs the beginning and the end of an outage of a manager's renewals, however many commands fail.
///
/// While one server of several fails, commands succeed and fail in turns. Therefore only the renewal of the lease that
/// failed last ends the outage. That lease can be released or lost, so later any renewal ends it.
#[derive(Debug, Default)]
pub(crate) struct RenewalOutage {
    /// Whether an outage has begun.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the lease that failed last, and when.
    failed: Option<(u64, Instant)>,
    warned: Option<Instant>,
}

impl RenewalOutage {
    /// Reports the renewals of one command that failed, one of them for `lease`. The shortest time until one of the
    /// leases ends is `left`.
    pub(crate) fn failed(
        &self,
        lease: u64,
        count: usize,
        left: Option<Duration>,
        cause: &(dyn std::error::Error + 'static),
    ) {
        let is_warning = self.begin(lease);
        #[cfg(feature = "tracing")]
        {
            let cause = || tracing::field::display(crate::error::with_causes(cause));
            let left_ms = left.map(millis);
            if is_warning {
                tracing::warn!(target: "tower_lock", { count, left_ms, cause = cause() }, "renewal failed");
            } else {
                tracing::debug!(target: "tower_lock", { count, left_ms, cause = cause() }, "renewal failed");
            }
        }
    }

    /// Reports a command that renewed these leases.
    pub(crate) fn succeeded(&self, leases: impl Iterator<Item = u64>) {
        // The load keeps the usual case free of the mutex.
        if self.is_on.load(Relaxed) && self.end(leases) {
            #[cfg(feature = "tracing")]
            tracing::info!(target: "tower_lock", "renewals succeed again");
        }
    }

    /// Returns `true` if the failure is a warning.
    fn begin(&self, lease: u64) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.failed = Some((lease, now));
        let warns = state.warned.is_none_or(|at| now - at >= PAUSE);
        if warns {
            state.warned = Some(now);
            self.is_on.store(true, Relaxed);
        }
        warns
    }

    /// Returns `true` if the outage ends.
    fn end(&self, mut leases: impl Iterator<Item = u64>) -> bool {
        let state = self.state.lock();
        let is_over = state.failed.is_none_or(|(lease, at)| {
            at.elapsed() >= PAUSE || leases.any(|renewed| renewed == lease)
        });
        is_over && self.is_on.swap(false, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lasting_outage_warns_after_pause() {
        let outage = RenewalOutage::default();
        assert!(outage.begin(1));
        advance(PAUSE / 2).await;
        assert!(!outage.begin(2));
        advance(PAUSE / 2).await;
        assert!(outage.begin(1));
    }

    #[tokio::test(start_paused = true)]
    async fn outage_ends_with_failed_lease_or_later() {
        let outage = RenewalOutage::default();
        let is_over = |lease| outage.end(once(lease));
        assert!(!is_over(1), "it has not begun");
        outage.begin(1);
        assert!(!is_over(2));
        assert!(is_over(1));
        assert!(!is_over(1), "it ends once");
        advance(PAUSE).await;
        outage.begin(1);
        advance(PAUSE).await;
        assert!(is_over(2));
    }

    /// Failures and successes in turns have one warning and one end per pause.
    #[tokio::test(start_paused = true)]
    async fn failures_in_turns_are_logged_once_per_pause() {
        let outage = RenewalOutage::default();
        let mut logged = [0, 0];
        for _ in 0..PAUSE.as_secs() {
            logged[0] += u32::from(outage.begin(1));
            logged[1] += u32::from(outage.end(once(1)));
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(logged, [1, 1]);
    }
}
