//! The estimate of when the lock is free for a further acquire.

use super::*;

/// Returns a waiter's claim that waits until `at`.
fn until(ticket: Ticket, at: Moment) -> Claim {
    Claim {
        deadline: Deadline::At(at),
        ..claim(ticket, RENEWED)
    }
}

/// Returns a lane whose last four grants were 12 ms apart, with the last grant, and a following waiter.
fn paced() -> (TestLane, Arc<Grant>) {
    let (mut lane, mut grant) = TestLane::held(RENEWED);
    for ticket in 2..6 {
        lane.queue(ticket, RENEWED);
        lane.pass(12 * MS);
        grant = granted(lane.release(&grant));
    }
    lane.queue(6, RENEWED);
    (lane, grant)
}

#[test]
fn estimate_is_pace_for_holder_and_waiters() {
    let (mut lane, _grant) = paced();
    assert_eq!(lane.lane.free_in(lane.now), 24 * MS);
    // The holder's part decreases.
    lane.pass(11 * MS);
    assert_eq!(lane.lane.free_in(lane.now), 13 * MS);
}

#[test]
fn estimate_ends_with_deadlines_of_waiters() {
    let (mut lane, _grant) = paced();
    for ticket in 7..1_000 {
        lane.enqueue(until(ticket, lane.now + 50 * MS));
    }
    // One waiter has no deadline, and the last of the others is granted directly before it.
    assert_eq!(lane.lane.free_in(lane.now), 60 * MS);
    lane.pass(50 * MS);
    let busy = lane.lane.why_not(lane.now);
    assert!(busy.retry_after() <= Some(62 * MS), "{busy:?}");
}

#[test]
fn hold_beyond_pace_is_expected_to_last_as_long_again() {
    let (mut lane, _grant) = paced();
    lane.pass(SECOND);
    assert_eq!(lane.lane.free_in(lane.now), SECOND + 12 * MS);
}

#[test]
fn estimate_of_holder_ends_with_its_lease() {
    let (mut lane, _grant) = TestLane::held(fixed(2));
    lane.pass(1_900 * MS);
    let left = lane.lane.free_in(lane.now);
    assert!((50 * MS..100 * MS).contains(&left), "{left:?}");
}

#[test]
fn estimate_serves_rejections_of_a_full_queue() {
    let (mut lane, _grant) = paced();
    for ticket in 7..1_000 {
        lane.queue(ticket, RENEWED);
    }
    let free_in = lane.lane.free_in(lane.now);
    lane.queue(1_000, RENEWED);
    assert_eq!(lane.lane.free_in(lane.now), free_in);
    // A queue that has grown much has another one, and so has a later time.
    for ticket in 1_001..3_000 {
        lane.queue(ticket, RENEWED);
    }
    assert_eq!(lane.lane.free_in(lane.now), 12 * MS * 2_995);
    lane.pass(10 * MS);
    lane.queue(3_000, RENEWED);
    assert_eq!(lane.lane.free_in(lane.now), 12 * MS * 2_996 - 10 * MS);
}
