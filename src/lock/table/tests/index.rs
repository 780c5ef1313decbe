//! The index of deadlines: its entries, and their bound.

use super::*;

#[test]
fn held_lane_is_indexed_and_idle_lane_removed() {
    let (lanes, now) = (lanes(), Moment::now());
    let (grant, announced) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    assert_eq!(announced, [(here(), now + TTL / 3)]);
    assert!(!lanes.is_empty() && lanes.has_deadlines(here()));
    assert!(!lanes.has_deadlines(elsewhere()));
    release(&lanes, &key(1), &grant, now);
    assert!(lanes.is_empty());
    assert!(lanes.forget_if_empty() && !lanes.has_deadlines(here()));
}

#[test]
fn lane_moved_to_other_runtime_is_entered_there() {
    let (lanes, now) = (lanes(), Moment::now());
    acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let due = now + TTL / 3;
    let move_to = |home| event(&lanes, &key(1), |lane, _| lane.move_to(home)).1;
    assert_eq!(move_to(elsewhere()), [(elsewhere(), due)]);
    // The index of these runtimes already has the deadline.
    assert!(move_to(here()).is_empty() && move_to(elsewhere()).is_empty());
    assert!(look(&lanes, here(), due).renewals.is_empty());
    assert_eq!(keys(&look(&lanes, elsewhere(), due)).len(), 1);
}

#[test]
fn earlier_deadline_is_entered_and_later_one_is_not() {
    let (lanes, now) = (lanes(), Moment::now());
    let (_grant, _told) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let suspect = |at| event(&lanes, &key(1), |lane, _| lane.mark_suspect(at)).1;
    assert_eq!(suspect(now + SECOND), [(here(), now + SECOND)]);
    assert!(suspect(now + 2 * SECOND).is_empty());
    assert_eq!(entries(&lanes, here()), 2);
}

#[test]
fn waiter_of_other_runtime_enters_lane_there() {
    let (lanes, now) = (lanes(), Moment::now());
    let (grant, _told) = acquire(&lanes, &key(1), claim(1, FIXED), now);
    let (waiter, _answer) = waiter(from_elsewhere(claim(2, FIXED)));
    let ((), announced) = event(&lanes, &key(1), |lane, effects| {
        lane.enqueue(waiter, Seen::Nothing, now, effects);
    });
    assert_eq!(announced, [(elsewhere(), grant.valid_until())]);
    let round = look(&lanes, elsewhere(), grant.valid_until());
    assert!(grant.is_marked_lost());
    assert_eq!(round.effects.len(), 1);
}

#[test]
fn short_holds_of_one_key_leave_index_bounded() {
    let (lanes, now) = (lanes(), Moment::now());
    for nth in 0..100_000 {
        let now = now + nth * MS / 1000;
        let (grant, _told) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
        release(&lanes, &key(1), &grant, now);
    }
    assert!(lanes.is_empty());
    let left = entries(&lanes, here());
    assert!(left <= 100, "{left} entries");
}

#[test]
fn short_holds_of_many_keys_leave_index_bounded() {
    let (lanes, now) = (lanes(), Moment::now());
    for nth in 0..100_000 {
        let (grant, _told) = acquire(&lanes, &key(nth), claim(1, RENEWED), now);
        release(&lanes, &key(nth), &grant, now);
    }
    let left = entries(&lanes, here());
    assert!(left <= 100 * SHARDS, "{left} entries");
}

#[test]
fn compaction_keeps_held_lanes() {
    let (lanes, now) = (lanes(), Moment::now());
    for nth in 0..SHARDS {
        acquire(&lanes, &key(nth), claim(1, RENEWED), now);
    }
    for nth in SHARDS..100 * SHARDS {
        let (grant, _told) = acquire(&lanes, &key(nth), claim(1, RENEWED), now);
        release(&lanes, &key(nth), &grant, now);
    }
    let round = look(&lanes, here(), now + TTL / 3);
    assert_eq!(keys(&round).len(), SHARDS);
}

#[test]
fn compaction_keeps_lanes_with_waiters_elsewhere() {
    let (lanes, now) = (lanes(), Moment::now());
    let mut grants = Vec::new();
    for nth in 0..SHARDS {
        let (grant, _told) = acquire(&lanes, &key(nth), claim(1, FIXED), now);
        let (waiter, _answer) = waiter(from_elsewhere(claim(2, FIXED)));
        event(&lanes, &key(nth), |lane, effects| {
            lane.enqueue(waiter, Seen::Nothing, now, effects);
        });
        grants.push(grant);
    }
    for nth in SHARDS..100 * SHARDS {
        let claim = from_elsewhere(claim(1, RENEWED));
        let (grant, _told) = acquire(&lanes, &key(nth), claim, now);
        release(&lanes, &key(nth), &grant, now);
    }
    look(&lanes, elsewhere(), grants[0].valid_until());
    assert!(grants.iter().all(|grant| grant.is_marked_lost()));
}

#[test]
fn adopted_lanes_are_entered_in_other_runtime() {
    let (lanes, now) = (lanes(), Moment::now());
    let (grant, _told) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let all = lanes.adopt(here(), elsewhere(), now);
    assert_eq!(lanes.homes(), [elsewhere()]);
    assert!(!lanes.has_deadlines(here()));
    let mut announced = (all.iter()).flat_map(|(_, effects)| effects.deadlines.iter());
    assert!(announced.all(|(home, _)| *home == elsewhere()));
    look(&lanes, elsewhere(), grant.valid_until());
    assert!(grant.is_marked_lost());
}

/// Two runtimes hold a key alternately, under fixed leases.
#[test]
fn waiters_of_two_runtimes_leave_index_bounded() {
    let (lanes, key) = (lanes(), key(1));
    let mut now = Moment::now();
    let (mut grant, _told) = acquire(&lanes, &key, claim(1, FIXED), now);
    for ticket in 2..2_000 {
        let mut next = claim(ticket, FIXED);
        if ticket % 2 == 0 {
            next = from_elsewhere(next);
        }
        let (waiter, _answer) = waiter(next);
        let mut effects = Effects::default();
        lanes.with(&key, &mut effects, |lane, effects| {
            lane.enqueue(waiter, Seen::Nothing, now, effects);
        });
        now = now + MS;
        lanes.with(&key, &mut effects, |lane, effects| {
            lane.release(
                &key,
                &grant,
                crate::lock::tests::release(1, None, None, now),
                effects,
            );
        });
        drop(std::mem::take(&mut effects.work));
        now = now + MS;
        lanes.with(&key, &mut effects, |lane, _| {
            let due = now + RESPONSE_TIMEOUT;
            assert!(lane.take_return(here(), now, due).is_some());
        });
        now = now + MS;
        lanes.with(&key, &mut effects, |lane, effects| {
            lane.returned(number(1), Ok(()), Yielded::ToNobody, here(), now, effects);
        });
        let Work::Contend { wakeup, home, .. } = effects.work.remove(0) else {
            unreachable!("it contends for the waiter");
        };
        now = now + MS;
        let lease = Lease::new(number(1), ticket, TOKENS, FIXED, now);
        lanes.with(&key, &mut effects, |lane, effects| {
            lane.granted(&key, &wakeup, lease, home, now, effects);
        });
        grant = effects.grants.remove(0).given.grant;
        assert!(grant.pick_up());
        // The watchdogs check their lanes.
        for home in [here(), elsewhere()] {
            assert!(look(&lanes, home, now).renewals.is_empty());
        }
    }
    let left = entries(&lanes, here()) + entries(&lanes, elsewhere());
    assert!(left <= 200, "{left} entries");
}
