//! The transitions of the table in `lock/mod.rs`, one by one.

use tokio::sync::Semaphore;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::oneshot::{self, Receiver};
use uuid::Uuid;

use super::*;
use crate::backend::{Extended, LeaseId, Renewal, Renewed};
use crate::lock::guard::Hold;
use crate::lock::moment::Span;
use crate::lock::order::{Answered, Due, Patience, Return};
use crate::{FencingToken, Owner};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const RENEWED: Terms = Terms {
    ttl: Span::new(Duration::from_secs(30)),
    renewed: true,
    max_hold: Span::FOREVER,
};
/// Renewed before the time of its hand-offs is over.
const SHORT: Terms = Terms {
    ttl: Span::new(Duration::from_millis(120)),
    renewed: true,
    max_hold: Span::FOREVER,
};
const FIXED: Terms = Terms {
    ttl: Span::new(Duration::from_secs(20)),
    renewed: false,
    max_hold: Span::FOREVER,
};

fn key() -> LockKey {
    LockKey::new("k")
}

fn id(lease: u64) -> LeaseId {
    LeaseId::new(Uuid::from_u128(1), lease)
}

fn number(lease: u64) -> LeaseNumber {
    LeaseNumber::of(id(lease))
}

fn renewal(lease: u64, ttl: Duration) -> Renewal {
    Renewal::new(key(), id(lease), ttl)
}

/// The renewal that is due.
fn due(lane: &mut Lane, now: Moment) -> Renewal {
    match lane.due(now) {
        Due::Renew(number, ttl, _) => renewal(number.get(), ttl),
        other => panic!("{other:?}"),
    }
}

fn claim(ticket: Ticket, terms: Terms) -> Claim {
    Claim {
        ticket,
        owner: Owner::new(Uuid::from_u128(2), ticket),
        terms,
        patience: Patience::ENDLESS,
    }
}

fn waiter(ticket: Ticket, terms: Terms) -> (Waiter, Receiver<Result<Hold, Error>>) {
    let seats = Arc::new(Semaphore::new(1));
    let (reply, answer) = oneshot::channel();
    let waiter = Waiter {
        claim: claim(ticket, terms),
        reply,
        _seat: seats.try_acquire_owned().expect("a seat"),
    };
    (waiter, answer)
}

/// A lane that the first claim holds under lease 1 with counter 100.
fn held(terms: Terms, now: Moment) -> (Lane, Arc<Grant>) {
    let mut lane = Lane::default();
    let first = claim(1, terms);
    assert!(matches!(lane.enter(&key(), first, now), Entered::Drive));
    let lease = Lease::new(number(1), 100, 256, terms, now);
    let (granted, _) = lane.granted_to_driver(&key(), first, lease, now);
    (lane, granted.grant)
}

fn granted(next: Next) -> Arc<Grant> {
    match next {
        Next::Grant(_, granted, ..) => granted.grant,
        other => panic!("{other:?}"),
    }
}

/// Due to be looked at then.
fn granted_at(next: Next, at: Moment) -> Arc<Grant> {
    match next {
        Next::Grant(_, granted, ..) if granted.next_look == at => granted.grant,
        other => panic!("{other:?}"),
    }
}

fn release(lane: &mut Lane, grant: &Arc<Grant>, now: Moment) -> Left {
    lane.release(&key(), grant, now, None)
}

#[test]
fn a_handoff_needs_nobody_else_and_makes_a_larger_token() {
    let now = Moment::now();
    let (mut lane, mut grant) = held(RENEWED, now);
    for handoff in 1..256 {
        let (next, _answer) = waiter(1 + Ticket::from(handoff), RENEWED);
        assert!(matches!(lane.enqueue(next), Next::Nothing));
        let Left::Done(next) = release(&mut lane, &grant, now) else {
            panic!("handed on");
        };
        grant = granted(next);
        assert_eq!(grant.token(), FencingToken::new(100, 256, handoff));
    }
    // The counter has no number left: the others are asked.
    let (next, _answer) = waiter(1000, RENEWED);
    assert!(matches!(lane.enqueue(next), Next::Nothing));
    let left = release(&mut lane, &grant, now);
    assert!(matches!(left, Left::Returning(Next::Return)));
    let Some(Return::Pass(mut surrender)) = lane.take_return(now) else {
        panic!("passed");
    };
    let ttl = surrender.lease.ttl();
    surrender.lease.keep(200, now, ttl);
    let (_, kept) = lane.kept(&key(), surrender, now).expect("still returning");
    assert_eq!(granted(kept).token(), FencingToken::new(200, 256, 0));
}

