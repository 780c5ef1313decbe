//! The clock of a manager: that of its home, plus the time for which this machine was suspended.
//!
//! Moments and spans take half the space of an `Instant` and a `Duration`, because each held lock and
//! each waiter stores several of them.
//!
//! Timers run on tokio's clock, so a `Moment` converts to the `Instant` at which a timer fires if
//! the machine is not suspended again. A suspend delays pending timers. A task that sleeps until a
//! moment must therefore be woken after a resume, and must read the clock when it wakes.

mod suspended;
pub(super) mod timeout;

use std::num::NonZeroU64;
use std::ops::{Add, Div, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

pub(super) use suspended::is_clock_paused;
use suspended::{CLOCKS, Clocks};

/// The clock of one manager.
///
/// A thread of this crate has no other clock than that of the system. A runtime of a test may have paused its clock, and
/// a caller may be in such a runtime while its manager is not, or the reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The clock of the system.
    System,
    /// The clock of the present runtime.
    Runtime,
}

impl Clock {
    /// Returns the present moment. Reads two clocks, about 20 ns each.
    #[inline]
    pub(crate) fn now(self) -> Moment {
        #[cfg(test)]
        tests::count_look();
        let clocks = &*CLOCKS;
        let ticked = match self {
            Self::System => clocks.elapsed(),
            Self::Runtime => ticked(Instant::now(), clocks),
        };
        Moment::counted(ticked, Span(clocks.total(ticked)) + simulated())
    }
}

/// A moment in nanoseconds, up to 292 years before or after the first use of the clock, which is at [`START`].
///
/// Never 0, so an `Option<Moment>` takes no more space. A moment is earlier than the first use if tokio's clock
/// was paused before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(NonZeroU64);

/// The first use of the clock.
const START: u64 = 1 << 63;

impl Moment {
    pub(crate) const FIRST: Self = Self(NonZeroU64::MIN);
    pub(crate) const LAST: Self = Self(NonZeroU64::MAX);

    #[inline]
    fn new(nanos: u64) -> Self {
        NonZeroU64::new(nanos).map_or(Self::FIRST, Self)
    }

    /// Returns the moment of this reading of tokio's clock.
    #[inline]
    fn counted(ticked: i64, Span(suspended): Span) -> Self {
        Self::new(START.wrapping_add_signed(ticked.saturating_add(suspended)))
    }

    /// Returns the present moment of this test's runtime.
    #[cfg(test)]
    pub(crate) fn now() -> Self {
        Clock::Runtime.now()
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.span_since(earlier).get()
    }

    /// Returns the same as [`since`](Self::since).
    pub(crate) fn span_since(self, earlier: Self) -> Span {
        let nanos = self.0.get().saturating_sub(earlier.0.get());
        Span(nanos.min(i64::MAX.unsigned_abs()).cast_signed())
    }

    /// Returns the moment in units of 8 µs. They repeat after ten hours.
    pub(crate) fn ticks(self) -> u32 {
        (self.0.get() >> 13) as u32
    }

    pub(crate) fn before(self, span: Duration) -> Self {
        self - Span::new(span)
    }
}

/// Returns the total suspended time that [`Clock::now`] has noticed.
fn noticed() -> Span {
    Span(CLOCKS.noticed()) + simulated()
}

/// Returns the time for which a test has suspended this thread.
fn simulated() -> Span {
    #[cfg(feature = "test-util")]
    return Span::new(crate::test_util::suspended());
    #[cfg(not(feature = "test-util"))]
    Span::ZERO
}

/// Returns the reading of tokio's clock at `at`.
fn ticked(at: Instant, clocks: &Clocks) -> i64 {
    let start = Instant::from_std(clocks.start);
    match at.checked_duration_since(start) {
        Some(after) => nanos(after),
        None => -nanos(start.saturating_duration_since(at)),
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        self + Span::new(span)
    }
}

impl Add<Span> for Moment {
    type Output = Self;

    fn add(self, Span(nanos): Span) -> Self {
        Self(self.0.saturating_add(nanos.unsigned_abs()))
    }
}

impl Sub<Span> for Moment {
    type Output = Self;

    fn sub(self, Span(nanos): Span) -> Self {
        Self::new(self.0.get().saturating_sub(nanos.unsigned_abs()))
    }
}

/// A moment that one task sets and others read.
#[derive(Debug)]
pub(crate) struct AtomicMoment(AtomicU64);

impl AtomicMoment {
    pub(crate) fn new(Moment(nanos): Moment) -> Self {
        Self(AtomicU64::new(nanos.get()))
    }

    pub(crate) fn load(&self) -> Moment {
        Moment::new(self.0.load(Ordering::SeqCst))
    }

    pub(crate) fn store(&self, Moment(nanos): Moment) {
        self.0.store(nanos.get(), Ordering::SeqCst);
    }

    /// Moves the stored moment forward to the given one, if it was earlier.
    pub(crate) fn no_earlier_than(&self, Moment(nanos): Moment) {
        self.0.fetch_max(nanos.get(), Ordering::SeqCst);
    }

    /// Moves the stored moment back to the given one. Returns `true` if it was later.
    pub(crate) fn no_later_than(&self, Moment(nanos): Moment) -> bool {
        self.0.fetch_min(nanos.get(), Ordering::SeqCst) > nanos.get()
    }
}

/// Adds the suspends noticed so far.
impl From<Instant> for Moment {
    fn from(at: Instant) -> Self {
        Self::counted(ticked(at, &CLOCKS), noticed())
    }
}

/// Subtracts the suspends noticed so far. An unnoticed suspend makes the result too late, so read the
/// clock before a conversion.
impl From<Moment> for Instant {
    fn from(at: Moment) -> Self {
        let start = Self::from_std(CLOCKS.start);
        let ticked = (at - noticed()).0.get();
        let span = Duration::from_nanos(ticked.abs_diff(START));
        if ticked < START {
            start - span
        } else {
            start + span
        }
    }
}

/// A `Duration` in half the space. From 292 years on it is endless.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(i64);

impl Span {
    pub(crate) const ZERO: Self = Self(0);
    pub(crate) const FOREVER: Self = Self(i64::MAX);

    pub(crate) const fn new(span: Duration) -> Self {
        Self(nanos(span))
    }

    pub(crate) const fn get(self) -> Duration {
        Duration::from_nanos(self.0.unsigned_abs())
    }

    /// Returns zero if `span` is longer.
    pub(crate) fn saturating_sub(self, Self(span): Self) -> Self {
        Self(self.0.saturating_sub(span).max(0))
    }
}

impl Add for Span {
    type Output = Self;

    fn add(self, Self(span): Self) -> Self {
        Self(self.0.saturating_add(span))
    }
}

impl Div<u32> for Span {
    type Output = Self;

    fn div(self, by: u32) -> Self {
        Self(self.0 / i64::from(by))
    }
}

const fn nanos(span: Duration) -> i64 {
    let nanos = span.as_nanos();
    if nanos > i64::MAX as u128 {
        i64::MAX
    } else {
        nanos as i64
    }
}

#[cfg(test)]
pub(super) mod tests;
