use std::collections::HashSet;

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

#[tokio::test]
async fn walk_counts_keys_of_each_part_once() {
    let locks = LockManager::in_memory();
    let guards = held(&locks, 0..MANY).await;
    let counts = locks.walk(Order::Age, 1).await.counts;
    assert_eq!((counts.snapshot.held, counts.snapshot.lanes), (MANY, MANY));
    drop(guards);
}
