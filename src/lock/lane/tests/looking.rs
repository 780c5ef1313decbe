//! Checks by watchdogs: due and overdue work.

use futures_util::FutureExt as _;

use super::*;

/// Returns when the watchdogs of other runtimes check the lane, of which they are notified once.
fn looks_from_elsewhere(lane: &mut TestLane) -> Option<Moment> {
    let (at, homes) = lane.lane.looks_from_elsewhere(RESPONSE_TIMEOUT)?;
    assert_eq!(homes, [elsewhere()]);
    Some(at)
}

fn take_over(mut effects: Effects) -> (Arc<InlineAttempt>, RuntimeId) {
    match work(&mut effects) {
        Work::TakeOver { attempt, home } => (attempt, home),
        other => panic!("{other:?}"),
    }
}

#[test]
fn renewal_is_due_after_third_of_lease() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    let at = lane.now + RENEWED.ttl.get() / 3;
    assert_eq!(lane.next_look(), at);
    assert!(!lane.lane.renews_early(lane.now));
    lane.now = at + TAKE_OVER;
    assert!(lane.lane.renews_early(lane.now));
    assert!(lane.look(elsewhere()).0.is_none(), "not from there");
    let renewal = lane.start_renewal();
    assert_eq!(renewal.ttl, RENEWED.ttl.get());
    assert!(lane.look(here()).0.is_none(), "it is in flight");
}

#[test]
fn unpolled_attempt_is_taken_over_for_waiter() {
    for waiter_home in [here(), elsewhere()] {
        let (mut lane, attempt) = TestLane::attempting(claim(1, RENEWED));
        lane.pass(SECOND);
        assert!(lane.look(here()).1.is_empty(), "no waiter");
        let behind = claim(2, RENEWED);
        lane.enqueue(Claim {
            home: waiter_home,
            ..behind
        });
        assert_eq!(lane.next_look(), lane.now + (TAKE_OVER - OWN_FIRST));
        if waiter_home == elsewhere() {
            assert_eq!(looks_from_elsewhere(&mut lane), Some(lane.now + TAKE_OVER));
        }
        assert!(lane.look(waiter_home).1.is_empty(), "it may be polled yet");
        lane.pass(TAKE_OVER);
        let (taken, home) = take_over(lane.look(waiter_home).1);
        assert!(Arc::ptr_eq(&taken, &attempt) && home == waiter_home);
        assert!(lane.look(waiter_home).1.is_empty(), "once");
    }
}

/// A waiter of another runtime left, and its watchdog still looks at the time that was set for it.
#[test]
fn runtime_of_unpolled_attempt_takes_over_first() {
    let (mut lane, attempt) = TestLane::attempting(claim(1, RENEWED));
    let from_there = |ticket| Claim {
        home: elsewhere(),
        ..claim(ticket, RENEWED)
    };
    drop(lane.enqueue(from_there(2)));
    lane.pass(OWN_FIRST);
    assert!(lane.lane.leave(2).is_some());
    drop(lane.enqueue(from_there(3)));
    lane.pass(TAKE_OVER - OWN_FIRST);
    assert!(
        lane.look(elsewhere()).1.is_empty(),
        "the other one is first"
    );
    let (taken, home) = take_over(lane.look(here()).1);
    assert!(Arc::ptr_eq(&taken, &attempt) && home == here());
}

#[test]
fn later_waiters_delay_no_take_over() {
    let (mut lane, _attempt) = TestLane::attempting(claim(1, RENEWED));
    lane.queue(2, RENEWED);
    let due = lane.next_look();
    lane.pass(TAKE_OVER / 2);
    lane.queue(3, RENEWED);
    assert_eq!(lane.next_look(), due);
}

#[test]
fn waiters_delay_no_deadline_of_unpolled_attempt() {
    let mut lane = TestLane::idle();
    let deadline = lane.now + 2 * TAKE_OVER;
    let patient = Claim {
        deadline: Deadline::At(deadline),
        ..claim(1, RENEWED)
    };
    assert!(matches!(lane.enter(patient), Entered::Idle));
    let attempt = Arc::<InlineAttempt>::default();
    lane.lane.contend_inline(&attempt, &patient, lane.now);
    lane.pass(3 * TAKE_OVER / 2);
    for ticket in [2, 3] {
        lane.queue(ticket, RENEWED);
        assert_eq!(lane.next_look(), deadline);
        assert!(lane.look(here()).1.is_empty(), "not yet");
        assert!(lane.lane.leave(ticket).is_some());
        assert_eq!(lane.next_look(), deadline);
    }
    lane.queue(4, RENEWED);
    lane.now = deadline;
    let (taken, _home) = take_over(lane.look(here()).1);
    assert!(Arc::ptr_eq(&taken, &attempt));
}

