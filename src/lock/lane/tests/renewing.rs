//! Renewals.

use super::*;
use crate::backend::BackendErrorKind;

#[test]
fn nested_leases_renew_for_longest() {
    let (mut lane, grant) = TestLane::held(FIXED);
    let longest = crate::lock::lease::valid_until(lane.now, Span::new(60 * SECOND));
    lane.nest(2, fixed(60));
    lane.nest(3, fixed(30));
    let renewal = lane.start_renewal();
    let effects = lane.renewed(&renewal, lane.now, Ok(Renewed::Renewed));
    assert!(effects.is_empty());
    assert_eq!(grant.valid_until(), longest);
    assert_eq!(lane.next_check(), longest, "nothing else is fetched");
}

#[test]
fn nested_acquire_during_renewal_renews_again() {
    let (mut lane, grant) = TestLane::held(FIXED);
    lane.pass(FIXED.ttl.get() / 2);
    lane.nest(2, FIXED);
    let (first, sent_at) = (lane.start_renewal(), lane.now);
    lane.pass(20 * MS);
    let wanted = crate::lock::lease::valid_until(lane.now, FIXED.ttl);
    lane.nest(3, FIXED);
    assert!(
        lane.renewed(&first, sent_at, Ok(Renewed::Renewed))
            .is_empty()
    );
    let (second, sent_at) = (lane.start_renewal(), lane.now);
    assert!(
        lane.renewed(&second, sent_at, Ok(Renewed::Renewed))
            .is_empty()
    );
    assert_eq!(grant.valid_until(), wanted);
    assert!(lane.check().0.is_none());
}

#[test]
fn release_waits_for_reply_to_renewal() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(10 * SECOND);
    let renewal = lane.start_renewal();
    assert!(lane.release(&grant).work.is_empty());
    assert!(lane.take_return().is_none());
    let mut effects = lane.renewed(&renewal, lane.now, Ok(Renewed::Renewed));
    returns(&mut effects);
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

/// Returns a held lane with a renewal that waits for a slot.
fn renewal_without_slot() -> (TestLane, Arc<Grant>, Renewal) {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(10 * SECOND);
    let renewal = lane.start_renewal();
    (lane, grant, renewal)
}

#[test]
fn renewal_after_end_of_lease_is_not_sent() {
    let (mut lane, grant, renewal) = renewal_without_slot();
    let end = grant.valid_until();
    assert!(lane.still_wants(&renewal, end.before(MS)));
    assert!(!lane.still_wants(&renewal, end));
    assert!(!lane.is_held());
}

#[test]
fn renewal_after_release_is_not_sent() {
    let (mut lane, grant, renewal) = renewal_without_slot();
    assert!(lane.release(&grant).work.is_empty());
    assert!(!lane.still_wants(&renewal, lane.now));
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
    let error = lane.lane.why_not(lane.now);
    assert!(error.is_busy(), "the backend did not fail: {error}");
}

#[test]
fn renewal_before_release_serves_first_waiter() {
    let (mut lane, grant) = TestLane::held(SHORT);
    lane.pass(45 * MS);
    let renewal = lane.start_renewal();
    assert!(lane.release(&grant).work.is_empty());
    lane.queue(2, SHORT);
    let next = granted(lane.renewed(&renewal, lane.now, Ok(Renewed::Renewed)));
    assert_eq!(next.token(), FencingToken::new(100, TOKENS, 1));
}

#[test]
fn reply_about_other_lease_changes_nothing() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let of = |lease| renewal(lease, RENEWED.ttl.get());
    assert!(lane.still_wants(&of(1), lane.now));
    assert!(!lane.still_wants(&of(2), lane.now));
    let now = lane.now;
    assert!(lane.renewed(&of(2), now, Ok(Renewed::NotHeld)).is_empty());
    assert!(lane.is_held() && grant.is_held(now));
    // The renewal may have extended a lease that the lane does not hold.
    let work = work(&mut lane.renewed(&of(2), now, Ok(Renewed::Renewed)));
    assert!(matches!(work, Work::ReleaseGranted(it) if it.lease == number(2)));
}

#[test]
fn reply_about_other_lease_keeps_return_reclaimable() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    returns(&mut lane.release(&grant));
    let (other, now) = (renewal(2, RENEWED.ttl.get()), lane.now);
    assert!(lane.renewed(&other, now, Ok(Renewed::NotHeld)).is_empty());
    assert!(matches!(lane.enter(claim(2, RENEWED)), Entered::Granted(_)));
}

#[test]
fn reply_about_other_lease_leaves_renewal_in_flight() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(10 * SECOND);
    lane.start_renewal();
    let (other, now) = (renewal(2, RENEWED.ttl.get()), lane.now);
    assert!(lane.renewed(&other, now, Ok(Renewed::NotHeld)).is_empty());
    assert!(grant.is_held(now) && lane.check().0.is_none());
}

#[test]
fn late_unknown_error_resolves_lease() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    let other = renewal(2, RENEWED.ttl.get());
    let unknown = BackendError::unknown("no reply");
    let refused = BackendError::refused(BackendErrorKind::Unavailable, "loading");
    for (error, resolves) in [(unknown, 1), (refused, 0)] {
        let effects = lane.renewed(&other, lane.now, Err(error));
        assert_eq!(effects.work.len(), resolves);
    }
}

#[test]
fn reply_after_deadline_loses_grant() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(10 * SECOND);
    let (renewal, sent_at) = (lane.start_renewal(), lane.now);
    lane.now = grant.valid_until();
    let mut effects = lane.renewed(&renewal, sent_at, Ok(Renewed::Renewed));
    assert!(Arc::ptr_eq(&effects.losses[0].grant, &grant) && grant.is_marked_lost());
    returns(&mut effects);
}
