//! Connections that lose or delay data.

use std::pin::pin;

use futures_util::future::{join, join_all};
use futures_util::poll;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::{ErrorKind, LockManager, RedisBackend};

use super::holder::{LONG, SHORT, acquired_again, nothing_is_waited_for, waiter};
use crate::support::engine::{
    MS, SECOND, eventually, fails_at_its_deadline, lost_at_its_deadline, no_subscription_is_left,
    nothing_is_left, prompt_manager, prompt_managers, pttl, scripts_called, subscribers, within,
};
use crate::support::proxy::{Proxy, Swallow};
use crate::support::redis_server::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connection_respects_local_deadlines() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (here, there) = (
        prompt_manager(proxy.url(), SHORT).await,
        prompt_manager(server.url(), SHORT).await,
    );
    let mine = here.acquire("mine").await.unwrap();
    let theirs = there.acquire("theirs").await.unwrap();
    let patient = waiter(&here, "theirs").await;
    let waiting = here.acquire("theirs");
    let waiting = tokio::spawn(async move { fails_at_its_deadline(waiting, 3 * SECOND).await });
    eventually("both acquires are queued", || here.snapshot().waiting == 2).await;
    proxy.swallow(Swallow::Both);
    let ((), new) = join(
        lost_at_its_deadline(&mine),
        fails_at_its_deadline(here.acquire("new"), SECOND),
    )
    .await;
    assert_eq!(new.kind(), ErrorKind::Unavailable);
    assert_eq!(waiting.await.unwrap().kind(), ErrorKind::Unavailable);
    // The other side of the partition waits at most until the lease expires.
    let taken = timeout(SHORT + SECOND, there.acquire("mine").into_future());
    let taken = taken.await.expect("within the lease").unwrap();
    assert!(taken.fencing_token() > mine.fencing_token());
    assert!(theirs.is_held());
    drop((theirs, taken));

    proxy.heal();
    drop(acquired_again(&here, "new").await);
    let served = timeout(10 * SECOND, patient).await.expect("served");
    drop(served.unwrap().unwrap());
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, "the end").await;
}

/// In other crates, a resent acquire counted twice and one release did not free the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_after_connection_reset_is_granted_once() {
    let server = RedisServer::start();
    // The command is lost before it arrives, or its reply is lost.
    for lost in [Swallow::Commands, Swallow::Answers] {
        let proxy = Proxy::start(server.port()).await;
        let locks = prompt_manager(proxy.url(), LONG).await;
        drop(locks.acquire("warm-up").await.unwrap());
        nothing_is_left(&server, &[&locks], SECOND, "warm").await;
        let sets = server.calls("hset");
        proxy.swallow(lost);
        let mut acquiring = pin!(locks.acquire("k").into_future());
        assert!(poll!(&mut acquiring).is_pending());
        match lost {
            Swallow::Answers => {
                eventually("the acquire was executed", || server.calls("hset") > sets).await;
            }
            _ => sleep(50 * MS).await,
        }
        proxy.heal();
        proxy.cut();
        let guard = acquiring.await.unwrap();
        assert_eq!(guard.hold_count(), 1);
        assert_eq!(server.cli(&["HVALS", "lock:k"]), "1");
        guard.release().await.unwrap();
        nothing_is_left(&server, &[&locks], SECOND, lost).await;
    }
}

