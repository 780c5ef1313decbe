//! Downgrades of exclusive leases.

use super::*;
use crate::backend::{BackendErrorKind, Downgraded};
use crate::observe::LostReason;

const SHARED: Terms = Terms {
    mode: Mode::Shared,
    ..RENEWED
};

fn refused() -> BackendError {
    BackendError::refused(BackendErrorKind::Unavailable, "refused")
}

impl TestLane {
    #[track_caller]
    fn reserve(&mut self, grant: &Arc<Grant>) -> Wakeup {
        let wakeup = Wakeup::default();
        let reserved = (self.lane).reserve_downgrade(grant, 1, Arc::clone(&wakeup), self.now);
        reserved.unwrap();
        wakeup
    }

    /// Returns the kind of the error.
    #[track_caller]
    fn reservation_fails(&mut self, grant: &Arc<Grant>, hold: HoldId) -> ErrorKind {
        let reserved = (self.lane).reserve_downgrade(grant, hold, Wakeup::default(), self.now);
        reserved.unwrap_err().kind()
    }

    /// Puts the downgrade in flight.
    #[track_caller]
    fn start_downgrade(&mut self, grant: &Arc<Grant>) -> Renewal {
        drop(self.reserve(grant));
        self.send_downgrade(grant)
    }

    #[track_caller]
    fn send_downgrade(&mut self, grant: &Arc<Grant>) -> Renewal {
        match self.lane.send_downgrade(grant, self.now) {
            Ok(Some((lease, ttl))) => renewal(lease.get(), ttl),
            turn => panic!("{turn:?}"),
        }
    }

    fn downgraded(
        &mut self,
        grant: &Arc<Grant>,
        downgrade: &Renewal,
        outcome: Result<Downgraded, BackendError>,
    ) -> (Result<(), ErrorKind>, Effects) {
        let sent_at = self.now;
        let (outcome, effects) = self
            .event(|lane, effects| lane.downgraded(grant, downgrade, sent_at, outcome, effects));
        (outcome.map_err(|error| error.kind()), effects)
    }
}

/// Returns `true` if the task of the downgrade was notified.
fn is_notified(wakeup: &Wakeup) -> bool {
    use futures_util::FutureExt as _;
    wakeup.notified().now_or_never().is_some()
}

#[test]
fn downgraded_lease_admits_first_readers() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(SECOND);
    for (ticket, terms) in [(2, SHARED), (3, SHARED), (4, RENEWED), (5, SHARED)] {
        lane.queue(ticket, terms);
    }
    let downgrade = lane.start_downgrade(&grant);
    assert_eq!(downgrade.ttl, RENEWED.ttl.get());
    assert_eq!(grant.mode(), Mode::Shared);
    let shared = Ok(Downgraded::shared(200));
    let (outcome, effects) = lane.downgraded(&grant, &downgrade, shared);
    assert_eq!(outcome, Ok(()));
    let granted: Vec<_> = effects
        .grants
        .iter()
        .map(|(waiter, _)| waiter.claim.hold)
        .collect();
    assert_eq!(granted, [2, 3]);
    let token = FencingToken::new(200, TOKENS, 0);
    for (_, given) in effects.grants.iter() {
        assert_eq!(given.grant.token(), token);
    }
    assert_eq!((grant.mode(), grant.token()), (Mode::Shared, token));
    let until = crate::lock::lease::valid_until(lane.now, RENEWED.ttl);
    assert_eq!(grant.valid_until(), until);
    // It is renewed as a shared one.
    lane.pass(RENEWED.ttl.get() / 3);
    assert_eq!(lane.start_renewal().mode, Mode::Shared);
}

#[test]
fn readers_join_downgraded_lease() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(SECOND);
    let downgrade = lane.start_downgrade(&grant);
    let reader = claim(2, SHARED);
    assert!(matches!(lane.enter(reader), Entered::Occupied));
    let (_, effects) = lane.downgraded(&grant, &downgrade, Ok(Downgraded::shared(200)));
    assert!(effects.is_empty());
    let Entered::Granted(joined) = lane.enter(reader) else {
        panic!("the lease is shared");
    };
    assert_eq!(joined.token(), grant.token());
    // The reply counts as one to a renewal.
    assert!(lane.check().0.is_none());
    assert!(lane.release(&grant).work.is_empty());
    returns(&mut lane.release_hold(&joined, 2, None));
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

