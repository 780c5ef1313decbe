//! Owners that share a lease.

use tokio::time::Instant;

use super::*;
use crate::lock::lane::queue::waiter::Given;
use crate::observe::LostReason;

pub(super) const SHARED: Terms = Terms {
    mode: Mode::Shared,
    ..RENEWED
};

/// Returns a lane in which the first owner holds a shared lease.
pub(super) fn held_shared() -> (TestLane, Arc<Grant>) {
    TestLane::held(SHARED)
}

impl TestLane {
    #[track_caller]
    pub(super) fn join(&mut self, claim: Claim) -> Arc<Grant> {
        match self.enter(claim) {
            Entered::Granted(grant) => grant,
            entered => panic!("{entered:?}"),
        }
    }

    pub(super) fn is_refused(&mut self, claim: Claim) -> bool {
        matches!(self.enter(claim), Entered::Occupied | Entered::Rejected(_))
    }

    /// Puts the due renewal in flight, and applies this reply.
    #[track_caller]
    pub(super) fn renew_with(&mut self, outcome: Renewed) -> Effects {
        let (renewal, sent_at) = (self.start_renewal(), self.now);
        self.renewed(&renewal, sent_at, Ok(outcome))
    }
}

#[test]
fn owners_join_shared_lease_without_command() {
    let (mut lane, first) = held_shared();
    let second = lane.join(claim(2, SHARED));
    assert_eq!(first.token(), second.token());
    assert_eq!(second.valid_until(), first.valid_until());
    assert!(lane.is_refused(claim(3, RENEWED)));
    // The lease is returned after the last release.
    assert!(lane.release(&first).work.is_empty());
    assert!(lane.is_held() && second.is_held(lane.now));
    returns(&mut lane.release_hold(&second, 2, None));
}

#[test]
fn exclusive_lease_is_not_joined() {
    let (mut lane, _grant) = TestLane::held(RENEWED);
    assert!(lane.is_refused(claim(2, SHARED)));
}

#[test]
fn owner_nests_and_does_not_upgrade() {
    let (mut lane, first) = held_shared();
    let _second = lane.join(claim(2, SHARED));
    lane.queue(9, RENEWED);
    lane.nest(3, SHARED);
    assert_eq!(first.holds(), 2);
    let entered = lane.enter(again(4, RENEWED));
    assert!(
        matches!(&entered, Entered::Rejected(error) if error.kind() == ErrorKind::Upgrade),
        "{entered:?}"
    );
}

#[track_caller]
fn assert_served((waiter, given): (Arc<Waiter>, Given), reader: &Waiter) {
    assert!(waiter.answer(Ok(given)).is_ok());
    assert!(matches!(reader.close(), Some(Ok(_))));
}

#[test]
fn waiter_stops_joins_until_it_leaves() {
    let (mut lane, _first) = held_shared();
    lane.queue(2, RENEWED);
    assert!(lane.is_refused(claim(3, SHARED)));
    let reader = lane.enqueue(claim(3, SHARED));
    assert!(lane.lane.leave(2));
    let ((), mut effects) = lane.event(|lane, effects| lane.admit(&key(), effects));
    assert_eq!(effects.grants.len(), 1);
    let granted = effects.grants.remove(0);
    assert_served(granted, &reader);
}

#[test]
fn join_after_old_reply_makes_renewal_due() {
    let (mut lane, _first) = held_shared();
    lane.pass(49 * MS);
    let _second = lane.join(claim(2, SHARED));
    assert!(lane.check().0.is_none(), "the grant is a reply");
    lane.pass(MS);
    let _third = lane.join(claim(3, SHARED));
    let renewal = lane.start_renewal();
    // Others join until the response timeout.
    lane.pass(499 * MS);
    let _fourth = lane.join(claim(4, SHARED));
    lane.pass(MS);
    assert!(lane.is_refused(claim(5, SHARED)));
    let sent_at = lane.now;
    assert!(
        lane.renewed(&renewal, sent_at, Ok(Renewed::Renewed))
            .is_empty()
    );
    let _fifth = lane.join(claim(5, SHARED));
}

#[test]
fn wanted_lease_is_closed_until_renewal_opens_it() {
    let (mut lane, first) = held_shared();
    lane.pass(RENEWED.ttl.get() / 3);
    assert!(lane.renew_with(Renewed::Wanted).is_empty());
    assert!(lane.is_refused(claim(2, SHARED)));
    let reader = lane.enqueue(claim(2, SHARED));
    assert_eq!(lane.next_check(), lane.now + 250 * MS);
    lane.pass(250 * MS);
    assert!(lane.renew_with(Renewed::Wanted).grants.is_empty());
    lane.pass(250 * MS);
    let mut effects = lane.renew_with(Renewed::Renewed);
    let granted = effects.grants.remove(0);
    assert_eq!(granted.1.grant.token(), first.token());
    assert_served(granted, &reader);
}

