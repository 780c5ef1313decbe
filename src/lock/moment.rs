//! Time in the engine: moments and spans in half the space of an `Instant` and a `Duration`. Every lock
//! that is held, and whoever waits, has several of them.

use std::ops::Add;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Tokio's clock, in nanoseconds from a moment in the life of this process; that may be later, since
/// a paused clock stands still from before. Three hundred years fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(i64);

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Moment {
    pub(super) const FIRST: Self = Self(i64::MIN);
    pub(super) const LAST: Self = Self(i64::MAX);

    pub(super) fn now() -> Self {
        Instant::now().into()
    }

    /// Zero if that was not earlier.
    pub(super) fn since(self, earlier: Self) -> Duration {
        let nanos = self.0.saturating_sub(earlier.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    pub(super) fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

/// A moment that one task moves and others look at.
#[derive(Debug)]
pub(super) struct AtomicMoment(AtomicI64);

impl AtomicMoment {
    pub(super) fn new(Moment(nanos): Moment) -> Self {
        Self(AtomicI64::new(nanos))
    }

    pub(super) fn load(&self) -> Moment {
        Moment(self.0.load(Ordering::SeqCst))
    }

    pub(super) fn store(&self, Moment(nanos): Moment) {
        self.0.store(nanos, Ordering::SeqCst);
    }

    /// Moves it forward to there, if it was before.
    pub(super) fn no_earlier_than(&self, Moment(nanos): Moment) {
        self.0.fetch_max(nanos, Ordering::SeqCst);
    }

    /// Moves it back to there, if it was later: then true.
    pub(super) fn no_later_than(&self, Moment(nanos): Moment) -> bool {
        self.0.fetch_min(nanos, Ordering::SeqCst) > nanos
    }
}

impl From<Instant> for Moment {
    fn from(at: Instant) -> Self {
        match at.checked_duration_since(*EPOCH) {
            Some(after) => Self(nanos(after)),
            None => Self(-nanos(EPOCH.saturating_duration_since(at))),
        }
    }
}

impl From<Moment> for Instant {
    fn from(Moment(nanos): Moment) -> Self {
        let span = Duration::from_nanos(nanos.unsigned_abs());
        if nanos < 0 {
            *EPOCH - span
        } else {
            *EPOCH + span
        }
    }
}

/// A `Duration` in half the space; three hundred years are for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span(i64);

impl Span {
    pub(super) const FOREVER: Self = Self(i64::MAX);

    pub(super) const fn new(span: Duration) -> Self {
        Self(nanos(span))
    }

    pub(super) const fn get(self) -> Duration {
        Duration::from_nanos(self.0.unsigned_abs())
    }
}

const fn nanos(span: Duration) -> i64 {
    const A_SECOND: u64 = 1_000_000_000;
    let nanos = span.as_secs().saturating_mul(A_SECOND);
    let nanos = nanos.saturating_add(span.subsec_nanos() as u64);
    if nanos > i64::MAX as u64 {
        i64::MAX
    } else {
        nanos.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Duration = Duration::from_secs(366 * 24 * 3_600);

    #[test]
    fn an_instant_comes_back_as_it_was() {
        let before = *EPOCH - Duration::from_nanos(1);
        for at in [before, *EPOCH, Instant::now(), Instant::now() + YEAR] {
            assert_eq!(Instant::from(Moment::from(at)), at);
        }
        assert!(Moment::from(before) < Moment::from(*EPOCH));
    }

    #[test]
    fn a_span_comes_back_as_it_was_or_is_endless() {
        for span in [Duration::ZERO, Duration::from_nanos(1), YEAR] {
            assert_eq!(Span::new(span).get(), span);
        }
        assert_eq!(Span::new(Duration::MAX), Span::FOREVER);
        assert_eq!(Moment::now() + Duration::MAX, Moment::LAST);
        assert_eq!(Moment::FIRST.since(Moment::LAST), Duration::ZERO);
    }
}
