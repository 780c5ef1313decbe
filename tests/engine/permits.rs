//! Permits in memory: at most so many owners of a key at a time, in one process and in several.

use futures_util::poll;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tower_lock::backend::{Capabilities, Mode};
use tower_lock::manager::LostReason;
use tower_lock::{ErrorKind, LockKey, LockKeys, LockManager, Memory};

use crate::support::engine::{MS, SECOND, fails_at_its_deadline, manager_on};
use crate::support::simulated::{Command, Simulated};

/// Returns two managers of one store, as in two processes.
fn two_processes() -> (LockManager, LockManager) {
    let store = Memory::new();
    let manager = || LockManager::builder(store.clone()).build().unwrap();
    (manager(), manager())
}

#[tokio::test(start_paused = true)]
async fn permits_above_limit_are_full_in_all_processes() {
    let (here, there) = two_processes();
    let first = here.acquire("k").permits(2).no_wait().await.unwrap();
    let second = there.acquire("k").permits(2).no_wait().await.unwrap();
    assert_eq!((first.mode(), first.key().as_str()), (Mode::Permit, "k"));
    for locks in [&here, &there] {
        let error = locks.acquire("k").permits(2).no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermitsExhausted);
        assert!(error.is_busy());
        let error = locks.acquire("k").no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
    }
    // The limit is that of the acquire.
    let third = here.acquire("k").permits(3).no_wait().await.unwrap();
    drop((first, third));
    let again = there.acquire("k").permits(2).no_wait().await.unwrap();
    drop((second, again));
    assert!(here.acquire("k").no_wait().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn waiters_get_permits_in_order() {
    let (here, there) = two_processes();
    let held = here.acquire("k").permits(1).await.unwrap();
    let mut waiters = Vec::new();
    for locks in [&here, &there, &here, &there] {
        let mut waiter = Box::pin(locks.acquire("k").permits(1).into_future());
        assert!(poll!(&mut waiter).is_pending());
        waiters.push(waiter);
        sleep(10 * MS).await;
    }
    let mut held = Some(held);
    while !waiters.is_empty() {
        drop(held.take());
        let first = waiters.remove(0);
        held = Some(timeout(10 * MS, first).await.unwrap().unwrap());
        for waiter in &mut waiters {
            assert!(poll!(waiter).is_pending());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn exclusive_acquire_waits_for_every_permit() {
    let (here, there) = two_processes();
    let first = here.acquire("k").permits(9).await.unwrap();
    let second = here.acquire("k").permits(9).await.unwrap();
    let mut writer = Box::pin(there.acquire("k").into_future());
    assert!(poll!(&mut writer).is_pending());
    sleep(10 * MS).await;
    // A permit waits behind it.
    let mut later = Box::pin(here.acquire("k").permits(9).into_future());
    assert!(poll!(&mut later).is_pending());
    drop(first);
    sleep(10 * MS).await;
    assert!(poll!(&mut writer).is_pending() && poll!(&mut later).is_pending());
    drop(second);
    let writer = timeout(10 * MS, writer).await.unwrap().unwrap();
    assert!(poll!(&mut later).is_pending());
    drop(writer);
    assert!(timeout(10 * MS, later).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn owner_reenters_its_permit() {
    let (here, there) = two_processes();
    let outer = here.acquire("k").permits(1).await.unwrap();
    let waiter = tokio::spawn(there.acquire("k").permits(1).into_future());
    sleep(10 * MS).await;
    let inner = here.acquire("k").permits(1).owner(outer.owner()).no_wait();
    let inner = inner.await.unwrap();
    assert_eq!((inner.hold_count(), inner.mode()), (2, Mode::Permit));
    drop(outer);
    sleep(10 * MS).await;
    assert!(!waiter.is_finished());
    drop(inner);
    assert!(timeout(10 * MS, waiter).await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn owner_reenters_its_permit_before_writer() {
    let (here, there) = two_processes();
    for locks in [&here, &there] {
        let outer = here.acquire("k").permits(2).await.unwrap();
        let mut writer = Box::pin(locks.acquire("k").into_future());
        assert!(poll!(&mut writer).is_pending());
        sleep(10 * MS).await;
        let inner = here.acquire("k").permits(2).owner(outer.owner()).no_wait();
        let inner = inner.await.unwrap();
        assert_eq!((inner.hold_count(), inner.mode()), (2, Mode::Permit));
        drop(outer);
        sleep(10 * MS).await;
        assert!(poll!(&mut writer).is_pending());
        drop(inner);
        assert!(timeout(10 * MS, writer).await.unwrap().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn owner_in_other_mode_does_not_wait_for_itself() {
    let locks = LockManager::in_memory();
    let writer = locks.acquire("w").await.unwrap();
    let nested = locks.acquire("w").permits(3).owner(writer.owner());
    assert_eq!(nested.await.unwrap().mode(), Mode::Exclusive);
    let permit = locks.acquire("p").permits(3).await.unwrap();
    let upgrade = locks.acquire("p").owner(permit.owner()).await.unwrap_err();
    assert_eq!(upgrade.kind(), ErrorKind::Upgrade);
    let shared = locks.acquire("p").shared().owner(permit.owner()).await;
    assert_eq!(shared.unwrap_err().kind(), ErrorKind::KeyConflict);
    let reader = locks.acquire("s").shared().await.unwrap();
    let permit = locks.acquire("s").permits(3).owner(reader.owner()).await;
    assert_eq!(permit.unwrap_err().kind(), ErrorKind::KeyConflict);
}

#[tokio::test(start_paused = true)]
async fn limit_out_of_bounds_is_invalid_option() {
    let locks = LockManager::in_memory();
    for limit in [0, 10_001, u32::MAX] {
        let error = locks.acquire("k").permits(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{limit}");
    }
    assert!(locks.acquire("k").permits(10_000).await.is_ok());
    let permit = locks.acquire("k").shared().permits(1).await.unwrap();
    assert_eq!(permit.mode(), Mode::Permit);
}

#[tokio::test(start_paused = true)]
async fn permits_of_several_keys_are_all_or_none() {
    let locks = LockManager::in_memory();
    let busy = locks.acquire("b").permits(1).await.unwrap();
    let error = locks
        .acquire(["a", "b"])
        .permits(1)
        .no_wait()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermitsExhausted);
    drop(busy);
    let both = locks
        .acquire(LockKeys::from(["a", "b"]))
        .permits(1)
        .await
        .unwrap();
    assert!(both.keys().map(LockKey::as_str).eq(["a", "b"]));
    assert_eq!(both.mode(), Mode::Permit);
}

#[tokio::test(start_paused = true)]
async fn dropped_waiter_leaves_queue() {
    let (here, there) = two_processes();
    let held = here.acquire("k").permits(1).await.unwrap();
    let mut first = Box::pin(there.acquire("k").permits(1).into_future());
    assert!(poll!(&mut first).is_pending());
    sleep(10 * MS).await;
    let second = tokio::spawn(here.acquire("k").permits(1).into_future());
    sleep(10 * MS).await;
    drop(first);
    sleep(10 * MS).await;
    drop(held);
    assert!(timeout(10 * MS, second).await.unwrap().unwrap().is_ok());
    sleep(SECOND).await;
    assert!(here.snapshot().is_idle() && there.snapshot().is_idle());
}

/// Each of them receives its own message of the transfer.
#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_are_served_at_once() {
    let (here, there) = two_processes();
    let writer = there.acquire("k").await.unwrap();
    let waiters: Vec<_> = (0..9)
        .map(|_| tokio::spawn(here.acquire("k").permits(8).into_future()))
        .collect();
    sleep(100 * MS).await;
    drop(writer);
    sleep(10 * MS).await;
    let served = waiters.iter().filter(|it| it.is_finished()).count();
    assert_eq!(served, 8);
}

/// A lock of the same process waits beside them.
#[tokio::test(start_paused = true)]
async fn transfers_of_permits_displace_none_of_lock() {
    let (here, there) = two_processes();
    let held = there.acquire("k").permits(1).await.unwrap();
    let lock = tokio::spawn(here.acquire("k").into_future());
    sleep(10 * MS).await;
    let permit = tokio::spawn(here.acquire("k").permits(1).into_future());
    sleep(10 * MS).await;
    drop(held);
    let lock = timeout(10 * MS, lock).await.unwrap().unwrap().unwrap();
    drop(lock);
    assert!(timeout(10 * MS, permit).await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn inspect_counts_permits_of_all_processes() {
    let (here, there) = two_processes();
    let first = here.acquire("k").permits(3).await.unwrap();
    let second = here.acquire("k").permits(3).await.unwrap();
    let again = here.acquire("k").permits(3).owner(first.owner());
    let again = again.await.unwrap();
    let third = there.acquire("k").permits(3).await.unwrap();
    let mut permit = Box::pin(here.acquire("k").permits(3).into_future());
    let mut writer = Box::pin(here.acquire("k").into_future());
    assert!(poll!(&mut permit).is_pending() && poll!(&mut writer).is_pending());
    sleep(10 * MS).await;
    let info = here.inspect("k").await.unwrap().unwrap();
    let seen = (info.mode, info.holders, info.waiters, info.queued);
    assert_eq!(seen, (Mode::Permit, 3, 2, 2));
    assert_eq!([here.snapshot().permits, there.snapshot().permits], [2, 1]);
    let owners = [&first, &second].map(|guard| (guard.owner().to_string(), guard.hold_count()));
    assert!(owners.contains(&(info.owner, u32::try_from(info.hold_count).unwrap())));
    let info = there.inspect("k").await.unwrap().unwrap();
    assert_eq!(
        (info.mode, info.holders, info.waiters),
        (Mode::Permit, 3, 0)
    );
    assert_eq!(info.owner, third.owner().to_string());
    drop((permit, writer));
    drop((first, again, second, third));
    sleep(SECOND).await;
    assert!(here.inspect("k").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn forced_release_ends_all_permits() {
    let (here, there) = two_processes();
    let renewed = here.acquire("k").permits(4).await.unwrap();
    let fixed = here.acquire("k").permits(4).lease(60 * SECOND);
    let fixed = fixed.await.unwrap();
    let other_key = here.acquire("l").permits(4).await.unwrap();
    let remote = there.acquire("k").permits(4).await.unwrap();
    let waiter = tokio::spawn(there.acquire("k").into_future());
    sleep(10 * MS).await;
    assert!(here.is_locked("k").await.unwrap());
    assert!(here.force_release("k").await.unwrap());
    for guard in [&renewed, &fixed] {
        assert_eq!(guard.lost_reason(), Some(LostReason::Forced));
    }
    let writer = timeout(10 * MS, waiter).await.unwrap().unwrap().unwrap();
    // The other process learns of it by a renewal.
    timeout(15 * SECOND, remote.lost()).await.unwrap();
    assert_eq!(remote.lost_reason(), Some(LostReason::NotHeld));
    assert!(writer.is_held() && other_key.is_held());
    drop((renewed, fixed, remote, writer, other_key));
    sleep(SECOND).await;
    assert!(here.snapshot().is_idle() && there.snapshot().is_idle());
    assert!(!here.is_locked("k").await.unwrap());
    assert!(!here.force_release("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn forced_release_of_one_permit_spares_others() {
    let (here, there) = two_processes();
    let first = here.acquire("k").permits(3).await.unwrap();
    let second = here.acquire("k").permits(3).await.unwrap();
    let third = there.acquire("k").permits(3).await.unwrap();
    let owner = first.owner().to_string();
    assert!(here.force_release_held_by("k", &owner).await.unwrap());
    assert!(!here.force_release_held_by("k", &owner).await.unwrap());
    assert_eq!(first.lost_reason(), Some(LostReason::Forced));
    drop(second);
    sleep(SECOND).await;
    // The owner in the other process is a lease in the backend.
    let info = here.inspect("k").await.unwrap().unwrap();
    assert_eq!((info.mode, info.holders), (Mode::Permit, 1));
    assert!(third.is_held());
    assert!(here.force_release_held_by("k", &info.owner).await.unwrap());
    timeout(15 * SECOND, third.lost()).await.unwrap();
}

/// Each place slows down the commands of all processes.
#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_have_few_places() {
    let (here, there) = two_processes();
    let held = there.acquire("k").permits(1).await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..9 {
        let acquire = here.acquire("k").permits(1).wait(10 * SECOND);
        waiters.push(tokio::spawn(acquire.into_future()));
        sleep(10 * MS).await;
    }
    let queued = async || there.inspect("k").await.unwrap().unwrap().queued;
    sleep(10 * MS).await;
    assert_eq!(queued().await, 4);
    // The others do not depend on the progress of the first ones for longer.
    sleep(2 * SECOND).await;
    assert_eq!(queued().await, 9);
    drop(held);
    for waiter in waiters {
        assert!(timeout(10 * MS, waiter).await.unwrap().unwrap().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_in_line_are_full_at_deadline() {
    let (here, there) = two_processes();
    let _held = there.acquire("k").permits(1).await.unwrap();
    let mut waiters = Vec::new();
    for wait in [
        SECOND,
        SECOND,
        SECOND,
        SECOND,
        3 * SECOND,
        10 * MS,
        500 * MS,
    ] {
        let acquire = here.acquire("k").permits(1).wait(wait);
        waiters.push((wait, tokio::spawn(fails_at_its_deadline(acquire, wait))));
        sleep(MS).await;
    }
    for (wait, waiter) in waiters {
        let error = waiter.await.unwrap();
        assert_eq!(error.kind(), ErrorKind::PermitsExhausted, "{wait:?}");
        assert!(error.retry_after().is_some_and(|after| !after.is_zero()));
    }
    sleep(SECOND).await;
    assert!(here.snapshot().is_idle());
}

#[tokio::test(start_paused = true)]
async fn waiter_behind_others_makes_no_first_attempt() {
    let mut wire = Simulated::new(MS);
    wire.modes = Capabilities::EXCLUSIVE.with_permits();
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let _held = there.acquire("k").permits(1).await.unwrap();
    let mut sent = Vec::new();
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(tokio::spawn(here.acquire("k").permits(1).into_future()));
        sleep(50 * MS).await;
        sent.push(wire.sent(Command::Acquire));
    }
    assert_eq!(sent, [2, 3, 4]);
    // A single attempt is made.
    let error = here.acquire("k").permits(1).no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermitsExhausted);
    assert_eq!(wire.sent(Command::Acquire), 5);
}

#[tokio::test(start_paused = true)]
async fn waiters_in_line_are_served_in_order() {
    let (here, there) = two_processes();
    let mut held = Some(there.acquire("k").permits(1).await.unwrap());
    let (served, mut order) = mpsc::unbounded_channel();
    for waiter in 0..20 {
        let (acquire, served) = (here.acquire("k").permits(1).wait_forever(), served.clone());
        tokio::spawn(async move {
            let guard = acquire.await.unwrap();
            served.send((waiter, guard)).unwrap();
        });
        sleep(MS).await;
    }
    for expected in 0..20 {
        drop(held.take());
        let (waiter, guard) = timeout(10 * MS, order.recv()).await.unwrap().unwrap();
        assert_eq!(waiter, expected);
        held = Some(guard);
    }
}
