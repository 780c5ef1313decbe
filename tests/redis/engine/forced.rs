//! Forced releases of the holder that an operator has seen.

use std::future::IntoFuture as _;

use tower_lock::LockGuard;
use tower_lock::backend::Mode;
use tower_lock::manager::LostReason;

use crate::support::engine::{MS, SECOND, eventually, manager, nothing_is_left, subscribers};
use crate::support::redis_server::RedisServer;

/// A holder of Redisson: the id of its client, and that of its thread.
const THREAD: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:52";

/// A process that uses Redisson has no lane here, and may hold the key more than once.
#[tokio::test]
async fn holder_of_redisson_is_compared_and_released() {
    let server = RedisServer::start();
    let locks = manager(server.url(), 6 * SECOND).await;
    server.cli(&["HSET", "lock:k", THREAD, "2"]);
    server.cli(&["PEXPIRE", "lock:k", "30000"]);
    let owner = locks.inspect("k").await.unwrap().unwrap().owner;
    assert_eq!(owner, THREAD);

    let other_thread = THREAD.replace(":52", ":5");
    let foreign = [&other_thread, "", "8743c9c0-0795-4907-87fd-6c719a6b4586"];
    for other in foreign {
        let forced = locks.force_release_held_by("k", other).await;
        assert!(!forced.unwrap(), "{other}");
        assert_eq!(server.cli(&["HGET", "lock:k", THREAD]), "2");
    }
    assert!(locks.force_release_held_by("k", &owner).await.unwrap());
    assert_eq!(server.cli(&["EXISTS", "lock:k"]), "0");
    assert!(!locks.force_release_held_by("k", &owner).await.unwrap());
    locks
        .acquire("k")
        .no_wait()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

/// The message that Redisson waits for is on the channel of the key.
#[tokio::test]
async fn waiter_is_served_after_release_of_redisson_holder() {
    let server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), 6 * SECOND).await,
        manager(server.url(), 6 * SECOND).await,
    );
    server.cli(&["HSET", "lock:k", THREAD, "1"]);
    server.cli(&["PEXPIRE", "lock:k", "60000"]);
    let waiter = tokio::spawn(there.acquire("k").wait(20 * SECOND).into_future());
    eventually("a waiter", || subscribers(&server, "k") == 1).await;
    assert!(here.force_release_held_by("k", THREAD).await.unwrap());
    waiter.await.unwrap().unwrap().release().await.unwrap();
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

/// Its body has a field `mode`, as that of a shared lock, but no deadlines.
#[tokio::test]
async fn read_write_lock_of_redisson_is_released() {
    let server = RedisServer::start();
    let locks = manager(server.url(), 6 * SECOND).await;
    server.cli(&["HSET", "lock:k", "mode", "read", THREAD, "1"]);
    server.cli(&["PEXPIRE", "lock:k", "30000"]);
    assert!(locks.force_release("k").await.unwrap());
    assert_eq!(server.cli(&["EXISTS", "lock:k"]), "0");
}

/// The store has a letter before the leases of these modes, which no caller sees.
#[tokio::test]
async fn holders_of_each_mode_are_inspected_and_released() {
    let server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), 6 * SECOND).await,
        manager(server.url(), 6 * SECOND).await,
    );
    let is_lease = |owner: &str| {
        let (manager, number) = owner.split_once(':').unwrap();
        uuid::Uuid::parse_str(manager).is_ok() && number.parse::<u64>().is_ok()
    };
    for mode in [Mode::Shared, Mode::Permit] {
        let acquire = async |locks: &tower_lock::LockManager| -> LockGuard {
            let acquire = locks.acquire("k");
            let acquire = match mode {
                Mode::Shared => acquire.shared(),
                _ => acquire.permits(5),
            };
            acquire.await.unwrap()
        };
        let guards = [
            acquire(&here).await,
            acquire(&here).await,
            acquire(&there).await,
            acquire(&there).await,
        ];
        let info = here.inspect("k").await.unwrap().unwrap();
        let leases = if mode == Mode::Shared { 3 } else { 4 };
        assert_eq!((info.mode, info.holders), (mode, leases));
        assert!(guards.iter().any(|it| it.owner().to_string() == info.owner));

        // The lease of one of them, as a third process sees it, and then all of them.
        let other = manager(server.url(), 6 * SECOND).await;
        let owner = other.inspect("k").await.unwrap().unwrap().owner;
        assert!(is_lease(&owner), "{owner}");
        assert!(other.is_locked("k").await.unwrap());
        assert!(other.force_release_held_by("k", &owner).await.unwrap());
        assert!(!other.force_release_held_by("k", &owner).await.unwrap());
        let left = other.inspect("k").await.unwrap().unwrap().holders;
        assert_eq!(left, if mode == Mode::Shared { 1 } else { 3 });
        assert!(here.force_release("k").await.unwrap());
        assert_eq!(server.cli(&["EXISTS", "lock:k"]), "0");
        for guard in &guards[..2] {
            let reason = guard.lost_reason();
            let known = [LostReason::Forced, LostReason::NotHeld].map(Some);
            assert!(known.contains(&reason), "{reason:?}");
        }
        for guard in &guards[2..] {
            guard.lost().await;
        }
        assert!(!here.is_locked("k").await.unwrap());
        assert!(!here.force_release("k").await.unwrap());
        drop(guards);
        nothing_is_left(&server, &[&here, &there, &other], SECOND, "the end").await;
    }
}

/// Leases come and go, so the one that was read may have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_permits_are_released_by_force() {
    let server = RedisServer::start();
    let locks = manager(server.url(), 6 * SECOND).await;
    let kept = locks.acquire("k").permits(50).await.unwrap();
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                loop {
                    drop(locks.acquire("k").permits(50).await);
                }
            })
        })
        .collect();
    tokio::time::sleep(50 * MS).await;
    assert!(locks.force_release("k").await.unwrap());
    assert_eq!(kept.lost_reason(), Some(LostReason::Forced));
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}
