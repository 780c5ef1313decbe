//! The place of this process in the queue of the backend.

use super::*;
use crate::lock::lease::LeaseNumber;

fn contend_as(lane: &mut TestLane, fresh: u64) -> Option<LeaseNumber> {
    let (begun, effects) = lane.event(|lane, effects| lane.begin_attempt(number(fresh), effects));
    assert!(effects.is_empty(), "{effects:?}");
    begun.map(|(lease, _)| lease)
}

fn refuse(lane: &mut TestLane, sent: u64, place: PlaceChange) -> Effects {
    let ((), effects) = lane.event(|lane, effects| {
        let busy = LastReply::Busy(effects.now + SECOND);
        lane.rejected(number(sent), busy, place, effects);
    });
    effects
}

/// Returns a lane whose first claim waits in the queue of the backend under lease 3.
fn queued() -> (TestLane, Wakeup, Arc<Waiter>) {
    let (mut lane, wakeup, answer) = TestLane::looping(claim(1, RENEWED));
    assert_eq!(contend_as(&mut lane, 3), Some(number(3)));
    assert!(refuse(&mut lane, 3, PlaceChange::In(place(3))).is_empty());
    (lane, wakeup, answer)
}

/// Releases lease 1 of the holder, for `released_to`.
fn yield_to(lane: &mut TestLane, grant: &Arc<Grant>, released_to: ReleasedTo) -> Effects {
    returns(&mut lane.release(grant));
    assert!(lane.take_return().is_some());
    let ((), effects) = lane.event(|lane, effects| {
        lane.returned(number(1), Ok(()), released_to, effects);
    });
    effects
}

#[track_caller]
fn leaves(effects: &mut Effects, place: u64) {
    match work(effects) {
        Work::ReleaseUnknown { lease, ttl, .. } => {
            assert_eq!((lease, ttl >= PLACE), (number(place), true));
        }
        work => panic!("{work:?}"),
    }
    assert!(effects.is_empty(), "{effects:?}");
}

const BEHIND: ReleasedTo = ReleasedTo::QUEUE;

#[test]
fn attempts_in_queue_share_lease() {
    let (mut lane, _wakeup, _answer) = queued();
    assert!(lane.lane.has_place());
    assert_eq!(contend_as(&mut lane, 4), Some(number(3)));
    // The backend rejected the command.
    assert!(refuse(&mut lane, 4, PlaceChange::Unchanged).is_empty());
    assert_eq!(contend_as(&mut lane, 5), Some(number(3)));
    // The backend had no room, or the result is unknown.
    assert!(refuse(&mut lane, 5, PlaceChange::Out).is_empty());
    assert!(!lane.lane.has_place());
    assert_eq!(contend_as(&mut lane, 6), Some(number(6)));
}

#[test]
fn last_waiter_leaves_queue() {
    let (mut lane, _wakeup, _answer) = queued();
    assert!(lane.lane.leave(1));
    let (begun, mut effects) = lane.event(|lane, effects| lane.begin_attempt(number(4), effects));
    assert!(begun.is_none() && lane.lane.is_idle());
    leaves(&mut effects, 3);
}

#[test]
fn next_waiter_inherits_place() {
    let (mut lane, _wakeup, _answer) = queued();
    lane.queue(2, RENEWED);
    assert!(lane.lane.leave(1));
    assert_eq!(contend_as(&mut lane, 4), Some(number(3)));
}

#[test]
fn permanent_error_leaves_queue() {
    let (mut lane, _wakeup, _answer) = queued();
    let error = Error::new(ErrorKind::Refused);
    let ((), mut effects) = lane.event(|lane, effects| {
        lane.refused_for_good(Mode::Exclusive, &error, effects);
    });
    assert_eq!(std::mem::take(&mut effects.rejections).len(), 1);
    leaves(&mut effects, 3);
}

/// Drops the task with its home, and returns the effects besides this number of rejections.
fn abandon(lane: &mut TestLane, wakeup: &Wakeup, waiters: usize) -> Effects {
    let error = Error::new(ErrorKind::Unavailable);
    let ((), mut effects) = lane.event(|lane, effects| lane.abandon_all(wakeup, &error, effects));
    assert_eq!(std::mem::take(&mut effects.rejections).len(), waiters);
    effects
}

#[test]
fn dropped_task_leaves_queue() {
    let (mut lane, wakeup, _answer) = queued();
    lane.enqueue(claim(2, RENEWED));
    leaves(&mut abandon(&mut lane, &wakeup, 2), 3);
    assert!(lane.lane.is_idle());
}

#[test]
fn dropped_task_without_waiters_leaves_queue() {
    let (mut lane, wakeup, _answer) = queued();
    assert!(lane.lane.leave(1));
    leaves(&mut abandon(&mut lane, &wakeup, 0), 3);
    assert!(lane.lane.is_idle());
}

/// The ended task may yet receive the grant of its attempt.
#[test]
fn dropped_attempt_leaves_queue() {
    let (mut lane, wakeup, _answer) = queued();
    lane.enqueue(claim(2, RENEWED));
    assert_eq!(contend_as(&mut lane, 4), Some(number(3)));
    leaves(&mut abandon(&mut lane, &wakeup, 2), 3);
    assert!(lane.lane.is_idle());
}

