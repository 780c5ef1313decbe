//! A process on a machine that is suspended for longer than its leases, while Redis continues.
//!
//! It is a program of its own: it runs itself again with a preloaded clock.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod child;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use child::{Child, HELD, KEYS};
use support::engine::{SECOND, prompt_manager};
use support::redis_server::RedisServer;

const SUSPEND: Duration = Duration::from_secs(4);

/// Suspends a process that holds all keys, and runs another one that acquires them. Returns the
/// first reports of the process after its resume.
async fn reports_after_suspend(count: usize) -> Vec<String> {
    let server = RedisServer::start();
    let locks = prompt_manager(server.url(), 10 * SECOND).await;
    let mut child = Child::start(&server.url());
    assert_eq!(child.report(), "holds");
    child.suspend();
    let resume = Instant::now() + SUSPEND;
    let mut guards = Vec::new();
    for key in KEYS {
        let acquire = locks.acquire(key).wait(SUSPEND);
        guards.push(acquire.await.expect("its lease has expired"));
    }
    assert!(Instant::now() < resume, "the leases expired late");
    sleep_until(resume).await;
    child.resume();
    let reports = (0..count).map(|_| child.report()).collect();
    assert!(guards.iter().all(|guard| guard.is_held()), "overtaken");
    reports
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_look_after_resume_finds_locks_lost() {
    let reports = reports_after_suspend(2).await;
    // Otherwise the clock continued, and the test proves nothing.
    assert_eq!(reports[0], "clock paused: true");
    let lost = [(false, Duration::ZERO); HELD];
    assert_eq!(reports[1], format!("held, remaining: {lost:?}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_resolves_soon_after_resume() {
    let reports = reports_after_suspend(3).await;
    assert_eq!(reports[2], "lost() resolved: true");
}