/// A lane whose lease is asked for more hand-offs, and the one who waits for the release.
fn passing(now: Moment) -> (Lane, Surrender, Receiver<Result<(), Error>>) {
    let (mut lane, grant) = held(RENEWED, now);
    lane.retire_counter(&grant);
    let (next, _answer) = waiter(2, RENEWED);
    assert!(matches!(lane.enqueue(next), Next::Nothing));
    let (report, reported) = oneshot::channel();
    let left = lane.release(&key(), &grant, now, Some(report));
    assert!(matches!(left, Left::Returning(Next::Return)));
    let Some(Return::Pass(surrender)) = lane.take_return(now) else {
        panic!("passed");
    };
    (lane, surrender, reported)
}

#[test]
fn a_release_is_not_reported_while_the_lease_that_was_kept_goes_back() {
    let now = Moment::now();
    let (mut lane, surrender, mut reported) = passing(now);
    assert!(lane.leave(2).is_some());
    let (report, next) = lane.kept(&key(), surrender, now).expect("still returning");
    assert!(report.is_none() && matches!(next, Next::Return));
    assert_eq!(reported.try_recv().unwrap_err(), TryRecvError::Empty);
    let Some(Return::Release(surrender)) = lane.take_return(now) else {
        panic!("released");
    };
    assert!(surrender.report.is_some());
}

#[test]
fn a_lease_that_was_taken_away_while_it_was_kept_goes_to_nobody() {
    let now = Moment::now();
    // It was there when the command went out, or it came since.
    for seen in [Some(number(1)), None] {
        let (mut lane, surrender, _reported) = passing(now);
        let (lost, next) = lane.forced_open(seen, now);
        assert!(lost.is_none() && matches!(next, Next::Contend { .. }));
        assert!(lane.kept(&key(), surrender, now).is_err());

        let (mut lane, grant) = held(RENEWED, now);
        release(&mut lane, &grant, now);
        assert!(matches!(lane.forced_open(seen, now), (None, Next::Nothing)));
        let back = lane.enter(&key(), claim(2, RENEWED), now);
        assert!(matches!(back, Entered::Occupied));
    }
}

#[test]
fn a_lease_that_was_taken_away_on_its_way_here_is_looked_at_at_once() {
    let now = Moment::now();
    let mut lane = Lane::default();
    let first = claim(1, RENEWED);
    assert!(matches!(lane.enter(&key(), first, now), Entered::Drive));
    assert!(matches!(lane.forced_open(None, now), (None, Next::Nothing)));
    let lease = Lease::new(number(1), 100, 256, RENEWED, now);
    let (granted, _) = lane.granted_to_driver(&key(), first, lease, now);
    assert_eq!(granted.next_look, now);
    assert!(matches!(lane.due(now), Due::Renew(..)));

    // The try goes to a task, for somebody else.
    let mut lane = Lane::default();
    assert!(matches!(lane.enter(&key(), first, now), Entered::Drive));
    let (second, _answer) = waiter(2, RENEWED);
    assert!(matches!(lane.enqueue(second), Next::Nothing));
    assert!(matches!(lane.forced_open(None, now), (None, Next::Nothing)));
    let next = lane.driver_leaves(true, Seen::Nothing);
    assert!(matches!(next, Next::Contend { .. }));
    let lease = Lease::new(number(1), 100, 256, RENEWED, now);
    drop(granted_at(lane.granted(&key(), lease, now), now));
}

#[test]
fn a_doubt_ends_with_the_try_that_it_was_about() {
    let now = Moment::now();
    let contending = || {
        let mut lane = Lane::default();
        let first = claim(1, RENEWED);
        assert!(matches!(lane.enter(&key(), first, now), Entered::Drive));
        let (second, answer) = waiter(2, RENEWED);
        assert!(matches!(lane.enqueue(second), Next::Nothing));
        assert!(matches!(lane.forced_open(None, now), (None, Next::Nothing)));
        (lane, answer)
    };
    let is_not_looked_at = |mut lane: Lane| {
        let lease = Lease::new(number(1), 100, 256, RENEWED, now);
        let Next::Grant(_, granted, ..) = lane.granted(&key(), lease, now) else {
            panic!("granted");
        };
        assert!(granted.next_look > now);
    };
    // Nothing of the driver is on the wire.
    let (mut lane, _answer) = contending();
    let next = lane.driver_leaves(false, Seen::Nothing);
    assert!(matches!(next, Next::Contend { .. }));
    is_not_looked_at(lane);
    // What is on the wire is refused.
    let (mut lane, _answer) = contending();
    let next = lane.driver_leaves(true, Seen::Nothing);
    assert!(matches!(next, Next::Contend { .. }));
    assert!(lane.refused(Seen::Busy(now), now).is_empty());
    is_not_looked_at(lane);
}

