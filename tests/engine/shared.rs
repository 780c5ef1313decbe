//! Shared locks in memory: many readers or one writer, in one process and in several.

use std::time::Duration;

use futures_util::poll;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::{BackendErrorKind, Mode};
use tower_lock::manager::LostReason;
use tower_lock::{ErrorKind, LockKeys, LockManager, Memory};

use crate::support::broken::broken;
use crate::support::engine::{MS, SECOND};

/// Returns two managers of one store, as in two processes.
fn two_processes() -> (LockManager, LockManager) {
    let store = Memory::new();
    let manager = || LockManager::builder(store.clone()).build().unwrap();
    (manager(), manager())
}

#[tokio::test(start_paused = true)]
async fn readers_share_key_in_all_processes() {
    let (here, there) = two_processes();
    let first = here.acquire("k").shared().no_wait().await.unwrap();
    let second = here.acquire("k").shared().no_wait().await.unwrap();
    let third = there.acquire("k").shared().no_wait().await.unwrap();
    assert_eq!(first.mode(), Mode::Shared);
    for locks in [&here, &there] {
        let error = locks.acquire("k").no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
    }
    // The last reader of a process returns its lease, and the last one of all frees the key.
    drop(first);
    assert!(second.is_held() && third.is_held());
    drop((second, third));
    let writer = here.acquire("k").no_wait().await.unwrap();
    assert_eq!(writer.mode(), Mode::Exclusive);
}

#[tokio::test(start_paused = true)]
async fn writer_excludes_readers_in_all_processes() {
    let (here, there) = two_processes();
    let writer = here.acquire("k").await.unwrap();
    for locks in [&here, &there] {
        let error = locks.acquire("k").shared().no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
    }
    writer.release().await.unwrap();
    let reader = there.acquire("k").shared().no_wait().await.unwrap();
    assert!(reader.is_held());
}

