//! When owners may join a shared lease.

use super::shared::{SHARED, held_shared};
use super::*;
use crate::lock::lease::valid_until;

const fn fixed_shared(ttl: Duration) -> Terms {
    Terms {
        ttl: Span::new(ttl),
        renewed: false,
        ..SHARED
    }
}

/// Returns a claim that waits for at most a second.
fn for_second(ticket: Ticket, terms: Terms, lane: &TestLane) -> Claim {
    Claim {
        deadline: Deadline::At(lane.now + SECOND),
        ..claim(ticket, terms)
    }
}

impl TestLane {
    fn admit(&mut self) -> Effects {
        let ((), effects) = self.event(|lane, effects| lane.admit(&key(), effects));
        effects
    }
}

/// A third of the longer lease is more than the shorter one ever has left.
#[test]
fn reader_with_longer_lease_joins_short_renewed_one() {
    let short = Terms {
        ttl: Span::new(60 * MS),
        ..SHARED
    };
    let (mut lane, _first) = TestLane::held(short);
    lane.pass(15 * MS);
    lane.join(claim(2, fixed_shared(260 * MS)));
    lane.pass(35 * MS);
    assert!(lane.is_refused(claim(3, fixed_shared(260 * MS))));
    // A fixed lease may end before its renewal has a reply.
    let (mut lane, _first) = TestLane::held(fixed_shared(60 * MS));
    assert!(lane.is_refused(claim(2, fixed_shared(260 * MS))));
}

/// A single attempt does not wait for a reply.
#[test]
fn closed_lease_is_renewed_without_waiters() {
    for terms in [SHARED, fixed_shared(3600 * SECOND)] {
        let (mut lane, first) = TestLane::held(terms);
        lane.pass(SECOND);
        let second = lane.join(claim(2, terms));
        assert!(lane.renew_with(Renewed::Wanted).is_empty());
        assert!(lane.release_hold(&second, 2, None).work.is_empty());
        for _ in 0..2 {
            assert!(lane.is_refused(claim(3, SHARED)));
            assert_eq!(lane.next_check(), lane.now + 250 * MS);
            lane.pass(250 * MS);
            assert!(lane.renew_with(Renewed::Wanted).is_empty());
        }
        lane.pass(250 * MS);
        assert!(lane.renew_with(Renewed::Renewed).is_empty());
        let third = lane.join(claim(3, SHARED));
        assert!(first.is_held(lane.now) && third.is_held(lane.now));
    }
}

#[test]
fn closed_lease_admits_reader_behind_departed_writer() {
    let (mut lane, _first) = held_shared();
    lane.pass(RENEWED.ttl.get() / 3);
    assert!(lane.renew_with(Renewed::Wanted).is_empty());
    lane.queue(2, RENEWED);
    lane.queue(3, SHARED);
    lane.pass(100 * MS);
    assert!(lane.lane.leave(2));
    assert!(lane.admit().is_empty());
    assert_eq!(lane.next_check(), lane.now + 150 * MS);
    lane.pass(150 * MS);
    assert_eq!(lane.renew_with(Renewed::Renewed).grants.len(), 1);
}

/// A lease shorter than that ends first.
#[test]
fn closed_lease_near_its_end_is_not_renewed() {
    let (mut lane, _first) = TestLane::held(fixed_shared(SECOND));
    lane.pass(750 * MS);
    let second = lane.join(claim(2, fixed_shared(230 * MS)));
    assert!(lane.renew_with(Renewed::Wanted).is_empty());
    assert_eq!(lane.next_check(), second.valid_until());
}

