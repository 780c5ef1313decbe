//! The rounds of a watchdog.

use super::*;

/// Returns keys of one shard.
fn neighbors(count: usize) -> Vec<LockKey> {
    let shard = |key: &LockKey| (key.hash_code() >> 24) as usize % SHARDS;
    let same = shard(&key(0));
    (0..)
        .map(key)
        .filter(|key| shard(key) == same)
        .take(count)
        .collect()
}

#[test]
fn look_pops_only_what_is_due() {
    let (lanes, now) = (lanes(), Moment::now());
    let [early, late] = &neighbors(2)[..] else {
        unreachable!("two were asked for");
    };
    acquire(&lanes, early, claim(1, RENEWED), now);
    acquire(&lanes, late, claim(1, RENEWED), now + 5 * SECOND);
    let due = now + TTL / 3;
    let round = check(&lanes, due.before(MS));
    assert!(round.renewals.is_empty());
    assert_eq!(round.next, Some(due));
    let round = check(&lanes, due);
    assert_eq!(keys(&round), [early]);
    assert_eq!(round.next, Some(due + 5 * SECOND));
    assert_eq!(keys(&check(&lanes, due + 5 * SECOND)).len(), 1);
}

#[test]
fn look_joins_renewals_due_soon() {
    let (lanes, now) = (lanes(), Moment::now());
    let all = neighbors(4);
    let early = TTL / 20;
    let ages = [Duration::ZERO, early / 2, early, early + MS];
    for (key, age) in all.iter().zip(ages) {
        acquire(&lanes, key, claim(1, RENEWED), now + age);
    }
    // Without a due renewal, none joins.
    let due = now + TTL / 3;
    assert!(check(&lanes, due.before(MS)).renewals.is_empty());
    let round = check(&lanes, due);
    assert_eq!(keys(&round), [&all[0], &all[1], &all[2]]);
    assert_eq!(round.next, Some(due + (early + MS)));
}

#[test]
fn look_drops_idle_lanes() {
    let (lanes, now) = (lanes(), Moment::now());
    let (grant, _told) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    event(&lanes, &key(1), now, |lane, effects| {
        lane.release(&grant, 1, None, effects)
    });
    // The return never ends.
    let expired = check(&lanes, now + TTL / 3).next.expect("a deadline");
    assert!(!lanes.is_empty());
    assert_eq!(check(&lanes, expired).next, None);
    assert!(lanes.is_empty());
}

#[test]
fn single_renewal_is_sent_at_due_time() {
    let (lanes, now) = (lanes(), Moment::now());
    acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let due = now + TTL / 3;
    assert!(check(&lanes, due.before(MS)).renewals.is_empty());
    assert_eq!(keys(&check(&lanes, due)).len(), 1);
}
