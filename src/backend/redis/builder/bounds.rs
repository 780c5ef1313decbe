//! The bounds of the settings.

use std::time::Duration;

use super::RedisBackendBuilder;
use crate::ConfigError;
use crate::task::{NoTimers, Runtime, timers_work};

const MAX_CONNECTIONS: usize = 256;
const MAX_REPLICAS: usize = 256;
/// The longest lease.
const MAX_QUARANTINE: Duration = Duration::from_secs(366 * 24 * 60 * 60);
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 60);

impl RedisBackendBuilder {
    /// Checks the bounds of the settings.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let for_replicas = self.min_replicas.map(|it| it.timeout);
        for (field, time, max) in [
            ("connect_timeout", Some(self.connect_timeout), MAX_TIMEOUT),
            ("response_timeout", Some(self.response_timeout), MAX_TIMEOUT),
            ("min_replicas", for_replicas, MAX_TIMEOUT),
            ("quarantine", self.quarantine, MAX_QUARANTINE),
        ] {
            if let Some(time) = time {
                ConfigError::within(MIN_TIMEOUT..=max, field, time)?;
            }
        }
        let more_than = |most| move || format!("more than {most}");
        let has_few = self.connections.get() <= MAX_CONNECTIONS;
        ConfigError::unless(has_few, "connections", more_than(MAX_CONNECTIONS))?;
        let has_counter = !self.redisson_tokens || self.quarantine.is_none();
        ConfigError::unless(has_counter, "redisson_fencing_tokens", || {
            "a quarantine needs the counter of this crate".to_owned()
        })?;
        let replicas = self.min_replicas.map_or(0, |it| it.replicas);
        ConfigError::unless(
            replicas <= MAX_REPLICAS,
            "min_replicas",
            more_than(MAX_REPLICAS),
        )
    }
}

/// Checks that the caller can set deadlines.
pub(super) fn require_runtime() -> Result<(), ConfigError> {
    let problem = match Runtime::current() {
        None => "no Tokio runtime: connect inside one".to_owned(),
        Some(_) if !timers_work() => NoTimers.to_string(),
        Some(_) => return Ok(()),
    };
    Err(ConfigError::new("runtime", problem))
}
