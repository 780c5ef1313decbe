//! The time for which this machine has been suspended.
//!
//! Tokio's clock pauses while the machine is suspended, but leases in the backend do not. A suspend
//! shows in the difference between a clock that counts suspends and one that does not:
//!
//! | system | counts suspends | does not |
//! |---|---|---|
//! | Linux, Android | `CLOCK_BOOTTIME` | `CLOCK_MONOTONIC` (std, tokio) |
//! | Apple | `CLOCK_MONOTONIC` | `CLOCK_UPTIME_RAW` (std, tokio) |
//! | Windows | `QueryPerformanceCounter` (std, tokio) | |
//! | others | std's clock, if it counts them | |
//!
//! On Apple systems, `CLOCK_MONOTONIC` follows time adjustments and the other clock does not. A
//! suspend counts there minus the time by which the first clock has fallen behind. If the hypervisor of
//! a virtual machine stops both clocks, the suspend is not detected.

// Uses the std clock, because a paused tokio clock does not mean a suspended machine.
#![allow(clippy::disallowed_types)]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

/// The largest total of undetected suspends, in nanoseconds.
///
/// Half of the fixed part of a lease's drift, so an undetected suspend never extends past `valid_until`.
/// Two adjacent readings are about 50 ns apart, so a larger difference is a suspend, a preemption
/// between the readings, or a tokio clock that a test has paused.
const TOLERANCE: i64 = 1_000_000;

/// The number of comparisons. A preemption between two readings spoils one of them.
const READINGS: usize = 3;

/// The clocks of this process, each with its own zero.
pub(super) struct Clocks {
    /// The moment from which the engine counts.
    pub(super) start: Instant,
    counter: Counter,
}

/// The clocks, which start with the first use.
pub(super) static CLOCKS: LazyLock<Clocks> = LazyLock::new(|| {
    let start = Instant::now();
    Clocks {
        start,
        counter: Counter::new(counting, || running(start)),
    }
});

/// Returns `true` if the clock of the current runtime is paused: two readings are equal while the time of the system
/// passes.
pub(crate) fn is_clock_paused() -> bool {
    let (reading, since) = (tokio::time::Instant::now(), Instant::now());
    while Instant::now() == since {
        std::hint::spin_loop();
    }
    tokio::time::Instant::now() == reading
}

impl Clocks {
    /// Returns the reading of std's clock.
    pub(super) fn elapsed(&self) -> i64 {
        running(self.start)
    }

    /// Returns the suspended nanoseconds as of the reading `ticked` of tokio's clock, taken just before
    /// this call.
    pub(super) fn total(&self, ticked: i64) -> i64 {
        self.counter.total(ticked, counting, || running(self.start))
    }

    /// Returns the suspended nanoseconds that [`total`](Self::total) has detected, without reading a
    /// clock.
    pub(super) fn noticed(&self) -> i64 {
        self.counter.noticed()
    }
}

fn running(start: Instant) -> i64 {
    super::nanos(start.elapsed())
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn counting() -> i64 {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(not(target_vendor = "apple"))]
    const COUNTS: ClockId = ClockId::Boottime;
    #[cfg(target_vendor = "apple")]
    const COUNTS: ClockId = ClockId::Monotonic;
    let now = clock_gettime(COUNTS);
    // The fields are narrower on some systems.
    #[allow(clippy::useless_conversion)]
    let nanos = i64::from(now.tv_nsec);
    now.tv_sec * 1_000_000_000 + nanos
}

/// Returns 0, which is never ahead of tokio's clock, so no suspend is added. Tokio's clock may count
/// suspends itself.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn counting() -> i64 {
    0
}

/// A counter of suspends that compares a clock that counts them with one that does not.
#[derive(Debug)]
struct Counter {
    /// A lower bound of the lead of the counting clock at the start.
    ahead: i64,
    total: AtomicI64,
}

