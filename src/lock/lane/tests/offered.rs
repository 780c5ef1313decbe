//! Grants that their acquires have not picked up yet.

use super::*;

#[test]
fn grant_not_picked_up_by_deadline_is_withdrawn() {
    let (mut lane, first) = TestLane::held(RENEWED);
    let deadline = lane.now + SECOND;
    let patient = Claim {
        deadline: Deadline::At(deadline),
        ..claim(2, RENEWED)
    };
    let _answer = lane.enqueue(patient);
    let grant = granted(lane.release(&first));
    assert_eq!(lane.next_check(), deadline);
    lane.now = deadline;
    returns(&mut lane.check().1);
    assert!(grant.holds() == 0 && !grant.settle(), "too late");
}

#[test]
fn grant_picked_up_in_time_stays() {
    let (mut lane, first) = TestLane::held(RENEWED);
    let deadline = lane.now + SECOND;
    let patient = Claim {
        deadline: Deadline::At(deadline),
        ..claim(2, RENEWED)
    };
    let _answer = lane.enqueue(patient);
    let effects = lane.release(&first);
    let grant = granted(effects);
    assert!(grant.settle());
    lane.now = deadline;
    assert!(lane.check().1.is_empty());
    assert!(grant.is_held(lane.now));
    assert!(lane.next_check() > deadline);
}

#[test]
fn grant_of_several_keys_not_picked_up_is_withdrawn() {
    let deadline = Moment::now() + SECOND;
    let of_several = Claim {
        deadline: Deadline::At(deadline),
        of_several: true,
        ..claim(1, RENEWED)
    };
    let (mut lane, grant) = TestLane::held_by(of_several);
    assert_eq!(lane.next_check(), deadline);
    lane.now = deadline;
    returns(&mut lane.check().1);
    assert_eq!(grant.holds(), 0);
    let joined = lane.lane.join_keys(&grant, &of_several, lane.now);
    assert!(!joined, "too late");
}

/// Returns a grant that two acquires of one owner share and have not picked up.
fn shared_grant() -> (TestLane, Arc<Grant>, [Claim; 2]) {
    let (mut lane, first) = TestLane::held(RENEWED);
    let deadline = Deadline::At(lane.now + SECOND);
    let one = Claim {
        deadline,
        ..claim(2, RENEWED)
    };
    let other = Claim {
        owner: one.owner,
        deadline,
        ..claim(3, RENEWED)
    };
    let _answers = [lane.enqueue(one), lane.enqueue(other)];
    let effects = lane.release(&first);
    let grant = Arc::clone(&effects.grants[0].1.grant);
    assert_eq!((effects.grants.len(), grant.holds()), (2, 2));
    (lane, grant, [one, other])
}

#[test]
fn hold_not_picked_up_ends_beside_others() {
    for (picked_up, forgotten) in [(0, 1), (1, 0)] {
        let (mut lane, grant, claims) = shared_grant();
        assert!(lane.lane.picked_up(&grant, claims[picked_up].hold));
        lane.pass(SECOND - MS);
        assert!(lane.check().1.is_empty());
        assert_eq!(grant.holds(), 2);
        lane.pass(MS);
        assert_eq!(lane.next_check(), lane.now);
        assert!(lane.check().1.work.is_empty());
        assert!(grant.is_held(lane.now));
        assert_eq!(grant.holds(), 1);
        assert!(
            !lane.lane.picked_up(&grant, claims[forgotten].hold),
            "too late"
        );
        let (report, _reported) = oneshot::channel();
        let effects = lane.release_hold(&grant, claims[forgotten].hold, Some(report));
        assert!(effects.reports[0].1.is_err() && lane.is_held());
        let mut effects = lane.release_hold(&grant, claims[picked_up].hold, None);
        returns(&mut effects);
    }
}

/// Returns a grant with a renewed first hold that is not picked up within a second, and a fixed one that
/// is.
fn half_forgotten() -> (TestLane, Arc<Grant>) {
    let (mut lane, first) = TestLane::held(RENEWED);
    let forgotten = Claim {
        deadline: Deadline::At(lane.now + SECOND),
        ..claim(2, RENEWED)
    };
    let claimed = Claim {
        owner: forgotten.owner,
        ..claim(3, FIXED)
    };
    let _answers = [lane.enqueue(forgotten), lane.enqueue(claimed)];
    let grant = Arc::clone(&lane.release(&first).grants[0].1.grant);
    assert!(lane.lane.picked_up(&grant, claimed.hold));
    (lane, grant)
}

#[test]
fn terms_of_unclaimed_hold_do_not_apply() {
    let (mut lane, grant) = half_forgotten();
    let own_end = crate::lock::lease::valid_until(lane.now, FIXED.ttl);
    assert!(grant.valid_until() > own_end);
    lane.pass(SECOND);
    assert!(lane.check().1.work.is_empty());
    assert_eq!(grant.valid_until(), own_end);
}

#[test]
fn unclaimed_grant_is_withdrawn_once() {
    let (mut lane, grant, claims) = shared_grant();
    lane.pass(SECOND);
    returns(&mut lane.check().1);
    for claim in &claims {
        assert!(!lane.lane.picked_up(&grant, claim.hold));
    }
}

#[test]
fn moved_end_of_unclaimed_hold_wakes_loss_future() {
    let (mut lane, grant) = half_forgotten();
    lane.pass(SECOND);
    // The loss future sleeps until the later end.
    let (_, effects) = lane.check();
    assert!(
        effects
            .losses
            .iter()
            .any(|lost| Arc::ptr_eq(&lost.grant, &grant))
    );
}

#[test]
fn released_hold_of_group_is_not_withdrawn() {
    let deadline = Moment::now() + SECOND;
    let of_several = Claim {
        deadline: Deadline::At(deadline),
        of_several: true,
        ..claim(1, RENEWED)
    };
    let (mut lane, grant) = TestLane::held_by(of_several);
    lane.nest(2, RENEWED);
    // The acquire was dropped while it waited for another key.
    assert!(lane.release(&grant).work.is_empty());
    lane.now = deadline;
    assert!(lane.check().1.is_empty());
    assert!(grant.is_held(lane.now));
}

#[test]
fn released_hold_of_group_leaves_others_unclaimed() {
    let (mut lane, grant) = TestLane::held(RENEWED);
    assert!(grant.settle());
    let deadline = lane.now + SECOND;
    let of_several = |hold| Claim {
        deadline: Deadline::At(deadline),
        of_several: true,
        ..again(hold, RENEWED)
    };
    for hold in [2, 3] {
        let entered = lane.enter(of_several(hold));
        assert!(matches!(entered, Entered::Granted(grant) if grant.holds() > 1));
    }
    // The acquire was dropped while it waited for another key.
    assert!(lane.release_hold(&grant, 2, None).work.is_empty());
    lane.now = deadline;
    assert!(lane.check().1.work.is_empty());
    assert_eq!(grant.holds(), 1);
    assert!(!lane.lane.picked_up(&grant, 3));
}