#[test]
fn unpolled_attempt_is_taken_over_at_deadline() {
    let patient = Claim {
        deadline: Deadline::At(Moment::now() + SECOND),
        ..claim(1, RENEWED)
    };
    let (mut lane, attempt) = TestLane::attempting(patient);
    lane.now = lane.next_look();
    let (taken, _home) = take_over(lane.look(here()).1);
    assert!(Arc::ptr_eq(&taken, &attempt));

    let (waiter, _answer) = waiter(patient);
    let (taken, effects) = lane.event(|lane, now, effects| {
        let in_flight = (number(2), RENEWED.ttl);
        let take_over = TakeOver {
            in_flight,
            waiter: Box::new(waiter),
            home: here(),
            now,
            due: now + 500 * MS,
        };
        lane.take_over_inline(&attempt, take_over, effects)
    });
    let wakeup = taken.expect("the attempt is not over");
    assert!(effects.is_empty());
    // The waiter's deadline has passed, so the granted lease is returned.
    let lease = lane.lease(2, 100, RENEWED);
    let ((), mut effects) = lane.event(|lane, now, effects| {
        lane.granted(&key(), &wakeup, lease, here(), now, effects);
    });
    assert_eq!(effects.rejections.len(), 1);
    returns(&mut effects, here());
}

#[test]
fn ended_attempt_is_not_taken_over() {
    // The lane holds the lease, or another attempt has begun.
    let held = TestLane::held(RENEWED).0;
    let attempting = TestLane::attempting(claim(1, RENEWED)).0;
    for mut lane in [held, attempting] {
        let (waiter, _answer) = waiter(claim(2, RENEWED));
        let (taken, effects) = lane.event(|lane, now, effects| {
            let (attempt, in_flight) = (Arc::default(), (number(2), RENEWED.ttl));
            let take_over = TakeOver {
                in_flight,
                waiter: Box::new(waiter),
                home: here(),
                now,
                due: now + 500 * MS,
            };
            lane.take_over_inline(&attempt, take_over, effects)
        });
        assert!(taken.is_err() && effects.is_empty());
        assert_eq!(lane.lane.waiters(), 0);
    }
}

#[test]
fn stuck_task_is_replaced_from_other_runtime() {
    let (mut lane, stuck, _answer) = TestLane::looping(claim(1, RENEWED));
    lane.enqueue(from_elsewhere(claim(2, RENEWED)));
    let due = lane.now + RESPONSE_TIMEOUT;
    let (terms, _) =
        lane.event(|lane, now, effects| lane.begin_attempt(&stuck, number(3), now, due, effects));
    assert!(terms.is_some());
    assert_eq!(looks_from_elsewhere(&mut lane), Some(due + TAKE_OVER));
    lane.now = due;
    assert!(
        lane.look(elsewhere()).1.is_empty(),
        "its reply may come yet"
    );
    lane.now = due + TAKE_OVER;
    assert!(lane.look(here()).1.is_empty(), "it cannot replace itself");
    let (_, mut effects) = lane.look(elsewhere());
    let Work::Resolve { lease, home, .. } = effects.work.remove(0) else {
        panic!("the attempt in flight is resolved");
    };
    assert_eq!((lease, home), (number(3), elsewhere()));
    let wakeup = contends(&mut effects, elsewhere());

    // The replaced task runs again: its lease is released, and it ends.
    let lease = lane.lease(3, 100, RENEWED);
    let ((), mut effects) = lane.event(|lane, now, effects| {
        lane.granted(&key(), &stuck, lease, here(), now, effects);
    });
    let resolved = work(&mut effects);
    assert!(matches!(resolved, Work::Resolve { lease, .. } if lease == number(3)));
    let begin = |lane: &mut TestLane, wakeup: &Wakeup| {
        let due = lane.now + RESPONSE_TIMEOUT;
        lane.event(|lane, now, effects| lane.begin_attempt(wakeup, number(4), now, due, effects))
    };
    assert!(begin(&mut lane, &stuck).0.is_none());
    assert!(begin(&mut lane, &wakeup).0.is_some());
}

