//! Acquires that enter the lane.

use std::num::NonZeroU32;

use super::*;

#[test]
fn owner_re_enters_before_queued_others() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.nest(2, RENEWED);
    assert_eq!(grant.holds(), 2);
    assert!(matches!(lane.enter(claim(2, RENEWED)), Entered::Occupied));
    let Entered::Rejected(error) = lane.enter(once(3, &lane)) else {
        panic!("rejected");
    };
    assert!(error.is_busy());

    let effects = lane.release(&grant);
    assert!(lane.is_held() && effects.work.is_empty());
    returns(&mut lane.release(&grant));
}

#[test]
fn owner_of_lost_lock_queues() {
    let (mut lane, grant) = TestLane::held(FIXED);
    lane.pass(FIXED.ttl.get());
    let (entered, mut effects) =
        lane.event(|lane, effects| lane.enter(&key(), &claim(1, FIXED), effects));
    assert!(matches!(entered, Entered::Occupied));
    assert!(Arc::ptr_eq(&effects.losses[0].grant, &grant));
    returns(&mut effects);
}

#[test]
fn returning_lease_is_taken_back_until_sent() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    returns(&mut lane.release(&grant));
    let Entered::Granted(second) = lane.enter(claim(2, RENEWED)) else {
        panic!("reclaimed");
    };
    assert!(second.token() > grant.token());
    assert!(lane.take_return().is_none(), "nothing is returned any more");

    returns(&mut lane.release(&second));
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
    assert!(matches!(lane.enter(claim(3, RENEWED)), Entered::Occupied));
    assert!(lane.returned(1).is_empty());
    assert!(lane.lane.is_idle());
}

#[test]
fn lease_taken_back_counts_in_turn() {
    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    let busy = LastReply::Busy(lane.now);
    assert!(contending::refuse(&mut lane, 1, busy).is_empty());
    (2..4).for_each(|ticket| lane.queue(ticket, RENEWED));
    // Other processes wait, so the turn has three grants.
    let mut grant = granted(contending::grant_by_task(&mut lane, 4));
    assert!([2, 3].iter().all(|it| lane.lane.leave(*it)));
    for ticket in [5, 6] {
        lane.pass(2 * MS);
        returns(&mut lane.release(&grant));
        let Entered::Granted(next) = lane.enter(claim(ticket, RENEWED)) else {
            panic!("reclaimed");
        };
        grant = next;
    }
    returns(&mut lane.release(&grant));
    assert!(matches!(lane.enter(claim(7, RENEWED)), Entered::Occupied));
}

#[test]
fn lost_lease_is_not_taken_back() {
    let (mut lane, grant) = TestLane::held(SHORT);
    lane.pass(40 * MS);
    let renewal = lane.start_renewal();
    assert!(lane.release(&grant).work.is_empty());
    let mut effects = lane.renewed(&renewal, lane.now, Ok(Renewed::NotHeld));
    returns(&mut effects);
    assert!(matches!(lane.enter(claim(2, SHORT)), Entered::Occupied));

    let (mut lane, grant) = TestLane::held(RENEWED);
    returns(&mut lane.release(&grant));
    assert!(lane.forced(Some(1)).is_empty());
    assert!(matches!(lane.enter(claim(2, RENEWED)), Entered::Occupied));
}

#[test]
fn taken_back_lease_is_reported_as_returned() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let (report, _reported) = oneshot::channel();
    returns(&mut lane.release_hold(&grant, 1, Some(report)));
    let (entered, effects) =
        lane.event(|lane, effects| lane.enter(&key(), &claim(2, RENEWED), effects));
    assert!(matches!(entered, Entered::Granted(_)));
    assert!(effects.reports[0].1.is_ok());
}

#[test]
fn single_attempt_joins_first_attempt_of_lane() {
    let (mut lane, _answer) = TestLane::attempting(claim(1, RENEWED));
    lane.queue(2, RENEWED);
    assert!(matches!(lane.enter(once(3, &lane)), Entered::Occupied));
    assert_eq!(lane.lane.seats_taken(), 2);
}

#[test]
fn single_attempt_joins_later_one_unless_others_wait() {
    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    let ((), _effects) = lane.event(|lane, effects| {
        let busy = LastReply::Busy(effects.now);
        lane.rejected(number(2), busy, PlaceChange::Out, effects);
    });
    assert!(matches!(lane.enter(once(3, &lane)), Entered::Rejected(_)));
    let _left = lane.lane.leave(1);
    assert!(matches!(lane.enter(once(4, &lane)), Entered::Occupied));
}

#[test]
fn queue_position_counts_earlier_waiters() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    for ticket in [2, 4, 6] {
        lane.queue(ticket, RENEWED);
    }
    let positions = |lane: &TestLane| {
        let position = |ticket| lane.lane.position(ticket).map(NonZeroU32::get);
        [2, 4, 6].map(position)
    };
    assert_eq!(positions(&lane), [1, 2, 3].map(Some));
    assert!(lane.lane.leave(2));
    assert_eq!(positions(&lane), [None, Some(1), Some(2)]);
}
