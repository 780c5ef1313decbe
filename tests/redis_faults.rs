//! Managers and guards on a Redis that dies, stands still, refuses, or is cut off; and processes
//! that do.
// Helpers of tests are tests.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

use std::future::Future;
use std::io::{BufRead as _, BufReader, Lines};
use std::pin::pin;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use futures_util::poll;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::{Error, ErrorKind, LockGuard, LockManager, RedisBackend};

use support::engine::{
    FENCE, MS, Monitor, PATIENCE, SECOND, by, eventually, fails_at_its_deadline,
    lost_at_its_deadline, manager, no_subscription_is_left, nothing_is_left, pttl, scripts_called,
    subscribers, within,
};
use support::proxy::{Proxy, Swallow};
use support::redis_server::RedisServer;

/// For locks that are to be lost.
const SHORT: Duration = Duration::from_millis(1_500);
/// For locks that are to survive, also where a server takes a while to start.
const LONG: Duration = Duration::from_secs(6);

/// When the lock is over if it is not renewed.
fn end_of(guard: &LockGuard) -> Instant {
    Instant::now() + guard.remaining()
}

/// The lock is renewed: its end moves beyond `end`.
async fn renewed_beyond(end: Instant, guard: &LockGuard) {
    within(PATIENCE, "the renewal", || {
        assert!(guard.is_held(), "lost instead");
        end_of(guard) > end + 10 * MS
    })
    .await;
}

/// Waits for a lock in a task of its own, and is in its queue.
async fn waiter(locks: &LockManager, key: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let before = locks.snapshot().waiting;
    let waiter = tokio::spawn(locks.acquire(key).wait_forever().into_future());
    eventually("it waits", || locks.snapshot().waiting > before).await;
    waiter
}

/// Nobody waits, holds or gives back; what was waited for ends a moment after its last waiter.
async fn nothing_is_waited_for(locks: &LockManager) {
    within(SECOND, "idle", || locks.snapshot().is_idle()).await;
}

/// Takes a lock once the server can be used again.
async fn acquired_again(locks: &LockManager, key: &str) -> LockGuard {
    let guard = locks.acquire(key).wait(10 * SECOND).await;
    guard.expect("the server can be used again")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_became_a_replica_is_left_by_renewals_too() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LONG).await;
    let guard = locks.acquire("k").await.unwrap();
    let before = server.clients("normal");
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    // `CLIENT LIST` begins with the number of the client.
    let number = |client: &String| client.split(' ').next().map(ToOwned::to_owned);
    let before: Vec<_> = before.iter().map(number).collect();
    within(LONG, "the connection is left", || {
        let now = server.clients("normal");
        now.iter().all(|it| !before.contains(&number(it)))
    })
    .await;
    let end = end_of(&guard);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    renewed_beyond(end, &guard).await;
    drop(guard);
}

// ---- a server that dies ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_empty_restart_guards_are_lost_at_the_next_renewal_and_tokens_grow() {
    let mut server = RedisServer::start();
    let locks = manager(server.url(), LONG).await;
    let first = locks.acquire("a").await.unwrap();
    let second = locks.acquire("b").await.unwrap();
    let end = end_of(&first);
    server.restart_empty();
    first.lost().await;
    second.lost().await;
    assert!(Instant::now() < end, "told by a renewal, not by the clock");
    assert!(!first.is_held() && !second.is_held());
    let next = acquired_again(&locks, "a").await;
    assert!(next.fencing_token() > first.fencing_token());
    assert!(next.fencing_token() > second.fencing_token());
    // What the old guard does harms nobody.
    assert!(first.release().await.unwrap_err().is_lost());
    assert!(pttl(&server, "a") > 0);
    assert!(next.is_held());
    drop((next, second));
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_survives_a_restart_with_its_data_and_so_does_a_waiter() {
    let mut server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), LONG).await,
        manager(server.url(), LONG).await,
    );
    let guard = here.acquire("k").await.unwrap();
    let waiter = waiter(&there, "k").await;
    let end = end_of(&guard);
    server.restart_with_data();
    renewed_beyond(end, &guard).await;
    assert!(!waiter.is_finished());
    // The subscription is there again, too: nobody waits for the backstop.
    eventually("subscribed again", || subscribers(&server, "k") == 1).await;
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

