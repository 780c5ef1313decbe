use std::pin::pin;

use tokio::time::{Instant, timeout};

use super::*;
use crate::lock::tests::{MS, SECOND, number};

const DAY: Duration = Duration::from_secs(86_400);

fn attempted(lease: u64, until: Moment) -> UnknownLease {
    UnknownLease::attempted(number(lease), until, Moment::now())
}

fn key(name: &'static str) -> LockKey {
    LockKey::new(name)
}

/// Returns the leases of one key, which expire in a day.
fn unresolved(leases: impl IntoIterator<Item = u64>, now: Moment) -> Unresolved {
    let unresolved = Unresolved::default();
    for (nth, lease) in leases.into_iter().enumerate() {
        let start = unresolved.add(key("a"), attempted(lease, now + DAY));
        assert_eq!(start, nth == 0, "one task");
    }
    unresolved
}

/// Returns the leases to release now.
#[track_caller]
fn released(unresolved: &Unresolved, now: Moment) -> Vec<u64> {
    match unresolved.next_step(now) {
        Step::Release(leases) => leases.iter().map(|(_, lease)| lease.get()).collect(),
        other => panic!("{other:?}"),
    }
}

fn fail(unresolved: &Unresolved, now: Moment) {
    unresolved.replied(&key("a"), &[], true, now);
}

fn succeed(unresolved: &Unresolved, leases: &[u64], now: Moment) {
    let leases: Vec<_> = leases.iter().map(|lease| number(*lease)).collect();
    unresolved.replied(&key("a"), &leases, false, now);
}

#[test]
fn all_leases_of_key_go_in_one_command() {
    let now = Moment::now();
    let unresolved = unresolved([1, 2, 3, 2], now);
    assert_eq!(unresolved.len(), 3);
    assert_eq!(released(&unresolved, now), [1, 2, 3]);
    assert!(matches!(unresolved.next_step(now), Step::Wait));
    succeed(&unresolved, &[1, 2, 3], now);
    assert!(matches!(unresolved.next_step(now), Step::End));
}

#[test]
fn command_of_several_keys_is_bounded() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    for lease in 2..=150 {
        unresolved.add(key("b"), attempted(lease, now + DAY));
    }
    assert_eq!(released(&unresolved, now).len(), BATCH);
}

#[test]
fn key_has_one_command_in_flight() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    assert_eq!(released(&unresolved, now), [1]);
    assert!(!unresolved.add(key("a"), attempted(2, now + DAY)));
    assert!(matches!(unresolved.next_step(now), Step::Wait));
    succeed(&unresolved, &[1], now);
    assert_eq!(released(&unresolved, now), [2]);
}

#[test]
fn failed_key_is_sent_once_per_backoff_step() {
    let mut now = Moment::now();
    let unresolved = unresolved([1], now);
    for step in [50, 100, 200, 400, 800, 1000, 1000] {
        assert_eq!(released(&unresolved, now), [1]);
        fail(&unresolved, now);
        // A new lease does not move the next step.
        unresolved.add(key("a"), attempted(1, now + DAY));
        let Step::WaitUntil(at) = unresolved.next_step(now) else {
            panic!("a pause");
        };
        let pause = at.since(now);
        assert!(
            pause >= step * MS * 9 / 10 && pause <= step * MS * 11 / 10,
            "{pause:?}"
        );
        now = at;
    }
}

#[test]
fn lease_of_failed_key_waits_for_next_step() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    assert_eq!(released(&unresolved, now), [1]);
    fail(&unresolved, now);
    unresolved.add(key("a"), attempted(2, now + DAY));
    assert!(matches!(unresolved.next_step(now), Step::WaitUntil(_)));
    assert_eq!(released(&unresolved, now + SECOND), [1, 2]);
}

#[test]
fn failed_key_delays_no_other() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    assert_eq!(released(&unresolved, now), [1]);
    fail(&unresolved, now);
    unresolved.add(key("b"), attempted(2, now + DAY));
    assert_eq!(released(&unresolved, now), [2]);
}

#[test]
fn recovery_ends_all_backoffs() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    assert_eq!(released(&unresolved, now), [1]);
    fail(&unresolved, now);
    unresolved.retry_now();
    assert_eq!(released(&unresolved, now), [1]);
    // The failure of the command in flight may predate the recovery.
    unresolved.retry_now();
    assert!(matches!(unresolved.next_step(now), Step::Wait));
    fail(&unresolved, now);
    assert_eq!(released(&unresolved, now), [1]);
    fail(&unresolved, now);
    assert!(matches!(unresolved.next_step(now), Step::WaitUntil(_)));
}

#[test]
fn expired_leases_are_dropped_at_reply() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    unresolved.add(key("a"), attempted(2, now + SECOND));
    assert_eq!(released(&unresolved, now), [1, 2]);
    fail(&unresolved, now + SECOND);
    assert_eq!(released(&unresolved, now + 2 * SECOND), [1]);
    fail(&unresolved, now + DAY);
    assert!(matches!(unresolved.next_step(now), Step::End));
}

#[test]
fn long_lists_take_several_commands() {
    let now = Moment::now();
    let unresolved = unresolved(1..=150, now);
    let first = released(&unresolved, now);
    assert_eq!(first.len(), BATCH);
    succeed(&unresolved, &first, now);
    assert_eq!(released(&unresolved, now).len(), 150 - BATCH);
}

