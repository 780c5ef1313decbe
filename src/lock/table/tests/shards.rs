//! The shards of the table, and their memory.

use super::*;

/// Holds many keys of the first shard, under fixed leases.
fn burst(lanes: &Lanes, now: Moment) -> Vec<(LockKey, Arc<Grant>)> {
    let in_first_shard = |key: &LockKey| (key.hash_code() >> 24).is_multiple_of(SHARDS as u64);
    let keys = (0..).map(key).filter(in_first_shard).take(1_025);
    let hold = |key| {
        let (grant, _told) = acquire(lanes, &key, claim(1, FIXED), now);
        (key, grant)
    };
    let held = keys.map(hold).collect();
    assert!(lanes.shards[0].lock().lanes.capacity() > 1_024);
    held
}

#[test]
fn empty_shard_frees_memory_after_burst() {
    let (lanes, now) = (lanes(), Moment::now());
    for (key, grant) in &burst(&lanes, now) {
        release(&lanes, key, grant, now);
    }
    assert_eq!(lanes.shards[0].lock().lanes.capacity(), 0);
}

#[test]
fn shard_emptied_by_events_frees_memory() {
    let (lanes, now) = (lanes(), Moment::now());
    burst(&lanes, now);
    empty(&lanes);
    assert_eq!(lanes.shards[0].lock().lanes.capacity(), 0);
}

#[test]
fn shard_emptied_by_watchdog_frees_memory() {
    let (lanes, now) = (lanes(), Moment::now());
    burst(&lanes, now);
    // The leases expire, and then their returns.
    for seconds in [30, 60] {
        assert!(!lanes.is_empty());
        check(&lanes, now + seconds * SECOND);
    }
    assert_eq!(lanes.shards[0].lock().lanes.capacity(), 0);
}

#[test]
fn lanes_of_many_keys_use_many_shards() {
    let (lanes, now) = (lanes(), Moment::now());
    for nth in 0..10 * SHARDS {
        acquire(&lanes, &key(nth), claim(1, FIXED), now);
    }
    let used = lanes.shards.iter().filter(|it| !it.lock().lanes.is_empty());
    assert!(used.count() > SHARDS / 2);
}

#[test]
fn idle_event_of_absent_lane_adds_none() {
    let lanes = lanes();
    event(&lanes, &key(1), Moment::now(), |_, _| ());
    assert!(lanes.is_empty());
}
