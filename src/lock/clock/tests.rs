use std::cell::Cell;

use super::*;

thread_local! {
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn count_look() {
    LOOKS.set(LOOKS.get() + 1);
}

/// Returns how often this thread has read the clock.
pub(crate) fn checks() -> usize {
    LOOKS.get()
}

const YEAR: Duration = Duration::from_secs(366 * 24 * 3_600);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn instant_round_trip_is_exact() {
    let start = Instant::from_std(CLOCKS.start);
    let before = start - Duration::from_nanos(1);
    for at in [before, start, Instant::now(), Instant::now() + YEAR] {
        assert_eq!(Instant::from(Moment::from(at)), at);
    }
    assert!(Moment::from(before) < Moment::from(start));
}

#[test]
fn span_round_trip_is_exact_or_endless() {
    for span in [Duration::ZERO, Duration::from_nanos(1), YEAR] {
        assert_eq!(Span::new(span).get(), span);
    }
    assert_eq!(Span::new(Duration::MAX), Span::FOREVER);
    assert_eq!(Moment::now() + Duration::MAX, Moment::LAST);
    assert_eq!(Moment::FIRST.since(Moment::LAST), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn paused_time_moves_only_by_advance() {
    let start = Moment::now();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(Moment::now(), start);
    tokio::time::advance(YEAR).await;
    assert_eq!(Moment::now(), start + YEAR);
    assert_eq!(Instant::from(start + YEAR), Instant::now());
}

#[cfg(feature = "test-util")]
#[tokio::test(start_paused = true)]
async fn suspend_moves_moments_and_no_timers() {
    let (moment, instant, total) = (Moment::now(), Instant::now(), noticed().get());
    crate::test_util::suspend(4 * SECOND);
    assert_eq!(Moment::now(), moment + 4 * SECOND);
    assert_eq!(noticed().get(), total + 4 * SECOND);
    assert_eq!(Instant::now(), instant);
    assert_eq!(Instant::from(Moment::now()), instant);
    assert_eq!(Moment::from(instant), Moment::now());
    let at = Instant::from(moment + 5 * SECOND);
    assert_eq!(at, instant + SECOND);
}

#[test]
fn spans_calculate_like_durations() {
    let spans = [0, 1, 7, 1_999_999, 3_000_000_001].map(Duration::from_nanos);
    for (one, other) in spans
        .into_iter()
        .flat_map(|one| spans.map(|other| (one, other)))
    {
        let (one_span, other_span) = (Span::new(one), Span::new(other));
        assert_eq!((one_span + other_span).get(), one + other);
        let difference = one_span.saturating_sub(other_span).get();
        assert_eq!(difference, one.saturating_sub(other));
        assert_eq!((one_span / 3).get(), one / 3);
        let now = Moment::now();
        assert_eq!((now + one_span).since(now), one);
        assert_eq!(now.since(now - one_span), one);
    }
    assert_eq!(
        Span::FOREVER + Span::new(Duration::from_nanos(1)),
        Span::FOREVER
    );
}

#[test]
fn stored_moment_moves_back_only() {
    let now = Moment::now();
    let stored = AtomicMoment::new(now + SECOND);
    assert!(!stored.no_later_than(now + 2 * SECOND));
    assert!(!stored.no_later_than(now + SECOND), "no change");
    assert_eq!(stored.load(), now + SECOND);
    assert!(stored.no_later_than(now));
    assert_eq!(stored.load(), now);
}
