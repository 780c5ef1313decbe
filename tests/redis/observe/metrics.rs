//! The metrics of servers, and of a transfer between processes.

use std::time::Duration;

use tokio::time::sleep;

use crate::support::engine::{MS, SECOND, eventually, prompt_manager};
use crate::support::other_runtime::current_thread;
use crate::support::recorder::{Recorder, Seen};
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::SentinelSet;

const LEASE: Duration = Duration::from_secs(30);
const QUEUE: &str = "lock:{lock:k}%queue";

#[test]
fn transfer_by_message_is_counted_as_grant() {
    let server = RedisServer::start();
    let recorder = Recorder::new();
    let granted = async {
        let holder = prompt_manager(server.url(), LEASE).await;
        let other = prompt_manager(server.url(), LEASE).await;
        let guard = holder.acquire("k").await.unwrap();
        let waiting = tokio::spawn(other.acquire("k").into_future());
        eventually("queued as a listener", || {
            server.cli(&["ZRANGE", QUEUE, "0", "-1"]).contains('!')
        })
        .await;
        guard.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
        // The recorder is that of this thread, and the last report of a manager may come from its own.
        for locks in [holder, other] {
            locks.flush_metrics();
        }
    };
    recorder.run(|| current_thread().block_on(granted));
    let seen = recorder.read();
    let grants = seen.counts("tower_lock_grants_total");
    assert_eq!(grants, [("{via=\"backend\"}", 2)]);
    let woken = seen.counts("tower_lock_wakeups_total");
    assert_eq!(woken, [("{by=\"message\"}", 1)]);
}

#[test]
fn outage_is_shown_by_server_and_part() {
    let mut server = RedisServer::start();
    let recorder = Recorder::new();
    let up = |part| {
        format!(
            "tower_lock_backend_up{{server=\"{}\",part=\"{part}\"}}",
            server.address()
        )
    };
    let incidents = |part| {
        let address = server.address();
        format!("tower_lock_backend_incidents_total{{server=\"{address}\",part=\"{part}\"}}")
    };
    let (up, incidents) = (up("commands"), incidents("commands"));
    recorder.run(|| {
        current_thread().block_on(async {
            let locks = prompt_manager(server.url(), LEASE).await;
            let before = recorder.read();
            assert_eq!((before.gauge(&up), before.count(&incidents)), (1.0, 0));
            server.kill();
            let acquire = locks.acquire("k").wait(300 * MS);
            acquire.await.unwrap_err();
            locks.flush_metrics();
            let during = recorder.read();
            assert_eq!(during.gauge(&up), 0.0);
            assert!(during.count(&incidents) > 0);
            let refused = "tower_lock_acquires_total{outcome=\"unavailable\"}";
            assert_eq!(during.count(refused), 1);
            server.launch_again();
            locks.acquire("k").await.unwrap().release().await.unwrap();
            locks.flush_metrics();
            let after = recorder.read();
            assert_eq!((after.gauge(&up), after.count(&incidents)), (1.0, 0));
            let command = "tower_lock_backend_command_seconds";
            let released = format!("{command}{{command=\"release\",outcome=\"ok\"}}");
            assert!(!after.samples(&released).is_empty());
        });
    });
}

/// The server still grants, so its commands are up.
#[test]
fn denied_releases_are_shown_apart_from_commands() {
    let server = RedisServer::start();
    let recorder = Recorder::new();
    let address = server.address();
    let series = |name, part| format!("tower_lock_{name}{{server=\"{address}\",part=\"{part}\"}}");
    let up =
        |seen: &Seen| ["commands", "releases"].map(|part| seen.gauge(&series("backend_up", part)));
    recorder.run(|| {
        current_thread().block_on(async {
            let locks = prompt_manager(server.url(), LEASE).await;
            assert_eq!(up(&recorder.read()), [1.0, 1.0]);
            server.cli(&["ACL", "SETUSER", "default", "-hdel"]);
            let guard = locks.acquire("k").await.unwrap();
            guard.release().await.unwrap_err();
            locks.flush_metrics();
            let during = recorder.read();
            assert_eq!(
                during.count(&series("backend_incidents_total", "releases")),
                1
            );
            assert_eq!(
                during.count("tower_lock_releases_total{outcome=\"failed\"}"),
                1
            );
            assert_eq!(up(&during), [1.0, 0.0]);
            server.cli(&["ACL", "SETUSER", "default", "+hdel"]);
            eventually("the release is repeated", || locks.snapshot().is_idle()).await;
            locks.flush_metrics();
            assert_eq!(up(&recorder.read()), [1.0, 1.0]);
        });
    });
}

