//! How long to leave a server alone that just failed.

use std::time::Duration;

use crate::jitter::jittered;

/// Doubles from `first` with each failure in a row, up to `most`, give or take a little: the
/// processes of a fleet must not come back as one.
pub(crate) fn backoff(failures: u32, first: Duration, most: Duration) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    jittered(first.saturating_mul(1 << doublings).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_a_bound() {
        let ms = Duration::from_millis;
        for (failures, step) in [(1, 50), (2, 100), (5, 800), (6, 1_000), (60, 1_000)] {
            let pause = backoff(failures, ms(50), ms(1_000));
            let about = ms(step).mul_f64(0.89)..ms(step).mul_f64(1.11);
            assert!(about.contains(&pause), "{failures}: {pause:?}");
        }
    }
}