impl Counter {
    fn new(mut counting: impl FnMut() -> i64, mut running: impl FnMut() -> i64) -> Self {
        // Reads the running clock first: a delay between the readings enlarges this value, so totals shrink.
        let ahead = std::iter::repeat_with(|| {
            let running = running();
            counting() - running
        });
        Self {
            ahead: ahead.take(READINGS).fold(i64::MAX, i64::min),
            total: AtomicI64::new(0),
        }
    }

    fn noticed(&self) -> i64 {
        self.total.load(Ordering::SeqCst)
    }

    /// Returns the total, which never decreases and never exceeds the time suspended.
    fn total(
        &self,
        ticked: i64,
        mut counting: impl FnMut() -> i64,
        running: impl FnMut() -> i64,
    ) -> i64 {
        let noticed = self.noticed();
        let unexplained = counting() - self.ahead - ticked - noticed;
        if unexplained <= TOLERANCE {
            noticed
        } else {
            self.count(counting, running)
        }
    }

    #[cold]
    fn count(&self, mut counting: impl FnMut() -> i64, mut running: impl FnMut() -> i64) -> i64 {
        // Reads the running clock last: a delay between the readings reduces the value, so the largest
        // value is the most accurate.
        let suspended = std::iter::repeat_with(|| {
            let counting = counting();
            counting - running() - self.ahead
        });
        let suspended = suspended.take(READINGS).fold(0, i64::max);
        self.total
            .fetch_max(suspended, Ordering::SeqCst)
            .max(suspended)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// A machine with simulated clocks, one of them ahead by a constant.
    #[derive(Default)]
    struct Machine {
        running: Cell<i64>,
        suspended: Cell<i64>,
        readings: Cell<usize>,
        /// The readings before which the process is preempted for a second.
        preempted: &'static [usize],
    }

    impl Machine {
        fn reading(&self) {
            let reading = self.readings.replace(self.readings.get() + 1);
            if self.preempted.contains(&reading) {
                self.running.set(self.running.get() + SECOND);
            }
        }

        fn counting(&self) -> i64 {
            self.reading();
            77 * SECOND + self.running.get() + self.suspended.get()
        }

        fn running(&self) -> i64 {
            self.reading();
            self.running.get()
        }

        fn counter(&self) -> Counter {
            let counter = Counter::new(|| self.counting(), || self.running());
            self.readings.set(0);
            counter
        }

        fn total(&self, counter: &Counter, ticked: i64) -> i64 {
            counter.total(ticked, || self.counting(), || self.running())
        }
    }

    #[test]
    fn clocks_in_step_take_one_reading() {
        let machine = Machine::default();
        let counter = machine.counter();
        machine.running.set(TOLERANCE);
        assert_eq!(machine.total(&counter, 0), 0);
        assert_eq!(machine.readings.get(), 1);
    }

    #[test]
    fn running_clocks_take_one_reading() {
        let machine = Machine::default();
        let counter = machine.counter();
        machine.running.set(5 * SECOND);
        assert_eq!(machine.total(&counter, 5 * SECOND), 0);
        assert_eq!(machine.readings.get(), 1);
    }

    #[test]
    fn suspends_add_up() {
        let machine = Machine::default();
        let counter = machine.counter();
        for seconds in [4, 9] {
            machine.suspended.set(seconds * SECOND);
            assert_eq!(machine.total(&counter, 0), seconds * SECOND);
        }
        machine.readings.set(0);
        assert_eq!(machine.total(&counter, 0), 9 * SECOND);
        assert_eq!(machine.readings.get(), 1);
    }

    #[test]
    fn short_suspends_add_up_and_count() {
        let machine = Machine::default();
        let counter = machine.counter();
        for _ in 0..3 {
            let suspended = machine.suspended.get() + TOLERANCE / 2;
            machine.suspended.set(suspended);
            machine.total(&counter, 0);
        }
        assert_eq!(counter.noticed(), 3 * TOLERANCE / 2);
    }

    #[test]
    fn preemption_between_readings_counts_nothing() {
        for preempted in [&[0], &[2], &[0, 1, 2, 3, 4, 5, 6][..]] {
            let machine = Machine {
                preempted,
                ..Machine::default()
            };
            assert_eq!(machine.total(&machine.counter(), 0), 0);
        }
    }

    #[test]
    fn preemption_after_suspend_hides_nothing() {
        for preempted in [&[0], &[1], &[2], &[4], &[2, 4][..]] {
            let machine = Machine {
                preempted,
                ..Machine::default()
            };
            let counter = Counter {
                ahead: 77 * SECOND,
                total: AtomicI64::new(0),
            };
            machine.suspended.set(4 * SECOND);
            assert_eq!(machine.total(&counter, 0), 4 * SECOND, "{preempted:?}");
        }
    }

    #[test]
    fn preemption_decreases_no_total() {
        let mut machine = Machine::default();
        let counter = machine.counter();
        machine.suspended.set(4 * SECOND);
        machine.total(&counter, 0);
        machine.suspended.set(9 * SECOND / 2);
        machine.preempted = &[2, 4, 6];
        machine.readings.set(0);
        assert_eq!(machine.total(&counter, 0), 4 * SECOND);
        assert_eq!(counter.noticed(), 4 * SECOND);
    }

    #[test]
    fn preemption_at_start_hides_nothing() {
        let machine = Machine {
            preempted: &[1, 3],
            ..Machine::default()
        };
        let counter = machine.counter();
        machine.suspended.set(SECOND / 2);
        assert_eq!(machine.total(&counter, machine.running.get()), SECOND / 2);
    }

    #[test]
    fn tokio_clock_paused_or_ahead_counts_nothing() {
        let machine = Machine::default();
        let counter = machine.counter();
        machine.running.set(5 * SECOND);
        for ticked in [-SECOND, 0, 3_600 * SECOND] {
            assert_eq!(machine.total(&counter, ticked), 0);
        }
    }

    #[test]
    fn suspend_counts_under_paused_tokio_clock() {
        let machine = Machine::default();
        let counter = machine.counter();
        machine.running.set(5 * SECOND);
        machine.suspended.set(4 * SECOND);
        assert_eq!(machine.total(&counter, 0), 4 * SECOND);
    }

    #[test]
    fn this_machine_has_not_been_suspended() {
        let clocks = &*CLOCKS;
        assert!(clocks.total(running(clocks.start)) <= clocks.noticed());
    }

    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    #[test]
    fn counting_clock_advances_over_full_second() {
        let before = counting();
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        let elapsed = counting() - before;
        assert!(elapsed >= SECOND, "{elapsed}");
    }

    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    #[test]
    fn suspend_of_this_machine_is_counted() {
        let start = Instant::now();
        let mut counter = Counter::new(counting, || running(start));
        // This lead makes the readings those of a machine that was suspended for four seconds.
        counter.ahead -= 4 * SECOND;
        let clocks = Clocks { start, counter };
        let total = clocks.total(running(start));
        assert!((SECOND..=4 * SECOND).contains(&total), "{total}");
        assert_eq!(clocks.noticed(), total);
    }

    #[test]
    fn time_of_four_threads_never_decreases() {
        let (start, suspended) = (Instant::now(), AtomicI64::new(0));
        let ticked = || running(start);
        let counting = || ticked() + suspended.load(Ordering::SeqCst);
        let counter = Counter::new(counting, ticked);
        let latest = AtomicI64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..20_000 {
                        let before = latest.load(Ordering::SeqCst);
                        let ticked = running(start);
                        let now = ticked + counter.total(ticked, counting, || running(start));
                        assert!(now >= before, "{now} after {before}");
                        latest.fetch_max(now, Ordering::SeqCst);
                        if round % 16 == 0 {
                            suspended.fetch_add(2 * TOLERANCE, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        let suspended = suspended.load(Ordering::SeqCst);
        assert!(counter.noticed() <= suspended);
        assert!(counter.noticed() >= suspended - TOLERANCE);
    }
}