/// Redisson #2801, #3121: `tryLock` overran its wait while Redis was down. Redisson #6026: pub/sub
/// stayed dead after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_makes_nobody_wait_longer_and_is_found_when_it_is_back() {
    let mut server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), SHORT).await,
        manager(server.url(), SHORT).await,
    );
    let guard = here.acquire("k").await.unwrap();
    // Waits since before, and goes on waiting beyond.
    let patient = waiter(&there, "k").await;
    let early = there.acquire("k");
    let early = tokio::spawn(async move { fails_at_its_deadline(early, 3 * SECOND).await });
    server.kill();
    let ((), late) = join(
        lost_at_its_deadline(&guard),
        fails_at_its_deadline(there.acquire("other"), 800 * MS),
    )
    .await;
    for error in [late, early.await.unwrap()] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.is_unavailable() && !error.is_busy());
    }
    let start = Instant::now();
    let once = there.acquire("other").no_wait().await.unwrap_err();
    assert_eq!(once.kind(), ErrorKind::Unavailable);
    assert!(
        start.elapsed() < 3 * SECOND,
        "no answer for {:?}",
        start.elapsed()
    );
    assert!(guard.release().await.unwrap_err().is_lost());

    server.launch_again();
    let guard = acquired_again(&here, "again").await;
    let served = timeout(5 * SECOND, patient)
        .await
        .expect("a waiter of old is served");
    drop((guard, served.unwrap().unwrap()));
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_up_on_everybody_meets_no_storm() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let locks = manager(proxy.url(), SHORT).await;
    let guard = locks.acquire("k").await.unwrap();
    proxy.refuse();
    proxy.cut();
    let before = proxy.accepted();
    let start = Instant::now();
    let waits = (0..100).map(|n| locks.acquire(format!("other:{}", n % 10)).wait(3 * SECOND));
    for error in join_all(waits.map(IntoFuture::into_future)).await {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(!guard.is_held());
    // Both for commands and for messages: one every second in the end, eleven in the first three.
    let connections = proxy.accepted() - before;
    let allowed = 2 * (8 + start.elapsed().as_secs());
    assert!(
        (4..=allowed).contains(&connections),
        "{connections} in {:?}",
        start.elapsed()
    );
    proxy.heal();
    drop(acquired_again(&locks, "k").await);
    nothing_is_left(&server, &[&locks], 2 * SECOND, "the end").await;
}

// ---- a server that stands still ----

#[derive(Debug, Clone, Copy)]
enum Standstill {
    /// The process stops; what comes waits in its sockets.
    Stopped,
    /// `CLIENT PAUSE`: the process takes commands and holds them back.
    Paused,
}

impl Standstill {
    async fn during<T>(
        self,
        server: &RedisServer,
        time: Duration,
        work: impl Future<Output = T>,
    ) -> T {
        match self {
            Self::Stopped => {
                server.stop_process();
                let (done, ()) = join(work, sleep(time)).await;
                server.continue_process();
                done
            }
            Self::Paused => {
                let millis = time.as_millis().to_string();
                server.cli(&["CLIENT", "PAUSE", &millis, "ALL"]);
                let (done, ()) = join(work, sleep(time)).await;
                done
            }
        }
    }
}

