//! Histograms of durations, with 8 buckets per power of two of microseconds.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The buckets up to 2^33 µs, 2.4 h. The last one also has all longer durations.
pub(crate) const BUCKETS: usize = 248;

/// The bits of a duration below its highest one that select the bucket.
const FINE: u32 = 3;

/// Counts that many threads write.
#[derive(Debug)]
pub(in crate::observe) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    /// In microseconds.
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    pub(in crate::observe) const fn new() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(in crate::observe) fn record(&self, duration: Duration) {
        let micros = micros(duration);
        self.buckets[bucket(micros)].fetch_add(1, Relaxed);
        if micros > 0 {
            self.sum.fetch_add(micros, Relaxed);
        }
    }

    pub(in crate::observe) fn add_to(&self, total: &mut Distribution) {
        for (total, bucket) in total.buckets.iter_mut().zip(&self.buckets) {
            *total += bucket.load(Relaxed);
        }
        total.sum += self.sum.load(Relaxed);
    }
}

#[inline]
fn micros(duration: Duration) -> u64 {
    let whole = duration.as_secs().saturating_mul(1_000_000);
    whole.saturating_add(duration.subsec_micros().into())
}

/// Returns the bucket of a duration in microseconds.
#[inline]
fn bucket(micros: u64) -> usize {
    const EXACT: u64 = 1 << FINE;
    if micros < EXACT {
        return micros as usize;
    }
    let shift = micros.ilog2() - FINE;
    let within = (micros >> shift) - EXACT;
    let bucket = (u64::from(shift) + 1) * EXACT + within;
    (bucket as usize).min(BUCKETS - 1)
}

/// Returns the durations of a bucket in microseconds.
fn bounds(bucket: usize) -> Range<u64> {
    let start = |bucket: usize| {
        let (power, within) = (bucket >> FINE, bucket & ((1 << FINE) - 1));
        match power {
            0 => within as u64,
            _ => (within as u64 + (1 << FINE)) << (power - 1),
        }
    };
    start(bucket)..start(bucket + 1)
}

/// The durations of a histogram at one moment, exact to 1/8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Distribution {
    buckets: Box<[u64; BUCKETS]>,
    sum: u64,
}

impl Default for Distribution {
    fn default() -> Self {
        Self {
            buckets: Box::new([0; BUCKETS]),
            sum: 0,
        }
    }
}

impl Distribution {
    /// Returns the number of durations.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of the durations, each rounded down to whole microseconds.
    pub(crate) fn sum(&self) -> Duration {
        Duration::from_micros(self.sum)
    }

    /// Returns the duration that a part `q` of all durations does not exceed, for instance 0.99, or `None` if
    /// there are no durations.
    pub(crate) fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        let rank = ((q * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        self.counted().find_map(|(duration, count)| {
            below += count;
            (below >= rank).then_some(duration)
        })
    }

    /// Returns the longest duration, or `None` if there are no durations.
    pub(crate) fn max(&self) -> Option<Duration> {
        self.counted().last().map(|(duration, _)| duration)
    }

    /// Returns each duration with its number. The middle of a bucket stands for its durations.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (Duration, u64)> {
        let counted = self.buckets.iter().enumerate();
        let counted = counted.filter(|(_, count)| **count > 0);
        counted.map(|(bucket, count)| (middle(bucket), *count))
    }

    /// Returns the durations that were added since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut added = self.clone();
        for (added, earlier) in added.buckets.iter_mut().zip(&*earlier.buckets) {
            *added = added.saturating_sub(*earlier);
        }
        added.sum = self.sum.saturating_sub(earlier.sum);
        added
    }

    /// Adds the durations of another histogram.
    pub(crate) fn add(&mut self, other: &Self) {
        for (total, other) in self.buckets.iter_mut().zip(&*other.buckets) {
            *total += other;
        }
        self.sum += other.sum;
    }
}

/// Returns a duration strictly inside the bucket, so that the bounds of coarser buckets do not matter. The
/// first bucket has the acquires that did not wait.
fn middle(bucket: usize) -> Duration {
    if bucket == 0 {
        return Duration::ZERO;
    }
    let Range { start, end } = bounds(bucket);
    Duration::from_nanos((start + end) * 500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_contains_its_durations_and_no_other() {
        for at in 0..BUCKETS - 1 {
            let Range { start, end } = bounds(at);
            assert_eq!([start, end - 1, end].map(bucket), [at, at, at + 1], "{at}");
        }
        assert_eq!(bounds(BUCKETS - 1).end, 1 << 33);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn powers_of_two_begin_buckets() {
        for power in 0..33 {
            assert_eq!(bounds(bucket(1 << power)).start, 1 << power);
        }
    }

    #[test]
    fn quantiles_are_exact_to_one_eighth() {
        let histogram = Histogram::default();
        for millis in 1..=1000 {
            histogram.record(Duration::from_millis(millis));
        }
        let mut all = Distribution::default();
        assert_eq!((all.quantile(0.5), all.max()), (None, None));
        histogram.add_to(&mut all);
        assert_eq!(all.count(), 1000);
        assert_eq!(all.sum(), Duration::from_millis(500_500));
        for (q, exact) in [(0.0, 1.0), (0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = all.quantile(q).map(|it| it.as_secs_f64() * 1000.0);
            let found = found.unwrap_or(f64::NAN);
            assert!((found / exact - 1.0).abs() < 0.125, "{q}: {found}");
        }
    }

    #[test]
    fn difference_has_only_later_durations() {
        let histogram = Histogram::default();
        let read = || {
            let mut read = Distribution::default();
            histogram.add_to(&mut read);
            read
        };
        histogram.record(Duration::from_secs(1));
        let earlier = read();
        histogram.record(Duration::from_micros(5));
        let added = read().since(&earlier);
        assert_eq!((added.count(), added.sum()), (1, Duration::from_micros(5)));
        let mut both = earlier.clone();
        both.add(&added);
        assert_eq!(both, read());
    }
}