#[test]
fn a_lease_that_is_forced_open_on_its_way_back_goes_to_nobody() {
    let now = Moment::now();
    for known in [Some(number(1)), Some(number(0)), None] {
        let (mut lane, grant) = held(RENEWED, now);
        release(&mut lane, &grant, now);
        let (lost, next) = lane.forced_open(known, now);
        assert!(matches!((lost, next), (None, Next::Nothing)));
        let back = lane.enter(&key(), claim(2, RENEWED), now);
        assert!(matches!(back, Entered::Occupied));

        let (mut lane, surrender, _reported) = passing(now);
        let (lost, next) = lane.forced_open(known, now);
        assert!(matches!((lost, next), (None, Next::Contend { .. })));
        assert!(lane.kept(&key(), surrender, now).is_err());
    }
}

#[test]
fn whoever_waits_for_a_release_that_died_hears_of_it_outside_of_the_lane() {
    let now = Moment::now();
    let (mut lane, grant) = held(RENEWED, now);
    let (report, mut reported) = oneshot::channel();
    let left = lane.release(&key(), &grant, now, Some(report));
    assert!(matches!(left, Left::Returning(_)));
    let Due::Forsaken(report, _) = lane.due(now + 2 * RENEWED.ttl.get()) else {
        panic!("forsaken");
    };
    assert_eq!(reported.try_recv().unwrap_err(), TryRecvError::Empty);
    drop(report);
    assert_eq!(reported.try_recv().unwrap_err(), TryRecvError::Closed);
}

#[test]
fn the_longest_of_several_nested_leases_is_fetched() {
    let now = Moment::now();
    let (mut lane, _grant) = held(FIXED, now);
    for seconds in [60, 30] {
        let terms = Terms {
            ttl: Span::new(seconds * SECOND),
            ..FIXED
        };
        let again = lane.enter(&key(), claim(1, terms), now);
        assert!(matches!(again, Entered::Granted(_)));
    }
    let renewal = due(&mut lane, now);
    assert_eq!(renewal.ttl, 60 * SECOND);
}

#[test]
fn a_nested_acquire_during_the_renewal_of_another_is_fetched_as_well() {
    let now = Moment::now();
    let (mut lane, _grant) = held(FIXED, now);
    let half = now + FIXED.ttl.get() / 2;
    let nest = |lane: &mut Lane, at| {
        let again = lane.enter(&key(), claim(1, FIXED), at);
        assert!(matches!(again, Entered::Granted(_)));
    };
    nest(&mut lane, half);
    let renewal = due(&mut lane, half);
    let later = half + 20 * MS;
    nest(&mut lane, later);
    let answered = lane.renewed(&renewal, half, &Ok(Renewed::Renewed), later);
    assert!(matches!(answered, Answered::Held(_)));
    assert!(matches!(lane.due(later), Due::Renew(..)));
    let answered = lane.renewed(&renewal, later, &Ok(Renewed::Renewed), later);
    assert!(matches!(answered, Answered::Held(_)));
    assert!(matches!(lane.due(later), Due::Later(_)));
}

/// So many more queue, and the lock goes through the hands of all but the last. Returns who holds it, and how
/// often it was asked for more ahead of need.
fn hand_on(
    lane: &mut Lane,
    mut grant: Arc<Grant>,
    tickets: std::ops::Range<Ticket>,
    now: Moment,
) -> (Arc<Grant>, usize) {
    let mut asked = 0;
    let hands = tickets.end - tickets.start - 1;
    let answers: Vec<_> = tickets
        .map(|ticket| {
            let (waiter, answer) = waiter(ticket, RENEWED);
            assert!(matches!(lane.enqueue(waiter), Next::Nothing));
            answer
        })
        .collect();
    for _ in 0..hands {
        match release(lane, &grant, now) {
            Left::Done(Next::Grant(_, granted, _, ask_ahead)) => {
                assert!(ask_ahead.is_none_or(|lease| lease == number(1)));
                asked += usize::from(ask_ahead.is_some());
                grant = granted.grant;
            }
            other => panic!("{other:?}"),
        }
    }
    drop(answers);
    (grant, asked)
}

