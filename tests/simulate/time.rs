//! Virtual time of one seed.

use std::time::Duration;

/// Microseconds since the start of a seed, suspends included.
pub type Time = i64;

pub const MS: Time = 1_000;
pub const SECOND: Time = 1_000 * MS;

/// The response timeout of the simulated store.
pub const RESPONSE_TIMEOUT: Time = 500 * MS;

pub fn duration(time: Time) -> Duration {
    Duration::from_micros(time.max(0).unsigned_abs())
}

pub fn time(duration: Duration) -> Time {
    Time::try_from(duration.as_micros()).unwrap_or(Time::MAX / 4)
}

/// The end of a lease of `ttl`, sent at `sent`, as a guard may see it (I2).
pub fn valid_until(sent: Time, ttl: Time) -> Time {
    sent + ttl - (ttl / 100 + 2 * MS)
}
