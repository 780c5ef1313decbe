//! First attempts, and those of acquire loops.

use super::*;

/// Returns a lane with a first attempt in flight and another waiter, after a forced release of the key.
fn suspect_attempt() -> TestLane {
    let (mut lane, _answer) = TestLane::attempting(claim(1, RENEWED));
    lane.queue(2, RENEWED);
    assert!(lane.forced(None).is_empty());
    lane
}

pub(super) fn grant_by_task(lane: &mut TestLane, lease: u64) -> Effects {
    let lease = lane.lease(lease, 100, RENEWED);
    let ((), effects) = lane.event(|lane, effects| {
        lane.granted(&key(), lease, effects);
    });
    effects
}

fn begin_attempt(lane: &mut TestLane, lease: u64) -> Option<Terms> {
    let (begun, effects) = lane.event(|lane, effects| lane.begin_attempt(number(lease), effects));
    assert!(effects.is_empty());
    begun.map(|(_, terms)| terms)
}

pub(super) fn refuse(lane: &mut TestLane, attempt: u64, seen: LastReply) -> Effects {
    let ((), effects) = lane.event(|lane, effects| {
        lane.rejected(number(attempt), seen, PlaceChange::Out, effects);
    });
    effects
}

#[test]
fn forced_release_in_attempt_renews_grant_at_once() {
    let mut lane = suspect_attempt();
    granted(grant_by_task(&mut lane, 1));
    assert_eq!(lane.next_check(), lane.now);
    lane.start_renewal();
}

#[test]
fn first_grant_serves_companions_and_single_attempts() {
    let first = claim(1, RENEWED);
    let (mut lane, _answer) = TestLane::attempting(first);
    let companion = Claim {
        owner: first.owner,
        ..claim(2, RENEWED)
    };
    let _answers = [companion, once(3, &lane), claim(4, RENEWED)].map(|it| lane.enqueue(it));
    assert_eq!(lane.lane.waiters(), 3, "besides the attempt");
    let effects = grant_by_task(&mut lane, 1);
    let granted = effects
        .grants
        .iter()
        .map(|(waiter, given)| (waiter.claim.hold, given.queued));
    assert!(granted.eq([(1, false), (2, true)]));
    assert_eq!((effects.rejections.len(), lane.lane.waiters()), (1, 1));
    assert_eq!(effects.grants[0].1.grant.holds(), 2);
}

#[test]
fn suspicion_ends_with_its_attempt() {
    let mut lane = suspect_attempt();
    let busy = LastReply::Busy(lane.now);
    contends(&mut lane.refuse_first(1, busy));
    granted(grant_by_task(&mut lane, 2));
    assert!(lane.next_check() > lane.now);
}

#[test]
fn refused_first_attempt_begins_to_wait() {
    let (mut lane, _answer) = TestLane::attempting(claim(1, RENEWED));
    assert_eq!((lane.lane.waiters(), lane.lane.seats_taken()), (0, 1));
    let busy = LastReply::Busy(lane.now);
    contends(&mut lane.refuse_first(1, busy));
    assert_eq!((lane.lane.waiters(), lane.lane.seats_taken()), (1, 1));
}

#[test]
fn refused_single_attempt_leaves_idle_lane() {
    let single = once(1, &TestLane::idle());
    let (mut lane, _answer) = TestLane::attempting(single);
    let busy = LastReply::Busy(lane.now);
    let effects = lane.refuse_first(1, busy);
    assert_eq!((effects.rejections.len(), effects.work.len()), (1, 0));
    assert!(lane.lane.is_idle());
}

#[test]
fn dropped_first_attempt_is_replaced() {
    let (mut lane, _answer) = TestLane::attempting(claim(1, RENEWED));
    let (drove, mut effects) = lane.event(|lane, effects| lane.abandon(number(1), effects));
    assert!(drove);
    let lost_attempt = effects.work.remove(0);
    assert!(matches!(lost_attempt, Work::ReleaseUnknown { lease, .. } if lease == number(1)));
    contends(&mut effects);
    let (drove, effects) = lane.event(|lane, effects| lane.abandon(number(1), effects));
    assert!(!drove && effects.is_empty());
}