#[test]
fn closed_lease_is_not_handed_off() {
    let (mut lane, first) = held_shared();
    lane.pass(RENEWED.ttl.get() / 3);
    assert!(lane.renew_with(Renewed::Wanted).is_empty());
    lane.queue(2, SHARED);
    returns(&mut lane.release(&first));
    // The release is sent, and no reader takes the lease back: others wait.
    assert!(matches!(lane.take_return(), Some(Order::Release(_))));
}

#[test]
fn lost_lease_ends_all_its_grants() {
    let (mut lane, first) = held_shared();
    let second = lane.join(claim(2, SHARED));
    lane.pass(RENEWED.ttl.get() / 3);
    let effects = lane.renew_with(Renewed::NotHeld);
    assert_eq!(effects.losses.len(), 2);
    for grant in [first, second] {
        assert_eq!(grant.lost_reason(lane.now), Some(LostReason::NotHeld));
    }
}

#[test]
fn late_renewal_leaves_lost_lease_lost() {
    let (mut lane, first) = held_shared();
    let second = lane.join(claim(2, SHARED));
    lane.pass(RENEWED.ttl.get() / 3 * 2);
    let (renewal, sent_at) = (lane.start_renewal(), lane.now);
    lane.now = first.valid_until();
    let effects = lane.renewed(&renewal, sent_at, Ok(Renewed::Renewed));
    assert_eq!(effects.losses.len(), 2);
    assert!(!first.is_held(lane.now) && !second.is_held(lane.now));
    assert!(!lane.is_held());
}

#[test]
fn owner_reaches_its_own_limit_alone() {
    let limited = Terms {
        max_hold: Span::new(SECOND),
        ..SHARED
    };
    for first_is_limited in [true, false] {
        let terms = |is_limited| if is_limited { limited } else { SHARED };
        let (mut lane, first) = TestLane::held(terms(first_is_limited));
        let second = lane.join(claim(2, terms(!first_is_limited)));
        let (limited, other) = match first_is_limited {
            true => (first, second),
            false => (second, first),
        };
        lane.pass(SECOND);
        assert_eq!(lane.next_check(), lane.now);
        let (due, effects) = lane.check();
        assert!(due.is_none());
        assert_eq!(effects.losses.len(), 1);
        assert_eq!(limited.lost_reason(lane.now), Some(LostReason::MaxHold));
        assert!(other.is_held(lane.now) && lane.is_held());
    }
}

/// The watchdog may be late.
#[test]
fn owner_past_own_limit_joins_lease_again() {
    let (mut lane, _first) = held_shared();
    let max_hold = Span::new(SECOND);
    let ended = lane.join(claim(2, Terms { max_hold, ..SHARED }));
    lane.pass(SECOND);
    let again = Claim {
        hold: 3,
        ..claim(2, SHARED)
    };
    let (entered, effects) = lane.event(|lane, effects| lane.enter(&key(), &again, effects));
    let Entered::Granted(grant) = entered else {
        panic!("{entered:?}");
    };
    assert!(grant.is_held(lane.now) && !ended.is_held(lane.now));
    assert_eq!(effects.losses.len(), 1);
}

#[test]
fn renewals_for_others_leave_end_of_fixed_lease() {
    let fixed = Terms {
        renewed: false,
        ..SHARED
    };
    let (mut lane, first) = TestLane::held(fixed);
    let end = first.valid_until();
    let second = lane.join(claim(2, SHARED));
    lane.pass(SECOND);
    assert!(lane.renew_with(Renewed::Renewed).is_empty());
    assert_eq!(first.valid_until(), end);
    assert!(second.valid_until() > end);
}

#[test]
fn fixed_lease_admits_readers_after_reply() {
    let terms = fixed(60);
    let terms = Terms {
        mode: Mode::Shared,
        ..terms
    };
    let (mut lane, first) = TestLane::held(terms);
    let end = first.valid_until();
    lane.pass(100 * MS);
    let second = lane.join(claim(2, SHARED));
    assert!(lane.release_hold(&second, 2, None).work.is_empty());
    lane.pass(500 * MS);
    drop(lane.enqueue(claim(3, SHARED)));
    lane.pass(250 * MS);
    let effects = lane.renew_with(Renewed::Renewed);
    assert_eq!(effects.grants.len(), 1);
    assert_eq!(first.valid_until(), end);
}

