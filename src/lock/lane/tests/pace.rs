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
fn estimate_serves_rejections_of_full_queue() {
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

#[test]
fn older_grants_count_half() {
    let mut lane = TestLane::idle();
    lane.lane.begin_queue(lane.now);
    lane.lane.queue.insert(waiter(claim(1, RENEWED)).0);
    for hold in [[100 * MS; 16].as_slice(), &[10 * MS; 8]].concat() {
        lane.pass(hold);
        lane.lane.queue.pace_mut().advance(lane.now);
    }
    // The first 16 grants count as 8.
    assert_eq!(lane.lane.free_in(lane.now), 55 * MS);
}

#[test]
fn pace_includes_hold_before_first_waiter() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(30 * MS);
    lane.queue(2, RENEWED);
    lane.pass(10 * MS);
    granted(lane.release(&grant));
    assert_eq!(lane.lane.free_in(lane.now), 40 * MS);
}

#[test]
fn estimate_serves_queue_of_half_to_double_length() {
    let (mut lane, _grant) = paced();
    for ticket in 7..14 {
        lane.queue(ticket, RENEWED);
    }
    let free_in = lane.lane.free_in(lane.now);
    assert_eq!(free_in, 12 * MS * 9);
    for ticket in 14..22 {
        lane.queue(ticket, RENEWED);
    }
    assert_eq!(lane.lane.free_in(lane.now), free_in);
    for ticket in 10..22 {
        assert!(lane.lane.leave(ticket));
    }
    assert_eq!(lane.lane.free_in(lane.now), free_in);
    assert!(lane.lane.leave(9));
    assert_eq!(lane.lane.free_in(lane.now), 12 * MS * 4);
}

#[test]
fn estimate_without_waiters_is_never_reused() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    lane.pass(200 * MS);
    assert_eq!(lane.lane.free_in(lane.now), 200 * MS);
    lane.pass(5 * MS);
    assert_eq!(lane.lane.free_in(lane.now), 205 * MS);
}

#[test]
fn estimate_of_other_process_ends_with_its_lease() {
    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    let ((), effects) = lane.event(|lane, effects| {
        let busy = LastReply::Busy(effects.now + 40 * MS);
        lane.rejected(number(2), busy, PlaceChange::Out, effects);
    });
    assert!(effects.is_empty());
    // The waiter is expected to hold for 100 ms.
    assert_eq!(lane.lane.free_in(lane.now), 140 * MS);
}
