//! Four processes of the example `orders` over one Redis and one database. The test kills them, and stops
//! them for longer than their leases, at random moments.
//!
//! It runs for `PROCESSES_SECONDS` (60 by default). `PROCESSES_SEED` repeats a choice of moments.
//! It is a program of its own, which `make test-long` runs: its processes use all cores.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod client;
mod history;
mod jobs;
mod process;
#[path = "../support/mod.rs"]
mod support;

use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use http::StatusCode;
use tokio::time::{Instant, timeout};

use client::{Seen, client, http, put};
use history::{History, keep_history};
use process::{Faults, Orders, Process, trouble};
use support::engine::{PATIENCE, SECOND, nothing_is_left};
use support::redis_server::RedisServer;

const PROCESSES: usize = 4;
/// The number of orders of the example, small enough for requests to contend.
const ORDERS: usize = 20;
const CLIENTS: usize = 64;
/// Short enough to expire in a stopped process. Running processes renew it.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_under_kills_and_stops_are_not_lost() {
    let seed = variable("PROCESSES_SEED").unwrap_or_else(|| fastrand::u64(..));
    let seconds = variable("PROCESSES_SECONDS").unwrap_or(60);
    println!("PROCESSES_SEED={seed} PROCESSES_SECONDS={seconds}");
    let mut random = Rng::with_seed(seed);

    let redis = RedisServer::start();
    // On a disk: a commit in memory is so short that hardly a process is stopped between its last check and its write.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let database = folder.path().join("orders.sqlite");
    let world = Arc::new(Orders::new(redis.url(), database.clone()));
    let mut processes = Vec::new();
    for number in 0..PROCESSES {
        processes.push(Process::start(&world, number).await);
    }
    keep_history(&database);

    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::spawn(client(world.clone(), random.fork(), over.clone())))
        .collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    let troubled: Vec<_> = (processes.into_iter())
        .map(|process| tokio::spawn(trouble(process, random.fork(), end)))
        .collect();
    let mut faults = Faults::default();
    let mut processes = Vec::new();
    for troubled in troubled {
        let (process, had) = troubled.await.unwrap();
        faults.kills += had.kills;
        faults.stops += had.stops;
        processes.push(process);
    }
    over.store(true, Ordering::Relaxed);
    let mut seen = Seen::default();
    for client in clients {
        seen.add(client.await.unwrap());
    }

    // All processes run without requests. No lock may be left, and each must be free for every process.
    // The queue of a key lasts 6 s after the last attempt of a process that was killed while it waited.
    nothing_is_left(&redis, &[], 7 * SECOND, "the end").await;
    let http = http();
    for (number, order) in (0..PROCESSES).flat_map(|n| (1..=ORDERS).map(move |order| (n, order))) {
        let put = put(&http, world.address(number), order);
        let (status, body) = timeout(PATIENCE, put).await.expect("in time").unwrap();
        assert_eq!(status, StatusCode::OK, "{order} at {number}: {body:?}");
        seen.answer(status, &body, order);
    }
    for process in processes {
        process.interrupt().await;
    }

    let history = History::read(&database);
    let (writes, refused) = (history.writes.len(), world.refused());
    let Faults { kills, stops } = faults;
    println!("{kills:8} kills\n{stops:8} stops for longer than the lease");
    println!("{writes:8} writes\n{refused:8} rejected by the fence");
    for (answer, count) in &seen.answers {
        println!("{count:8} × {answer}");
    }
    let problems = history.problems(&seen.acknowledged);
    assert!(problems.is_empty(), "{problems:#?}");
    // A stale holder was notified of the loss before. Otherwise two processes held the lock at the same
    // time.
    let mut answers = seen.answers.keys();
    assert_eq!(answers.find(|answer| answer.contains("stale holder")), None);
    // Otherwise the test proves nothing.
    assert!(kills >= 1 && stops >= 1, "too short");
    assert!(seen.acknowledged.len() >= 100, "too few writes");
    assert!(refused >= 1, "no stale write: the fence is untested");
}

fn variable<T: FromStr<Err: std::fmt::Debug>>(name: &str) -> Option<T> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().expect(name))
}

fn millis(random: &mut Rng, range: Range<u64>) -> Duration {
    Duration::from_millis(random.u64(range))
}