#[test]
fn downgrade_waits_for_renewal() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(10 * SECOND);
    let renewal = lane.start_renewal();
    let wakeup = lane.reserve(&grant);
    let sent = lane.lane.send_downgrade(&grant, lane.now);
    assert!(matches!(sent, Ok(None)), "{sent:?}");
    assert!(!is_notified(&wakeup));
    let effects = lane.renewed(&renewal, lane.now, Ok(Renewed::Renewed));
    assert!(effects.is_empty());
    assert!(is_notified(&wakeup));
    lane.send_downgrade(&grant);
}

#[test]
fn renewal_waits_for_downgrade() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let downgrade = lane.start_downgrade(&grant);
    lane.pass(15 * SECOND);
    assert_eq!(lane.next_check(), grant.valid_until());
    assert!(lane.check().0.is_none());
    lane.lane.require_renewal(lane.now);
    assert!(lane.check().0.is_none());
    let (outcome, _) = lane.downgraded(&grant, &downgrade, Ok(Downgraded::shared(200)));
    assert_eq!(outcome, Ok(()));
    lane.pass(RENEWED.ttl.get() / 3);
    assert_eq!(lane.start_renewal().mode, Mode::Shared);
}

#[test]
fn downgrade_requires_single_current_hold() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.nest(2, RENEWED);
    assert_eq!(lane.reservation_fails(&grant, 1), ErrorKind::InvalidOption);
    assert!(lane.release_hold(&grant, 2, None).is_empty());
    lane.now = grant.valid_until();
    assert_eq!(lane.reservation_fails(&grant, 1), ErrorKind::Lost);
    let (mut other, _grant) = TestLane::held(RENEWED);
    assert_eq!(other.reservation_fails(&grant, 1), ErrorKind::Lost);
}

#[test]
fn shared_lease_needs_no_downgrade() {
    let (mut lane, grant) = TestLane::held(SHARED);
    let reserved = (lane.lane).reserve_downgrade(&grant, 1, Wakeup::default(), lane.now);
    assert!(reserved.is_ok() && grant.mode() == Mode::Shared);
}

#[test]
fn owner_gets_no_exclusive_hold_meanwhile() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    drop(lane.reserve(&grant));
    let rejected = |lane: &mut TestLane, mode| {
        let terms = Terms { mode, ..RENEWED };
        match lane.enter(again(2, terms)) {
            Entered::Rejected(error) => error.kind(),
            entered => panic!("{entered:?}"),
        }
    };
    assert_eq!(rejected(&mut lane, Mode::Exclusive), ErrorKind::Upgrade);
    assert_eq!(rejected(&mut lane, Mode::Permit), ErrorKind::KeyConflict);
    lane.nest(3, SHARED);
    let downgrade = lane.send_downgrade(&grant);
    let (outcome, _) = lane.downgraded(&grant, &downgrade, Err(refused()));
    assert_eq!(outcome, Err(ErrorKind::Unavailable));
    lane.nest(4, RENEWED);
    assert_eq!((grant.mode(), grant.holds()), (Mode::Exclusive, 3));
}

/// The guard of the first downgrade is dropped, and a nested one is left.
#[test]
fn second_downgrade_in_flight_is_rejected() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let downgrade = lane.start_downgrade(&grant);
    lane.nest(2, SHARED);
    assert!(lane.release_hold(&grant, 1, None).is_empty());
    assert_eq!(lane.reservation_fails(&grant, 2), ErrorKind::InvalidOption);
    let exclusive = lane.enter(again(3, RENEWED));
    assert!(matches!(exclusive, Entered::Rejected(_)), "{exclusive:?}");
    let (outcome, _) = lane.downgraded(&grant, &downgrade, Ok(Downgraded::shared(200)));
    assert_eq!(outcome, Ok(()));
    let reserved = (lane.lane).reserve_downgrade(&grant, 2, Wakeup::default(), lane.now);
    assert!(reserved.is_ok() && grant.mode() == Mode::Shared);
}

#[test]
fn cancelled_downgrade_leaves_lease() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let wakeup = lane.reserve(&grant);
    lane.lane.cancel_downgrade(&grant);
    assert!(is_notified(&wakeup));
    lane.nest(2, RENEWED);
}

#[test]
fn refused_downgrade_keeps_exclusive_lease() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.queue(2, SHARED);
    let downgrade = lane.start_downgrade(&grant);
    let (outcome, effects) = lane.downgraded(&grant, &downgrade, Err(refused()));
    assert_eq!(outcome, Err(ErrorKind::Unavailable));
    assert!(effects.is_empty());
    assert!(grant.is_held(lane.now) && grant.mode() == Mode::Exclusive);
    assert_eq!(lane.start_renewal().mode, Mode::Exclusive);
}