#[tokio::test(start_paused = true)]
async fn readers_wait_behind_writer_of_their_process() {
    let locks = LockManager::in_memory();
    let reader = locks.acquire("k").shared().await.unwrap();
    let mut writer = Box::pin(locks.acquire("k").into_future());
    assert!(poll!(&mut writer).is_pending());
    let error = locks.acquire("k").shared().no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let mut later = Box::pin(locks.acquire("k").shared().into_future());
    assert!(poll!(&mut later).is_pending());
    drop(reader);
    let writer = timeout(MS, writer).await.unwrap().unwrap();
    assert!(poll!(&mut later).is_pending());
    drop(writer);
    assert!(timeout(MS, later).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn writer_that_leaves_admits_readers() {
    let (here, there) = two_processes();
    for locks in [&here, &there] {
        let reader = here.acquire("k").shared().await.unwrap();
        let writer = locks.acquire("k").wait(SECOND).into_future();
        let writer = tokio::spawn(writer);
        // The writer of another process is noticed by a renewal.
        sleep(150 * MS).await;
        drop(here.acquire("k").shared().no_wait().await);
        sleep(10 * MS).await;
        let error = here.acquire("k").shared().no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let start = Instant::now();
        let later = here.acquire("k").shared().await.unwrap();
        assert!(start.elapsed() <= 3 * SECOND, "{:?}", start.elapsed());
        assert!(writer.await.unwrap().is_err());
        drop((reader, later));
        sleep(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn single_attempt_shares_after_writer_left() {
    let (here, there) = two_processes();
    for lease in [None, Some(3600 * SECOND)] {
        let reader = here.acquire("k").shared();
        let reader = match lease {
            Some(lease) => reader.lease(lease).await.unwrap(),
            None => reader.await.unwrap(),
        };
        let writer = tokio::spawn(there.acquire("k").wait(SECOND).into_future());
        sleep(150 * MS).await;
        drop(here.acquire("k").shared().no_wait().await);
        sleep(10 * MS).await;
        let error = here.acquire("k").shared().no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(writer.await.unwrap().is_err());
        sleep(1300 * MS).await;
        assert!(here.acquire("k").shared().no_wait().await.is_ok());
        reader.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn reader_outlives_end_of_others_fixed_lease() {
    let locks = LockManager::in_memory();
    let long = locks.acquire("long").shared().lease(3600 * SECOND);
    let long = long.await.unwrap();
    sleep(3000 * SECOND).await;
    let joined = locks.acquire("long").shared().no_wait().await.unwrap();
    let short = locks.acquire("short").shared().lease(30 * MS);
    let short = short.await.unwrap();
    sleep(10 * MS).await;
    let later = locks.acquire("short").shared().await.unwrap();
    assert!(!short.is_held());
    sleep(700 * SECOND).await;
    assert!(!long.is_held() && joined.is_held() && later.is_held());
}

#[tokio::test(start_paused = true)]
async fn writer_of_other_process_is_served_among_readers() {
    let (here, there) = two_processes();
    let readers: Vec<_> = (0..8)
        .map(|reader| {
            let locks = here.clone();
            tokio::spawn(async move {
                loop {
                    let guard = locks.acquire("k").shared().wait_forever().await.unwrap();
                    sleep(Duration::from_millis(25 + 7 * reader)).await;
                    drop(guard);
                }
            })
        })
        .collect();
    sleep(SECOND).await;
    for _ in 0..10 {
        let start = Instant::now();
        let writer = there.acquire("k").await.unwrap();
        // The longest read, and the time until a renewal shows that the writer waits.
        assert!(
            start.elapsed() <= 74 * MS + 120 * MS,
            "{:?}",
            start.elapsed()
        );
        drop(writer);
        sleep(300 * MS).await;
    }
    readers.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn waiting_readers_are_granted_together() {
    let (here, there) = two_processes();
    let writer = here.acquire("k").await.unwrap();
    let mut readers = Vec::new();
    for locks in [&here, &here, &there, &there] {
        let mut reader = Box::pin(locks.acquire("k").shared().into_future());
        assert!(poll!(&mut reader).is_pending());
        readers.push(reader);
        sleep(10 * MS).await;
    }
    drop(writer);
    let readers = futures_util::future::join_all(readers);
    let guards = timeout(SECOND, readers).await.unwrap();
    assert!(guards.iter().all(|guard| guard.as_ref().unwrap().is_held()));
}

#[tokio::test(start_paused = true)]
async fn owner_of_shared_lock_cannot_upgrade() {
    let locks = LockManager::in_memory();
    let owner = locks.new_owner();
    let other = locks.acquire("k").shared().await.unwrap();
    let reader = locks.acquire("k").owner(owner).shared().await.unwrap();
    let again = locks.acquire("k").owner(owner).shared().await.unwrap();
    assert_eq!((reader.hold_count(), other.hold_count()), (2, 1));
    let error = locks.acquire("k").owner(owner).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Upgrade);
    drop((reader, again, other));
    // A writer that asks for a shared lock has one more exclusive hold.
    let writer = locks.acquire("k").owner(owner).await.unwrap();
    let nested = locks.acquire("k").owner(owner).shared().await.unwrap();
    assert_eq!((nested.mode(), writer.hold_count()), (Mode::Exclusive, 2));
}

#[tokio::test(start_paused = true)]
async fn reader_nests_while_writer_waits() {
    let locks = LockManager::in_memory();
    let owner = locks.new_owner();
    let reader = locks.acquire("k").owner(owner).shared().await.unwrap();
    let mut writer = Box::pin(locks.acquire("k").into_future());
    assert!(poll!(&mut writer).is_pending());
    let nested = locks.acquire("k").owner(owner).shared().no_wait();
    let nested = nested.await.unwrap();
    assert_eq!((nested.hold_count(), nested.mode()), (2, Mode::Shared));
    drop(reader);
    sleep(MS).await;
    assert_eq!(nested.hold_count(), 1);
    assert!(poll!(&mut writer).is_pending());
    drop(nested);
    assert!(timeout(MS, writer).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn each_reader_has_its_own_limit() {
    let locks = LockManager::in_memory();
    let limited = locks.acquire("k").shared().max_hold(SECOND).await.unwrap();
    let fixed = locks.acquire("k").shared().lease(2 * SECOND).await.unwrap();
    let other = locks.acquire("k").shared().await.unwrap();
    let beyond_lease = locks.acquire("k").shared().max_hold(70 * SECOND);
    let beyond_lease = beyond_lease.await.unwrap();
    timeout(2 * SECOND, limited.lost()).await.unwrap();
    assert_eq!(limited.lost_reason(), Some(LostReason::MaxHold));
    assert!(fixed.is_held() && other.is_held());
    timeout(2 * SECOND, fixed.lost()).await.unwrap();
    sleep(66 * SECOND).await;
    assert!(beyond_lease.is_held());
    timeout(5 * SECOND, beyond_lease.lost()).await.unwrap();
    sleep(100 * SECOND).await;
    assert!(other.is_held());
    other.release().await.unwrap();
    assert!(!locks.is_locked("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn lease_of_readers_is_renewed_until_last_release() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").shared().await.unwrap();
    let second = locks.acquire("k").shared().await.unwrap();
    drop(first);
    sleep(100 * SECOND).await;
    assert!(second.is_held());
    assert!(locks.is_locked("k").await.unwrap());
    second.release().await.unwrap();
    assert!(!locks.is_locked("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn readers_share_token_below_that_of_writer() {
    let locks = LockManager::in_memory();
    let writer = locks.acquire("k").await.unwrap().fencing_token();
    let first = locks.acquire("k").shared().await.unwrap();
    let second = locks.acquire("k").shared().await.unwrap();
    let shared = first.fencing_token();
    assert_eq!(shared, second.fencing_token());
    drop((first, second));
    let later = locks.acquire("k").await.unwrap().fencing_token();
    assert!(writer < shared && shared < later);
}

#[tokio::test(start_paused = true)]
async fn forced_release_ends_all_readers() {
    let locks = LockManager::in_memory();
    let first = locks.acquire("k").shared().await.unwrap();
    let second = locks.acquire("k").shared().await.unwrap();
    assert!(locks.force_release("k").await.unwrap());
    assert!(!first.is_held() && !second.is_held());
    let lost = [first.lost_reason(), second.lost_reason()];
    assert_eq!(lost, [Some(LostReason::Forced); 2]);
    assert!(locks.acquire("k").no_wait().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn mixed_keys_are_all_or_none() {
    let (here, there) = two_processes();
    let keys = || LockKeys::new().shared("prices").exclusive("order");
    let order = there.acquire("order").await.unwrap();
    let error = here.acquire(keys()).no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let prices = there.acquire("prices").wait(SECOND).await;
    drop((prices.unwrap(), order));
    let guard = here.acquire(keys()).await.unwrap();
    assert_eq!(guard.mode(), Mode::Exclusive);
    for (key, is_shared) in [("prices", true), ("order", false)] {
        let reader = there.acquire(key).shared().no_wait().await;
        assert_eq!(reader.is_ok(), is_shared, "{key}");
        assert!(there.acquire(key).no_wait().await.is_err(), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn inspect_counts_readers_of_all_processes() {
    let (here, there) = two_processes();
    let first = here.acquire("k").shared().await.unwrap();
    let second = here.acquire("k").shared().await.unwrap();
    let again = here
        .acquire("k")
        .shared()
        .owner(first.owner())
        .await
        .unwrap();
    let third = there.acquire("k").shared().await.unwrap();
    let mut writer = Box::pin(here.acquire("k").into_future());
    assert!(poll!(&mut writer).is_pending());
    let info = here.inspect("k").await.unwrap().unwrap();
    assert_eq!(
        (info.mode, info.holders, info.waiters),
        (Mode::Shared, 3, 1)
    );
    assert_eq!([here.snapshot().shared, there.snapshot().shared], [2, 1]);
    assert!(info.owner == first.owner().to_string() || info.owner == second.owner().to_string());
    // The owners of the other process have one lease.
    let info = there.inspect("k").await.unwrap().unwrap();
    assert_eq!(
        (info.mode, info.holders, info.waiters),
        (Mode::Shared, 2, 0)
    );
    assert_eq!(info.owner, third.owner().to_string());
    drop((first, again, second));
    let info = here.inspect("k").await.unwrap().unwrap();
    assert_eq!((info.mode, info.holders), (Mode::Shared, 1));
    drop(third);
    let writer = writer.await.unwrap();
    let info = here.inspect("k").await.unwrap().unwrap();
    assert_eq!((info.mode, info.holders), (Mode::Exclusive, 1));
    assert_eq!(info.owner, writer.owner().to_string());
}

#[tokio::test(start_paused = true)]
async fn forced_release_of_one_reader_spares_others() {
    let (here, there) = two_processes();
    let first = here.acquire("k").shared().await.unwrap();
    let second = here.acquire("k").shared().await.unwrap();
    let third = there.acquire("k").shared().await.unwrap();
    let owner = first.owner().to_string();
    assert!(here.force_release_held_by("k", &owner).await.unwrap());
    assert!(!here.force_release_held_by("k", &owner).await.unwrap());
    assert_eq!(first.lost_reason(), Some(LostReason::Forced));
    sleep(60 * SECOND).await;
    assert!(second.is_held() && third.is_held());
    assert_eq!(here.inspect("k").await.unwrap().unwrap().holders, 2);
}

#[tokio::test(start_paused = true)]
async fn backend_without_shared_locks_rejects_them() {
    let locks = broken(BackendErrorKind::Unavailable);
    let error = locks.acquire("k").shared().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