#[test]
fn acquire_after_transfer_enters_queue() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    assert!(matches!(
        yield_to(&mut lane, &grant, BEHIND).deadlines[..],
        []
    ));
    assert!(!lane.lane.is_idle());
    assert!(matches!(lane.enter(claim(2, RENEWED)), Entered::Occupied));
    let (waiter, _answer) = waiter(claim(2, RENEWED));
    let ((), mut effects) = lane.event(|lane, effects| {
        lane.enqueue(waiter, LastReply::Nothing, effects);
    });
    assert!(matches!(work(&mut effects), Work::Contend(_, released_to) if released_to == BEHIND));
}

/// Returns a lane whose waiter came after a transfer, and has made no attempt.
fn waiting_after_transfer() -> (TestLane, Wakeup) {
    let (mut lane, grant) = TestLane::held(RENEWED);
    assert!(yield_to(&mut lane, &grant, BEHIND).is_empty());
    lane.pass(15 * MS);
    let (waiter, _answer) = waiter(claim(2, RENEWED));
    let ((), mut effects) = lane.event(|lane, effects| {
        lane.enqueue(waiter, LastReply::Nothing, effects);
    });
    let wakeup = contends(&mut effects);
    (lane, wakeup)
}

#[test]
fn waiter_after_transfer_is_behind_others() {
    let (mut lane, _wakeup) = waiting_after_transfer();
    let error = lane.lane.why_not(lane.now);
    assert_eq!(error.kind(), ErrorKind::Busy);
}

#[test]
fn waiter_without_attempt_leaves_turn_to_others() {
    for (passes, yields) in [(4 * MS, true), (5 * MS, false)] {
        let (mut lane, _wakeup) = waiting_after_transfer();
        lane.pass(passes);
        assert!(lane.lane.leave(2));
        assert_eq!(contend_as(&mut lane, 4), None);
        assert_eq!(lane.lane.is_yielding(), yields);
        assert_eq!(lane.lane.is_idle(), !yields);
    }
}

#[test]
fn dropped_loop_leaves_turn_to_others() {
    for (passes, yields) in [(4 * MS, true), (5 * MS, false)] {
        let (mut lane, wakeup) = waiting_after_transfer();
        lane.pass(passes);
        assert!(lane.lane.leave(2));
        assert!(abandon(&mut lane, &wakeup, 0).is_empty());
        assert_eq!(lane.lane.is_yielding(), yields);
        assert_eq!(lane.lane.is_idle(), !yields);
    }
}

#[test]
fn single_attempt_after_transfer_is_sent() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    assert!(yield_to(&mut lane, &grant, BEHIND).is_empty());
    assert!(matches!(lane.enter(once(2, &lane)), Entered::Idle));
}

#[test]
fn rejected_single_attempt_leaves_turn_to_others() {
    for (passes, yields) in [(19 * MS, true), (20 * MS, false)] {
        let (mut lane, grant) = TestLane::held(RENEWED);
        assert!(yield_to(&mut lane, &grant, BEHIND).is_empty());
        let single = once(2, &lane);
        let (waiter, _answer) = waiter(single);
        let first = lane.first(None);
        lane.lane.attempt_first(waiter, number(1), first);
        lane.pass(passes);
        let busy = LastReply::Busy(lane.now);
        let effects = lane.refuse_first(2, busy);
        assert_eq!((effects.rejections.len(), effects.work.len()), (1, 0));
        assert_eq!(lane.lane.is_yielding(), yields);
        assert_eq!(lane.lane.is_idle(), !yields);
    }
}

#[test]
fn lane_is_idle_soon_after_transfer() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    assert!(yield_to(&mut lane, &grant, BEHIND).is_empty());
    assert!(lane.lane.is_yielding());
    let at = lane.next_check();
    assert!(at <= lane.now + 20 * MS);
    lane.now = at;
    assert!(lane.check().1.is_empty());
    assert!(lane.lane.is_idle() && !lane.lane.is_yielding());
}

#[test]
fn waiters_contend_under_place_behind_others() {
    let (mut lane, grant) = TestLane::held(FIXED);
    let _answer = lane.enqueue(claim(2, RENEWED));
    let place = behind(place(9));
    let _wakeup = contends(&mut yield_to(&mut lane, &grant, place));
    assert_eq!(contend_as(&mut lane, 10), Some(number(9)));
}

#[test]
fn place_without_waiters_is_left() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let place = behind(place(9));
    leaves(&mut yield_to(&mut lane, &grant, place), 9);
}

#[test]
fn place_in_late_reply_is_left() {
    let mut lane = TestLane::idle();
    let place = behind(place(9));
    let ((), mut effects) = lane.event(|lane, effects| {
        lane.returned(number(1), Ok(()), place, effects);
    });
    leaves(&mut effects, 9);
}

/// Returns the queue with this place.
fn behind(place: QueuePlace) -> ReleasedTo {
    ReleasedTo::Queue {
        place: Some(place),
        notified_behind: None,
    }
}

fn place(lease: u64) -> QueuePlace {
    QueuePlace {
        lease: number(lease),
        mode: Mode::Exclusive,
        limit: None,
    }
}
