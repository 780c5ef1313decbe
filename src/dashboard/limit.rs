//! Rate limits, for all operators of this process together.

use std::time::Duration;

use tokio::time::Instant;

use crate::mutex::Mutex;

/// A bound on the calls per second. Calls up to one second's worth may come at once.
#[derive(Debug)]
pub(super) struct Limit {
    /// The time between two calls at the full rate.
    interval: Duration,
    burst: u32,
    /// When the calls so far have used up their time.
    used_until: Mutex<Option<Instant>>,
}

impl Limit {
    pub(super) fn per_second(calls: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) / calls,
            burst: calls,
            used_until: Mutex::new(None),
        }
    }

    /// Admits a call, or returns how long the caller must wait.
    pub(super) fn admit(&self) -> Result<(), Duration> {
        let now = Instant::now();
        let mut used_until = self.used_until.lock();
        let next = used_until.unwrap_or(now).max(now) + self.interval;
        let latest = now + self.interval * self.burst;
        if next > latest {
            return Err(next - latest);
        }
        *used_until = Some(next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn limit_admits_burst_and_then_its_rate() {
        let limit = Limit::per_second(5);
        assert!((0..5).all(|_| limit.admit().is_ok()));
        assert_eq!(limit.admit(), Err(Duration::from_millis(200)));
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(limit.admit().is_ok());
        assert!(limit.admit().is_err());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!((0..5).all(|_| limit.admit().is_ok()));
        assert!(limit.admit().is_err(), "unused time is not saved");
    }
}
