//! Hand-offs, releases and losses.

use super::*;
use crate::Owner;

#[test]
fn handoff_draws_larger_token_without_command() {
    let (mut lane, mut grant) = TestLane::held(RENEWED);
    for handoff in 1..TOKENS {
        lane.queue(1 + Ticket::from(handoff), RENEWED);
        grant = granted(lane.release(&grant));
        assert_eq!(grant.token(), FencingToken::new(100, TOKENS, handoff));
    }
    // The counter has no token left, so the lease is returned.
    lane.queue(1000, RENEWED);
    returns(&mut lane.release(&grant));
    assert!(matches!(lane.take_return(), Some(Order::ReleaseOrKeep(..))));
    let grant = granted(lane.kept(1, 200));
    assert_eq!(grant.token(), FencingToken::new(200, TOKENS, 0));
}

#[test]
fn handoff_budget_ends_with_time() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.queue(2, RENEWED);
    lane.pass(101 * MS);
    returns(&mut lane.release(&grant));
    assert!(matches!(lane.take_return(), Some(Order::ReleaseOrKeep(..))));
}

#[test]
fn fixed_lease_is_not_handed_off() {
    for (first, second) in [(FIXED, FIXED), (FIXED, RENEWED), (RENEWED, FIXED)] {
        let (mut lane, grant) = TestLane::held(first);
        lane.queue(2, second);
        returns(&mut lane.release(&grant));
        assert!(matches!(lane.take_return(), Some(Order::Release(_))));
        contends(&mut lane.returned(1));
    }
}

#[test]
fn handoff_rejects_waiters_past_deadline() {
    let until = |ticket, at| Claim {
        deadline: Deadline::At(at),
        ..claim(ticket, RENEWED)
    };
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.enqueue(until(2, lane.now + 10 * MS));
    lane.enqueue(until(3, lane.now + 50 * MS));
    lane.pass(10 * MS);
    let mut effects = lane.release(&grant);
    let (_reply, error) = effects.rejections.remove(0);
    assert!(error.is_busy());
    let third = granted(effects);
    assert_eq!(third.owner(), claim(3, RENEWED).owner);

    // All deadlines have passed, so the lease is returned.
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.enqueue(until(2, lane.now + 10 * MS));
    lane.pass(10 * MS);
    let mut effects = lane.release(&grant);
    assert_eq!(effects.rejections.len(), 1);
    returns(&mut effects);
}

#[test]
fn queued_acquires_of_one_owner_are_granted_together() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let owner = claim(2, RENEWED).owner;
    lane.queue(2, RENEWED);
    lane.queue(3, RENEWED);
    let again = claim(4, RENEWED);
    lane.enqueue(Claim { owner, ..again });
    let effects = lane.release(&grant);
    let holds: Vec<_> = effects
        .grants
        .iter()
        .map(|(waiter, _)| waiter.claim.hold)
        .collect();
    assert_eq!(holds, [2, 4]);
    assert_eq!(effects.grants[0].1.grant.holds(), 2);
}

#[test]
fn lost_guard_changes_nothing_for_next_holder() {
    let (mut lane, grant) = TestLane::held(FIXED);
    lane.queue(2, FIXED);
    lane.pass(FIXED.ttl.get());
    let (due, mut effects) = lane.check();
    assert!(due.is_none() && Arc::ptr_eq(&effects.losses[0].grant, &grant));
    returns(&mut effects);
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
    let _wakeup = contends(&mut lane.returned(1));
    let lease = lane.lease(2, 200, FIXED);
    let ((), effects) = lane.event(|lane, effects| {
        lane.granted(&key(), lease, effects);
    });
    let second = granted(effects);

    let (report, _reported) = oneshot::channel();
    let effects = lane.release_hold(&grant, 1, Some(report));
    assert_eq!(report_of(&effects).map(Error::kind), Some(ErrorKind::Lost));
    assert!(second.is_held(lane.now));
    assert_eq!((grant.holds(), second.holds()), (0, 1));
}

#[test]
fn forced_release_loses_only_observed_lease() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    // The lease was granted while the command was in flight.
    for seen in [Some(0), None] {
        assert!(lane.forced(seen).is_empty());
        assert_eq!(lane.next_check(), lane.now);
    }
    let effects = lane.forced(Some(1));
    assert!(Arc::ptr_eq(&effects.losses[0].grant, &grant) && effects.work.is_empty());
    assert!(grant.is_marked_lost() && lane.lane.is_idle());
}

