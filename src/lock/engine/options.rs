//! The defaults and bounds of the settings, and their validation.

use std::num::NonZeroU16;
use std::time::Duration;

use crate::ConfigError;

/// The shortest lease: a shorter one could be lost to the drift allowance.
const MIN_LEASE: Duration = Duration::from_millis(10);

/// The longest lease and the longest wait. [`Acquire::wait_forever`](crate::manager::Acquire::wait_forever) has
/// no deadline.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The longest time for which a released lease is kept. Single attempts of other processes fail for this time.
const MAX_KEEP: Duration = Duration::from_millis(100);

/// The most permits of a key.
const MAX_PERMITS: u16 = 10_000;

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) wait: Duration,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) keep_released: Duration,
    pub(crate) max_waiters_per_key: usize,
    pub(crate) max_waiters: usize,
    pub(crate) read_ahead: usize,
    pub(crate) max_read_ahead: usize,
    #[cfg(feature = "tracing")]
    pub(crate) trace_keys: Option<super::trace_keys::TraceKeys>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(5),
            watchdog_timeout: Duration::from_secs(30),
            keep_released: Duration::ZERO,
            max_waiters_per_key: 1024,
            max_waiters: 65_536,
            read_ahead: 64 << 10,
            max_read_ahead: 32 << 20,
            #[cfg(feature = "tracing")]
            trace_keys: None,
        }
    }
}

impl Options {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        valid_wait("wait", self.wait)?;
        valid_lease("watchdog_timeout", self.watchdog_timeout)?;
        valid_keep("keep_released", self.keep_released)?;
        valid_limit("max_waiters_per_key", self.max_waiters_per_key)?;
        valid_limit("max_waiters", self.max_waiters)
    }
}

pub(crate) fn valid_wait(field: &'static str, wait: Duration) -> Result<(), ConfigError> {
    ConfigError::unless(wait <= MAX_DURATION, field, || {
        format!(
            "{wait:?} is longer than the maximum of {MAX_DURATION:?}; only `Acquire::wait_forever` waits longer"
        )
    })
}

pub(crate) fn valid_lease(field: &'static str, lease: Duration) -> Result<(), ConfigError> {
    ConfigError::within(MIN_LEASE..=MAX_DURATION, field, lease)
}

pub(crate) fn valid_keep(field: &'static str, keep: Duration) -> Result<(), ConfigError> {
    ConfigError::unless(keep <= MAX_KEEP, field, || {
        format!("{keep:?} is longer than the maximum of {MAX_KEEP:?}")
    })
}

pub(crate) fn valid_permits(limit: u32) -> Result<NonZeroU16, ConfigError> {
    let valid = u16::try_from(limit).ok().and_then(NonZeroU16::new);
    let valid = valid.filter(|limit| limit.get() <= MAX_PERMITS);
    let problem = || format!("the limit is not between 1 and {MAX_PERMITS}");
    valid.ok_or_else(|| ConfigError::new("permits", problem()))
}

fn valid_limit(field: &'static str, limit: usize) -> Result<(), ConfigError> {
    ConfigError::unless(limit > 0, field, || "0 is less than 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NANOSECOND: Duration = Duration::from_nanos(1);
    const LONGEST: Duration = Duration::from_secs(31_622_400);

    #[test]
    fn longest_wait_is_valid_and_longer_is_not() {
        assert!(valid_wait("wait", LONGEST).is_ok());
        assert!(valid_wait("wait", LONGEST + NANOSECOND).is_err());
    }

    #[test]
    fn bounds_of_lease_are_inclusive() {
        let shortest = Duration::from_millis(10);
        for lease in [shortest, LONGEST] {
            assert!(valid_lease("lease", lease).is_ok(), "{lease:?}");
        }
        for lease in [shortest - NANOSECOND, LONGEST + NANOSECOND] {
            assert!(valid_lease("lease", lease).is_err(), "{lease:?}");
        }
    }

    #[test]
    fn longest_keep_is_valid_and_longer_is_not() {
        let longest = Duration::from_millis(100);
        assert!(valid_keep("keep_released", longest).is_ok());
        assert!(valid_keep("keep_released", longest + NANOSECOND).is_err());
    }

    #[test]
    fn smallest_limit_is_one() {
        assert!(valid_limit("max_waiters", 1).is_ok());
        assert!(valid_limit("max_waiters", 0).is_err());
    }
}