/// The key of an abandoned acquire is free within a second after its connection ends, even if the
/// next connection is delayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_rejected_on_resend_leaves_no_key() {
    let server = RedisServer::start();
    for forget_scripts in [false, true] {
        let proxy = Proxy::start(server.port()).await;
        let locks = prompt_manager(proxy.url(), LONG).await;
        drop(locks.acquire("warm-up").await.unwrap());
        nothing_is_left(&server, &[&locks], SECOND, "warm").await;
        let sets = server.calls("hset");
        proxy.swallow(Swallow::Answers);
        let mut acquiring = Box::pin(locks.acquire("k").no_wait().into_future());
        assert!(poll!(&mut acquiring).is_pending());
        eventually("the acquire was executed", || server.calls("hset") > sets).await;
        if forget_scripts {
            server.cli(&["SCRIPT", "FLUSH"]);
        }
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        proxy.heal();
        proxy.cut();
        assert!(acquiring.await.unwrap_err().is_unavailable());
        within(2 * SECOND, "released", || pttl(&server, "k") == -2).await;
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_dropped_before_reset_leaves_no_key() {
    let server = RedisServer::start();
    for unreachable in [false, true] {
        for lost in [Swallow::Commands, Swallow::Answers] {
            let proxy = Proxy::start(server.port()).await;
            let locks = prompt_manager(proxy.url(), LONG).await;
            drop(locks.acquire("warm-up").await.unwrap());
            nothing_is_left(&server, &[&locks], SECOND, "warm").await;
            let sets = server.calls("hset");
            proxy.swallow(lost);
            let mut acquiring = Box::pin(locks.acquire("k").into_future());
            assert!(poll!(&mut acquiring).is_pending());
            if lost == Swallow::Answers {
                eventually("the acquire was executed", || server.calls("hset") > sets).await;
                assert!(pttl(&server, "k") > 0);
            }
            drop(acquiring);
            if unreachable {
                proxy.refuse();
                proxy.cut();
                sleep(300 * MS).await;
            }
            proxy.heal();
            proxy.cut();
            let case = (lost, unreachable);
            nothing_is_left(&server, &[&locks], SECOND, case).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_with_late_reply_is_undone() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let locks = prompt_manager(proxy.url(), LONG).await;
    drop(locks.acquire("warm-up").await.unwrap());
    nothing_is_left(&server, &[&locks], SECOND, "warm").await;
    // The round trip takes 600 ms, which exceeds the response timeout of 500 ms.
    let sets = server.calls("hset");
    proxy.delay(300 * MS);
    let error = locks.acquire("k").no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(server.calls("hset") - sets, 1, "the acquire was granted");
    within(2 * SECOND, "released", || pttl(&server, "k") == -2).await;
    // A round trip of 100 ms is within the timeout.
    proxy.delay(50 * MS);
    nothing_is_left(&server, &[&locks], 4 * SECOND, "the undo is confirmed").await;
    acquired_again(&locks, "k").await.release().await.unwrap();
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

/// Redisson #5761, #763: waiters missed unlock messages and did not wake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_after_resubscribe_is_served_promptly() {
    let server = RedisServer::start();
    let (here, there) = prompt_managers(server.url(), LONG).await;
    for _ in 0..3 {
        let guard = there.acquire("k").await.unwrap();
        let waiter = waiter(&here, "k").await;
        eventually("subscribed", || subscribers(&server, "k") == 1).await;
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        eventually("subscribed again", || subscribers(&server, "k") == 1).await;
        // The waiter attempts the lock when notified; the next attempt would follow after 900 ms.
        let start = Instant::now();
        guard.release().await.unwrap();
        drop(waiter.await.unwrap().unwrap());
        let waited = start.elapsed();
        assert!(waited < 600 * MS, "served by the backstop: {waited:?}");
        nothing_is_left(&server, &[&here, &there], SECOND, "the round").await;
    }
}

/// lettuce #31, StackExchange.Redis #517: channels were left out after a connection ended while it subscribed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_while_subscribing_omits_no_channel() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (here, there) = (
        prompt_manager(proxy.url(), LONG).await,
        prompt_manager(server.url(), LONG).await,
    );
    let keys: Vec<_> = (0..100).map(|n| format!("k:{n}")).collect();
    let guards = join_all(keys.iter().map(|key| there.acquire(&**key).into_future())).await;
    // A subscription takes 80 ms, and each cut ends some before they are confirmed.
    proxy.delay(40 * MS);
    let waits = keys.iter().map(|key| here.acquire(&**key).wait_forever());
    let waits: Vec<_> = waits.map(|wait| tokio::spawn(wait.into_future())).collect();
    eventually("queued", || here.snapshot().waiting == keys.len()).await;
    for pause in [60, 100, 130, 90] {
        sleep(pause * MS).await;
        proxy.cut();
    }
    eventually("subscribed again", || {
        keys.iter().all(|key| subscribers(&server, key) == 1)
    })
    .await;
    proxy.heal();
    drop(guards);
    for wait in join_all(waits).await {
        drop(wait.unwrap().unwrap());
    }
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, "the end").await;
}

/// Redisson #5070, #4744: a release between a failed attempt and the subscription was missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_before_subscription_is_not_missed() {
    let server = RedisServer::start();
    let slow = Proxy::start(server.port()).await;
    let there = prompt_manager(server.url(), LONG).await;
    let backend = RedisBackend::builder(server.url()).notify(slow.url());
    let here = LockManager::builder(backend.connect().await.unwrap());
    let here = here.watchdog_timeout(LONG).build().unwrap();
    slow.delay(50 * MS);
    let guard = there.acquire("k").await.unwrap();
    let tries = scripts_called(&server);
    let waiter = waiter(&here, "k").await;
    eventually("attempted", || scripts_called(&server) > tries).await;
    assert_eq!(subscribers(&server, "k"), 0, "not yet in force");
    let start = Instant::now();
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    let waited = start.elapsed();
    // The attempt that follows the subscription acquires the lock.
    assert!(waited < 800 * MS, "served by the backstop: {waited:?}");
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

/// Redisson #4064: subscriptions leaked until every acquire failed immediately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_out_waits_leave_no_subscription() {
    let server = RedisServer::start();
    let (here, there) = prompt_managers(server.url(), LONG).await;
    let keys: Vec<_> = (0..200).map(|n| format!("k:{n}")).collect();
    let guards = join_all(keys.iter().map(|key| there.acquire(&**key).into_future())).await;
    for _ in 0..3 {
        let waits = keys.iter().map(|key| here.acquire(&**key).wait(300 * MS));
        for outcome in join_all(waits.map(IntoFuture::into_future)).await {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Busy);
        }
    }
    nothing_is_waited_for(&here).await;
    no_subscription_is_left(&server).await;
    drop(guards);
    let again = keys.iter().map(|key| here.acquire(&**key).into_future());
    assert!(join_all(again).await.iter().all(Result::is_ok));
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, "the end").await;
}