/// The backend has lost its data, or another process has the lease.
#[test]
fn returned_suspect_lease_is_not_granted() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    returns(&mut lane.release(&grant));
    lane.lane.require_renewal(lane.now);
    assert!(matches!(lane.enter(claim(2, RENEWED)), Entered::Occupied));

    // The reply to a renewal may predate the loss as well.
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.lane.require_renewal(lane.now);
    let (renewal, sent_at) = (lane.start_renewal(), lane.now);
    assert!(lane.release(&grant).is_empty(), "after the reply");
    lane.lane.require_renewal(lane.now);
    lane.queue(2, RENEWED);
    returns(&mut lane.renewed(&renewal, sent_at, Ok(Renewed::Renewed)));
    assert!(!lane.is_held());

    let (mut lane, _reported) = returning::keeping();
    lane.lane.require_renewal(lane.now);
    // The reply may predate the loss.
    returns(&mut lane.kept(1, 200));
    assert!(!lane.is_held() && lane.take_return().is_some());
}

#[test]
fn forced_release_of_returning_lease_grants_none() {
    // The command was sent before or after the lease was granted, or the order is unknown.
    for seen in [Some(1), Some(0), None] {
        let (mut lane, grant) = TestLane::held(RENEWED);
        returns(&mut lane.release(&grant));
        assert!(lane.forced(seen).is_empty());
        assert!(matches!(lane.enter(claim(2, RENEWED)), Entered::Occupied));

        let (mut lane, _reported) = returning::keeping();
        assert!(lane.forced(seen).is_empty());
        // The reply that the lease was kept may predate the forced release.
        let mut effects = lane.kept(1, 200);
        assert!(effects.reports.is_empty());
        returns(&mut effects);
        assert!(matches!(lane.enter(claim(3, RENEWED)), Entered::Occupied));
        assert!(!lane.is_held() && lane.take_return().is_some());
        assert!(lane.returned(1).reports[0].1.is_ok());
    }
}

/// The forced release may have found another lease, or come after the release.
#[test]
fn release_beside_forced_one_reports_own_reply() {
    for seen in [Some(1), Some(0), None] {
        for outcome in [Ok(()), Err(ErrorKind::Lost)] {
            let (mut lane, grant) = TestLane::held(RENEWED);
            let (report, _reported) = oneshot::channel();
            returns(&mut lane.release_hold(&grant, 1, Some(report)));
            assert!(lane.take_return().is_some());
            assert!(lane.forced(seen).is_empty());
            let ((), effects) = lane.event(|lane, effects| {
                let reply = match outcome {
                    Ok(()) => Ok(()),
                    Err(_) => lane.returned_absent(number(1), effects.now),
                };
                lane.returned(number(1), reply, ReleasedTo::Nobody, effects);
            });
            let reported = effects.reports[0].1.as_ref().copied();
            assert_eq!(reported.map_err(Error::kind), outcome);
        }
    }
}

fn force(lane: &mut TestLane, owner: Owner) -> (Option<Moment>, Effects) {
    let report = oneshot::channel().0;
    lane.event(|lane, effects| lane.force(owner, &mut Some(report), effects))
}

#[test]
fn force_ends_hold_of_named_owner() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let other = claim(2, RENEWED).owner;
    let (until, effects) = force(&mut lane, other);
    assert!(until.is_none() && effects.is_empty() && grant.is_held(lane.now));

    let (until, mut effects) = force(&mut lane, grant.owner());
    let drift = RENEWED.ttl.get() / 100 + 2 * MS;
    assert_eq!(until, Some(lane.now + (RENEWED.ttl.get() + drift)));
    assert!(Arc::ptr_eq(&effects.losses[0].grant, &grant) && grant.is_marked_lost());
    returns(&mut effects);
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

#[test]
fn force_after_deadline_ends_nothing() {
    let (mut lane, grant) = TestLane::held(FIXED);
    lane.now = grant.valid_until();
    let (until, effects) = force(&mut lane, grant.owner());
    assert!(until.is_none() && effects.is_empty());
}

#[test]
fn late_release_reports_lost_and_returns_lease() {
    let (mut lane, grant) = TestLane::held(FIXED);
    lane.now = grant.valid_until();
    let (report, _reported) = oneshot::channel();
    let mut effects = lane.release_hold(&grant, 1, Some(report));
    assert_eq!(report_of(&effects).map(Error::kind), Some(ErrorKind::Lost));
    assert!(Arc::ptr_eq(&effects.losses[0].grant, &grant) && grant.is_marked_lost());
    returns(&mut effects);
}

/// Returns the outcome of the only report.
fn report_of(effects: &Effects) -> Option<&Error> {
    assert_eq!(effects.reports.len(), 1);
    effects.reports[0].1.as_ref().err()
}