/// A lane that was handed on 128 times, with one more who queues, and what it asks ahead of need.
fn half_spent(now: Moment) -> (Lane, Arc<Grant>, Renewal) {
    let (mut lane, grant) = held(RENEWED, now);
    let (grant, asked) = hand_on(&mut lane, grant, 2..131, now);
    assert_eq!(asked, 1, "once, when half is gone");
    let mut ask = |lease| lane.start_extension(number(lease), now);
    assert!(ask(2).is_none(), "another lease");
    let extension = renewal(1, ask(1).expect("still held"));
    assert!(ask(1).is_none(), "it is on the wire");
    (lane, grant, extension)
}

#[test]
fn an_extension_comes_before_the_budget_ends() {
    let now = Moment::now();
    let (mut lane, grant, extension) = half_spent(now);
    let later = now + 20 * MS;
    let extended = Ok(Extended::kept(200));
    let answered = lane.extended(&extension, later, &extended, later);
    assert!(matches!(answered, Answered::Held(_)));
    assert!(grant.valid_until() > now + 29_690 * MS, "renewed");
    let Left::Done(next) = release(&mut lane, &grant, later) else {
        panic!("handed on");
    };
    assert_eq!(granted(next).token(), FencingToken::new(200, 256, 1));
}

#[test]
fn an_extension_that_comes_late_goes_to_the_first_in_the_queue() {
    let now = Moment::now();
    let (mut lane, grant, extension) = half_spent(now);
    // The rest of the 256.
    let (grant, asked) = hand_on(&mut lane, grant, 131..259, now);
    assert_eq!(
        (asked, grant.token()),
        (0, FencingToken::new(100, 256, 255))
    );
    let left = release(&mut lane, &grant, now);
    assert!(matches!(left, Left::Returning(Next::Nothing)));
    assert!(lane.take_return(now).is_none());
    let extended = Ok(Extended::kept(200));
    let Answered::HandedOn(_, next) = lane.extended(&extension, now, &extended, now) else {
        panic!("handed on");
    };
    assert_eq!(granted(next).token(), FencingToken::new(200, 256, 1));
}

#[test]
fn where_others_wait_those_who_queue_have_one_more_turn() {
    let now = Moment::now();
    let (mut lane, grant, extension) = half_spent(now);
    let wanted = Ok(Extended::wanted(2));
    let answered = lane.extended(&extension, now, &wanted, now);
    assert!(matches!(answered, Answered::Held(_)));
    // The shortest turn.
    let (grant, asked) = hand_on(&mut lane, grant, 131..147, now);
    assert_eq!(asked, 0);
    let (next, _answer) = waiter(1000, RENEWED);
    assert!(matches!(lane.enqueue(next), Next::Nothing));
    let left = release(&mut lane, &grant, now);
    assert!(matches!(left, Left::Returning(Next::Return)), "{left:?}");
    assert!(matches!(lane.take_return(now), Some(Return::Pass(_))));
}

/// Its counter may be older than one that the group has on another key.
#[test]
fn an_extension_that_was_asked_for_before_a_group_held_the_lock_gives_no_counter() {
    let now = Moment::now();
    let (mut lane, grant, extension) = half_spent(now);
    lane.retire_counter(&grant);
    let extended = Ok(Extended::kept(200));
    let answered = lane.extended(&extension, now, &extended, now);
    assert!(matches!(answered, Answered::Held(_)));
    let left = release(&mut lane, &grant, now);
    assert!(matches!(left, Left::Returning(Next::Return)));
}

#[test]
fn nothing_is_extended_for_a_queue_that_is_gone_nor_for_a_counter_that_is_not_used() {
    let now = Moment::now();
    let (mut lane, grant) = held(RENEWED, now);
    assert!(lane.start_extension(number(1), now).is_none());
    let (next, _answer) = waiter(2, RENEWED);
    assert!(matches!(lane.enqueue(next), Next::Nothing));
    lane.retire_counter(&grant);
    assert!(lane.start_extension(number(1), now).is_none());
}

