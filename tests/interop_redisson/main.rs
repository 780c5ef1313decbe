//! Locks shared with Java services, tested against Redisson: `make interop`.
//!
//! It is not part of `cargo test`, because it requires a JDK and Maven. Each version of Redisson meets this
//! crate on one server, behind Sentinel and in a Cluster. A table of the results follows at the end.
//!
//! Cases that mostly wait run on all servers at a time. Those that measure follow: short latencies with both versions
//! at a time, and shares of grants alone.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod busy;
mod cases;
mod child;
mod java;
mod kept;
mod shared;
mod sides;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod turns;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use java::VERSIONS;
use sides::{CLUSTER, ONE_SERVER, PLAIN, SENTINEL, Sides, publishes_plain};

fn main() -> ExitCode {
    if child::main() {
        return ExitCode::SUCCESS;
    }
    if let Err(problem) = java::build() {
        eprintln!("the Java side cannot be built: {problem}");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(other) = wanted.iter().find(|it| !VERSIONS.contains(&it.as_str())) {
        panic!("{other} is none of {VERSIONS:?}");
    }
    let is_wanted = |version: &&str| wanted.is_empty() || wanted.iter().any(|it| it == version);
    let all = started(VERSIONS.into_iter().filter(is_wanted));
    runtime.block_on(run(&all));
    let rows: Vec<_> = all.iter().flat_map(|it| it.take_rows()).collect();
    table::print(&rows);
    ExitCode::SUCCESS
}

/// Starts the servers, all at a time.
fn started(versions: impl Iterator<Item = &'static str>) -> Vec<Arc<Sides>> {
    let places = [ONE_SERVER, SENTINEL, CLUSTER, PLAIN];
    let all = versions.flat_map(|version| places.map(|place| (version, place)));
    let all = all.filter(|(version, place)| *place != PLAIN || publishes_plain(version));
    std::thread::scope(|scope| {
        let start = |(version, place)| scope.spawn(move || Arc::new(Sides::start(version, place)));
        let starts: Vec<_> = all.map(start).collect();
        let sides = starts.into_iter();
        sides
            .map(|it| it.join().expect("the servers start"))
            .collect()
    })
}

/// Servers cannot count the plain subscribers of a Cluster. Java then has a turn at this interval, not in each round.
const TURNS_OF_PLAIN: Duration = Duration::from_millis(500);

/// A failing case panics.
async fn run(all: &[Arc<Sides>]) {
    let counted = VERSIONS.map(|version| {
        let of_version = all.iter().filter(|it| it.version == version);
        let of_version: Vec<_> = of_version.map(Arc::clone).collect();
        tokio::spawn(async move {
            for sides in of_version {
                let is_single = sides.place == ONE_SERVER;
                let (managers, jvms) = if is_single { (4, 2) } else { (1, 1) };
                cases::exclusion(&sides, managers, jvms).await;
            }
        })
    });
    at_once(all, |sides| async move {
        tokio::join!(waiting(&sides), plain_turns(&sides));
    })
    .await;
    for counted in counted {
        counted.await.expect("no case fails");
    }

    for places in [&[ONE_SERVER][..], &[SENTINEL, PLAIN, CLUSTER]] {
        let here = all.iter().filter(|it| places.contains(&it.place));
        let here: Vec<_> = here.map(Arc::clone).collect();
        at_once(&here, |sides| async move { latencies(&sides).await }).await;
        for sides in here {
            shares(&sides).await;
        }
    }
}

/// Runs cases on so many servers at a time.
async fn at_once<F>(all: &[Arc<Sides>], cases: impl Fn(Arc<Sides>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let tasks = all.iter().map(|it| tokio::spawn(cases(Arc::clone(it))));
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        task.await.expect("no case fails");
    }
}

/// The cases that mostly wait for leases to end.
async fn waiting(sides: &Sides) {
    if sides.place != PLAIN {
        cases::crashes(sides).await;
    }
    if [ONE_SERVER, CLUSTER].contains(&sides.place) {
        cases::names(sides).await;
        shared::excluded(sides).await;
        shared::consistent(sides).await;
    }
    if sides.place == ONE_SERVER {
        cases::watchdogs(sides).await;
        cases::views(sides).await;
        cases::by_force(sides).await;
        // Older versions have no fenced locks.
        if sides.version != "3.16.8" {
            cases::fenced_tokens(sides).await;
        }
    }
}

/// The case in which Java waits for a turn at an interval.
async fn plain_turns(sides: &Sides) {
    if has_plain_turns(sides) {
        turns::among_busy_managers(sides, 2, TURNS_OF_PLAIN).await;
    }
}

fn has_plain_turns(sides: &Sides) -> bool {
    [CLUSTER, PLAIN].contains(&sides.place) && publishes_plain(sides.version)
}

/// The cases whose limits are short.
async fn latencies(sides: &Sides) {
    cases::wake_ups(sides).await;
    if sides.place != SENTINEL {
        shared::writers_among_others(sides).await;
    }
}

/// The cases in which clients that never pause share the grants.
async fn shares(sides: &Sides) {
    if sides.place == ONE_SERVER {
        turns::among_busy_managers(sides, 4, Duration::ZERO).await;
        turns::of_several_threads(sides, 2).await;
        for managers in [1, 4] {
            turns::beside_relocking_thread(sides, managers).await;
        }
        kept::beside_waiting_thread(sides).await;
    } else if !has_plain_turns(sides) {
        turns::among_busy_managers(sides, 2, Duration::ZERO).await;
    }
}
