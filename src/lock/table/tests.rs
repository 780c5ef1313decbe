use std::pin::pin;
use std::sync::Arc;

use tokio::time::timeout;

use super::*;
use crate::lock::attempt::InlineAttempt;
use crate::lock::claim::Claim;
use crate::lock::effect::Work;
use crate::lock::few::Few;
use crate::lock::grant::Grant;
use crate::lock::lane::Seen;
use crate::lock::lease::Lease;
use crate::lock::tests::{
    FIXED, MS, RENEWED, RESPONSE_TIMEOUT, SECOND, TOKENS, claim, elsewhere, from_elsewhere, here,
    number, waiter,
};
use crate::lock::yielded::Yielded;

const TTL: Duration = RENEWED.ttl.get();

fn lanes() -> Lanes {
    Lanes::new(RESPONSE_TIMEOUT)
}

fn key(nth: usize) -> LockKey {
    LockKey::new(format!("key {nth}"))
}

/// Applies an event. Returns the deadlines of which watchdogs have to be notified.
fn event<R>(
    lanes: &Lanes,
    key: &LockKey,
    event: impl FnOnce(&mut Lane, &mut Effects) -> R,
) -> (R, Vec<(RuntimeId, Moment)>) {
    let mut effects = Effects::default();
    let result = lanes.with(key, &mut effects, event);
    (result, effects.deadlines.into_iter().collect())
}

/// Acquires a free key, as with a backend that replies at once.
fn acquire(
    lanes: &Lanes,
    key: &LockKey,
    claim: Claim,
    now: Moment,
) -> (Arc<Grant>, Vec<(RuntimeId, Moment)>) {
    event(lanes, key, |lane, effects| {
        lane.contend_inline(&Arc::<InlineAttempt>::default(), &claim, now);
        let lease = Lease::new(number(1), 100, TOKENS, claim.terms, now);
        lane.granted_inline(key, &claim, lease, now, effects)
    })
}

/// Releases a key without waiters.
fn release(lanes: &Lanes, key: &LockKey, grant: &Arc<Grant>, now: Moment) {
    event(lanes, key, |lane, effects| {
        lane.release(
            key,
            grant,
            crate::lock::tests::release(1, None, None, now),
            effects,
        );
        assert!(
            lane.take_return(here(), now, now + RESPONSE_TIMEOUT)
                .is_some()
        );
        // The return is done here.
        effects.work = Few::Empty;
        lane.returned(number(1), Ok(()), Yielded::ToNobody, here(), now, effects);
    });
}

fn look(lanes: &Lanes, home: RuntimeId, now: Moment) -> Round {
    lanes.look(Look {
        home,
        now,
        response_timeout: RESPONSE_TIMEOUT,
    })
}

/// Returns the number of entries in the index of this runtime.
fn entries(lanes: &Lanes, home: RuntimeId) -> usize {
    let lens = lanes
        .shards
        .iter()
        .map(|shard| lock(shard).deadlines.len(home));
    lens.sum()
}

#[test]
fn held_lane_is_indexed_and_idle_lane_removed() {
    let (lanes, now) = (lanes(), Moment::now());
    let (grant, told) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    assert_eq!(told, [(here(), now + TTL / 3)]);
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
    let ((), told) = event(&lanes, &key(1), |lane, effects| {
        lane.enqueue(waiter, Seen::Nothing, now, effects);
    });
    assert_eq!(told, [(elsewhere(), grant.valid_until())]);
    let round = look(&lanes, elsewhere(), grant.valid_until());
    assert!(grant.is_marked_lost());
    assert_eq!(round.effects.len(), 1);
}

#[test]
fn empty_shard_frees_memory_after_burst() {
    let (lanes, now) = (lanes(), Moment::now());
    for (key, grant) in &burst(&lanes, now) {
        release(&lanes, key, grant, now);
    }
    assert_eq!(lock(&lanes.shards[0]).lanes.capacity(), 0);
}

/// Holds many keys of the first shard, under fixed leases.
fn burst(lanes: &Lanes, now: Moment) -> Vec<(LockKey, Arc<Grant>)> {
    let in_first_shard = |key: &LockKey| (key.hash_code() >> 24).is_multiple_of(SHARDS as u64);
    let keys = (0..).map(key).filter(in_first_shard).take(1_025);
    let hold = |key| {
        let (grant, _told) = acquire(lanes, &key, claim(1, FIXED), now);
        (key, grant)
    };
    let held = keys.map(hold).collect();
    assert!(lock(&lanes.shards[0]).lanes.capacity() > 1_024);
    held
}

#[test]
fn shard_emptied_by_event_for_all_frees_memory() {
    let (lanes, now) = (lanes(), Moment::now());
    burst(&lanes, now);
    drop(lanes.for_each(|_, lane, _| *lane = Lane::default()));
    assert_eq!(lock(&lanes.shards[0]).lanes.capacity(), 0);
}

#[test]
fn shard_emptied_by_watchdog_frees_memory() {
    let (lanes, now) = (lanes(), Moment::now());
    burst(&lanes, now);
    // The leases expire, and then their returns.
    for seconds in [30, 60] {
        assert!(!lanes.is_empty());
        look(&lanes, here(), now + seconds * SECOND);
    }
    assert_eq!(lock(&lanes.shards[0]).lanes.capacity(), 0);
}