/// Stands still for twice the lease.
async fn a_standstill_that_outlasts_the_lease(standstill: Standstill) {
    let server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), SHORT).await,
        manager(server.url(), SHORT).await,
    );
    let guard = here.acquire("k").await.unwrap();
    let patient = waiter(&there, "k").await;
    let late: Vec<_> = (0..50)
        .map(|n| there.acquire(format!("late:{}", n % 5)))
        .collect();
    let early = there.acquire("k");
    let before = scripts_called(&server);
    let errors = standstill
        .during(&server, 2 * SHORT, async {
            let early = fails_at_its_deadline(early, 2_500 * MS);
            let late = late
                .into_iter()
                .map(|late| fails_at_its_deadline(late, 1_200 * MS));
            let ((), (early, mut late)) =
                join(lost_at_its_deadline(&guard), join(early, join_all(late))).await;
            late.push(early);
            late
        })
        .await;
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    let served = timeout(5 * SECOND, patient)
        .await
        .expect("it is served when the server goes on");
    let served = served.unwrap().unwrap();
    assert!(served.fencing_token() > guard.fencing_token());
    assert!(guard.release().await.unwrap_err().is_lost());
    // What was on its way arrived and was undone.
    drop(served);
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, standstill).await;
    // Seven keys; before and after a few each, and per key one or two that nobody answered, undone
    // every half second and more for as long as its lease may last.
    let sent = scripts_called(&server) - before;
    assert!(sent <= 90, "{sent} commands are a storm");
    let quiet = scripts_called(&server);
    sleep(SECOND).await;
    assert_eq!(scripts_called(&server), quiet, "who still sends, and why?");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stopped_for_longer_than_the_lease_loses_the_lock_at_the_local_deadline() {
    a_standstill_that_outlasts_the_lease(Standstill::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_paused_for_longer_than_the_lease_loses_the_lock_at_the_local_deadline() {
    a_standstill_that_outlasts_the_lease(Standstill::Paused).await;
}

/// Redisson #2515, #3194: the watchdog was dead after one failed renewal.
async fn a_standstill_shorter_than_the_lease(standstill: Standstill) {
    let server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), LONG).await,
        manager(server.url(), LONG).await,
    );
    let guard = here.acquire("k").await.unwrap();
    let waiter = waiter(&there, "k").await;
    // Until the first renewal, due after two seconds, has failed.
    let end = end_of(&guard);
    standstill.during(&server, 3 * SECOND, async {}).await;
    renewed_beyond(end, &guard).await;
    // And on it goes.
    renewed_beyond(end_of(&guard), &guard).await;
    assert!(!waiter.is_finished());
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, standstill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stopped_for_less_than_the_lease_costs_nobody_the_lock() {
    a_standstill_shorter_than_the_lease(Standstill::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_paused_for_less_than_the_lease_costs_nobody_the_lock() {
    a_standstill_shorter_than_the_lease(Standstill::Paused).await;
}

// ---- a network that fails ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_noticed_by_the_local_deadline_and_by_the_waiters_own() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (here, there) = (
        manager(proxy.url(), SHORT).await,
        manager(server.url(), SHORT).await,
    );
    let mine = here.acquire("mine").await.unwrap();
    let theirs = there.acquire("theirs").await.unwrap();
    let patient = waiter(&here, "theirs").await;
    let waiting = here.acquire("theirs");
    let waiting = tokio::spawn(async move { fails_at_its_deadline(waiting, 3 * SECOND).await });
    eventually("both wait", || here.snapshot().waiting == 2).await;
    proxy.swallow(Swallow::Both);
    let ((), new) = join(
        lost_at_its_deadline(&mine),
        fails_at_its_deadline(here.acquire("new"), SECOND),
    )
    .await;
    assert_eq!(new.kind(), ErrorKind::Unavailable);
    assert_eq!(waiting.await.unwrap().kind(), ErrorKind::Unavailable);
    // The other side of the partition goes on: it waits no longer than for the lease.
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

/// Others counted a resent acquire twice, and one release did not free the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_on_a_connection_that_is_reset_is_granted_once_on_the_next() {
    let server = RedisServer::start();
    // Before it got there, and after it was done.
    for lost in [Swallow::Commands, Swallow::Answers] {
        let proxy = Proxy::start(server.port()).await;
        let locks = manager(proxy.url(), LONG).await;
        drop(locks.acquire("warm-up").await.unwrap());
        nothing_is_left(&server, &[&locks], SECOND, "warm").await;
        let sets = server.calls("hset");
        proxy.swallow(lost);
        let mut acquiring = pin!(locks.acquire("k").into_future());
        assert!(poll!(&mut acquiring).is_pending());
        match lost {
            Swallow::Answers => {
                eventually("it was done", || server.calls("hset") > sets).await;
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

/// The key of an acquire that nobody waits for any more is free within a second of the end of its
/// connection, whether the next connection comes at once or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_was_done_and_is_refused_when_sent_again_leaves_no_key() {
    let server = RedisServer::start();
    for forget_scripts in [false, true] {
        let proxy = Proxy::start(server.port()).await;
        let locks = manager(proxy.url(), LONG).await;
        drop(locks.acquire("warm-up").await.unwrap());
        nothing_is_left(&server, &[&locks], SECOND, "warm").await;
        let sets = server.calls("hset");
        proxy.swallow(Swallow::Answers);
        let mut acquiring = Box::pin(locks.acquire("k").no_wait().into_future());
        assert!(poll!(&mut acquiring).is_pending());
        eventually("it was done", || server.calls("hset") > sets).await;
        if forget_scripts {
            server.cli(&["SCRIPT", "FLUSH"]);
        }
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        proxy.heal();
        proxy.cut();
        assert!(acquiring.await.unwrap_err().is_unavailable());
        within(2 * SECOND, "given back", || pttl(&server, "k") == -2).await;
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_before_its_connection_is_reset_leaves_no_key() {
    let server = RedisServer::start();
    for unreachable in [false, true] {
        for lost in [Swallow::Commands, Swallow::Answers] {
            let proxy = Proxy::start(server.port()).await;
            let locks = manager(proxy.url(), LONG).await;
            drop(locks.acquire("warm-up").await.unwrap());
            nothing_is_left(&server, &[&locks], SECOND, "warm").await;
            let sets = server.calls("hset");
            proxy.swallow(lost);
            let mut acquiring = Box::pin(locks.acquire("k").into_future());
            assert!(poll!(&mut acquiring).is_pending());
            if lost == Swallow::Answers {
                eventually("it was done", || server.calls("hset") > sets).await;
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
async fn answers_that_take_longer_than_the_timeout_are_undone() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let locks = manager(proxy.url(), LONG).await;
    drop(locks.acquire("warm-up").await.unwrap());
    nothing_is_left(&server, &[&locks], SECOND, "warm").await;
    // The round trip takes 600 ms, the timeout is 500 ms.
    let sets = server.calls("hset");
    proxy.delay(300 * MS);
    let error = locks.acquire("k").no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(server.calls("hset") - sets, 1, "it was granted");
    within(2 * SECOND, "undone", || pttl(&server, "k") == -2).await;
    // Slow and in time is fast enough.
    proxy.delay(50 * MS);
    nothing_is_left(&server, &[&locks], 4 * SECOND, "and known to be").await;
    acquired_again(&locks, "k").await.release().await.unwrap();
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

/// Redisson #5761, #763: unlock messages were missed, and waiters slept on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_subscription_delays_nobody_once_it_is_back() {
    let server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), LONG).await,
        manager(server.url(), LONG).await,
    );
    for _ in 0..3 {
        let guard = there.acquire("k").await.unwrap();
        let waiter = waiter(&here, "k").await;
        eventually("subscribed", || subscribers(&server, "k") == 1).await;
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        eventually("subscribed again", || subscribers(&server, "k") == 1).await;
        // It tries as soon as it is told, and then would not again for 900 ms.
        let start = Instant::now();
        guard.release().await.unwrap();
        drop(waiter.await.unwrap().unwrap());
        let waited = start.elapsed();
        assert!(waited < 600 * MS, "served by the backstop: {waited:?}");
        nothing_is_left(&server, &[&here, &there], SECOND, "the round").await;
    }
}

/// Redisson #5070, #4744: a release between the failed try and the subscription went unheard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_before_the_subscription_is_in_force_is_not_missed() {
    let server = RedisServer::start();
    let slow = Proxy::start(server.port()).await;
    let there = manager(server.url(), LONG).await;
    let backend = RedisBackend::builder(server.url()).notify(slow.url());
    let here = LockManager::builder(backend.connect().await.unwrap());
    let here = here.watchdog_timeout(LONG).build().unwrap();
    slow.delay(50 * MS);
    let guard = there.acquire("k").await.unwrap();
    let tries = scripts_called(&server);
    let waiter = waiter(&here, "k").await;
    eventually("it has tried", || scripts_called(&server) > tries).await;
    assert_eq!(subscribers(&server, "k"), 0, "not yet in force");
    let start = Instant::now();
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    let waited = start.elapsed();
    // By the try that follows the subscription.
    assert!(waited < 800 * MS, "served by the backstop: {waited:?}");
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

/// Redisson #4064: subscriptions leaked, until every acquire failed at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_that_run_out_leave_no_subscription_behind() {
    let server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), LONG).await,
        manager(server.url(), LONG).await,
    );
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

// ---- a server that refuses ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_scripts_are_nobodys_business() {
    let server = RedisServer::start();
    let managers = [
        manager(server.url(), SHORT).await,
        manager(server.url(), SHORT).await,
    ];
    let held = managers[0].acquire("held").await.unwrap();
    let inside = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let locks = managers[n % 2].clone();
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                for _ in 0..25 {
                    let guard = locks.acquire("k").wait_forever().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two at a time");
                    sleep(MS).await;
                    assert!(inside.swap(false, Ordering::SeqCst));
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    let end = end_of(&held);
    // Also between a load and the call behind it.
    while !tasks.iter().all(JoinHandle::is_finished) {
        server.cli(&["SCRIPT", "FLUSH"]);
        sleep(MS).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    server.cli(&["SCRIPT", "FLUSH"]);
    renewed_beyond(end, &held).await;
    held.release().await.unwrap();
    nothing_is_left(&server, &[&managers[0], &managers[1]], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_memory_refuses_the_new_and_keeps_and_releases_the_old() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let (here, there) = (
        manager(server.url(), SHORT).await,
        manager(server.url(), SHORT).await,
    );
    let guard = here.acquire("held").await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let once = there.acquire("new").no_wait().await.unwrap_err();
    assert_eq!(once.kind(), ErrorKind::Unavailable);
    let error = fails_at_its_deadline(there.acquire("new"), 2 * SHORT).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // That was two leases.
    assert!(guard.is_held());
    let held = there.acquire("held").no_wait().await.unwrap_err();
    assert_eq!(
        held.kind(),
        ErrorKind::Busy,
        "what it is, not what it would be"
    );
    // The next one here would need a token, and gets none; the lease is given back all the same.
    let next = here.acquire("held");
    let next = tokio::spawn(async move { fails_at_its_deadline(next, SECOND).await });
    eventually("it waits", || here.snapshot().waiting == 1).await;
    guard.release().await.unwrap();
    assert_eq!(pttl(&server, "held"), -2);
    assert_eq!(next.await.unwrap().kind(), ErrorKind::Unavailable);
    nothing_is_left(&server, &[&here, &there], SECOND, "full").await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    drop(acquired_again(&there, "new").await);
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_not_a_lock_is_a_conflict_and_stays_untouched() {
    let server = RedisServer::start();
    let locks = manager(server.url(), SHORT).await;
    server.cli(&["SET", "lock:text", "precious"]);
    server.cli(&["RPUSH", "lock:list", "precious"]);
    server.cli(&["HSET", "lock:hash", "field", "precious"]);
    for name in ["text", "list", "hash"] {
        let key = format!("lock:{name}");
        let before = server.cli(&["DUMP", &key]);
        let start = Instant::now();
        let outcomes = join(
            locks.acquire(name).into_future(),
            locks.acquire(name).no_wait().into_future(),
        );
        let (waiting, once) = outcomes.await;
        assert_eq!(waiting.unwrap_err().kind(), ErrorKind::KeyConflict);
        let once = once.unwrap_err().kind();
        // The second one may have been refused because of the first.
        assert!(matches!(once, ErrorKind::KeyConflict | ErrorKind::Busy));
        assert!(start.elapsed() < 4 * SECOND, "waiting does not help");
        let forced = locks.force_release(name).await.unwrap_err();
        assert_eq!(forced.kind(), ErrorKind::KeyConflict);
        assert_eq!(server.cli(&["DUMP", &key]), before, "{name} was touched");
    }
    // Somebody overwrites a lock: it is lost in time, and what stands there is not ours.
    let guard = locks.acquire("overwritten").await.unwrap();
    server.cli(&["SET", "lock:overwritten", "precious"]);
    lost_at_its_deadline(&guard).await;
    assert!(guard.release().await.unwrap_err().is_lost());
    eventually("given up", || locks.snapshot().is_idle()).await;
    assert_eq!(server.cli(&["GET", "lock:overwritten"]), "precious");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_a_replica_now_meets_no_storm_of_connections() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let locks = manager(proxy.url(), LONG).await;
    let guard = locks.acquire("k").await.unwrap();
    // Of nobody, so that it keeps its data.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let before = proxy.accepted();
    let start = Instant::now();
    while start.elapsed() < 2 * SECOND {
        let error = locks.acquire("new").no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        sleep(MS).await;
    }
    // At once, and then after 50, 100, 200, 400, 400, … ms.
    let made = proxy.accepted() - before;
    let allowed = 6 + start.elapsed().as_millis() as u64 / 350;
    assert!((2..=allowed).contains(&made), "{made} connections");
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    drop(acquired_again(&locks, "new").await);
    assert!(guard.is_held());
    drop(guard);
    nothing_is_left(&server, &[&locks], 2 * SECOND, "the end").await;
}

/// A server with a user who may do everything, and a manager in its name.
async fn with_a_user() -> (RedisServer, LockManager) {
    let server = RedisServer::start();
    let rules = "ACL SETUSER some reset on >secret ~* &* +@all";
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let locks = manager(server.url_of("some", "secret"), SHORT).await;
    (server, locks)
}

/// A server that reads its data refuses everything until it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_data_is_waited_for() {
    let mut server = RedisServer::start();
    let url = server.url();
    let (here, there) = (manager(&url, 5 * LONG).await, manager(&url, 5 * LONG).await);
    let guard = here.acquire("held").await.unwrap();
    let fill = "for n = 1, 3000 do redis.call('set', 'filler:' .. n, n) end";
    server.cli(&["EVAL", fill, "0"]);
    server.cli(&["SAVE"]);
    server.kill();
    let launched = tokio::task::spawn_blocking(move || {
        // A millisecond for each key.
        let slowly = ["--key-load-delay", "1000"];
        let responsive = ["--loading-process-events-interval-bytes", "1024"];
        server.launch_again_with(&[slowly, responsive].concat());
        server
    });
    let client = redis::Client::open(url).unwrap();
    let loads = || {
        let connection = client.get_connection();
        let asked = connection.and_then(|mut it| redis::cmd("EXISTS").arg("k").exec(&mut it));
        asked.is_err_and(|error| error.code() == Some("LOADING"))
    };
    within(PATIENCE, "it loads", loads).await;
    let error = fails_at_its_deadline(there.acquire("other"), 500 * MS).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(loads(), "it loaded until then");
    let late = there.acquire("other").wait(PATIENCE).await;
    let late = late.expect("within its wait");
    let server = launched.await.unwrap();
    assert!(guard.is_held(), "nothing was lost");
    guard.release().await.unwrap();
    late.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "lock:held", "lock:other"]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_was_changed_is_a_misconfiguration_without_a_storm() {
    let (server, locks) = with_a_user().await;
    let other = manager(server.url(), LONG).await;
    let guard = locks.acquire("k").await.unwrap();
    let _theirs = other.acquire("theirs").await.unwrap();
    let waiter = waiter(&locks, "theirs").await;
    server.cli(&["ACL", "SETUSER", "some", "resetpass", ">changed"]);
    let log_ins = || server.calls("hello") + server.calls("auth");
    let before = log_ins();
    server.cli(&["CLIENT", "KILL", "USER", "some"]);
    // Everybody is told what it is, long before the wait is over.
    let start = Instant::now();
    let told = timeout(5 * SECOND, waiter).await.expect("told early");
    assert_eq!(told.unwrap().unwrap_err().kind(), ErrorKind::Misconfigured);
    while start.elapsed() < 3 * SECOND {
        let error = locks.acquire("new").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        sleep(MS).await;
    }
    assert!(!guard.is_held());
    let attempts = log_ins() - before;
    let allowed = 2 * (10 + start.elapsed().as_secs());
    assert!((2..=allowed).contains(&attempts), "{attempts} log-ins");
    server.cli(&["ACL", "SETUSER", "some", ">secret"]);
    let deadline = Instant::now() + PATIENCE;
    while locks.acquire("new").await.is_err() {
        assert!(Instant::now() < deadline, "not found again");
        sleep(10 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permission_that_was_withdrawn_is_a_misconfiguration_without_a_storm() {
    for rule in ["-evalsha", "-hset", "-@all"] {
        let (server, locks) = with_a_user().await;
        let guard = locks.acquire("k").await.unwrap();
        server.cli(&["ACL", "SETUSER", "some", rule]);
        let before = scripts_called(&server);
        let waits = (0..100).map(|_| locks.acquire("new").into_future());
        let start = Instant::now();
        for outcome in join_all(waits).await {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Misconfigured);
        }
        assert!(start.elapsed() < 4 * SECOND, "waiting does not help");
        let sent = scripts_called(&server) - before;
        // Those who came after the first answer asked for themselves, once.
        assert!(sent <= 100, "{sent} commands: somebody tried again");
        if rule == "-hset" {
            // What needs no new lock goes on.
            renewed_beyond(end_of(&guard), &guard).await;
            guard.release().await.unwrap();
        } else {
            lost_at_its_deadline(&guard).await;
            let sent = scripts_called(&server) - before;
            assert!(sent <= 60, "{sent} renewals");
        }
    }
}

// ---- this process, and another ----

const LEASE_OF_THE_OTHER: Duration = SHORT;

/// The other process of the tests below: this very program, started again with a URL. Without one
/// there is nothing to do.
#[test]
fn the_other_process() {
    let Ok(url) = std::env::var("URL_FOR_THE_OTHER_PROCESS") else {
        return;
    };
    let runtime = runtime();
    let guard = runtime.block_on(async {
        let locks = manager(url, LEASE_OF_THE_OTHER).await;
        locks.acquire("k").await.unwrap()
    });
    eprintln!("other: holds");
    loop {
        let before = Instant::now();
        std::thread::sleep(5 * MS);
        let held = guard.is_held();
        let slept = before.elapsed();
        if slept > LEASE_OF_THE_OTHER {
            // The first check after a stop: no task has told anybody anything, or it has.
            eprintln!("other: woke, held: {held}");
            break;
        }
        assert!(held, "lost without a reason");
    }
    let told = runtime.block_on(async { timeout(50 * MS, guard.lost()).await.is_ok() });
    eprintln!("other: told: {told}");
    let outcome = runtime.block_on(guard.release());
    eprintln!("other: lost: {}", outcome.unwrap_err().is_lost());
    // Stays until it is killed.
    std::thread::sleep(PATIENCE);
}

struct OtherProcess {
    child: Child,
    said: Lines<BufReader<ChildStderr>>,
}

impl OtherProcess {
    fn start(server: &RedisServer) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--nocapture"])
            .env("URL_FOR_THE_OTHER_PROCESS", server.url())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut other = Self { child, said };
        assert_eq!(other.says(), "holds");
        other
    }

    /// The next thing it says.
    fn says(&mut self) -> String {
        loop {
            let line = self.said.next().expect("it is alive").unwrap();
            if let Some(said) = line.strip_prefix("other: ") {
                return said.to_owned();
            }
        }
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// etcd #11456: what was true before a stop was not looked at again after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_stopped_for_longer_than_its_lease_knows_at_its_first_look() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LONG).await;
    let monitor = Monitor::start(&server);
    let mut other = OtherProcess::start(&server);
    let millis = format!("\"{}\"", LEASE_OF_THE_OTHER.as_millis());
    // One key with its lease and a time.
    let is_renewal = |line: &String| {
        line.contains("\"EVALSHA\"")
            && line.contains(" \"1\" \"lock:k\" ")
            && line.ends_with(&millis)
    };
    let renewals = |lines: &[String]| lines.iter().filter(|line| is_renewal(line)).count();
    // Right after a renewal, so that none is between its decision and its wire.
    eventually("it renews", || renewals(&monitor.lines()) > 0).await;
    sleep(50 * MS).await;
    other.signal("-STOP");
    let guard = locks.acquire("k").wait(LEASE_OF_THE_OTHER + SECOND).await;
    let guard = guard.expect("its lease ran out");
    sleep(LEASE_OF_THE_OTHER).await;
    let before = renewals(&monitor.lines_until_now(&server).await);
    other.signal("-CONT");
    assert_eq!(other.says(), "woke, held: false");
    assert_eq!(other.says(), "told: true");
    assert_eq!(other.says(), "lost: true");
    sleep(LEASE_OF_THE_OTHER).await;
    let after = renewals(&monitor.lines_until_now(&server).await);
    assert_eq!(after, before, "a renewal for a lease that is over");
    assert!(guard.is_held(), "and it did no harm");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_killed_process_is_free_within_its_lease_and_a_second() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LONG).await;
    let mut other = OtherProcess::start(&server);
    let waiter = waiter(&locks, "k").await;
    // It is renewed for as long as its holder lives.
    sleep(2 * LEASE_OF_THE_OTHER).await;
    assert!(!waiter.is_finished());
    other.child.kill().unwrap();
    let limit = Instant::now() + LEASE_OF_THE_OTHER + SECOND;
    let guard = by(limit, "the key of a killed process", waiter).await;
    guard.unwrap().unwrap().release().await.unwrap();
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
    no_subscription_is_left(&server).await;
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn a_runtime_that_shuts_down_leaves_its_locks_to_their_leases() {
    let server = RedisServer::start();
    let first = runtime();
    let locks = first.block_on(manager(server.url(), SHORT));
    let (guard, queued) = first.block_on(async {
        let guard = locks.acquire("k").await.unwrap();
        // In every state at which it can meet its end.
        drop(waiter(&locks, "k").await);
        drop(tokio::spawn(locks.acquire("other").into_future()));
        let mut queued = Box::pin(locks.acquire("k").into_future());
        assert!(poll!(&mut queued).is_pending());
        (guard, queued)
    });
    let start = Instant::now();
    drop(first);
    drop(queued);
    assert!(start.elapsed() < 5 * SECOND, "it blocks");
    assert!(guard.is_held(), "the lease is as good as before");
    drop(guard);
    // Nobody could send the release: the lease runs out. The same manager goes on elsewhere.
    let second = runtime();
    second.block_on(async {
        let guard = locks.acquire("k").wait(SHORT + SECOND).await.unwrap();
        renewed_beyond(end_of(&guard), &guard).await;
        guard.release().await.unwrap();
        nothing_is_left(&server, &[&locks], SHORT + SECOND, "the end").await;
    });
}

#[test]
fn a_runtime_that_shuts_down_while_a_connection_is_wanted_does_not_hang() {
    let mut server = RedisServer::start();
    let runtime = runtime();
    let locks = runtime.block_on(manager(server.url(), SHORT));
    server.kill();
    let (inside, is_inside) = std::sync::mpsc::channel();
    drop(runtime.spawn(async move {
        // One poll: it begins before the end of the runtime and goes on after it.
        inside.send(()).unwrap();
        std::thread::sleep(300 * MS);
        drop(locks.acquire("k").no_wait().await);
    }));
    is_inside.recv().unwrap();
    let (gone, is_gone) = std::sync::mpsc::channel();
    drop(std::thread::spawn(move || {
        drop(runtime);
        gone.send(()).unwrap();
    }));
    is_gone.recv_timeout(PATIENCE).expect("dropping it blocks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_wakes_the_waiting_renews_the_holding_and_flushes_the_releases() {
    let server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), SHORT).await,
        manager(server.url(), SHORT).await,
    );
    let guard = here.acquire("k").await.unwrap();
    let theirs = there.acquire("theirs").await.unwrap();
    let waiters = [waiter(&here, "k").await, waiter(&here, "theirs").await];
    let shutdown = tokio::spawn({
        let here = here.clone();
        async move { here.shutdown(PATIENCE).await }
    });
    for waiter in waiters {
        let woken = timeout(SECOND, waiter).await.expect("woken at once");
        assert!(woken.unwrap().unwrap_err().is_shutting_down());
    }
    let new = here.acquire("new").await.unwrap_err();
    assert!(new.is_shutting_down());
    // Through more than one lease.
    renewed_beyond(end_of(&guard) + SHORT, &guard).await;
    assert!(!shutdown.is_finished());
    drop(guard);
    let left = timeout(SECOND, shutdown).await.expect("nothing is left");
    assert!(left.unwrap().is_idle());
    assert_eq!(pttl(&server, "k"), -2, "flushed");
    drop(theirs);
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
    // What is left is told.
    let guard = there.acquire("k").await.unwrap();
    let left = there.shutdown(50 * MS).await;
    assert_eq!((left.held, left.lanes, left.waiting), (1, 1, 0));
    drop(guard);
    no_subscription_is_left(&server).await;
    drop((here, there));
    eventually("no connection is left", || {
        server.clients("normal").is_empty()
    })
    .await;
}

// ---- dropped futures ----

/// How far a future goes before it is dropped.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// So many polls, each when it was woken.
    Polls(usize),
    Time(Duration),
}

/// True if the future was ready by then.
async fn dropped_at(until: Until, future: impl Future) -> bool {
    let mut future = pin!(future);
    match until {
        // Timers count in milliseconds, and most of this is over in one.
        Until::Time(time) => {
            let end = Instant::now() + time;
            loop {
                if poll!(&mut future).is_ready() {
                    return true;
                }
                if Instant::now() >= end {
                    return false;
                }
                tokio::task::yield_now().await;
            }
        }
        Until::Polls(polls) => {
            let mut left = polls;
            std::future::poll_fn(|context| {
                if left == 0 {
                    return std::task::Poll::Ready(false);
                }
                left -= 1;
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(_) => std::task::Poll::Ready(true),
                    // Once more at the next wake; at the last poll there is nothing to wait for.
                    std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(false),
                    std::task::Poll::Pending => std::task::Poll::Pending,
                }
            })
            .await
        }
    }
}

struct World {
    here: LockManager,
    there: LockManager,
}

/// Runs the scenario for every number of polls until it is ready by itself, and for many moments
/// in between. Afterwards, long before a lease ends, nothing is left of it.
macro_rules! dropped_everywhere {
    ($name:ident, $moments:literal, |$world:ident, $until:ident| $scenario:block) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let server = RedisServer::start();
            let $world = World {
                here: manager(server.url(), LONG).await,
                there: manager(server.url(), LONG).await,
            };
            let mut polls = 0;
            let mut micros = 0;
            let mut midway = 0;
            let mut ready_by_polls = false;
            while !ready_by_polls || micros < $moments {
                let $until = if ready_by_polls {
                    micros += 1 + micros / 4;
                    Until::Time(Duration::from_micros(micros))
                } else {
                    polls += 1;
                    Until::Polls(polls - 1)
                };
                let ready: bool = $scenario;
                if let Until::Polls(_) = $until {
                    ready_by_polls = ready;
                }
                midway += usize::from(!ready && !matches!($until, Until::Polls(0)));
                let managers = [&$world.here, &$world.there];
                nothing_is_left(&server, &managers, 2 * SECOND, $until).await;
            }
            assert!(midway > 0, "the scenario never waits");
            no_subscription_is_left(&server).await;
            assert_eq!(server.cli(&["KEYS", "*"]), FENCE);
        }
    };
}