#[test]
fn downgrade_with_unknown_result_releases_lease() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.queue(2, RENEWED);
    let downgrade = lane.start_downgrade(&grant);
    let unknown = Err(BackendError::unknown("lost"));
    let (outcome, mut effects) = lane.downgraded(&grant, &downgrade, unknown);
    assert_eq!(outcome, Err(ErrorKind::Lost));
    assert_eq!(grant.lost_reason(lane.now), Some(LostReason::Downgrade));
    assert_eq!(effects.losses.len(), 1);
    returns(&mut effects);
    // It is not kept for the waiter: the lease may be shared.
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

#[test]
fn downgrade_without_lease_loses_lock() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let downgrade = lane.start_downgrade(&grant);
    let (outcome, effects) = lane.downgraded(&grant, &downgrade, Ok(Downgraded::NotHeld));
    assert_eq!(outcome, Err(ErrorKind::Lost));
    assert_eq!(effects.losses.len(), 1);
    assert_eq!(grant.lost_reason(lane.now), Some(LostReason::NotHeld));
    assert!(lane.lane.is_idle());
}

#[test]
fn guard_released_during_downgrade_waits_for_reply() {
    for outcome in [
        Ok(Downgraded::shared(200)),
        Ok(Downgraded::NotHeld),
        Err(refused()),
        Err(BackendError::unknown("lost")),
    ] {
        let (mut lane, grant) = TestLane::held(RENEWED);
        let downgrade = lane.start_downgrade(&grant);
        assert!(lane.release(&grant).work.is_empty());
        assert!(lane.take_return().is_none());
        // The lease is not taken back: it may be shared.
        assert!(matches!(lane.enter(claim(2, RENEWED)), Entered::Occupied));
        lane.queue(2, RENEWED);
        let (ended, mut effects) = lane.downgraded(&grant, &downgrade, outcome);
        assert_eq!(ended, Err(ErrorKind::Lost));
        returns(&mut effects);
        assert!(matches!(lane.take_return(), Some(Order::Release(_))));
    }
}

#[test]
fn late_downgrade_leaves_lost_lock_lost() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let downgrade = lane.start_downgrade(&grant);
    lane.now = grant.valid_until();
    let (outcome, mut effects) = lane.downgraded(&grant, &downgrade, Ok(Downgraded::shared(200)));
    assert_eq!(outcome, Err(ErrorKind::Lost));
    assert_eq!(grant.lost_reason(lane.now), Some(LostReason::Expired));
    returns(&mut effects);
}

#[test]
fn lost_lock_ends_waiting_downgrade() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(10 * SECOND);
    let renewal = lane.start_renewal();
    let wakeup = lane.reserve(&grant);
    drop(lane.renewed(&renewal, lane.now, Ok(Renewed::NotHeld)));
    assert!(is_notified(&wakeup));
    let sent = lane.lane.send_downgrade(&grant, lane.now);
    assert!(sent.unwrap_err().is_lost());
}

#[test]
fn reply_after_forced_release_releases_lease_again() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let downgrade = lane.start_downgrade(&grant);
    drop(lane.forced(Some(1)));
    let shared = Ok(Downgraded::shared(200));
    let (outcome, mut effects) = lane.downgraded(&grant, &downgrade, shared);
    assert_eq!(outcome, Err(ErrorKind::Lost));
    let work = work(&mut effects);
    assert!(matches!(work, Work::ReleaseGranted(..)), "{work:?}");
}

#[test]
fn reply_after_loss_leaves_return_of_next_lease() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let downgrade = lane.start_downgrade(&grant);
    drop(lane.forced(Some(1)));
    let (next, now) = (lane.lease(2, 200, RENEWED), lane.now);
    let claim = claim(2, RENEWED);
    let next = lane.lane.hold(&key(), next, Via::Backend, &claim, now);
    returns(&mut lane.release_hold(&next, 2, None));
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
    let shared = Ok(Downgraded::shared(300));
    let (outcome, mut effects) = lane.downgraded(&grant, &downgrade, shared);
    assert_eq!(outcome, Err(ErrorKind::Lost));
    assert!(matches!(work(&mut effects), Work::ReleaseGranted(..)));
    assert!(lane.lane.is_returning());
}

#[test]
fn downgraded_fixed_lease_keeps_its_end() {
    let (mut lane, grant) = TestLane::held(FIXED);
    let end = grant.valid_until();
    lane.pass(SECOND);
    let downgrade = lane.start_downgrade(&grant);
    assert_eq!(downgrade.ttl, end.since(lane.now));
    let (outcome, _) = lane.downgraded(&grant, &downgrade, Ok(Downgraded::shared(200)));
    assert_eq!(outcome, Ok(()));
    assert_eq!(grant.valid_until(), end);
    assert_eq!(lane.next_check(), end);
}