#[test]
fn lease_after_end_starts_another_task() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    assert_eq!(released(&unresolved, now), [1]);
    succeed(&unresolved, &[1], now);
    assert!(
        !unresolved.add(key("a"), attempted(2, now + DAY)),
        "not ended yet"
    );
    assert_eq!(released(&unresolved, now), [2]);
    succeed(&unresolved, &[2], now);
    assert!(matches!(unresolved.next_step(now), Step::End));
    assert!(unresolved.add(key("a"), attempted(3, now + DAY)));
}

#[tokio::test(start_paused = true)]
async fn finished_completes_with_last_entry() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    let mut finished = pin!(unresolved.finished());
    assert!(timeout(SECOND, &mut finished).await.is_err());
    assert_eq!(released(&unresolved, now), [1]);
    succeed(&unresolved, &[1], now);
    assert!(timeout(SECOND, finished).await.is_ok());
}

#[test]
fn lease_added_during_release_is_released_again() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    assert_eq!(released(&unresolved, now), [1]);
    // Its attempt has taken effect only now, perhaps after the release.
    unresolved.add(key("a"), attempted(1, now + 2 * DAY));
    succeed(&unresolved, &[1], now);
    assert_eq!(released(&unresolved, now + DAY), [1]);
    succeed(&unresolved, &[1], now);
    assert_eq!(unresolved.len(), 0);
}

#[test]
fn late_reply_moves_next_step() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    assert_eq!(released(&unresolved, now), [1]);
    fail(&unresolved, now);
    // The reply to a command that was sent before the task stopped.
    fail(&unresolved, now);
    let Step::WaitUntil(at) = unresolved.next_step(now) else {
        panic!("a pause");
    };
    assert!(at.since(now) >= 90 * MS, "{:?}", at.since(now));
    assert_eq!(released(&unresolved, at), [1]);
    assert!(matches!(unresolved.next_step(at), Step::Wait));
}

#[test]
fn step_of_many_keys_costs_as_much_as_of_few() {
    /// The shortest time of some steps while each of the keys waits for its next one.
    fn steps(keys: u64) -> Duration {
        let now = Moment::now();
        let unresolved = Unresolved::default();
        for nth in 0..keys {
            let key = LockKey::new(format!("key {nth}"));
            unresolved.add(key, attempted(nth, now + DAY));
        }
        while let Step::Release(leases) = unresolved.next_step(now) {
            for (key, _) in leases {
                unresolved.replied(&key, &[], true, now);
            }
        }
        let runs = (0..20).map(|_| {
            let began = Instant::now();
            for _ in 0..10 {
                let step = unresolved.next_step(now);
                assert!(matches!(step, Step::WaitUntil(_)));
            }
            began.elapsed()
        });
        runs.min().expect("some runs")
    }
    let (few, many) = (steps(10), steps(20_000));
    assert!(many < 50 * few, "{few:?} and {many:?}");
}

#[test]
fn key_beyond_full_command_goes_in_next_one() {
    let now = Moment::now();
    let unresolved = Unresolved::default();
    for nth in 0..=BATCH {
        unresolved.add(LockKey::new(format!("key {nth}")), attempted(1, now + DAY));
    }
    assert_eq!(released(&unresolved, now).len(), BATCH);
    assert_eq!(released(&unresolved, now).len(), 1);
}

#[test]
fn lease_released_elsewhere_is_not_released_again() {
    let now = Moment::now();
    let unresolved = unresolved([1, 2], now);
    let elsewhere =
        |lease, sent_at| unresolved.released_elsewhere(&key("a"), number(lease), sent_at);
    elsewhere(1, now.before(SECOND));
    assert_eq!(unresolved.len(), 2, "added since");
    assert_eq!(released(&unresolved, now), [1, 2]);
    elsewhere(1, now + SECOND);
    assert_eq!(unresolved.len(), 2, "in flight");
    fail(&unresolved, now);
    elsewhere(1, now + SECOND);
    assert_eq!(released(&unresolved, now + SECOND), [2]);
    fail(&unresolved, now + SECOND);
    elsewhere(2, now + SECOND);
    assert!(matches!(unresolved.next_step(now + SECOND), Step::End));
}

#[test]
fn granted_lease_is_released_once() {
    let now = Moment::now();
    let unresolved = unresolved([1], now);
    assert_eq!(released(&unresolved, now), [1]);
    unresolved.add(key("a"), UnknownLease::granted(number(1), now + 2 * DAY));
    fail(&unresolved, now + DAY);
    assert_eq!(
        released(&unresolved, now + DAY + SECOND),
        [1],
        "until later"
    );
    succeed(&unresolved, &[1], now + DAY + SECOND);
    assert!(matches!(
        unresolved.next_step(now + DAY + SECOND),
        Step::End
    ));
    unresolved.add(key("a"), UnknownLease::granted(number(1), now + 2 * DAY));
    unresolved.released_elsewhere(&key("a"), number(1), now.before(SECOND));
    assert!(matches!(
        unresolved.next_step(now + DAY + SECOND),
        Step::End
    ));
}
