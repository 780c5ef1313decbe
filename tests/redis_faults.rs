//! Faults of the server, of the network and of the process that holds a lock.
// Test helpers follow the rules for tests.
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

/// The lease of locks that a test loses.
const SHORT: Duration = Duration::from_millis(1_500);
/// The lease of locks that must survive, including a slow start of the server.
const LONG: Duration = Duration::from_secs(6);

/// Returns when the lease expires unless it is renewed.
fn end_of(guard: &LockGuard) -> Instant {
    Instant::now() + guard.remaining()
}

/// Completes when a renewal moves the end of the lease beyond `end`.
async fn renewed_beyond(end: Instant, guard: &LockGuard) {
    within(PATIENCE, "the renewal", || {
        assert!(guard.is_held(), "lost instead");
        end_of(guard) > end + 10 * MS
    })
    .await;
}

/// Spawns an acquire and completes when it is queued.
async fn waiter(locks: &LockManager, key: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let before = locks.snapshot().waiting;
    let waiter = tokio::spawn(locks.acquire(key).wait_forever().into_future());
    eventually("queued", || locks.snapshot().waiting > before).await;
    waiter
}

/// Completes when the manager has no waiters, holders or pending releases.
async fn nothing_is_waited_for(locks: &LockManager) {
    within(SECOND, "idle", || locks.snapshot().is_idle()).await;
}

/// Acquires a lock as soon as the server is available again.
async fn acquired_again(locks: &LockManager, key: &str) -> LockGuard {
    let guard = locks.acquire(key).wait(10 * SECOND).await;
    guard.expect("the server is available again")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_on_demoted_server_reconnects() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LONG).await;
    let guard = locks.acquire("k").await.unwrap();
    let before = server.clients("normal");
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    // Each line of `CLIENT LIST` begins with the client ID.
    let number = |client: &String| client.split(' ').next().map(ToOwned::to_owned);
    let before: Vec<_> = before.iter().map(number).collect();
    within(LONG, "the connection is closed", || {
        let now = server.clients("normal");
        now.iter().all(|it| !before.contains(&number(it)))
    })
    .await;
    let end = end_of(&guard);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    renewed_beyond(end, &guard).await;
    drop(guard);
}

