//! Leases that are kept after the last hold.

use super::*;
use contending::{grant_by_task, refuse};

const LENGTH: Duration = Duration::from_millis(20);

impl TestLane {
    /// Drops the last hold on a key that comes back.
    fn keep(&mut self, grant: &Arc<Grant>, hold: HoldId) -> Effects {
        self.keep_for(LENGTH, grant, hold)
    }

    fn keep_for(&mut self, length: Duration, grant: &Arc<Grant>, hold: HoldId) -> Effects {
        let ((), effects) = self.event(|lane, effects| {
            lane.release(grant, hold, None, effects);
            lane.keep(Span::new(length), effects);
        });
        effects
    }

    #[track_caller]
    fn take_back(&mut self, ticket: Ticket) -> Arc<Grant> {
        match self.enter(claim(ticket, RENEWED)) {
            Entered::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    fn is_kept(&self) -> bool {
        self.lane.kept_lease().is_some()
    }
}

/// Returns a lane with a kept lease, and its first grant.
fn kept() -> (TestLane, Arc<Grant>) {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(5 * MS);
    assert!(lane.keep(&grant, 1).is_empty());
    assert!(lane.is_kept());
    (lane, grant)
}

#[test]
fn kept_lease_is_taken_back_with_fresh_token() {
    let (mut lane, first) = kept();
    assert!(lane.take_return().is_none(), "its release is not due");
    lane.pass(14 * MS);
    let second = lane.take_back(2);
    assert!(second.token() > first.token());
    assert!(!lane.is_kept() && lane.is_held());
}

#[cfg(feature = "dashboard")]
#[test]
fn kept_lease_is_shown_as_kept() {
    let (mut lane, _grant) = kept();
    assert_eq!(lane.lane.held_by(), HeldBy::Kept);
    lane.pass(LENGTH);
    returns(&mut lane.check().1);
    assert_eq!(lane.lane.held_by(), HeldBy::Releasing);
}

#[test]
fn kept_lease_is_released_after_its_turn() {
    let (mut lane, grant) = kept();
    assert_eq!(lane.next_check(), grant.granted_at + LENGTH);
    lane.pass(14 * MS);
    assert!(lane.check().1.is_empty());
    lane.pass(MS);
    returns(&mut lane.check().1);
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
    assert!(lane.returned(1).is_empty());
    assert!(lane.lane.is_idle());
}

#[test]
fn lease_is_not_taken_back_after_its_turn() {
    let (mut lane, _grant) = kept();
    lane.pass(15 * MS);
    let (entered, mut effects) =
        lane.event(|lane, effects| lane.enter(&key(), &claim(2, RENEWED), effects));
    assert!(matches!(entered, Entered::Occupied));
    returns(&mut effects);
}

#[test]
fn surrendered_kept_lease_is_taken_back_until_sent() {
    let (mut lane, _grant) = kept();
    lane.pass(15 * MS);
    returns(&mut lane.check().1);
    let grant = lane.take_back(2);
    assert!(lane.take_return().is_none());
    // The backend decides at the end of this hold.
    returns(&mut lane.keep(&grant, 2));
    assert!(matches!(lane.take_return(), Some(Order::ReleaseOrKeep(..))));
}

/// Otherwise, a key that repeats without a pause would go on until the budget of hand-offs ends.
#[test]
fn lease_of_ended_turn_is_not_taken_back() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(LENGTH);
    returns(&mut lane.keep(&grant, 1));
    assert!(matches!(lane.enter(claim(2, RENEWED)), Entered::Occupied));
    assert!(matches!(lane.take_return(), Some(Order::ReleaseOrKeep(..))));
}

/// The lease is kept again before the releaser runs for its first return.
#[test]
fn late_releaser_leaves_kept_lease() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    returns(&mut lane.release(&grant));
    let second = lane.take_back(2);
    assert!(lane.keep(&second, 2).is_empty());
    assert!(lane.take_return().is_none());
    assert!(lane.is_kept());
}

#[test]
fn lease_of_busy_key_is_kept_by_backend() {
    let (mut lane, _grant) = kept();
    let grant = lane.take_back(2);
    lane.pass(10 * MS);
    assert!(lane.keep(&grant, 2).is_empty());
    lane.pass(5 * MS);
    returns(&mut lane.check().1);
    let order = lane.take_return();
    assert!(matches!(order, Some(Order::ReleaseOrKeep(order)) if !order.has_waiters));
    assert!(lane.kept(1, 200).is_empty());
    assert!(lane.is_kept());
    let third = lane.take_back(3);
    assert_eq!(third.token(), FencingToken::new(200, TOKENS, 1));
    // A turn counts from the reply.
    lane.pass(19 * MS);
    assert!(lane.keep(&third, 3).is_empty());
}

/// It was not used in the turn that the backend has granted.
#[test]
fn lease_kept_by_backend_is_released_in_time() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(SECOND);
    returns(&mut lane.keep(&grant, 1));
    assert!(matches!(lane.take_return(), Some(Order::ReleaseOrKeep(..))));
    lane.pass(5 * MS);
    assert!(lane.kept(1, 200).is_empty());
    assert_eq!(lane.next_check(), lane.now + 15 * MS);
    lane.pass(15 * MS);
    returns(&mut lane.check().1);
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

#[test]
fn late_reply_keeps_no_lease() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(SECOND);
    returns(&mut lane.keep(&grant, 1));
    assert!(lane.take_return().is_some());
    lane.pass(LENGTH);
    returns(&mut lane.kept(1, 200));
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

#[test]
fn waiter_gets_lease_that_backend_kept() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(SECOND);
    returns(&mut lane.keep(&grant, 1));
    assert!(lane.take_return().is_some());
    lane.queue(2, RENEWED);
    assert_eq!(granted(lane.kept(1, 200)).owner(), claim(2, RENEWED).owner);
}

