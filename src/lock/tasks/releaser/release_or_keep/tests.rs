use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::*;
use crate::LockManager;
use crate::backend::Erased;
use crate::backend::Memory;
use crate::lock::engine::options::Options;
use crate::lock::lane::Outgoing;
use crate::lock::tests::{MS, RENEWED, SECOND, Slow, key, number};

/// The command may have entered the queue of the backend.
#[test]
fn place_of_release_in_ended_runtime_is_left() {
    let backend = Erased::new(Slow {
        release_takes: SECOND,
        ..Slow::default()
    });
    let engine = Arc::new(Engine::new(backend, Options::default(), None));
    let ends = Builder::new_multi_thread().enable_all().build();
    let ends = ends.expect("a runtime");
    let ttl = RENEWED.ttl;
    let order = ReleaseOrKeep {
        outgoing: Outgoing {
            lease: number(1),
            ttl,
        },
        ttl,
        counters: 1,
        needs_counter: false,
        has_waiters: true,
    };
    let started = Arc::clone(&engine);
    let (sent, was_sent) = oneshot::channel();
    ends.spawn(async move {
        let mut task = pin!(release_or_keep(started, vec![(key(), order)]));
        let is_sent = poll_fn(|cx| Poll::Ready(task.as_mut().poll(cx).is_pending())).await;
        let _told = sent.send(is_sent);
        task.await;
    });
    assert_eq!(was_sent.blocking_recv(), Ok(true));
    assert_eq!(engine.unconfirmed(), 0);
    drop(ends);
    assert_eq!(engine.unconfirmed(), 1);
}

#[tokio::test(start_paused = true)]
async fn lease_kept_under_own_counter_is_handed_off() {
    let backend = Slow {
        keeps: true,
        ..Slow::default()
    };
    let attempts = Arc::clone(&backend.attempts);
    let locks = LockManager::builder(backend).build().expect("defaults");
    let guard = locks.acquire("k").await.expect("free");
    let release = async {
        sleep(SECOND).await;
        drop(guard);
    };
    let (next, ()) = tokio::join!(locks.acquire("k"), release);
    assert!(next.expect("released").is_held());
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
}

/// The group ended the hand-offs of its leases.
#[tokio::test(start_paused = true)]
async fn lease_kept_without_tokens_is_released() {
    let backend = Slow {
        keeps: true,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    let group = locks.acquire(["a", "b"]).await.expect("free");
    let token = group.fencing_token();
    let release = async {
        sleep(MS).await;
        drop(group);
    };
    let (next, ()) = tokio::join!(locks.acquire("a"), release);
    assert!(next.expect("released").fencing_token() > token);
}

/// `one` releases the key to `other`, and waits behind it in one place.
async fn expect_one_place(one: &LockManager, other: &LockManager) {
    let guard = one.acquire("k").await.expect("free");
    let (mut next, mut last) = (
        pin!(other.acquire("k").into_future()),
        pin!(one.acquire("k").into_future()),
    );
    for waiter in [&mut next, &mut last] {
        assert!(timeout(100 * MS, waiter).await.is_err());
    }
    drop(guard);
    let _next = next.await.expect("the first in the queue");
    assert!(timeout(SECOND, last).await.is_err());
    let held = other.inspect("k").await.expect("in memory");
    assert_eq!(held.expect("held").queued, 1);
}

#[tokio::test(start_paused = true)]
async fn process_has_one_place_behind_others() {
    let memory = Memory::new();
    let [one, other] = [memory.clone(), memory].map(|memory| {
        let locks = LockManager::builder(memory).build();
        locks.expect("defaults")
    });
    expect_one_place(&one, &other).await;
}

/// The `release_or_keep` releases the lease, and the release that follows it finds none.
#[tokio::test(start_paused = true)]
async fn release_with_lost_reply_is_no_loss() {
    let backend = Slow {
        loses_keep: true,
        ..Slow::default()
    };
    let locks = LockManager::builder(backend).build().expect("defaults");
    let guard = locks.acquire("k").await.expect("free");
    let release = async {
        sleep(SECOND).await;
        guard.release().await
    };
    let (next, released) = tokio::join!(locks.acquire("k"), release);
    released.expect("released by the first command");
    assert!(next.expect("released").is_held());
}

/// The `release_or_keep` enters the queue, and another attempt enters it again.
#[tokio::test(start_paused = true)]
async fn place_of_lost_reply_is_left() {
    let memory = Memory::new();
    let backend = Slow {
        memory: memory.clone(),
        has_queue: true,
        loses_keep: true,
        ..Slow::default()
    };
    let one = LockManager::builder(backend).build().expect("defaults");
    let other = LockManager::builder(memory).build().expect("defaults");
    expect_one_place(&one, &other).await;
}