// ---- server restarts ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_after_empty_restart_is_lost_at_renewal() {
    let mut server = RedisServer::start();
    let locks = manager(server.url(), LONG).await;
    let first = locks.acquire("a").await.unwrap();
    let second = locks.acquire("b").await.unwrap();
    let end = end_of(&first);
    server.restart_empty();
    first.lost().await;
    second.lost().await;
    assert!(Instant::now() < end, "lost only at the deadline");
    assert!(!first.is_held() && !second.is_held());
    let next = acquired_again(&locks, "a").await;
    assert!(next.fencing_token() > first.fencing_token());
    assert!(next.fencing_token() > second.fencing_token());
    // A release by the stale holder does not affect the new lease.
    assert!(first.release().await.unwrap_err().is_lost());
    assert!(pttl(&server, "a") > 0);
    assert!(next.is_held());
    drop((next, second));
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_and_waiter_survive_restart_with_data() {
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
    // The restored subscription serves the waiter before its backstop.
    eventually("subscribed again", || subscribers(&server, "k") == 1).await;
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

/// Redisson #2801, #3121: `tryLock` exceeded its wait while Redis was down. Redisson #6026: pub/sub
/// was not restored after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_while_server_down_ends_at_deadline() {
    let mut server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), SHORT).await,
        manager(server.url(), SHORT).await,
    );
    let guard = here.acquire("k").await.unwrap();
    // This waiter is queued before the outage and stays queued until after it.
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
        "no result for {:?}",
        start.elapsed()
    );
    assert!(guard.release().await.unwrap_err().is_lost());

    server.launch_again();
    let guard = acquired_again(&here, "again").await;
    let served = timeout(5 * SECOND, patient)
        .await
        .expect("the waiter is served after the outage");
    drop((guard, served.unwrap().unwrap()));
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_connections_are_reopened_with_backoff() {
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
    // Commands and notifications each back off to one connection per second.
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

// ---- server hangs ----

#[derive(Debug, Clone, Copy)]
enum Standstill {
    /// `SIGSTOP`: the process stops, and commands stay in its socket buffers.
    Stopped,
    /// `CLIENT PAUSE`: the server reads commands and postpones them.
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

/// Hangs the server for twice the lease.
async fn hang_beyond_lease(standstill: Standstill) {
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
        .expect("the waiter is served when the server resumes");
    let served = served.unwrap().unwrap();
    assert!(served.fencing_token() > guard.fencing_token());
    assert!(guard.release().await.unwrap_err().is_lost());
    // The server ran the commands in flight, and their leases were released.
    drop(served);
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, standstill).await;
    // Each of the seven keys needs a few commands before and after the hang. Each has one or two
    // unanswered acquires, whose undo is retried until their leases expire.
    let sent = scripts_called(&server) - before;
    assert!(sent <= 90, "{sent} commands are a storm");
    let quiet = scripts_called(&server);
    sleep(SECOND).await;
    assert_eq!(scripts_called(&server), quiet, "commands are still sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_stop_beyond_lease_loses_lock_at_deadline() {
    hang_beyond_lease(Standstill::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_pause_beyond_lease_loses_lock_at_deadline() {
    hang_beyond_lease(Standstill::Paused).await;
}

/// Redisson #2515, #3194: the watchdog stopped after one failed renewal.
async fn hang_within_lease(standstill: Standstill) {
    let server = RedisServer::start();
    let (here, there) = (
        manager(server.url(), LONG).await,
        manager(server.url(), LONG).await,
    );
    let guard = here.acquire("k").await.unwrap();
    let waiter = waiter(&there, "k").await;
    // The first renewal is due after two seconds and fails.
    let end = end_of(&guard);
    standstill.during(&server, 3 * SECOND, async {}).await;
    renewed_beyond(end, &guard).await;
    // The watchdog continues after the failed renewal.
    renewed_beyond(end_of(&guard), &guard).await;
    assert!(!waiter.is_finished());
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, standstill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_stop_within_lease_keeps_lock() {
    hang_within_lease(Standstill::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_pause_within_lease_keeps_lock() {
    hang_within_lease(Standstill::Paused).await;
}

// ---- network faults ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connection_respects_local_deadlines() {
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
        let locks = manager(proxy.url(), LONG).await;
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
        let locks = manager(proxy.url(), LONG).await;
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
            let locks = manager(proxy.url(), LONG).await;
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
    let locks = manager(proxy.url(), LONG).await;
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
        // The waiter attempts the lock when notified; the next attempt would follow after 900 ms.
        let start = Instant::now();
        guard.release().await.unwrap();
        drop(waiter.await.unwrap().unwrap());
        let waited = start.elapsed();
        assert!(waited < 600 * MS, "served by the backstop: {waited:?}");
        nothing_is_left(&server, &[&here, &there], SECOND, "the round").await;
    }
}

/// Redisson #5070, #4744: a release between a failed attempt and the subscription was missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_before_subscription_is_not_missed() {
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

// ---- rejected commands ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_under_load_preserves_locks() {
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
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders at once");
                    sleep(MS).await;
                    assert!(inside.swap(false, Ordering::SeqCst));
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    let end = end_of(&held);
    // A flush can also fall between loading a script and calling it.
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
async fn full_memory_rejects_acquires_and_keeps_leases() {
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
    // The failed acquire lasted two leases, so the watchdog renewed this lock.
    assert!(guard.is_held());
    let held = there.acquire("held").no_wait().await.unwrap_err();
    assert_eq!(
        held.kind(),
        ErrorKind::Busy,
        "the lock is held, whatever the memory"
    );
    // The next waiter needs no memory of the server: the lease continues with a token that it has left.
    let (next, token) = (here.acquire("held"), guard.fencing_token());
    let next = tokio::spawn(next.into_future());
    eventually("queued", || here.snapshot().waiting == 1).await;
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(next.fencing_token() > token);
    // Without a waiter, the lease is released.
    next.release().await.unwrap();
    assert_eq!(pttl(&server, "held"), -2);
    nothing_is_left(&server, &[&here, &there], SECOND, "full").await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    drop(acquired_again(&there, "new").await);
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_value_is_conflict_and_stays_unchanged() {
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
        // The first acquire may have made the second one busy.
        assert!(matches!(once, ErrorKind::KeyConflict | ErrorKind::Busy));
        assert!(start.elapsed() < 4 * SECOND, "waiting does not help");
        let forced = locks.force_release(name).await.unwrap_err();
        assert_eq!(forced.kind(), ErrorKind::KeyConflict);
        assert_eq!(server.cli(&["DUMP", &key]), before, "{name} was changed");
    }
    // An overwritten lock is lost at its deadline, and the new value stays unchanged.
    let guard = locks.acquire("overwritten").await.unwrap();
    server.cli(&["SET", "lock:overwritten", "precious"]);
    lost_at_its_deadline(&guard).await;
    assert!(guard.release().await.unwrap_err().is_lost());
    eventually("the release is abandoned", || locks.snapshot().is_idle()).await;
    assert_eq!(server.cli(&["GET", "lock:overwritten"]), "precious");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnects_to_demoted_server_back_off() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let locks = manager(proxy.url(), LONG).await;
    let guard = locks.acquire("k").await.unwrap();
    // No primary listens there, so the replica keeps its data.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let before = proxy.accepted();
    let start = Instant::now();
    while start.elapsed() < 2 * SECOND {
        let error = locks.acquire("new").no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        sleep(MS).await;
    }
    // Connections follow at once, and then after 50, 100, 200, 400, 400, … ms.
    let made = proxy.accepted() - before;
    let allowed = 6 + start.elapsed().as_millis() as u64 / 350;
    assert!((2..=allowed).contains(&made), "{made} connections");
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    drop(acquired_again(&locks, "new").await);
    assert!(guard.is_held());
    drop(guard);
    nothing_is_left(&server, &[&locks], 2 * SECOND, "the end").await;
}

/// Returns a server with an unrestricted user and a manager that logs in as that user.
async fn with_a_user() -> (RedisServer, LockManager) {
    let server = RedisServer::start();
    let rules = "ACL SETUSER some reset on >secret ~* &* +@all";
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let locks = manager(server.url_of("some", "secret"), SHORT).await;
    (server, locks)
}

/// A server rejects all commands while it loads its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_while_server_loads_waits_for_data() {
    let mut server = RedisServer::start();
    let url = server.url();
    let (here, there) = (manager(&url, 5 * LONG).await, manager(&url, 5 * LONG).await);
    let guard = here.acquire("held").await.unwrap();
    // A server that loads its data replies once every 2 MB, which is 105 keys.
    let fill = "local text = string.rep('x', 20000)
        for n = 1, 3000 do redis.call('set', 'filler:' .. n, text) end";
    server.cli(&["EVAL", fill, "0"]);
    server.cli(&["CONFIG", "SET", "rdbcompression", "no"]);
    server.cli(&["SAVE"]);
    server.kill();
    let launched = tokio::task::spawn_blocking(move || {
        // The server loads each key in one millisecond.
        server.launch_again_with(&["--key-load-delay", "1000"]);
        server
    });
    let client = redis::Client::open(url).unwrap();
    let loads = || {
        let connection = client.get_connection();
        let asked = connection.and_then(|mut it| redis::cmd("EXISTS").arg("k").exec(&mut it));
        asked.is_err_and(|error| error.code() == Some("LOADING"))
    };
    within(PATIENCE, "the server loads its data", loads).await;
    let error = fails_at_its_deadline(there.acquire("other"), 500 * MS).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(loads(), "the server still loads its data");
    let late = there.acquire("other").wait(PATIENCE).await;
    let late = late.expect("acquired within its wait");
    let server = launched.await.unwrap();
    assert!(guard.is_held(), "nothing was lost");
    guard.release().await.unwrap();
    late.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "lock:held", "lock:other"]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_password_is_misconfigured_without_storm() {
    let (server, locks) = with_a_user().await;
    let other = manager(server.url(), LONG).await;
    let guard = locks.acquire("k").await.unwrap();
    let _theirs = other.acquire("theirs").await.unwrap();
    let waiter = waiter(&locks, "theirs").await;
    server.cli(&["ACL", "SETUSER", "some", "resetpass", ">changed"]);
    let log_ins = || server.calls("hello") + server.calls("auth");
    let before = log_ins();
    server.cli(&["CLIENT", "KILL", "USER", "some"]);
    // The waiter fails with the cause long before its wait ends.
    let start = Instant::now();
    let told = timeout(5 * SECOND, waiter).await.expect("rejected early");
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
        assert!(Instant::now() < deadline, "the server is still unavailable");
        sleep(10 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_permission_is_misconfigured_without_storm() {
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
        // Each acquire that follows the first reply sends at most one command.
        assert!(sent <= 100, "{sent} commands include retries");
        if rule == "-hset" {
            // Renewals and releases need no `HSET` and continue.
            renewed_beyond(end_of(&guard), &guard).await;
            guard.release().await.unwrap();
        } else {
            lost_at_its_deadline(&guard).await;
            let sent = scripts_called(&server) - before;
            assert!(sent <= 60, "{sent} renewals");
        }
    }
}

// ---- process faults ----

const LEASE_OF_THE_OTHER: Duration = SHORT;

/// Runs as the other process of the tests below, in the same program started with a URL. Without
/// a URL it returns at once.
#[test]
fn other_process() {
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
            // The first check after a stop must detect the loss, even before any task has run.
            eprintln!("other: woke, held: {held}");
            break;
        }
        assert!(held, "lost without a stop");
    }
    let told = runtime.block_on(async { timeout(50 * MS, guard.lost()).await.is_ok() });
    eprintln!("other: told: {told}");
    let outcome = runtime.block_on(guard.release());
    eprintln!("other: lost: {}", outcome.unwrap_err().is_lost());
    // The test kills this process.
    std::thread::sleep(PATIENCE);
}

struct OtherProcess {
    child: Child,
    said: Lines<BufReader<ChildStderr>>,
}

impl OtherProcess {
    fn start(server: &RedisServer) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--nocapture"])
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

    /// Returns the next message of the process.
    fn says(&mut self) -> String {
        loop {
            let line = self.said.next().expect("the process is running").unwrap();
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

/// etcd #11456: after a stop, a lock was not checked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_resumed_after_lease_sees_lock_lost() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LONG).await;
    let monitor = Monitor::start(&server);
    let mut other = OtherProcess::start(&server);
    let millis = format!("\"{}\"", LEASE_OF_THE_OTHER.as_millis());
    // A renewal passes one key, its lease ID and its TTL.
    let is_renewal = |line: &String| {
        line.contains("\"EVALSHA\"")
            && line.contains(" \"1\" \"lock:k\" ")
            && line.ends_with(&millis)
    };
    let renewals = |lines: &[String]| lines.iter().filter(|line| is_renewal(line)).count();
    // The stop follows a renewal closely, so that the next one is not due yet.
    eventually("a renewal", || renewals(&monitor.lines()) > 0).await;
    sleep(50 * MS).await;
    other.signal("-STOP");
    let guard = locks.acquire("k").wait(LEASE_OF_THE_OTHER + SECOND).await;
    let guard = guard.expect("the lease expired");
    sleep(LEASE_OF_THE_OTHER).await;
    let before = renewals(&monitor.lines_until_now(&server).await);
    other.signal("-CONT");
    assert_eq!(other.says(), "woke, held: false");
    assert_eq!(other.says(), "told: true");
    assert_eq!(other.says(), "lost: true");
    sleep(LEASE_OF_THE_OTHER).await;
    let after = renewals(&monitor.lines_until_now(&server).await);
    assert_eq!(after, before, "an expired lease was renewed");
    assert!(guard.is_held(), "the new lease is unaffected");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_process_key_expires_with_lease() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LONG).await;
    let mut other = OtherProcess::start(&server);
    let waiter = waiter(&locks, "k").await;
    // The lease is renewed while its holder runs.
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
fn runtime_shutdown_leaves_locks_to_expire() {
    let server = RedisServer::start();
    let first = runtime();
    let locks = first.block_on(manager(server.url(), SHORT));
    let (guard, queued) = first.block_on(async {
        let guard = locks.acquire("k").await.unwrap();
        // The runtime ends with a waiter, an acquire and a queued future.
        drop(waiter(&locks, "k").await);
        drop(tokio::spawn(locks.acquire("other").into_future()));
        let mut queued = Box::pin(locks.acquire("k").into_future());
        assert!(poll!(&mut queued).is_pending());
        (guard, queued)
    });
    let start = Instant::now();
    drop(first);
    drop(queued);
    assert!(start.elapsed() < 5 * SECOND, "the drop blocks");
    assert!(guard.is_held(), "the lease has not expired");
    drop(guard);
    // No runtime can send the release, so the lease expires. The manager works in a second runtime.
    let second = runtime();
    second.block_on(async {
        let guard = locks.acquire("k").wait(SHORT + SECOND).await.unwrap();
        renewed_beyond(end_of(&guard), &guard).await;
        guard.release().await.unwrap();
        nothing_is_left(&server, &[&locks], SHORT + SECOND, "the end").await;
    });
}

#[test]
fn runtime_shutdown_during_connect_does_not_hang() {
    let mut server = RedisServer::start();
    let runtime = runtime();
    let locks = runtime.block_on(manager(server.url(), SHORT));
    server.kill();
    let (inside, is_inside) = std::sync::mpsc::channel();
    drop(runtime.spawn(async move {
        // This poll begins before the runtime ends and continues after it.
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
    is_gone.recv_timeout(PATIENCE).expect("the drop blocks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_wakes_waiters_and_flushes_releases() {
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
    // The guard is renewed for more than one lease.
    renewed_beyond(end_of(&guard) + SHORT, &guard).await;
    assert!(!shutdown.is_finished());
    drop(guard);
    let left = timeout(SECOND, shutdown).await.expect("completed");
    assert!(left.unwrap().is_idle());
    assert_eq!(pttl(&server, "k"), -2, "the release was flushed");
    drop(theirs);
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
    // The shutdown reports the remaining holder.
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

/// The point at which a future is dropped.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// The number of polls, each after a wake.
    Polls(usize),
    Time(Duration),
}

/// Polls the future up to that point and returns `true` if it was ready.
async fn dropped_at(until: Until, future: impl Future) -> bool {
    let mut future = pin!(future);
    match until {
        // Timers have a resolution of 1 ms, within which most scenarios finish.
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
                    // The last poll needs no further wake.
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

/// Runs the scenario for each number of polls until it completes, and for many durations.
/// After each run, all traces must be gone long before a lease expires.
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
    acquire_dropped_on_free_key_leaves_nothing,
    5_000,
    |world, until| { dropped_at(until, world.here.acquire("a").into_future()).await }
);

dropped_everywhere!(
    acquire_dropped_on_busy_key_leaves_nothing,
    80_000,
    |world, until| {
        let _guard = world.there.acquire("a").await.unwrap();
        dropped_at(until, world.here.acquire("a").wait(50 * MS).into_future()).await
    }
);

dropped_everywhere!(
    acquire_dropped_on_remote_release_leaves_nothing,
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
    acquire_dropped_on_local_handoff_leaves_nothing,
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
    acquire_dropped_on_several_keys_leaves_nothing,
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

/// redis-py #3847: a cancelled release lost the token, and the lock remained.
mod release {
    use super::*;

    dropped_everywhere!(dropped_leaves_nothing, 5_000, |world, until| {
        let guard = world.here.acquire("a").await.unwrap();
        dropped_at(until, guard.release()).await
    });

    dropped_everywhere!(
        dropped_on_several_keys_leaves_nothing,
        5_000,
        |world, until| {
            let guard = world.here.acquire(["a", "b", "c"]).await.unwrap();
            dropped_at(until, guard.release()).await
        }
    );
}

dropped_everywhere!(
    work_dropped_under_lock_leaves_nothing,
    20_000,
    |world, until| {
        let work = world.here.acquire("a").run(|_held| sleep(5 * MS));
        dropped_at(until, work).await
    }
);
