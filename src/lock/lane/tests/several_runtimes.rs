//! A runtime that stops while others use the same lane.

use super::*;

/// Releases a hold in the other runtime.
fn release_elsewhere(lane: &mut TestLane, grant: &Arc<Grant>, hold: HoldId) -> Effects {
    let now = lane.now;
    let (_, effects) = lane.event(|lane, _, effects| {
        lane.release(
            &key(),
            grant,
            release(hold, None, Some(elsewhere()), now),
            effects,
        )
    });
    effects
}

#[test]
fn release_waits_for_stopped_runtime_only_shortly() {
    let (mut lane, first) = TestLane::held(RENEWED);
    lane.lane.mark_suspect(lane.now);
    lane.start_renewal();
    let one = from_elsewhere(claim(2, RENEWED));
    let _answer = lane.enqueue(one);
    let grant = granted(lane.release(&first));
    assert!(lane.lane.picked_up(&grant, &one, lane.now));
    lane.pass(TAKE_OVER / 2);
    assert!(release_elsewhere(&mut lane, &grant, 2).work.is_empty());
    lane.pass(TAKE_OVER / 2);
    assert_eq!(lane.next_look(), lane.now);
    returns(&mut lane.look(elsewhere()).1, elsewhere());
}

#[test]
fn guard_dropped_elsewhere_waits_shortly_for_renewal() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.lane.mark_suspect(lane.now);
    lane.start_renewal();
    assert!(release_elsewhere(&mut lane, &grant, 1).work.is_empty());
    lane.pass(TAKE_OVER);
    returns(&mut lane.look(elsewhere()).1, elsewhere());
}

#[test]
fn not_held_after_earlier_reply_loses_grant() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let nested = Claim {
        owner: claim(1, RENEWED).owner,
        ..from_elsewhere(claim(2, RENEWED))
    };
    assert!(matches!(lane.enter(nested), Entered::Nested(_)));
    lane.lane.mark_suspect(lane.now);
    let (stuck, sent_at) = (lane.start_renewal(), lane.now);
    lane.pass(SECOND);
    let again = lane.look(elsewhere()).0.expect("a renewal");
    let effects = lane.renewed(&stuck, sent_at, Ok(Renewed::Renewed));
    assert!(effects.is_empty());
    let effects = lane.renewed(&again, lane.now, Ok(Renewed::NotHeld));
    assert!(!grant.is_held(lane.now) && effects.losses[0].while_held);
}

#[test]
fn shutdown_keeps_runtime_of_nested_hold() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    let nested = Claim {
        owner: claim(1, RENEWED).owner,
        ..from_elsewhere(claim(2, RENEWED))
    };
    assert!(matches!(lane.enter(nested), Entered::Nested(_)));
    let ((), _) =
        lane.event(|lane, _, effects| lane.dismiss(&Error::new(ErrorKind::ShuttingDown), effects));
    assert!(lane.lane.is_awaited_elsewhere());
}

#[test]
fn grant_of_waiting_group_is_renewed_in_its_runtime() {
    let (mut lane, first) = TestLane::held(RENEWED);
    let one = Claim {
        grouped: true,
        ..from_elsewhere(claim(2, RENEWED))
    };
    let _answer = lane.enqueue(one);
    granted(lane.release(&first));
    // Its releaser's runtime is blocked.
    lane.pass(RENEWED.ttl.get() / 3 + TAKE_OVER);
    assert!(lane.lane.looks_from_elsewhere(RESPONSE_TIMEOUT).is_some());
    assert!(lane.look(elsewhere()).0.is_some());
}

#[test]
fn ended_runtime_is_no_home_of_hold() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    let nested = Claim {
        owner: claim(1, RENEWED).owner,
        ..from_elsewhere(claim(2, RENEWED))
    };
    assert!(matches!(lane.enter(nested), Entered::Nested(_)));
    let ((), _) = lane.event(|lane, now, effects| lane.adopt(elsewhere(), here(), now, effects));
    let Phase::Held(tenure) = &lane.lane.phase else {
        panic!("held");
    };
    assert!(tenure.homes().is_empty());
}

/// Returns a lane whose release waits here, after a waiter elsewhere sent it again and left.
fn release_moved_elsewhere() -> (TestLane, Reported) {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let (report, reported) = oneshot::channel();
    let waiter = from_elsewhere(claim(2, RENEWED));
    lane.lane.join_group(&grant, &claim(1, RENEWED), lane.now);
    drop(lane.enqueue(waiter));
    returns(&mut lane.release_hold(&grant, 1, Some(report)), here());
    lane.pass(TAKE_OVER);
    returns(&mut lane.look(elsewhere()).1, elsewhere());
    assert!(lane.lane.leave(2).is_some());
    (lane, reported)
}

