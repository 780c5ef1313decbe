use std::pin::pin;

use tokio::time::{Instant, timeout};

use super::*;
use crate::lock::tests::{MS, SECOND, number};

const DAY: Duration = Duration::from_secs(86_400);

fn attempted(lease: u64, until: Moment) -> UnknownLease {
    UnknownLease::attempted(number(lease), until)
}

fn key(name: &'static str) -> LockKey {
    LockKey::new(name)
}

/// Returns the leases of one key, which expire in a day.
fn unconfirmed(leases: impl IntoIterator<Item = u64>, now: Moment) -> UnconfirmedReleases {
    let unconfirmed = UnconfirmedReleases::default();
    for lease in leases {
        unconfirmed.add(key("a"), 0, attempted(lease, now + DAY));
    }
    unconfirmed
}

/// Returns the leases to release now.
#[track_caller]
fn released(unconfirmed: &UnconfirmedReleases, now: Moment) -> Vec<u64> {
    let (_, leases) = unconfirmed.next_command(now).expect("some are due");
    leases.iter().map(|(_, lease)| lease.get()).collect()
}

/// Returns `true` if no command is due.
fn waits(unconfirmed: &UnconfirmedReleases, now: Moment) -> bool {
    unconfirmed.next_command(now).is_none()
}

/// Returns when the keys whose commands failed are due.
#[track_caller]
fn tick(unconfirmed: &UnconfirmedReleases, now: Moment) -> Moment {
    assert!(waits(unconfirmed, now));
    unconfirmed.state.lock().tick.expect("a pause")
}

fn fail(unconfirmed: &UnconfirmedReleases, now: Moment) {
    unconfirmed.replied(&key("a"), &[], true, now);
}

fn succeed(unconfirmed: &UnconfirmedReleases, leases: &[u64], now: Moment) {
    let leases: Vec<_> = leases.iter().map(|lease| number(*lease)).collect();
    unconfirmed.replied(&key("a"), &leases, false, now);
}

#[test]
fn all_leases_of_key_go_in_one_command() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1, 2, 3, 2], now);
    assert_eq!(unconfirmed.len(), 3);
    assert_eq!(released(&unconfirmed, now), [1, 2, 3]);
    assert!(waits(&unconfirmed, now));
    succeed(&unconfirmed, &[1, 2, 3], now);
    assert_eq!(unconfirmed.len(), 0);
}

#[test]
fn command_of_several_keys_is_bounded() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    for lease in 2..=150 {
        unconfirmed.add(key("b"), 0, attempted(lease, now + DAY));
    }
    assert_eq!(released(&unconfirmed, now).len(), BATCH);
}

#[test]
fn key_has_one_command_in_flight() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    assert_eq!(released(&unconfirmed, now), [1]);
    unconfirmed.add(key("a"), 0, attempted(2, now + DAY));
    assert!(waits(&unconfirmed, now));
    succeed(&unconfirmed, &[1], now);
    assert_eq!(released(&unconfirmed, now), [2]);
}

#[test]
fn failed_key_is_sent_once_per_tick() {
    let mut now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    for step in [50, 100, 200, 400, 800, 1000, 1000] {
        assert_eq!(released(&unconfirmed, now), [1]);
        fail(&unconfirmed, now);
        // A new lease does not move the tick.
        unconfirmed.add(key("a"), 0, attempted(1, now + DAY));
        let at = tick(&unconfirmed, now);
        let pause = at.since(now);
        assert!(
            pause >= step * MS * 9 / 10 && pause <= step * MS * 11 / 10,
            "{pause:?}"
        );
        now = at;
    }
}

#[test]
fn lease_of_failed_key_waits_for_tick() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    assert_eq!(released(&unconfirmed, now), [1]);
    fail(&unconfirmed, now);
    unconfirmed.add(key("a"), 0, attempted(2, now + DAY));
    assert!(waits(&unconfirmed, now));
    assert_eq!(released(&unconfirmed, now + SECOND), [1, 2]);
}

