//! A little randomness, so that many do not act at one moment.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// `duration`, give or take up to a tenth.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.9 + 0.2 * part())
}

/// Anything from nothing to `duration`.
pub(crate) fn up_to(duration: Duration) -> Duration {
    duration.mul_f64(part())
}

/// From 0 to 1.
fn part() -> f64 {
    let random = random() >> 32;
    f64::from(u32::try_from(random).unwrap_or(0)) / f64::from(u32::MAX)
}

fn random() -> u64 {
    #[cfg(feature = "test-util")]
    if let Some(random) = crate::test_util::random() {
        return random;
    }
    // Each `RandomState` has fresh keys: its hash of anything is a cheap random number.
    RandomState::new().hash_one(0)
}