#[test]
fn owner_past_end_of_remaining_hold_joins_again() {
    let (mut lane, _first) = held_shared();
    let ended = lane.join(claim(2, SHARED));
    let nested = |hold, terms| Claim {
        hold,
        ..claim(2, terms)
    };
    let fixed = Terms {
        mode: Mode::Shared,
        ..fixed(2)
    };
    let entered = lane.enter(nested(3, fixed));
    assert!(matches!(entered, Entered::Granted(grant) if grant.holds() > 1));
    assert!(lane.release_hold(&ended, 2, None).work.is_empty());
    lane.pass(2 * SECOND);
    assert!(!ended.is_held(lane.now));
    let (entered, effects) =
        lane.event(|lane, effects| lane.enter(&key(), &nested(4, SHARED), effects));
    assert!(matches!(entered, Entered::Granted(_)), "{entered:?}");
    assert!(!ended.is_held(lane.now));
    assert_eq!(effects.losses.len(), 1);
}

#[test]
fn renewals_end_with_last_owner_that_needs_them() {
    let fixed = Terms {
        renewed: false,
        ttl: Span::new(60 * SECOND),
        ..SHARED
    };
    let (mut lane, first) = held_shared();
    let second = lane.join(claim(2, fixed));
    let end = crate::lock::lease::valid_until(lane.now, fixed.ttl);
    lane.pass(RENEWED.ttl.get() / 3);
    assert!(lane.renew_with(Renewed::Renewed).is_empty());
    assert!(lane.release(&first).work.is_empty());
    // One more renewal, up to the end of the fixed lease.
    assert!(lane.renew_with(Renewed::Renewed).is_empty());
    assert_eq!(second.valid_until(), end);
    assert_eq!(lane.next_check(), end);
}

#[test]
fn granted_attempt_serves_adjacent_readers() {
    let (mut lane, _wakeup, _first) = TestLane::looping(claim(1, SHARED));
    for (ticket, terms) in [(2, SHARED), (3, RENEWED), (4, SHARED)] {
        let (waiter, answer) = waiter(claim(ticket, terms));
        drop(answer);
        let ((), _effects) = lane.event(|lane, effects| {
            lane.enqueue(waiter, LastReply::Nothing, effects);
        });
    }
    let lease = lane.lease(1, 100, SHARED);
    let ((), effects) = lane.event(|lane, effects| {
        lane.granted(&key(), lease, effects);
    });
    let granted: Vec<_> = effects
        .grants
        .iter()
        .map(|(waiter, _)| waiter.claim.hold)
        .collect();
    assert_eq!(granted, [1, 2]);
    assert_eq!(lane.lane.waiters(), 2);
}

#[test]
fn rejected_single_attempt_admits_readers_behind_it() {
    let granted = |effects: &Effects| {
        effects
            .grants
            .iter()
            .map(|(waiter, _)| waiter.claim.hold)
            .collect::<Vec<_>>()
    };
    let queue = |lane: &mut TestLane| {
        for claim in [once(2, lane), claim(3, SHARED)] {
            let (waiter, answer) = waiter(claim);
            drop(answer);
            let ((), _effects) = lane.event(|lane, effects| {
                lane.enqueue(waiter, LastReply::Nothing, effects);
            });
        }
    };
    let (mut lane, _wakeup, _first) = TestLane::looping(claim(1, SHARED));
    queue(&mut lane);
    let lease = lane.lease(1, 100, SHARED);
    let ((), effects) = lane.event(|lane, effects| {
        lane.granted(&key(), lease, effects);
    });
    assert_eq!(granted(&effects), [1, 3]);
    assert_eq!(effects.rejections.len(), 1);

    let (mut lane, _answer) = TestLane::attempting(claim(1, SHARED));
    queue(&mut lane);
    let lease = lane.lease(1, 100, SHARED);
    let ((), effects) = lane.event(|lane, effects| {
        lane.granted(&key(), lease, effects);
    });
    assert_eq!(granted(&effects), [1, 3]);
    assert_eq!(lane.lane.waiters(), 0);
}

/// A watchdog that ends them holds the mutex of their shard.
#[test]
fn many_readers_end_in_linear_time() {
    /// The shortest time in which the lease of some readers ends. It must be less than a busy machine leaves to a thread at
    /// a time.
    fn end(readers: u64) -> Duration {
        let runs = (0..40).map(|_| {
            let (mut lane, _first) = held_shared();
            for ticket in 2..readers {
                drop(lane.join(claim(ticket, SHARED)));
            }
            lane.pass(3600 * SECOND);
            let began = Instant::now();
            let (_, effects) = lane.check();
            let took = began.elapsed();
            drop(effects);
            took
        });
        runs.min().expect("some runs")
    }
    let (few, many) = (end(300), end(3_000));
    assert!(many < 40 * few, "{few:?} and {many:?}");
}
