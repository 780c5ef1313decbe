//! The return of a lease.

mod keeping;

use super::*;
use crate::backend::{BackendError, BackendErrorKind};

/// Returns a lane with one waiter and a `release_or_keep` in flight, and the report of its release.
pub(super) fn keeping() -> (TestLane, Reported) {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.lane.join_keys(&grant, &claim(1, RENEWED), lane.now);
    lane.queue(2, RENEWED);
    let (report, reported) = oneshot::channel();
    returns(&mut lane.release_hold(&grant, 1, Some(report)));
    assert!(matches!(lane.take_return(), Some(Order::ReleaseOrKeep(..))));
    (lane, reported)
}

#[test]
fn kept_lease_without_waiter_is_released_first() {
    let (mut lane, mut reported) = keeping();
    assert!(lane.lane.leave(2));
    let mut effects = lane.kept(1, 200);
    assert!(effects.reports.is_empty());
    returns(&mut effects);
    assert_eq!(reported.try_recv().unwrap_err(), TryRecvError::Empty);
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
    assert!(lane.returned(1).reports[0].1.is_ok());
}

#[test]
fn kept_lease_for_other_terms_is_released() {
    let (mut lane, _reported) = keeping();
    lane.queue(3, FIXED);
    assert!(lane.lane.leave(2));
    returns(&mut lane.kept(1, 200));
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

#[test]
fn lease_released_twice_is_not_kept() {
    let (mut lane, _reported) = keeping();
    // Its runtime blocks, and home sends a release.
    lane.pass(RESPONSE_TIMEOUT + 10 * MS);
    let effects = lane.check().1;
    assert!(matches!(effects.work[0], Work::ReturnAgain(..)));
    let effects = lane.kept(1, 200);
    assert!(effects.is_empty(), "the release in flight frees the key");
    assert!(lane.returned(1).reports[0].1.is_ok());
}

#[test]
fn continued_kept_lease_is_reported_as_released() {
    let (mut lane, _reported) = keeping();
    let effects = lane.kept(1, 200);
    assert!(effects.reports[0].1.is_ok());
    assert_eq!(granted(effects).token(), FencingToken::new(200, TOKENS, 0));
}

#[test]
fn lease_kept_without_counter_hands_off_tokens() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.queue(2, RENEWED);
    lane.pass(SECOND);
    returns(&mut lane.release(&grant));
    let order = lane.take_return();
    assert!(matches!(order, Some(Order::ReleaseOrKeep(order)) if !order.needs_counter));
    let next = granted(lane.kept(1, None));
    assert_eq!(next.token(), FencingToken::new(100, TOKENS, 1));
    assert!(next.valid_until() > grant.valid_until());
}

#[test]
fn lease_without_tokens_needs_counter() {
    let (mut lane, _reported) = keeping();
    let grant = granted(lane.kept(1, 200));
    assert_eq!(grant.token(), FencingToken::new(200, TOKENS, 0));
    lane.lane.join_keys(&grant, &claim(2, RENEWED), lane.now);
    lane.queue(3, RENEWED);
    returns(&mut lane.release_hold(&grant, 2, None));
    let order = lane.take_return();
    assert!(matches!(order, Some(Order::ReleaseOrKeep(order)) if order.needs_counter));
}

#[test]
fn endless_return_is_reported_unavailable() {
    for sent in [false, true] {
        let (mut lane, grant) = TestLane::held(RENEWED);
        let (report, _reported) = oneshot::channel();
        returns(&mut lane.release_hold(&grant, 1, Some(report)));
        if sent {
            assert!(lane.take_return().is_some());
            lane.pass(RESPONSE_TIMEOUT + 10 * MS);
            assert!(matches!(work(&mut lane.check().1), Work::ReturnAgain(_)));
        }
        assert!(lane.lane.is_unreleased(lane.now));
        lane.now = lane.next_check();
        assert!(!lane.lane.is_unreleased(lane.now));
        let (due, effects) = lane.check();
        assert!(due.is_none());
        let outcome = effects.reports[0].1.as_ref().map_err(Error::kind);
        assert_eq!(outcome, Err(ErrorKind::Unavailable));
        assert!(lane.lane.is_idle());
        let resolves =
            |work: &Work| matches!(work, Work::ReleaseGranted(it) if it.lease == number(1));
        assert_eq!(
            effects.work.iter().filter(|it| resolves(it)).count(),
            usize::from(!sent)
        );
    }
}

