use std::collections::{HashSet, VecDeque};

use super::*;

const MANY: usize = 20_000;

async fn held(locks: &LockManager, keys: std::ops::Range<usize>) -> Vec<crate::LockGuard> {
    let mut guards = Vec::with_capacity(keys.len());
    for n in keys {
        guards.push(locks.acquire(format!("key:{n}")).await.expect("free"));
    }
    guards
}

#[tokio::test]
async fn parts_contain_each_lane_once() {
    let locks = LockManager::in_memory();
    let guards = held(&locks, 0..MANY).await;
    let (mut seen, mut parts, mut lanes) = (HashSet::new(), 0, 0);
    for shard in 0..SHARDS {
        let mut place = Some(Place::start_of(shard));
        while let Some(at) = place {
            parts += 1;
            let read = locks.engine().lanes.inspect_part(at, |key, _| {
                lanes += 1;
                seen.insert(key.clone());
            });
            let Part::Read(next) = read else {
                panic!("the shard did not change");
            };
            place = next;
        }
    }
    assert_eq!((seen.len(), lanes), (MANY, MANY));
    assert!(parts >= 2 * SHARDS, "{parts} parts");
    drop(guards);
}

#[tokio::test]
async fn growing_shard_is_read_from_its_start() {
    let locks = LockManager::in_memory();
    let mut guards = held(&locks, 0..MANY).await;
    let inspect = |at| locks.engine().lanes.inspect_part(at, |_, _| {});
    let Part::Read(Some(place)) = inspect(Place::start_of(0)) else {
        panic!("one part");
    };
    guards.extend(held(&locks, MANY..3 * MANY).await);
    assert!(matches!(inspect(place), Part::Moved));
    drop(guards);
}

/// The table cleans itself up within its memory after many keys came and left.
#[tokio::test]
async fn tidied_shard_is_read_from_its_start() {
    let locks = LockManager::in_memory();
    let mut guards: VecDeque<_> = held(&locks, 0..MANY).await.into();
    let inspect = |at| locks.engine().lanes.inspect_part(at, |_, _| {});
    let Part::Read(Some(place)) = inspect(Place::start_of(0)) else {
        panic!("one part");
    };
    for n in MANY..8 * MANY {
        drop(guards.pop_front());
        guards.extend(held(&locks, n..n + 1).await);
    }
    assert!(matches!(inspect(place), Part::Moved));
    drop(guards);
}

#[tokio::test]
async fn pages_contain_each_key_once() {
    let locks = LockManager::in_memory();
    let guards = held(&locks, 0..MANY).await;
    let (mut seen, mut rows, mut after) = (HashSet::new(), 0, (0, None));
    loop {
        let page = locks.page(after, 977).await;
        rows += page.rows.len();
        seen.extend(page.rows.into_iter().map(|view| view.key));
        match page.next {
            Some((shard, hash)) => after = (shard, Some(hash)),
            None => break,
        }
    }
    assert_eq!((seen.len(), rows), (MANY, MANY));
    drop(guards);
}
