/// Returns a duration in milliseconds, as events have it.
pub(super) fn millis(duration: std::time::Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
