//! Processes that are stopped, killed or shut down.

use std::io::{BufRead as _, BufReader, Lines};
use std::pin::pin;
use std::process::{ChildStderr, Command, Stdio};
use std::time::Duration;

use futures_util::poll;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep, timeout};

use super::holder::{LONG, SHORT, end_of, renewed_beyond, waiter};
use crate::support::engine::{
    MS, Monitor, PATIENCE, SECOND, by, eventually, no_subscription_is_left, nothing_is_left,
    prompt_manager, prompt_managers, pttl,
};
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;

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
        let locks = prompt_manager(url, LEASE_OF_THE_OTHER).await;
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
    let lost = runtime.block_on(async { timeout(50 * MS, guard.lost()).await.is_ok() });
    eprintln!("other: reported: {lost}");
    let outcome = runtime.block_on(guard.release());
    eprintln!("other: lost: {}", outcome.unwrap_err().is_lost());
    // The test kills this process.
    std::thread::sleep(PATIENCE);
}

struct OtherProcess {
    process: Process,
    said: Lines<BufReader<ChildStderr>>,
}

impl OtherProcess {
    fn start(server: &RedisServer) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::process::other_process", "--nocapture"])
            .env("URL_FOR_THE_OTHER_PROCESS", server.url())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        let process = Process::of(child);
        let mut other = Self { process, said };
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
}

/// etcd #11456: after a stop, a lock was not checked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_resumed_after_lease_sees_lock_lost() {
    let server = RedisServer::start();
    let locks = prompt_manager(server.url(), LONG).await;
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
    other.process.signal("-STOP");
    let guard = locks.acquire("k").wait(LEASE_OF_THE_OTHER + SECOND).await;
    let guard = guard.expect("the lease expired");
    sleep(LEASE_OF_THE_OTHER).await;
    let before = renewals(&monitor.lines_until_now(&server).await);
    other.process.signal("-CONT");
    assert_eq!(other.says(), "woke, held: false");
    assert_eq!(other.says(), "reported: true");
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
    let locks = prompt_manager(server.url(), LONG).await;
    let mut other = OtherProcess::start(&server);
    let waiter = waiter(&locks, "k").await;
    // The lease is renewed while its holder runs.
    sleep(2 * LEASE_OF_THE_OTHER).await;
    assert!(!waiter.is_finished());
    other.process.kill();
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
    let locks = first.block_on(prompt_manager(server.url(), SHORT));
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
    let locks = runtime.block_on(prompt_manager(server.url(), SHORT));
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
async fn shutdown_serves_waiters_and_flushes_releases() {
    let server = RedisServer::start();
    let (here, there) = prompt_managers(server.url(), SHORT).await;
    let guard = here.acquire("k").await.unwrap();
    let theirs = there.acquire("theirs").await.unwrap();
    let waiters = ["k", "theirs"].map(|key| here.acquire(key).wait(PATIENCE));
    let waiters = waiters.map(|waiter| tokio::spawn(waiter.into_future()));
    eventually("they wait", || here.snapshot().waiting == 2).await;
    let forever = waiter(&here, "k").await;
    let shutdown = tokio::spawn({
        let here = here.clone();
        async move { here.shutdown(PATIENCE).await }
    });
    let woken = timeout(SECOND, forever).await.expect("woken at once");
    assert!(woken.unwrap().unwrap_err().is_shutting_down());
    let new = here.acquire("new").await.unwrap_err();
    assert!(new.is_shutting_down());
    // The guard is renewed for more than one lease.
    renewed_beyond(end_of(&guard) + SHORT, &guard).await;
    assert!(!shutdown.is_finished());
    drop((guard, theirs));
    for waiter in waiters {
        drop(waiter.await.unwrap().expect("served"));
    }
    let left = timeout(SECOND, shutdown).await.expect("completed");
    assert!(left.unwrap().is_idle());
    for key in ["k", "theirs"] {
        assert_eq!(pttl(&server, key), -2, "the release was flushed");
    }
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
    // The shutdown reports the remaining holder.
    let guard = there.acquire("k").await.unwrap();
    let left = there.shutdown(50 * MS).await;
    assert_eq!((left.held, left.waiting), (1, 0));
    drop(guard);
    no_subscription_is_left(&server).await;
    drop((here, there));
    eventually("no connection is left", || {
        server.clients("normal").is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_server_ends_shutdown_after_timeout() {
    let server = RedisServer::start();
    let locks = prompt_manager(server.url(), LONG).await;
    let guard = locks.acquire("k").await.unwrap();
    let mut shutdown = pin!(locks.shutdown(PATIENCE));
    assert!(poll!(&mut shutdown).is_pending(), "a lock is held");
    server.stop_process();
    drop(guard);
    let left = by(Instant::now() + 2 * SECOND, "the shutdown", shutdown).await;
    // The release is repeated from about now on, and may be counted at both places.
    assert!([1, 2].contains(&left.unreleased), "{left:?}");
    server.continue_process();
}
