//! Random delays, so that many processes do not act at the same moment.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns `duration`, changed by up to a tenth in either direction.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.9 + 0.2 * part())
}

/// Returns `duration`, shortened randomly by up to a fifth.
pub(crate) fn shortened(duration: Duration) -> Duration {
    duration.mul_f64(1.0 - 0.2 * part())
}

/// Returns a random duration between zero and `duration`.
pub(crate) fn up_to(duration: Duration) -> Duration {
    duration.mul_f64(part())
}

/// Returns a random number between 0 and 1.
fn part() -> f64 {
    let random = random() >> 32;
    f64::from(u32::try_from(random).unwrap_or(0)) / f64::from(u32::MAX)
}

fn random() -> u64 {
    #[cfg(feature = "test-util")]
    if let Some(random) = crate::test_util::random() {
        return random;
    }
    // Each `RandomState` has fresh keys, so its hash of any value is a cheap random number.
    RandomState::new().hash_one(0)
}
