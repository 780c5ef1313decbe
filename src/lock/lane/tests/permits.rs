//! Permits, whose limits the claims of one owner need not share.

use std::num::NonZeroU16;

use super::*;

const fn permit(limit: u16) -> Terms {
    Terms {
        mode: Mode::Permit,
        limit: NonZeroU16::new(limit),
        ..RENEWED
    }
}

/// Returns a lane whose first claim, below the limit 3, waits in the queue of the backend under lease 3.
fn queued() -> (TestLane, Wakeup, Arc<Waiter>) {
    let (mut lane, wakeup, answer) = TestLane::looping(claim(1, permit(3)));
    let ((), effects) = lane.event(|lane, effects| {
        lane.begin_attempt(number(3), effects);
        let place = PlaceChange::In(QueuePlace {
            lease: number(3),
            mode: Mode::Permit,
            limit: NonZeroU16::new(3),
        });
        let busy = LastReply::Busy(effects.now + SECOND);
        lane.rejected(number(3), busy, place, effects);
    });
    assert!(effects.is_empty(), "{effects:?}");
    (lane, wakeup, answer)
}

/// The permits of other processes are not counted again.
#[test]
fn permit_being_returned_is_not_taken_back() {
    for limit in [1, 2, 3] {
        let (mut lane, grant) = TestLane::held(permit(2));
        returns(&mut lane.release(&grant));
        let entered = lane.enter(again(2, permit(limit)));
        assert!(matches!(entered, Entered::Occupied), "{entered:?}");
    }
}

#[test]
fn permit_below_larger_limit_is_surrendered() {
    for (limit, is_granted) in [(2, false), (3, true), (4, true)] {
        let (mut lane, _wakeup, _answer) = queued();
        lane.queue(2, permit(limit));
        assert!(lane.lane.leave(1));
        let lease = lane.lease(3, 100, permit(3));
        let ((), effects) = lane.event(|lane, effects| {
            lane.granted(&key(), lease, effects);
        });
        assert_eq!(effects.grants.len(), usize::from(is_granted), "{limit}");
        assert_eq!(lane.is_held(), is_granted);
    }
}

/// The backend serves the place under the limit that it entered with.
#[test]
fn place_of_other_limit_is_left() {
    for (limit, kept) in [(2, false), (3, true), (4, false)] {
        let (mut lane, _wakeup, _answer) = queued();
        lane.queue(2, permit(limit));
        assert!(lane.lane.leave(1));
        let (begun, effects) = lane.event(|lane, effects| lane.begin_attempt(number(4), effects));
        let lease = number(if kept { 3 } else { 4 });
        assert_eq!(begun.map(|(lease, _)| lease), Some(lease), "{limit}");
        assert_eq!(effects.work.is_empty(), kept);
    }
}