#[test]
fn release_future_is_resolved_by_own_runtime() {
    let (mut lane, mut reported) = release_moved_elsewhere();
    let (at, homes) = lane
        .lane
        .looks_from_elsewhere(RESPONSE_TIMEOUT)
        .expect("a check");
    assert_eq!(homes, [here()]);
    lane.now = at;
    let effects = lane.look(here()).1;
    let outcome = effects.reports[0].1.as_ref().map_err(Error::kind);
    assert_eq!(outcome, Err(ErrorKind::Unavailable));
    drop(effects);
    assert!(reported.try_recv().is_err());
}

#[test]
fn ended_runtime_of_release_future_is_forgotten() {
    let (mut lane, _reported) = release_moved_elsewhere();
    let ((), effects) = lane.event(|lane, now, effects| {
        lane.adopt(here(), elsewhere(), now, effects);
    });
    assert!(effects.is_empty());
    assert_eq!(lane.lane.reporter(), None);
}

#[test]
fn nested_hold_renews_after_end_of_other_runtime() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    assert!(grant.pick_up());
    let nested = from_elsewhere(again(2, RENEWED));
    assert!(matches!(lane.enter(nested), Entered::Nested(_)));
    let ((), effects) =
        lane.event(|lane, now, effects| lane.adopt(here(), elsewhere(), now, effects));
    assert!(effects.is_empty());
    let third = lane.now + RENEWED.ttl.get() / 3;
    assert_eq!(lane.lane.next_look(), Some((elsewhere(), third)));
}

#[test]
fn handoff_to_last_waiter_ends_checks_elsewhere() {
    let grouped = Claim {
        grouped: true,
        ..claim(2, RENEWED)
    };
    for next in [from_elsewhere(claim(2, RENEWED)), grouped] {
        let (mut lane, first) = TestLane::held(RENEWED);
        let _answer = lane.enqueue(next);
        granted(lane.release(&first));
        assert!(!lane.lane.is_awaited_elsewhere());
    }
}

#[test]
fn check_from_elsewhere_is_repeated_after_pause() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.enqueue(from_elsewhere(claim(2, RENEWED)));
    let announced = |lane: &mut TestLane| {
        let looks = lane.lane.looks_from_elsewhere(RESPONSE_TIMEOUT);
        looks.map(|(at, _homes)| at)
    };
    let end = grant.valid_until();
    assert_eq!(announced(&mut lane), Some(end));
    lane.now = end.before(MS);
    lane.start_renewal();
    assert_eq!(announced(&mut lane), None, "a check from here");
    assert!(lane.look(elsewhere()).1.is_empty());
    assert_eq!(announced(&mut lane), Some(lane.now + TAKE_OVER));
}

#[test]
fn lost_returning_lease_is_not_taken_back() {
    for sent in [false, true] {
        let (mut lane, grant) = TestLane::held(RENEWED);
        lane.lane.mark_suspect(lane.now);
        let (stuck, sent_at) = (lane.start_renewal(), lane.now);
        assert!(release_elsewhere(&mut lane, &grant, 1).work.is_empty());
        lane.pass(TAKE_OVER);
        returns(&mut lane.look(elsewhere()).1, elsewhere());
        assert!(!sent || lane.take_return().is_some());
        // The lane no longer waits for this reply.
        let effects = lane.renewed(&stuck, sent_at, Ok(Renewed::NotHeld));
        assert!(effects.is_empty() && lane.lane.is_returning());
        assert!(matches!(lane.enter(claim(2, RENEWED)), Entered::Occupied));
    }
}

#[test]
fn waiter_here_is_elsewhere_after_move() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    lane.queue(2, RENEWED);
    assert!(!lane.lane.is_awaited_elsewhere());
    lane.lane.move_to(elsewhere());
    assert!(lane.lane.is_awaited_elsewhere());
}

#[test]
fn release_future_in_own_runtime_is_not_elsewhere() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    let (report, _reported) = oneshot::channel();
    lane.lane.join_group(&grant, &claim(1, RENEWED), lane.now);
    drop(lane.enqueue(from_elsewhere(claim(2, RENEWED))));
    returns(&mut lane.release_hold(&grant, 1, Some(report)), here());
    assert_eq!(lane.lane.other_homes(), [elsewhere()]);
}
