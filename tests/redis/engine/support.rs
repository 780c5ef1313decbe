//! The lease and the percentiles of these tests.

use std::time::Duration;

/// The default.
pub(super) const LEASE: Duration = Duration::from_secs(30);

/// Returns the time below which `percent` of the others are.
pub(super) fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