/// A waiter that came while the release waited for the answer to a renewal.
#[test]
fn a_renewal_that_a_release_waited_for_serves_the_first_in_the_queue() {
    let now = Moment::now();
    let (mut lane, grant) = held(SHORT, now);
    let later = now + 50 * MS;
    let renewal = due(&mut lane, later);
    let left = release(&mut lane, &grant, later);
    assert!(matches!(left, Left::Returning(Next::Nothing)));
    let (next, _answer) = waiter(2, SHORT);
    assert!(matches!(lane.enqueue(next), Next::Look(_)));
    let answered = lane.renewed(&renewal, later, &Ok(Renewed::Renewed), later);
    let Answered::HandedOn(_, next) = answered else {
        panic!("handed on");
    };
    assert_eq!(granted(next).token(), FencingToken::new(100, 256, 1));
}

#[test]
fn an_extension_may_be_what_tells_that_the_lease_is_gone() {
    let now = Moment::now();
    let (mut lane, _grant, extension) = half_spent(now);
    let answered = lane.extended(&extension, now, &Ok(Extended::NotHeld), now);
    assert!(matches!(answered, Answered::Lost(_, Next::Contend { .. })));
}

#[test]
fn the_budget_ends_with_time_too() {
    let now = Moment::now();
    let (mut lane, grant) = held(RENEWED, now);
    let (next, _answer) = waiter(2, RENEWED);
    assert!(matches!(lane.enqueue(next), Next::Nothing));
    let later = now + Duration::from_millis(101);
    let left = release(&mut lane, &grant, later);
    assert!(matches!(left, Left::Returning(Next::Return)));
    assert!(matches!(lane.take_return(later), Some(Return::Pass(_))));
}

#[test]
fn a_fixed_lease_is_never_handed_on() {
    let now = Moment::now();
    for (first, second) in [(FIXED, FIXED), (FIXED, RENEWED), (RENEWED, FIXED)] {
        let (mut lane, grant) = held(first, now);
        let (next, _answer) = waiter(2, second);
        assert!(matches!(lane.enqueue(next), Next::Nothing));
        let left = release(&mut lane, &grant, now);
        assert!(matches!(left, Left::Returning(Next::Return)));
        assert!(matches!(lane.take_return(now), Some(Return::Release(_))));
        assert!(matches!(
            lane.returned(number(1), None),
            Next::Contend { .. }
        ));
    }
}

#[test]
fn a_lease_on_its_way_back_is_taken_back_until_it_is_sent() {
    let now = Moment::now();
    let (mut lane, grant) = held(RENEWED, now);
    assert!(matches!(
        release(&mut lane, &grant, now),
        Left::Returning(_)
    ));
    let entered = lane.enter(&key(), claim(2, RENEWED), now);
    let Entered::TookBack(granted, _) = entered else {
        panic!("{entered:?}");
    };
    assert!(granted.grant.token() > grant.token());
    assert!(
        lane.take_return(now).is_none(),
        "nothing to return any more"
    );

    assert!(matches!(
        release(&mut lane, &granted.grant, now),
        Left::Returning(_)
    ));
    assert!(matches!(lane.take_return(now), Some(Return::Release(_))));
    let entered = lane.enter(&key(), claim(3, RENEWED), now);
    assert!(matches!(entered, Entered::Occupied));
    assert!(matches!(lane.returned(number(1), None), Next::Nothing));
    assert!(lane.is_idle());
}

#[test]
fn a_release_waits_for_the_answer_to_a_renewal() {
    let now = Moment::now();
    let (mut lane, grant) = held(RENEWED, now);
    let later = now + 10 * SECOND;
    let renewal = due(&mut lane, later);
    assert!(matches!(
        release(&mut lane, &grant, later),
        Left::Returning(Next::Nothing)
    ));
    assert!(lane.take_return(later).is_none());
    let answered = lane.renewed(&renewal, later, &Ok(Renewed::Renewed), later);
    assert!(matches!(answered, Answered::Returning));
    assert!(matches!(lane.take_return(later), Some(Return::Release(_))));
}

#[test]
fn a_lease_that_is_known_to_be_gone_is_not_taken_back() {
    let now = Moment::now();
    let (mut lane, grant) = held(SHORT, now);
    let later = now + 40 * MS;
    let renewal = due(&mut lane, later);
    release(&mut lane, &grant, later);
    let answered = lane.renewed(&renewal, later, &Ok(Renewed::NotHeld), later);
    assert!(matches!(answered, Answered::Returning));
    assert!(matches!(
        lane.enter(&key(), claim(2, SHORT), later),
        Entered::Occupied
    ));

    let (mut lane, grant) = held(RENEWED, now);
    release(&mut lane, &grant, now);
    assert!(matches!(lane.lose(), (None, Next::Nothing)));
    assert!(matches!(
        lane.enter(&key(), claim(2, RENEWED), now),
        Entered::Occupied
    ));
}

