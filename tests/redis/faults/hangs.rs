//! Servers that hang.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join, join_all};
use futures_util::poll;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::{ErrorKind, LockManager, RedisBackend};

use super::holder::{LONG, SHORT, end_of, renewed_beyond, waiter};
use crate::support::engine::{
    MS, SECOND, connected, eventually, fails_at_its_deadline, lost_at_its_deadline, manager_from,
    nothing_is_left, prompt_managers, scripts_called,
};
use crate::support::redis_server::RedisServer;

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
    let (here, there) = prompt_managers(server.url(), SHORT).await;
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
    let (here, there) = prompt_managers(server.url(), LONG).await;
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

/// The stopped server has the acquires in its socket buffer, and executes them when it continues. By then, their
/// connection was closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_acquires_of_stopped_server_are_released() {
    let server = RedisServer::start();
    let builder = || RedisBackend::builder(server.url()).response_timeout(250 * MS);
    let backend = connected(builder).await;
    let locks = LockManager::builder(backend).build().unwrap();
    let granted = server.calls("hset");
    server.stop_process();
    let start = Instant::now();
    let late =
        join_all((0..20).map(|n| locks.acquire(format!("late:{n}")).no_wait().into_future()));
    for outcome in late.await {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    // One response timeout, 10 ms, and 200 ms for a busy machine: less than two response timeouts.
    let took = start.elapsed();
    assert!(took <= 460 * MS, "{took:?}");
    // The backend closes a connection that is silent for ten times the response timeout.
    sleep(4 * SECOND).await;
    server.continue_process();
    eventually("granted", || server.calls("hset") > granted).await;
    nothing_is_left(&server, &[&locks], 5 * SECOND, "late acquires").await;
}

/// One after the other, the renewal, the release and the attempt would take three response timeouts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wait_behind_hung_renewal_ends_in_time() {
    let server = RedisServer::start();
    let backend = RedisBackend::builder(server.url()).response_timeout(SECOND);
    let locks = manager_from(backend, 3 * SECOND).await;
    let guard = locks.acquire("k").await.unwrap();
    server.stop_process();
    // The first renewal is due when a third of the lease has passed.
    sleep(1_200 * MS).await;
    assert!(guard.is_held());
    let mut release = pin!(guard.release());
    assert!(poll!(&mut release).is_pending());
    let start = Instant::now();
    let outcome = locks.acquire("k").no_wait().await;
    let took = start.elapsed();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    // One response timeout, 10 ms, and 500 ms for a busy machine: less than two response timeouts.
    assert!(took <= 1_510 * MS, "{took:?}");
    server.continue_process();
    drop(release.await);
    nothing_is_left(&server, &[&locks], 5 * SECOND, "hung renewal").await;
}