#[test]
fn dropped_task_leaves_only_its_own_lane() {
    let (mut lane, wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    let error = Error::new(ErrorKind::Unavailable);
    let abandon = |lane: &mut TestLane, wakeup: &Wakeup| {
        let ((), effects) = lane.event(|lane, effects| {
            lane.abandon_all(wakeup, &error, effects);
        });
        effects
    };
    assert!(
        abandon(&mut lane, &Wakeup::default()).is_empty(),
        "another task"
    );
    assert_eq!(abandon(&mut lane, &wakeup).rejections.len(), 1);
    assert!(lane.lane.is_idle());
}

#[test]
fn task_ends_after_last_waiter() {
    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    assert!(lane.lane.leave(1));
    assert!(begin_attempt(&mut lane, 2).is_none());
    assert!(lane.lane.is_idle());
}

#[test]
fn grant_for_other_terms_is_returned() {
    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    assert_eq!(begin_attempt(&mut lane, 3), Some(RENEWED));
    assert!(lane.lane.leave(1));
    lane.queue(2, FIXED);
    returns(&mut grant_by_task(&mut lane, 3));
}

#[test]
fn busy_reply_rejects_single_attempts_sent_before() {
    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    let before = lane.enqueue(once(2, &lane));
    assert!(begin_attempt(&mut lane, 3).is_some());
    let after = lane.enqueue(once(4, &lane));
    let busy = LastReply::Busy(lane.now + SECOND);
    let mut effects = refuse(&mut lane, 3, busy);
    assert_eq!(effects.rejections.len(), 1);
    let (rejected, error) = effects.rejections.remove(0);
    assert!(error.is_busy());
    assert!(Arc::ptr_eq(&rejected, &before) && !Arc::ptr_eq(&rejected, &after));
}

#[test]
fn single_attempt_ends_pause_of_task() {
    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    let pause = |lane: &mut TestLane| {
        let (pause, effects) = lane.event(Lane::pause);
        assert!(effects.is_empty());
        pause.expect("a waiter")
    };
    assert!(!pause(&mut lane).at_once);
    let _single = lane.enqueue(once(2, &lane));
    assert!(pause(&mut lane).at_once);
}

#[test]
fn late_waiters_are_rejected_before_attempt() {
    let late = Claim {
        deadline: Deadline::At(Moment::now() + SECOND),
        ..claim(1, RENEWED)
    };
    let (mut lane, _wakeup, _answer) = TestLane::looping(late);
    lane.queue(2, FIXED);
    lane.pass(2 * SECOND);
    let (terms, effects) = lane.event(|lane, effects| lane.begin_attempt(number(3), effects));
    assert_eq!(
        (terms, effects.rejections.len()),
        (Some((number(3), FIXED)), 1)
    );
}

#[test]
fn busy_reply_limits_handoffs_to_one_turn() {
    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    let busy = LastReply::Busy(lane.now);
    assert!(refuse(&mut lane, 1, busy).is_empty());
    // A later error does not show that the other processes have left.
    let trouble = LastReply::Trouble(BackendError::unknown("no reply"));
    assert!(refuse(&mut lane, 2, trouble).is_empty());
    (2..100).for_each(|ticket| lane.queue(ticket, RENEWED));
    // Each of the 99 waiters once, but not those that come later.
    let mut grant = granted(grant_by_task(&mut lane, 3));
    let mut holders = 1;
    loop {
        lane.queue(100 + holders, RENEWED);
        lane.pass(MS / 4);
        let mut effects = lane.release(&grant);
        if effects.grants.is_empty() {
            returns(&mut effects);
            break;
        }
        holders += 1;
        grant = granted(effects);
    }
    assert_eq!(holders, 99);
}

#[test]
fn hopeless_attempt_rejects_all_waiters() {
    let (mut lane, _wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    lane.queue(2, RENEWED);
    let error = Error::new(ErrorKind::KeyConflict);
    let ((), effects) = lane.event(|lane, effects| {
        lane.refused_for_good(Mode::Exclusive, &error, effects);
    });
    let rejections = effects.rejections.iter();
    let kinds: Vec<_> = rejections.map(|(_, error)| error.kind()).collect();
    assert_eq!(kinds, [ErrorKind::KeyConflict; 2]);
    assert!(lane.lane.is_idle());
}

/// The server may deny only the commands of one mode.
#[test]
fn hopeless_attempt_keeps_waiters_of_other_mode() {
    let shared = Terms {
        mode: Mode::Shared,
        ..RENEWED
    };
    let (mut lane, wakeup, _answer) = TestLane::looping(claim(1, shared));
    for (ticket, terms) in [(2, RENEWED), (3, shared), (4, RENEWED)] {
        lane.queue(ticket, terms);
    }
    let error = Error::new(ErrorKind::Refused);
    let ((), mut effects) = lane.event(|lane, effects| {
        lane.refused_for_good(Mode::Shared, &error, effects);
    });
    assert_eq!(effects.rejections.len(), 2);
    assert_eq!(lane.lane.waiters(), 2);
    let next = contends(&mut effects);
    assert!(!Arc::ptr_eq(&next, &wakeup));
}

#[test]
fn departure_of_first_waiter_wakes_task() {
    let (mut lane, wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    lane.queue(2, RENEWED);
    lane.queue(3, RENEWED);
    assert!(lane.lane.leave(3));
    assert!(!is_woken(&wakeup));
    assert!(lane.lane.leave(1));
    assert!(is_woken(&wakeup));
}