/// Nothing sends a command after the outage.
#[test]
fn idle_process_shows_end_of_outage() {
    let mut server = RedisServer::start();
    let recorder = Recorder::new();
    let address = server.address();
    let up = |part| {
        let seen = recorder.read();
        seen.gauge(&format!(
            "tower_lock_backend_up{{server=\"{address}\",part=\"{part}\"}}"
        ))
    };
    recorder.run(|| {
        current_thread().block_on(async {
            let locks = prompt_manager(server.url(), LEASE).await;
            let other = prompt_manager(server.url(), LEASE).await;
            let up = |part| {
                locks.flush_metrics();
                up(part)
            };
            let guard = other.acquire("k").await.unwrap();
            let waiting = tokio::spawn(locks.acquire("k").into_future());
            eventually("queued as a listener", || {
                server.cli(&["ZRANGE", QUEUE, "0", "-1"]).contains('!')
            })
            .await;
            server.kill();
            eventually("the outage is shown", || {
                (up("commands"), up("notifications")) == (0.0, 0.0)
            })
            .await;
            waiting.abort();
            drop((waiting, guard, other));
            eventually("nothing waits", || locks.snapshot().is_idle()).await;
            server.launch_again();
            eventually("commands are up", || up("commands") == 1.0).await;
            eventually("notifications are up", || up("notifications") == 1.0).await;
        });
    });
}

/// The task that tries the server begins in the runtime of the last command.
#[test]
fn outage_ends_after_end_of_its_runtime() {
    let mut server = RedisServer::start();
    let recorder = Recorder::new();
    let address = server.address();
    let up = format!("tower_lock_backend_up{{server=\"{address}\",part=\"commands\"}}");
    recorder.run(|| {
        let first = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let locks = first.block_on(prompt_manager(server.url(), LEASE));
        let up = || {
            locks.flush_metrics();
            recorder.read().gauge(&up)
        };
        server.kill();
        first.block_on(async {
            locks.inspect("k").await.unwrap_err();
            eventually("the outage is shown", || up() == 0.0).await;
        });
        drop(first);
        server.launch_again();
        current_thread().block_on(eventually("the server is up", || up() == 1.0));
    });
}

/// The server is stopped for longer than the undo of its last command is repeated.
#[test]
fn idle_process_shows_reply_after_long_silence() {
    let server = RedisServer::start();
    let recorder = Recorder::new();
    let address = server.address();
    let up = format!("tower_lock_backend_up{{server=\"{address}\",part=\"commands\"}}");
    recorder.run(|| {
        current_thread().block_on(async {
            let locks = prompt_manager(server.url(), 100 * MS).await;
            let up = || {
                locks.flush_metrics();
                recorder.read().gauge(&up)
            };
            server.stop_process();
            locks.inspect("k").await.unwrap_err();
            assert_eq!(up(), 0.0);
            server.continue_process();
            eventually("the server has replied", || up() == 1.0).await;
        });
    });
}

/// The sentinels stop while a lock is held, and continue when nothing is held.
#[test]
fn idle_process_shows_end_of_sentinel_outage() {
    let mut set = SentinelSet::start();
    let recorder = Recorder::new();
    let address = format!("{} (service {:?})", set.addresses(), set.service());
    let up = format!("tower_lock_backend_up{{server=\"{address}\",part=\"sentinel\"}}");
    recorder.run(|| {
        current_thread().block_on(async {
            let locks = prompt_manager(set.url(set.service()), LEASE).await;
            let up = || {
                locks.flush_metrics();
                recorder.read().gauge(&up)
            };
            let guard = locks.acquire("k").await.unwrap();
            (0..3).for_each(|sentinel| set.sentinel(sentinel).stop_process());
            eventually("the outage is shown", || up() == 0.0).await;
            guard.release().await.unwrap();
            // Four times the pause between two questions.
            sleep(SECOND).await;
            (0..3).for_each(|sentinel| set.sentinel(sentinel).continue_process());
            eventually("the sentinels reply", || up() == 1.0).await;
        });
    });
}