#[test]
fn failed_key_delays_no_other() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    assert_eq!(released(&unconfirmed, now), [1]);
    fail(&unconfirmed, now);
    unconfirmed.add(key("b"), 0, attempted(2, now + DAY));
    assert_eq!(released(&unconfirmed, now), [2]);
}

#[test]
fn recovery_ends_all_backoffs() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    assert_eq!(released(&unconfirmed, now), [1]);
    fail(&unconfirmed, now);
    unconfirmed.retry_now();
    assert_eq!(released(&unconfirmed, now), [1]);
    // The failure of the command in flight may predate the recovery.
    unconfirmed.retry_now();
    assert!(waits(&unconfirmed, now));
    fail(&unconfirmed, now);
    let at = tick(&unconfirmed, now);
    assert!(at.since(now) <= 60 * MS, "the first interval");
}

#[test]
fn expired_leases_are_dropped_at_reply() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    unconfirmed.add(key("a"), 0, attempted(2, now + SECOND));
    assert_eq!(released(&unconfirmed, now), [1, 2]);
    fail(&unconfirmed, now + SECOND);
    assert_eq!(released(&unconfirmed, now + 2 * SECOND), [1]);
    fail(&unconfirmed, now + DAY);
    assert_eq!(unconfirmed.len(), 0);
}

#[test]
fn long_lists_take_several_commands() {
    let now = Moment::now();
    let unconfirmed = unconfirmed(1..=150, now);
    let first = released(&unconfirmed, now);
    assert_eq!(first.len(), BATCH);
    succeed(&unconfirmed, &first, now);
    assert_eq!(released(&unconfirmed, now).len(), 150 - BATCH);
}

#[tokio::test(start_paused = true)]
async fn finished_completes_with_last_entry() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    let mut finished = pin!(unconfirmed.finished());
    assert!(timeout(SECOND, &mut finished).await.is_err());
    assert_eq!(released(&unconfirmed, now), [1]);
    succeed(&unconfirmed, &[1], now);
    assert!(timeout(SECOND, finished).await.is_ok());
}

#[test]
fn lease_added_during_release_is_released_again() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    assert_eq!(released(&unconfirmed, now), [1]);
    // Its attempt has taken effect only now, perhaps after the release.
    unconfirmed.add(key("a"), 0, attempted(1, now + 2 * DAY));
    succeed(&unconfirmed, &[1], now);
    assert_eq!(released(&unconfirmed, now + DAY), [1]);
    succeed(&unconfirmed, &[1], now);
    assert_eq!(unconfirmed.len(), 0);
}

#[test]
fn late_reply_causes_no_second_command() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    assert_eq!(released(&unconfirmed, now), [1]);
    fail(&unconfirmed, now);
    // The reply to a command that was sent before the task stopped.
    fail(&unconfirmed, now);
    let at = tick(&unconfirmed, now);
    assert_eq!(released(&unconfirmed, at), [1]);
    assert!(waits(&unconfirmed, at));
}

#[test]
fn failed_keys_share_tick() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    unconfirmed.add(key("b"), 0, attempted(2, now + DAY));
    assert_eq!(released(&unconfirmed, now), [1, 2]);
    fail(&unconfirmed, now);
    unconfirmed.replied(&key("b"), &[], true, now + 20 * MS);
    let at = tick(&unconfirmed, now);
    assert!(at < now + 60 * MS, "the later failure does not move it");
    assert_eq!(released(&unconfirmed, at), [1, 2]);
}

#[test]
fn tick_begins_again_once_nothing_is_left() {
    let mut now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    for _ in 0..3 {
        assert_eq!(released(&unconfirmed, now), [1]);
        fail(&unconfirmed, now);
        now = now + SECOND;
    }
    assert_eq!(released(&unconfirmed, now), [1]);
    succeed(&unconfirmed, &[1], now);
    assert_eq!(unconfirmed.len(), 0);
    unconfirmed.add(key("a"), 0, attempted(2, now + DAY));
    assert_eq!(released(&unconfirmed, now), [2]);
    fail(&unconfirmed, now);
    assert_eq!(released(&unconfirmed, now + 60 * MS), [2]);
}

