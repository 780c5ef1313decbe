//! Checks by the watchdog: due and overdue work.

use std::future::pending;

use super::*;
use crate::lock::lane::contending::attempt::Attempt;

#[test]
fn renewal_is_due_after_third_of_lease() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    let at = lane.now + RENEWED.ttl.get() / 3;
    assert_eq!(lane.next_check(), at);
    assert!(!lane.lane.renews_early(lane.now));
    lane.now = at;
    assert!(lane.lane.renews_early(lane.now));
    let renewal = lane.start_renewal();
    assert_eq!(renewal.ttl, RENEWED.ttl.get());
    assert!(lane.check().0.is_none(), "it is in flight");
}

/// The runtime of the first attempt blocks, or its task was dropped.
#[test]
fn first_attempt_without_reply_is_replaced() {
    let (mut lane, _answer) = TestLane::attempting(claim(1, RENEWED));
    let due = lane.now + RESPONSE_TIMEOUT;
    lane.now = due;
    assert!(
        lane.lane.next_check().is_none() && lane.check().1.is_empty(),
        "no other waits"
    );
    lane.queue(2, RENEWED);
    assert_eq!(lane.next_check(), due);
    lane.now = due.before(MS);
    assert!(lane.check().1.is_empty(), "its reply may come yet");
    lane.now = due;
    let (_, mut effects) = lane.check();
    assert_eq!(lane.left_attempts, 1);
    let Work::ReleaseUnknown { lease, .. } = effects.work.remove(0) else {
        panic!("the attempt in flight is resolved");
    };
    assert_eq!(lease, number(1));
    contends(&mut effects);
    assert_eq!(lane.lane.waiters(), 2);

    // The replaced task may run again.
    assert!(!lane.lane.awaits_reply(number(1)));
    let begun = lane.event(|lane, effects| lane.begin_attempt(number(4), effects));
    assert!(begun.0.is_some() && lane.lane.awaits_reply(number(4)));
}

#[test]
fn first_attempt_without_waiter_ends_in_time() {
    let (mut lane, _answer) = TestLane::attempting(claim(1, RENEWED));
    assert!(lane.lane.leave(1));
    lane.pass(RESPONSE_TIMEOUT);
    let effects = lane.check().1;
    assert_eq!(lane.left_attempts, 1);
    assert!(matches!(effects.work[0], Work::ReleaseUnknown { lease, .. } if lease == number(1)));
    assert!(lane.lane.is_idle());
}

/// Its acquire is not polled.
#[test]
fn first_attempt_in_place_moves_to_home() {
    let (mut lane, claim) = (TestLane::idle(), claim(1, RENEWED));
    assert!(matches!(lane.enter(claim), Entered::Idle));
    let (waiter, acquire) = waiter(claim);
    let first = lane.first(Some(lane.now + UNPOLLED));
    lane.lane.attempt_first(waiter, number(1), first);
    assert!(lane.lane.next_check().is_none(), "no other waits");
    lane.queue(2, RENEWED);
    let began = lane.now;
    assert_eq!(lane.next_check(), began + UNPOLLED);
    lane.now = began + UNPOLLED;
    assert!(lane.check().1.is_empty(), "its acquire polls it");
    assert_eq!(lane.next_check(), began + 2 * UNPOLLED);
    acquire.put_attempt(Attempt {
        lease: number(1),
        sent_at: began,
        reply: Box::pin(pending()),
    });
    lane.now = began + 2 * UNPOLLED;
    assert!(matches!(work(&mut lane.check().1), Work::FinishAttempt(..)));
    assert!(acquire.take_attempt().is_none());
    assert_eq!(lane.next_check(), began + RESPONSE_TIMEOUT);
}

#[test]
fn waiter_is_rejected_at_its_deadline() {
    let (mut lane, wakeup, _answer) = TestLane::looping(claim(1, RENEWED));
    assert!(lane.lane.leave(1));
    assert!(is_woken(&wakeup));
    let deadline = lane.now + SECOND;
    let waiter = |ticket, after| Claim {
        deadline: Deadline::At(deadline + after),
        ..claim(ticket, RENEWED)
    };
    let _answers = [waiter(2, SECOND), waiter(3, Duration::ZERO)].map(|it| lane.enqueue(it));
    assert_eq!(lane.next_check(), deadline);
    lane.now = deadline;
    assert_eq!(lane.check().1.rejections.len(), 1);
    assert!(is_woken(&wakeup), "by the first one");
    assert_eq!(lane.next_check(), deadline + SECOND);
    lane.pass(SECOND);
    assert_eq!(lane.check().1.rejections.len(), 1);
    assert!(is_woken(&wakeup), "no waiter is left");
}

#[test]
fn sent_return_without_reply_is_sent_again_once() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    returns(&mut lane.release(&grant));
    assert!(lane.take_return().is_some());
    assert_eq!(lane.next_check(), lane.now + (RESPONSE_TIMEOUT + 10 * MS));
    assert!(lane.check().1.is_empty());
    lane.pass(RESPONSE_TIMEOUT + 10 * MS);
    let again = work(&mut lane.check().1);
    assert!(matches!(again, Work::ReturnAgain(outgoing) if outgoing.lease == number(1)));
    assert!(lane.check().1.is_empty());
    assert!(lane.returned(1).is_empty() && lane.lane.is_idle());
}

/// Either of the two releases finds the lease.
#[test]
fn return_sent_again_is_no_loss() {
    for twice in [false, true] {
        let (mut lane, _reported) = returning::keeping();
        let _answer = lane.enqueue(claim(3, RENEWED));
        if twice {
            lane.pass(RESPONSE_TIMEOUT + 10 * MS);
            let again = work(&mut lane.check().1);
            assert!(matches!(again, Work::ReturnAgain(..)));
            let kept = lane.kept(1, 200);
            assert!(kept.is_empty(), "the release in flight frees the key");
        }
        let absent = lane.lane.returned_absent(number(1), lane.now);
        assert_eq!(absent.is_ok(), twice);
    }
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