#[test]
fn lanes_of_many_keys_use_many_shards() {
    let (lanes, now) = (lanes(), Moment::now());
    for nth in 0..10 * SHARDS {
        acquire(&lanes, &key(nth), claim(1, FIXED), now);
    }
    let used = lanes.shards.iter().filter(|it| !lock(it).lanes.is_empty());
    assert!(used.count() > SHARDS / 2);
}

#[test]
fn idle_event_of_absent_lane_adds_none() {
    let lanes = lanes();
    event(&lanes, &key(1), |_, _| ());
    assert!(lanes.is_empty());
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

fn keys(round: &Round) -> Vec<&LockKey> {
    round
        .renewals
        .iter()
        .flatten()
        .map(|due| &due.key)
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
    let round = look(&lanes, here(), due.before(MS));
    assert!(round.renewals.is_empty());
    assert_eq!(round.next, Some(due));
    let round = look(&lanes, here(), due);
    assert_eq!(keys(&round), [early]);
    assert_eq!(round.next, Some(due + 5 * SECOND));
    assert_eq!(keys(&look(&lanes, here(), due + 5 * SECOND)).len(), 1);
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
    assert!(look(&lanes, here(), due.before(MS)).renewals.is_empty());
    let round = look(&lanes, here(), due);
    assert_eq!(keys(&round), [&all[0], &all[1], &all[2]]);
    assert_eq!(round.next, Some(due + (early + MS)));
}

#[test]
fn look_drops_idle_lanes() {
    let (lanes, now) = (lanes(), Moment::now());
    let (grant, _told) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    event(&lanes, &key(1), |lane, effects| {
        lane.release(
            &key(1),
            &grant,
            crate::lock::tests::release(1, None, None, now),
            effects,
        )
    });
    // The return never ends.
    let expired = look(&lanes, here(), now + TTL / 3)
        .next
        .expect("a deadline");
    assert!(!lanes.is_empty());
    assert_eq!(look(&lanes, here(), expired).next, None);
    assert!(lanes.is_empty());
}

#[test]
fn adopted_lanes_are_entered_in_other_runtime() {
    let (lanes, now) = (lanes(), Moment::now());
    let (grant, _told) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let all = lanes.adopt(here(), elsewhere(), now);
    assert_eq!(lanes.homes(), [elsewhere()]);
    assert!(!lanes.has_deadlines(here()));
    let mut told = (all.iter()).flat_map(|(_, effects)| effects.deadlines.iter());
    assert!(told.all(|(home, _)| *home == elsewhere()));
    look(&lanes, elsewhere(), grant.valid_until());
    assert!(grant.is_marked_lost());
}

#[test]
fn single_renewal_is_sent_at_due_time() {
    let (lanes, now) = (lanes(), Moment::now());
    acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let due = now + TTL / 3;
    assert!(look(&lanes, here(), due.before(MS)).renewals.is_empty());
    assert_eq!(keys(&look(&lanes, here(), due)).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn emptied_completes_with_last_lane() {
    let (lanes, now) = (lanes(), Moment::now());
    let (grant, _told) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let mut emptied = pin!(lanes.emptied());
    assert!(timeout(SECOND, &mut emptied).await.is_err());
    release(&lanes, &key(1), &grant, now);
    assert!(timeout(SECOND, emptied).await.is_ok());
}

/// A shutdown then also waits for the retry of a failed release.
#[tokio::test(start_paused = true)]
async fn emptied_awaits_work_of_idle_lane() {
    let (lanes, mut effects) = (lanes(), Effects::default());
    lanes.with(&key(0), &mut effects, |_, effects| {
        effects.leave(number(1), here());
    });
    let mut emptied = pin!(lanes.emptied());
    assert!(timeout(SECOND, &mut emptied).await.is_err());
    assert!(effects.outlive_lane);
    lanes.started();
    assert!(timeout(SECOND, emptied).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn emptied_completes_with_idle_lanes() {
    let (lanes, now) = (lanes(), Moment::now());
    acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let mut emptied = pin!(lanes.emptied());
    assert!(timeout(SECOND, &mut emptied).await.is_err());
    drop(lanes.for_each(|_, lane, _| *lane = Lane::default()));
    assert!(timeout(SECOND, emptied).await.is_ok());
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

#[test]
fn check_reports_deadline_of_other_runtime() {
    let (lanes, now) = (lanes(), Moment::now());
    let (one, _answer) = waiter(claim(1, RENEWED));
    let (other, _answer) = waiter(from_elsewhere(claim(2, RENEWED)));
    for waiter in [one, other] {
        event(&lanes, &key(1), |lane, effects| {
            lane.enqueue(waiter, Seen::Nothing, now, effects);
        });
    }
    // The task of this runtime does not run, so another one replaces it.
    let mut round = look(&lanes, elsewhere(), now + 10 * MS);
    let (_key, effects) = round.effects.remove(0);
    let homes: Vec<_> = effects.deadlines.iter().map(|(home, _)| *home).collect();
    assert_eq!(homes, [here()]);
}