#[test]
fn sent_return_is_sent_again_from_other_runtime() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    returns(&mut lane.release(&grant), here());
    assert!(lane.take_return().is_some());
    let due = lane.now + RESPONSE_TIMEOUT;
    lane.enqueue(from_elsewhere(claim(2, RENEWED)));
    assert_eq!(looks_from_elsewhere(&mut lane), Some(due));
    assert!(lane.look(elsewhere()).1.is_empty());
    lane.now = due;
    assert!(lane.look(here()).1.is_empty());
    let again = work(&mut lane.look(elsewhere()).1);
    assert!(matches!(again, Work::ReturnAgain(outgoing, home)
        if outgoing.lease == number(1) && home == elsewhere()));
    contends(&mut lane.returned(1), elsewhere());
}

/// Either of the two releases finds the lease.
#[test]
fn return_sent_again_from_other_runtime_is_no_loss() {
    for twice in [false, true] {
        let (mut lane, _reported) = returning::keeping();
        let _answer = lane.enqueue(from_elsewhere(claim(3, RENEWED)));
        if twice {
            lane.pass(RESPONSE_TIMEOUT);
            let again = work(&mut lane.look(elsewhere()).1);
            assert!(matches!(again, Work::ReturnAgain(..)));
            let kept = lane.kept(1, 200);
            assert!(kept.is_empty(), "the release in flight frees the key");
        }
        let absent = lane.lane.returned_absent(number(1), lane.now);
        assert_eq!(absent.is_ok(), twice);
    }
}

#[test]
fn unsent_return_starts_from_other_runtime() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    returns(&mut lane.release(&grant), here());
    lane.enqueue(from_elsewhere(claim(2, RENEWED)));
    assert_eq!(looks_from_elsewhere(&mut lane), Some(lane.now + TAKE_OVER));
    lane.pass(TAKE_OVER);
    returns(&mut lane.look(elsewhere()).1, elsewhere());
}

#[test]
fn return_behind_stuck_renewal_starts_from_elsewhere() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.pass(10 * SECOND);
    let (renewal, sent_at) = (lane.start_renewal(), lane.now);
    assert!(lane.release(&grant).work.is_empty());
    lane.enqueue(from_elsewhere(claim(2, RENEWED)));
    let due = sent_at + RESPONSE_TIMEOUT + TAKE_OVER;
    assert_eq!(looks_from_elsewhere(&mut lane), Some(due));
    lane.now = due;
    returns(&mut lane.look(elsewhere()).1, elsewhere());
    assert!(lane.take_return().is_some());
    // The reply still arrives.
    assert!(
        lane.renewed(&renewal, sent_at, Ok(Renewed::Renewed))
            .is_empty()
    );
    contends(&mut lane.returned(1), here());
}

#[test]
fn lost_lease_is_detected_from_other_runtime() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.enqueue(from_elsewhere(claim(2, RENEWED)));
    let end = grant.valid_until();
    assert_eq!(looks_from_elsewhere(&mut lane), Some(end));
    assert_eq!(looks_from_elsewhere(&mut lane), None, "reported once");
    lane.now = end;
    let (_, mut effects) = lane.look(elsewhere());
    assert!(grant.is_marked_lost());
    returns(&mut effects, elsewhere());
}

#[test]
fn adopted_lane_continues_in_other_runtime() {
    let adopt = |lane: &mut TestLane| {
        let ((), effects) = lane.event(|lane, now, effects| {
            lane.adopt(here(), elsewhere(), now, effects);
        });
        assert_eq!(lane.lane.home(), Some(elsewhere()));
        effects
    };
    // A grant that is not picked up belongs to another runtime, so it is renewed.
    let (mut lane, grant) = TestLane::held(RENEWED);
    assert!(adopt(&mut lane).is_empty());
    assert!(lane.next_look() < grant.valid_until());
    // A guard of an ended runtime is no longer renewed.
    let (mut lane, grant) = TestLane::held(RENEWED);
    assert!(grant.pick_up());
    assert!(adopt(&mut lane).is_empty());
    assert_eq!(
        lane.lane.next_look(),
        Some((elsewhere(), grant.valid_until()))
    );

    let (mut lane, grant) = TestLane::held(RENEWED);
    returns(&mut lane.release(&grant), here());
    returns(&mut adopt(&mut lane), elsewhere());

    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    contends(&mut adopt(&mut lane), elsewhere());

    let (mut lane, _grant) = TestLane::held_by(from_elsewhere(claim(1, RENEWED)));
    assert!(adopt(&mut lane).is_empty(), "another runtime");
}