#[test]
fn reply_to_earlier_return_changes_nothing() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    assert!(!lane.lane.is_returning());
    returns(&mut lane.release(&grant));
    assert!(lane.take_return().is_some());
    assert!(lane.returned(7).is_empty());
    assert!(lane.lane.is_returning());
    // The backend has extended a lease that the lane does not hold.
    let work = work(&mut lane.kept(7, 200));
    assert!(matches!(work, Work::ReleaseGranted(it) if it.lease == number(7)));
    assert!(lane.lane.is_returning());
}

#[test]
fn absent_lease_counts_as_returned_in_time() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let end = grant.valid_until();
    returns(&mut lane.release(&grant));
    let in_time = |lane: &mut TestLane, at| lane.lane.returned_absent(number(1), at).is_ok();
    lane.lane.return_is_resent(number(1));
    assert!(!in_time(&mut lane, end.before(MS)), "not sent");
    assert!(lane.take_return().is_some());
    lane.lane.return_is_resent(number(2));
    assert!(!in_time(&mut lane, end.before(MS)), "sent once");
    lane.lane.return_is_resent(number(1));
    assert!(in_time(&mut lane, end.before(MS)));
    assert!(!in_time(&mut lane, end));
    let other = lane.lane.returned_absent(number(2), end.before(MS));
    assert_eq!(other.map_err(|error| error.kind()), Err(ErrorKind::Lost));
}

/// The reply to the second release may arrive after the reply to the first.
#[test]
fn first_release_after_second_counts_as_returned() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    returns(&mut lane.release(&grant));
    assert!(lane.take_return().is_some());
    lane.pass(RESPONSE_TIMEOUT + 10 * MS);
    let effects = lane.check().1;
    assert!(matches!(effects.work[0], Work::ReturnAgain(..)));
    assert!(lane.lane.returned_absent(number(1), lane.now).is_ok());
}

#[test]
fn release_future_ends_with_lease() {
    let (mut lane, grant) = TestLane::held(SHORT);
    let (report, mut reported) = oneshot::channel();
    lane.now = grant.valid_until().before(MS);
    returns(&mut lane.release_hold(&grant, 1, Some(report)));
    assert!(lane.take_return().is_some());
    lane.now = lane.next_check();
    assert!(lane.now < grant.valid_until() + SECOND);
    let effects = lane.check().1;
    assert_eq!(effects.reports.len(), 1);
    drop(effects);
    assert!(reported.try_recv().is_err());
    // There is time for a late release.
    assert!(lane.lane.is_returning());
    assert!(lane.next_check() > lane.now);
}

#[test]
fn waiter_of_overdue_return_sees_silence() {
    let (mut lane, _reported) = keeping();
    lane.pass(RESPONSE_TIMEOUT - MS);
    let busy = lane.lane.why_not(lane.now);
    assert!(busy.is_busy() && !busy.to_string().contains("this process"));
    lane.pass(MS);
    // The second release changes nothing.
    lane.lane.return_is_resent(number(1));
    lane.pass(10 * MS);
    let _effects = lane.check().1;
    assert!(lane.lane.why_not(lane.now).is_unavailable());
}

#[test]
fn failed_renewal_before_return_is_unavailable() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(10 * SECOND);
    let renewal = lane.start_renewal();
    assert!(lane.release(&grant).work.is_empty());
    assert!(lane.lane.why_not(lane.now).is_busy());
    let error = BackendError::unknown("no reply");
    returns(&mut lane.renewed(&renewal, lane.now, Err(error)));
    assert!(lane.take_return().is_some());
    assert!(lane.lane.why_not(lane.now).is_unavailable());
}

#[test]
fn rejected_renewal_before_return_is_misconfigured() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(10 * SECOND);
    let renewal = lane.start_renewal();
    assert!(lane.release(&grant).work.is_empty());
    let error = BackendError::refused(BackendErrorKind::Misconfigured, "no permission");
    returns(&mut lane.renewed(&renewal, lane.now, Err(error)));
    assert!(lane.take_return().is_some());
    let why_not = lane.lane.why_not(lane.now);
    assert_eq!(why_not.kind(), ErrorKind::Refused);
}

/// The deadline of a waiter passes before the next attempt has a reply.
#[test]
fn waiter_of_failed_return_sees_its_error() {
    let (mut lane, _reported) = keeping();
    let error = || BackendError::refused(BackendErrorKind::Unavailable, "NOREPLICAS");
    let ((), effects) = lane.event(|lane, effects| {
        let (lease, failed) = (number(1), Err(Error::of_backend(error())));
        lane.returned(lease, failed, ReleasedTo::Nobody, effects);
        lane.return_failed(error());
    });
    assert!(effects.reports[0].1.is_err());
    let error = lane.lane.why_not(lane.now);
    assert!(error.is_unavailable(), "{error}");
}