#[test]
fn lease_without_tokens_is_kept_by_backend() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let mut grant = grant;
    for hold in 1..u64::from(TOKENS) {
        assert!(lane.keep(&grant, hold).is_empty(), "{hold}");
        grant = lane.take_back(hold + 1);
    }
    returns(&mut lane.keep(&grant, TOKENS.into()));
    let order = lane.take_return();
    assert!(matches!(order, Some(Order::ReleaseOrKeep(order)) if order.counters == 2));
}

#[test]
fn other_terms_end_kept_lease() {
    let shared = Terms {
        mode: Mode::Shared,
        ..RENEWED
    };
    for terms in [FIXED, shared] {
        let (mut lane, _grant) = kept();
        let (entered, mut effects) =
            lane.event(|lane, effects| lane.enter(&key(), &claim(2, terms), effects));
        assert!(matches!(entered, Entered::Occupied));
        returns(&mut effects);
        lane.queue(2, terms);
        assert!(matches!(lane.take_return(), Some(Order::Release(_))));
    }
}

#[test]
fn only_exclusive_renewed_lease_is_kept() {
    let shared = Terms {
        mode: Mode::Shared,
        ..RENEWED
    };
    for terms in [FIXED, shared] {
        let (mut lane, grant) = TestLane::held(terms);
        returns(&mut lane.keep(&grant, 1));
        assert!(matches!(lane.take_return(), Some(Order::Release(_))));
    }
}

#[test]
fn lease_of_several_keys_is_not_kept() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.lane.join_keys(&grant, &claim(1, RENEWED), lane.now);
    returns(&mut lane.keep(&grant, 1));
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

#[test]
fn lease_with_waiter_elsewhere_is_kept_by_backend() {
    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    let busy = LastReply::Busy(lane.now);
    assert!(refuse(&mut lane, 1, busy).is_empty());
    let grant = granted(grant_by_task(&mut lane, 4));
    returns(&mut lane.keep(&grant, 1));
    assert!(matches!(lane.take_return(), Some(Order::ReleaseOrKeep(..))));
}

#[test]
fn lease_with_waiter_here_is_not_kept() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.queue(2, FIXED);
    returns(&mut lane.keep(&grant, 1));
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

#[test]
fn short_lease_is_kept_only_with_time_left() {
    let (mut lane, grant) = TestLane::held(SHORT);
    lane.pass(90 * MS);
    returns(&mut lane.keep(&grant, 1));
    assert!(matches!(lane.take_return(), Some(Order::ReleaseOrKeep(..))));
}

/// A held lease that may be lost is renewed at once, and a kept one is not.
#[test]
fn suspect_lease_is_kept_by_backend() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.lane.require_renewal(lane.now);
    returns(&mut lane.keep(&grant, 1));
    assert!(matches!(lane.take_return(), Some(Order::ReleaseOrKeep(..))));
}

#[test]
fn lease_whose_renewal_failed_is_kept_by_backend() {
    let (mut lane, grant) = TestLane::held(SHORT);
    lane.pass(SHORT.ttl.get() / 3);
    let renewal = lane.start_renewal();
    let failed = Err(BackendError::unknown("lost"));
    assert!(lane.renewed(&renewal, lane.now, failed).is_empty());
    returns(&mut lane.keep_for(100 * MS, &grant, 1));
    assert!(matches!(lane.take_return(), Some(Order::ReleaseOrKeep(..))));
}

#[test]
fn end_of_keeping_releases_lease() {
    let (mut lane, _grant) = kept();
    let ((), mut effects) = lane.event(Lane::end_keep);
    returns(&mut effects);
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

#[test]
fn end_of_keeping_releases_lease_in_flight() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(SECOND);
    returns(&mut lane.keep(&grant, 1));
    assert!(lane.take_return().is_some());
    let ((), effects) = lane.event(Lane::end_keep);
    assert!(effects.is_empty());
    returns(&mut lane.kept(1, 200));
}

#[test]
fn forced_release_ends_kept_lease() {
    let (mut lane, _grant) = kept();
    returns(&mut lane.forced(Some(1)));
    assert!(matches!(lane.enter(claim(2, RENEWED)), Entered::Occupied));
}

#[test]
fn suspect_kept_lease_is_not_taken_back() {
    let (mut lane, _grant) = kept();
    lane.lane.require_renewal(lane.now);
    let (entered, mut effects) =
        lane.event(|lane, effects| lane.enter(&key(), &claim(2, RENEWED), effects));
    assert!(matches!(entered, Entered::Occupied));
    returns(&mut effects);
}

#[test]
fn expired_kept_lease_is_not_taken_back() {
    let (mut lane, grant) = kept();
    lane.now = grant.valid_until() + SECOND;
    let (entered, effects) =
        lane.event(|lane, effects| lane.enter(&key(), &claim(2, RENEWED), effects));
    assert!(matches!(entered, Entered::Idle));
    let resolves = |work: &Work| matches!(work, Work::ReleaseGranted(it) if it.lease == number(1));
    assert!(effects.work.iter().all(resolves) && effects.work.len() == 1);
}

/// The release follows the reply, which may say that the backend has lost the lease.
#[test]
fn lease_with_renewal_in_flight_is_not_kept() {
    let (mut lane, grant) = TestLane::held(SHORT);
    lane.pass(SHORT.ttl.get() / 3);
    let renewal = lane.start_renewal();
    assert!(lane.keep_for(100 * MS, &grant, 1).is_empty());
    assert!(!lane.is_kept() && lane.take_return().is_none());
    returns(&mut lane.renewed(&renewal, lane.now, Ok(Renewed::Renewed)));
    assert!(lane.take_return().is_some());
}