#[test]
fn unclaimed_grant_is_detected_from_other_runtime() {
    // The guard was moved to the other runtime and is released there, while this one does not run.
    let (mut lane, first) = TestLane::held(RENEWED);
    let deadline = lane.now + SECOND;
    let _answer = lane.enqueue(Claim {
        deadline: Deadline::At(deadline),
        ..claim(2, RENEWED)
    });
    lane.enqueue(from_elsewhere(claim(3, RENEWED)));
    let (_until, effects) = lane.event(|lane, now, effects| {
        let home = Some(elsewhere());
        lane.release(&key(), &first, release(1, None, home, now), effects)
    });
    let grant = granted(effects);
    let own = lane
        .lane
        .next_look()
        .filter(|(home, _)| *home == elsewhere());
    let announced = own
        .map(|(_, at)| at)
        .or_else(|| looks_from_elsewhere(&mut lane));
    assert_eq!(announced, Some(deadline));
    lane.now = deadline;
    returns(&mut lane.look(elsewhere()).1, elsewhere());
    assert!(!grant.pick_up());
}

#[test]
fn sent_return_of_ended_runtime_is_sent_again() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    lane.enqueue(from_elsewhere(claim(2, RENEWED)));
    lane.lane.join_group(&grant, &claim(1, RENEWED), lane.now);
    returns(&mut lane.release(&grant), here());
    assert!(lane.take_return().is_some());
    // The task that sent the release was dropped with its runtime.
    let ((), mut effects) = lane.event(|lane, now, effects| {
        lane.adopt(here(), elsewhere(), now, effects);
    });
    if effects.work.is_empty() {
        lane.pass(RESPONSE_TIMEOUT);
        effects = lane.look(elsewhere()).1;
    }
    let again = work(&mut effects);
    assert!(matches!(again, Work::ReturnAgain(outgoing, home)
        if outgoing.lease == number(1) && home == elsewhere()));
}

#[test]
fn check_rejecting_last_waiter_wakes_task() {
    let (mut lane, _attempt) = TestLane::attempting(claim(1, RENEWED));
    let wakeup = {
        let (wakeup, _effects) = lane.event(|lane, now, effects| {
            let in_flight = Some((number(2), RENEWED.ttl));
            let seen = Seen::Nothing;
            lane.inline_leaves(in_flight, seen, here(), now, now, effects)
        });
        wakeup.expect("a task finishes the attempt")
    };
    let (waiter, _answer) = waiter(Claim {
        deadline: Deadline::At(lane.now + SECOND),
        ..claim(3, RENEWED)
    });
    let ((), _effects) = lane.event(|lane, now, effects| {
        lane.enqueue(waiter, Seen::Nothing, now, effects);
    });
    let is_woken = || wakeup.notified().now_or_never().is_some();
    assert!(is_woken(), "at the enqueue");
    lane.pass(2 * SECOND);
    let (_, effects) = lane.look(here());
    assert_eq!(effects.rejections.len(), 1);
    assert!(is_woken());
}

#[test]
fn overdue_renewal_of_nested_hold_moves() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    let overdue = lane.now + (RENEWED.ttl.get() / 3 + TAKE_OVER);
    let nested = lane.enter(from_elsewhere(again(2, RENEWED)));
    assert!(matches!(nested, Entered::Nested(_)));
    assert_eq!(looks_from_elsewhere(&mut lane), Some(overdue));
    lane.now = overdue.before(MS);
    assert!(lane.look(elsewhere()).0.is_none());
    lane.now = overdue;
    assert!(lane.look(elsewhere()).0.is_some());
}

#[test]
fn waiters_past_deadline_are_rejected_after_suspend() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    let late = Claim {
        deadline: Deadline::At(lane.now + SECOND),
        ..claim(2, RENEWED)
    };
    let _answers = [lane.enqueue(late), lane.enqueue(claim(3, RENEWED))];
    lane.pass(SECOND);
    let ((), effects) = lane.event(Lane::reject_late);
    assert_eq!((effects.rejections.len(), lane.lane.waiters()), (1, 1));
}
