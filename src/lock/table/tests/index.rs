//! The index of deadlines: its entries, and their bound.

use super::*;

#[test]
fn held_lane_is_indexed_and_idle_lane_removed() {
    let (lanes, now) = (lanes(), Moment::now());
    let (grant, announced) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    assert_eq!(announced, [now + TTL / 3]);
    assert!(!lanes.is_empty() && lanes.has_deadlines());
    release(&lanes, &key(1), &grant, now);
    assert!(lanes.is_empty());
    assert!(lanes.forget_if_empty() && !lanes.has_deadlines());
}

#[test]
fn earlier_deadline_is_entered_and_later_one_is_not() {
    let (lanes, now) = (lanes(), Moment::now());
    let (_grant, _told) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let suspect = |at| event(&lanes, &key(1), at, |lane, _| lane.require_renewal(at)).1;
    assert_eq!(suspect(now + SECOND), [now + SECOND]);
    assert!(suspect(now + 2 * SECOND).is_empty());
    assert_eq!(entries(&lanes), 2);
}

#[test]
fn deadline_of_waiter_is_entered() {
    let (lanes, now) = (lanes(), Moment::now());
    acquire(&lanes, &key(1), claim(1, FIXED), now);
    let deadline = now + SECOND;
    let (waiter, _answer) = waiter(Claim {
        deadline: Deadline::At(deadline),
        ..claim(2, FIXED)
    });
    let ((), announced) = event(&lanes, &key(1), now, |lane, effects| {
        lane.enqueue(waiter, LastReply::Nothing, effects);
    });
    assert_eq!(announced, [deadline]);
    let round = check(&lanes, deadline);
    assert_eq!(round.effects[0].1.rejections.len(), 1);
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
    let left = entries(&lanes);
    assert!(left <= 100, "{left} entries");
}

#[test]
fn short_holds_of_many_keys_leave_index_bounded() {
    let (lanes, now) = (lanes(), Moment::now());
    for nth in 0..100_000 {
        let (grant, _told) = acquire(&lanes, &key(nth), claim(1, RENEWED), now);
        release(&lanes, &key(nth), &grant, now);
    }
    let left = entries(&lanes);
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
    let round = check(&lanes, now + TTL / 3);
    assert_eq!(keys(&round).len(), SHARDS);
}

/// Waiters hold a key one after another, under fixed leases.
#[test]
fn waiters_of_one_key_leave_index_bounded() {
    let (lanes, key) = (lanes(), key(1));
    let mut now = Moment::now();
    let (mut grant, _told) = acquire(&lanes, &key, claim(1, FIXED), now);
    for ticket in 2..2_000 {
        let (waiter, _answer) = waiter(Claim {
            deadline: Deadline::At(now + SECOND),
            ..claim(ticket, FIXED)
        });
        let mut effects = Effects::at(now);
        lanes.with(&key, &mut effects, |lane, effects| {
            lane.enqueue(waiter, LastReply::Nothing, effects);
        });
        now = now + MS;
        effects.now = now;
        lanes.with(&key, &mut effects, |lane, effects| {
            lane.release(&grant, 1, None, effects);
        });
        drop(std::mem::take(&mut effects.work));
        now = now + MS;
        effects.now = now;
        lanes.with(&key, &mut effects, |lane, _| {
            let due = now + RESPONSE_TIMEOUT;
            assert!(lane.take_return(now, due).is_some());
        });
        now = now + MS;
        effects.now = now;
        lanes.with(&key, &mut effects, |lane, effects| {
            lane.returned(number(1), Ok(()), ReleasedTo::Nobody, effects);
        });
        crate::lock::tests::contends(&mut effects);
        now = now + MS;
        effects.now = now;
        let lease = Lease::new(number(1), ticket, TOKENS, FIXED, now);
        lanes.with(&key, &mut effects, |lane, effects| {
            lane.granted(&key, lease, effects);
        });
        grant = effects.grants.remove(0).1.grant;
        assert!(grant.settle());
        assert!(check(&lanes, now).renewals.is_empty());
    }
    let left = entries(&lanes);
    assert!(left <= 100, "{left} entries");
}