#[test]
fn a_lost_guard_changes_nothing_for_those_who_came_after() {
    let now = Moment::now();
    let (mut lane, grant) = held(FIXED, now);
    let (next, _answer) = waiter(2, FIXED);
    assert!(matches!(lane.enqueue(next), Next::Nothing));
    let later = now + FIXED.ttl.get();
    assert!(matches!(lane.due(later), Due::Lost(_, Next::Return)));
    assert!(matches!(lane.take_return(later), Some(Return::Release(_))));
    assert!(matches!(
        lane.returned(number(1), None),
        Next::Contend { .. }
    ));
    let lease = Lease::new(number(2), 200, 256, FIXED, later);
    let second = granted(lane.granted(&key(), lease, later));
    assert!(matches!(release(&mut lane, &grant, later), Left::Lost));
    assert!(second.is_held(later));
    assert_eq!((grant.holds(), second.holds()), (0, 1));
}

#[test]
fn the_owner_enters_again_and_others_do_not() {
    let now = Moment::now();
    let (mut lane, grant) = held(RENEWED, now);
    let again = lane.enter(&key(), claim(1, RENEWED), now);
    assert!(matches!(again, Entered::Granted(_)));
    assert_eq!(grant.holds(), 2);
    let other = lane.enter(&key(), claim(2, RENEWED), now);
    assert!(matches!(other, Entered::Occupied));
    let impatient = Claim {
        patience: Patience::ONE_TRY,
        ..claim(3, RENEWED)
    };
    let Entered::Refused(error) = lane.enter(&key(), impatient, now) else {
        panic!("refused");
    };
    assert!(error.is_busy());
    assert!(matches!(
        release(&mut lane, &grant, now),
        Left::Done(Next::Nothing)
    ));
    assert!(matches!(
        release(&mut lane, &grant, now),
        Left::Returning(_)
    ));
}

#[test]
fn a_task_that_dies_leaves_the_lane_to_the_next_but_only_its_own() {
    let mut lane = Lane::default();
    let now = Moment::now();
    let entered = lane.enter(&key(), claim(1, RENEWED), now);
    assert!(matches!(entered, Entered::Drive));
    let (first, _answer) = waiter(1, RENEWED);
    let Next::Contend { bell, .. } = lane.driver_queues(first, Seen::Nothing) else {
        panic!("a task is wanted");
    };
    assert!(lane.abandon(&Bell::default()).is_empty(), "another's task");
    assert_eq!(lane.abandon(&bell).len(), 1);
    assert!(lane.is_idle());
}

#[test]
fn an_answer_about_another_lease_concerns_nobody() {
    let now = Moment::now();
    let (mut lane, grant) = held(RENEWED, now);
    let of = |lease| renewal(lease, RENEWED.ttl.get());
    assert!(lane.wants_renewal(&of(1), now));
    assert!(!lane.wants_renewal(&of(2), now));
    let renewed = lane.renewed(&of(2), now, &Ok(Renewed::NotHeld), now);
    assert!(matches!(renewed, Answered::Stale));
    let extended = lane.extended(&of(2), now, &Ok(Extended::NotHeld), now);
    assert!(matches!(extended, Answered::Stale));
    assert!(lane.holder().is_some() && grant.is_held(now));
}

#[test]
fn only_the_lease_that_was_forced_open_is_lost_at_once() {
    let now = Moment::now();
    let (mut lane, grant) = held(RENEWED, now);
    // It came when the command was on its way.
    for seen in [Some(number(0)), None] {
        let (lost, next) = lane.forced_open(seen, now);
        assert!(lost.is_none() && matches!(next, Next::Look(at) if at == now));
    }
    let (lost, next) = lane.forced_open(Some(number(1)), now);
    assert!(lost.is_some_and(|lost| Arc::ptr_eq(&lost, &grant)));
    assert!(matches!(next, Next::Nothing) && lane.is_idle());
}

#[test]
fn an_answer_to_an_earlier_return_concerns_nobody() {
    let now = Moment::now();
    let (mut lane, grant) = held(RENEWED, now);
    assert!(matches!(
        release(&mut lane, &grant, now),
        Left::Returning(_)
    ));
    assert!(matches!(lane.returned(number(7), None), Next::Nothing));
    assert!(lane.is_returning());
    let stale = Surrender {
        lease: Lease::new(number(7), 1, 256, RENEWED, now),
        report: None,
    };
    assert!(lane.kept(&key(), stale, now).is_err());
}