#[test]
fn step_of_many_keys_costs_as_much_as_of_few() {
    /// The shortest time of some steps while each of the keys waits for its next one.
    fn steps(keys: u64) -> Duration {
        let now = Moment::now();
        let unconfirmed = UnconfirmedReleases::default();
        for nth in 0..keys {
            let key = LockKey::new(format!("key {nth}"));
            unconfirmed.add(key, 0, attempted(nth, now + DAY));
        }
        while let Some((_, leases)) = unconfirmed.next_command(now) {
            for (key, _) in leases {
                unconfirmed.replied(&key, &[], true, now);
            }
        }
        let runs = (0..20).map(|_| {
            let began = Instant::now();
            for _ in 0..10 {
                assert!(waits(&unconfirmed, now));
            }
            began.elapsed()
        });
        runs.min().expect("some runs")
    }
    let (few, many) = (steps(10), steps(20_000));
    assert!(many < 50 * few, "{few:?} and {many:?}");
}

#[test]
fn hung_group_uses_up_its_own_commands() {
    let now = Moment::now();
    let unconfirmed = UnconfirmedReleases::default();
    let add = |group, nth| {
        let key = LockKey::new(format!("key {nth} of {group}"));
        unconfirmed.add(key, group, attempted(nth, now + DAY));
    };
    for nth in 1..=16 {
        add(0, nth);
        assert_eq!(released(&unconfirmed, now), [nth]);
    }
    // They wait for a command, and share the next one.
    (17..=19).for_each(|nth| add(0, nth));
    add(1, 20);
    assert_eq!(released(&unconfirmed, now), [20]);
    assert!(waits(&unconfirmed, now));
    unconfirmed.ended(0);
    assert_eq!(released(&unconfirmed, now), [17, 18, 19]);
}

#[test]
fn lease_released_elsewhere_is_not_released_again() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    unconfirmed.add(key("a"), 0, UnknownLease::granted(number(2), now + DAY));
    assert_eq!(released(&unconfirmed, now), [1, 2]);
    unconfirmed.released_elsewhere(&key("a"), number(2));
    assert_eq!(unconfirmed.len(), 2, "in flight");
    fail(&unconfirmed, now);
    for lease in [1, 2] {
        unconfirmed.released_elsewhere(&key("a"), number(lease));
    }
    assert_eq!(
        released(&unconfirmed, now + SECOND),
        [1],
        "an attempt may be granted after its release"
    );
}

#[test]
fn key_beyond_full_command_goes_in_next_one() {
    let now = Moment::now();
    let unconfirmed = UnconfirmedReleases::default();
    for nth in 0..=BATCH {
        unconfirmed.add(
            LockKey::new(format!("key {nth}")),
            0,
            attempted(1, now + DAY),
        );
    }
    assert_eq!(released(&unconfirmed, now).len(), BATCH);
    assert_eq!(released(&unconfirmed, now).len(), 1);
}

/// Its home has dropped the commands with the watchdog.
#[test]
fn leases_in_flight_are_left_to_next_watchdog() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1, 2], now);
    assert_eq!(released(&unconfirmed, now), [1, 2]);
    unconfirmed.stopped();
    assert_eq!(released(&unconfirmed, now), [1, 2]);
}

#[test]
fn granted_lease_is_released_once() {
    let now = Moment::now();
    let unconfirmed = unconfirmed([1], now);
    assert_eq!(released(&unconfirmed, now), [1]);
    unconfirmed.add(key("a"), 0, UnknownLease::granted(number(1), now + 2 * DAY));
    fail(&unconfirmed, now + DAY);
    assert_eq!(
        released(&unconfirmed, now + DAY + SECOND),
        [1],
        "until later"
    );
    succeed(&unconfirmed, &[1], now + DAY + SECOND);
    assert_eq!(unconfirmed.len(), 0);
}
