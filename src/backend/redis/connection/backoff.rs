//! Pauses between attempts at a server that failed.

use std::time::Duration;

use crate::jitter::jittered;

/// Returns a pause that doubles from `first` with each consecutive failure, up to `most`. Jitter
/// keeps the processes of a fleet from reconnecting at the same moment.
pub(crate) fn backoff(failures: u32, first: Duration, most: Duration) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    jittered(first.saturating_mul(1 << doublings).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_up_to_bound() {
        let ms = Duration::from_millis;
        for (failures, step) in [(1, 50), (2, 100), (5, 800), (6, 1_000), (60, 1_000)] {
            let pause = backoff(failures, ms(50), ms(1_000));
            let about = ms(step).mul_f64(0.89)..ms(step).mul_f64(1.11);
            assert!(about.contains(&pause), "{failures}: {pause:?}");
        }
    }
}