#[test]
fn failed_renewal_of_fixed_lease_is_repeated() {
    let (mut lane, first) = TestLane::held(fixed_shared(3600 * SECOND));
    lane.pass(SECOND);
    let second = lane.join(claim(2, SHARED));
    let renewal = lane.start_renewal();
    // The holds need no renewal any more.
    assert!(lane.release_hold(&second, 2, None).work.is_empty());
    let sent_at = lane.now;
    let lost = BackendError::unknown("reply lost");
    assert!(lane.renewed(&renewal, sent_at, Err(lost)).is_empty());
    assert!(lane.next_check() <= lane.now + SECOND);
    lane.now = lane.next_check();
    assert!(lane.renew_with(Renewed::Renewed).is_empty());
    assert!(first.valid_until() < sent_at + 3600 * SECOND);
}

#[test]
fn fixed_lease_is_joined_in_its_last_third() {
    let (mut lane, first) = TestLane::held(fixed_shared(3600 * SECOND));
    lane.now = first.valid_until().before(501 * MS);
    let second = lane.join(claim(2, SHARED));
    let sent_at = lane.now;
    assert!(lane.renew_with(Renewed::Renewed).is_empty());
    assert!(second.valid_until() > sent_at + 29 * SECOND);
}

/// The reply to its renewal may take longer.
#[test]
fn renewed_reader_queues_behind_end_of_fixed_lease() {
    let (mut lane, first) = TestLane::held(fixed_shared(30 * MS));
    lane.pass(10 * MS);
    assert!(lane.is_refused(claim(2, SHARED)));
    assert!(lane.is_refused(claim(2, fixed_shared(SECOND))));
    lane.queue(2, SHARED);
    lane.now = first.valid_until();
    let (_, mut effects) = lane.check();
    assert_eq!(effects.losses.len(), 1);
    returns(&mut effects);
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
    contends(&mut lane.returned(1));
}

#[test]
fn renewals_end_with_reader_of_renewed_lease() {
    let nested = fixed_shared(FIXED.ttl.get());
    for joins_first in [true, false] {
        let (mut lane, first) = held_shared();
        let end = valid_until(lane.now, FIXED.ttl);
        if !joins_first {
            lane.nest(3, nested);
        }
        let second = lane.join(claim(2, SHARED));
        if joins_first {
            lane.nest(3, nested);
        }
        for (grant, hold) in [(&first, 1), (&second, 2)] {
            assert!(lane.release_hold(grant, hold, None).work.is_empty());
        }
        assert_eq!((first.valid_until(), lane.next_check()), (end, end));
    }
}

#[test]
fn reader_that_ends_first_joins_fixed_lease() {
    let (mut lane, _first) = TestLane::held(fixed_shared(30 * MS));
    lane.pass(20 * MS);
    let second = lane.join(claim(2, fixed_shared(5 * MS)));
    lane.pass(4 * MS);
    assert!(!second.is_held(lane.now));
}

#[test]
fn extended_fixed_lease_admits_queued_reader() {
    let (mut lane, first) = TestLane::held(fixed_shared(400 * MS));
    lane.queue(2, SHARED);
    assert!(lane.admit().is_empty());
    assert_eq!(lane.next_check(), first.valid_until());
    lane.nest(3, fixed_shared(60 * SECOND));
    assert_eq!(lane.renew_with(Renewed::Renewed).grants.len(), 1);
}

/// Its future may not be polled.
#[test]
fn writer_past_deadline_delays_no_reader() {
    let granted = |effects: &Effects| (effects.rejections.len(), effects.grants.len());
    for watchdog_is_late in [false, true] {
        let (mut lane, _first) = held_shared();
        drop(lane.enqueue(for_second(2, RENEWED, &lane)));
        lane.queue(3, SHARED);
        assert_eq!(lane.next_check(), lane.now + SECOND);
        lane.pass(SECOND);
        if watchdog_is_late {
            assert_eq!(granted(&lane.admit()), (1, 1));
        } else {
            let (due, effects) = lane.check();
            assert!(due.is_none());
            assert_eq!(granted(&effects), (1, 0));
            assert_eq!(granted(&lane.admit()), (0, 1));
        }
    }
}
