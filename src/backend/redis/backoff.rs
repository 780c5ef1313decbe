//! How long to leave a server alone that just failed.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

/// Doubles from `first` with each failure in a row, up to `most`; then takes off up to half, so
/// that the processes of a fleet do not come back as one.
pub(super) fn backoff(failures: u32, first: Duration, most: Duration) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let step = first.saturating_mul(1 << doublings).min(most);
    // Randomly keyed hashes are random enough to spread retries, and cost no dependency.
    let random = u32::try_from(RandomState::new().hash_one(failures) >> 33).unwrap_or(0);
    step / 2 + (step / 2).mul_f64(f64::from(random) / f64::from(1_u32 << 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_a_bound_with_at_most_half_taken_off() {
        let ms = Duration::from_millis;
        for (failures, step) in [(1, 50), (2, 100), (5, 800), (6, 1_000), (60, 1_000)] {
            let pause = backoff(failures, ms(50), ms(1_000));
            assert!(
                pause >= ms(step) / 2 && pause <= ms(step),
                "{failures}: {pause:?}"
            );
        }
    }
}