dropped_everywhere!(
    an_acquire_of_a_free_key_may_be_dropped_anywhere,
    5_000,
    |world, until| { dropped_at(until, world.here.acquire("a").into_future()).await }
);

dropped_everywhere!(
    an_acquire_of_a_busy_key_may_be_dropped_anywhere,
    80_000,
    |world, until| {
        let _guard = world.there.acquire("a").await.unwrap();
        dropped_at(until, world.here.acquire("a").wait(50 * MS).into_future()).await
    }
);

dropped_everywhere!(
    an_acquire_of_a_key_given_back_elsewhere_may_be_dropped_anywhere,
    80_000,
    |world, until| {
        let guard = world.there.acquire("a").await.unwrap();
        let release = async {
            sleep(5 * MS).await;
            guard.release().await.unwrap();
        };
        join(
            dropped_at(until, world.here.acquire("a").into_future()),
            release,
        )
        .await
        .0
    }
);

dropped_everywhere!(
    an_acquire_of_a_key_handed_over_here_may_be_dropped_anywhere,
    20_000,
    |world, until| {
        let guard = world.here.acquire("a").await.unwrap();
        let release = async {
            sleep(2 * MS).await;
            guard.release().await.unwrap();
        };
        join(
            dropped_at(until, world.here.acquire("a").into_future()),
            release,
        )
        .await
        .0
    }
);

dropped_everywhere!(
    an_acquire_of_several_keys_may_be_dropped_anywhere,
    80_000,
    |world, until| {
        let guard = world.there.acquire("b").await.unwrap();
        let release = async {
            sleep(5 * MS).await;
            guard.release().await.unwrap();
        };
        let several = world.here.acquire(["a", "b", "c"]);
        join(dropped_at(until, several.into_future()), release)
            .await
            .0
    }
);

/// redis-py #3847: a cancelled release forgot the token, and the lock stayed.
mod a_release {
    use super::*;

    dropped_everywhere!(may_be_dropped_anywhere, 5_000, |world, until| {
        let guard = world.here.acquire("a").await.unwrap();
        dropped_at(until, guard.release()).await
    });

    dropped_everywhere!(
        of_several_keys_may_be_dropped_anywhere,
        5_000,
        |world, until| {
            let guard = world.here.acquire(["a", "b", "c"]).await.unwrap();
            dropped_at(until, guard.release()).await
        }
    );
}

dropped_everywhere!(
    work_under_a_lock_may_be_dropped_anywhere,
    20_000,
    |world, until| {
        let work = world.here.acquire("a").run(|_held| sleep(5 * MS));
        dropped_at(until, work).await
    }
);
