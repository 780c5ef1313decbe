//! Locks shared with Java services, tested against Redisson: `make interop`.
//!
//! It is not part of `cargo test`, because it requires a JDK and Maven. Each version of Redisson meets this
//! crate on one server, behind Sentinel and in a Cluster. A table of the results follows at the end.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod busy;
mod cases;
mod child;
mod java;
mod shared;
mod sides;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod turns;

use std::process::ExitCode;
use std::time::Duration;

use tower_lock::backend::redis::Publish;

use java::VERSIONS;
use sides::{Sides, Store};
use support::cluster::Cluster;
use support::redis_server::RedisServer;
use support::sentinel::SentinelSet;
use table::Row;

fn main() -> ExitCode {
    if child::main() {
        return ExitCode::SUCCESS;
    }
    if let Err(problem) = java::build() {
        eprintln!("the Java side cannot be built: {problem}");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // A failing case panics.
    let rows: Vec<Row> = runtime.block_on(async {
        let mut rows = Vec::new();
        let wanted: Vec<String> = std::env::args().skip(1).collect();
        if let Some(other) = wanted.iter().find(|it| !VERSIONS.contains(&it.as_str())) {
            panic!("{other} is none of {VERSIONS:?}");
        }
        let is_wanted = |version: &&str| wanted.is_empty() || wanted.iter().any(|it| it == version);
        for version in VERSIONS.into_iter().filter(is_wanted) {
            rows.append(&mut on_one_server(version).await);
            rows.append(&mut behind_sentinel(version).await);
            rows.append(&mut in_a_cluster(version).await);
            if publishes_plain(version) {
                rows.append(&mut with_plain_messages(version).await);
            }
        }
        rows
    });
    table::print(&rows);
    ExitCode::SUCCESS
}

async fn on_one_server(version: &'static str) -> Vec<Row> {
    let store = Store::Single(RedisServer::start());
    let mut sides = Sides::new(version, store, Publish::Auto);
    cases::exclusion(&mut sides, 4, 2, 100).await;
    cases::wake_ups(&mut sides).await;
    turns::among_busy_managers(&mut sides, 4, Duration::ZERO).await;
    turns::of_several_threads(&mut sides, 2).await;
    for managers in [1, 4] {
        turns::beside_relocking_thread(&mut sides, managers).await;
    }
    shared::excluded(&mut sides).await;
    shared::consistent(&mut sides).await;
    shared::writers_among_others(&mut sides).await;
    cases::watchdogs(&mut sides).await;
    cases::crashes(&mut sides).await;
    cases::views(&mut sides).await;
    cases::by_force(&mut sides).await;
    cases::names(&mut sides).await;
    // Older versions have no fenced locks.
    if version != "3.16.8" {
        cases::fenced_tokens(&mut sides).await;
    }
    sides.rows
}

async fn behind_sentinel(version: &'static str) -> Vec<Row> {
    let store = Store::Sentinel(SentinelSet::start());
    let mut sides = Sides::new(version, store, Publish::Auto);
    cases::exclusion(&mut sides, 1, 1, 25).await;
    cases::wake_ups(&mut sides).await;
    turns::among_busy_managers(&mut sides, 2, Duration::ZERO).await;
    cases::crashes(&mut sides).await;
    sides.rows
}

/// Since 3.22, Redisson publishes sharded messages in a Cluster, as this crate does. Before, it published
/// plain ones.
fn publishes_plain(version: &str) -> bool {
    version == "3.16.8"
}

/// Servers cannot count the plain subscribers of a Cluster. Java then has a turn at this interval, not in each round.
const TURNS_OF_PLAIN: Duration = Duration::from_millis(500);

async fn in_a_cluster(version: &'static str) -> Vec<Row> {
    let (publish, turns) = match publishes_plain(version) {
        true => (Publish::Both, TURNS_OF_PLAIN),
        false => (Publish::Auto, Duration::ZERO),
    };
    let mut sides = Sides::new(version, Store::Cluster(Cluster::start()), publish);
    cases::exclusion(&mut sides, 1, 1, 25).await;
    cases::wake_ups(&mut sides).await;
    turns::among_busy_managers(&mut sides, 2, turns).await;
    cases::crashes(&mut sides).await;
    cases::names(&mut sides).await;
    shared::excluded(&mut sides).await;
    shared::consistent(&mut sides).await;
    shared::writers_among_others(&mut sides).await;
    sides.rows
}

/// No client of the Cluster supports sharded messages.
async fn with_plain_messages(version: &'static str) -> Vec<Row> {
    let store = Store::Cluster(Cluster::start());
    let mut sides = Sides::new(version, store, Publish::Plain);
    cases::exclusion(&mut sides, 1, 1, 25).await;
    cases::wake_ups(&mut sides).await;
    turns::among_busy_managers(&mut sides, 2, TURNS_OF_PLAIN).await;
    shared::writers_among_others(&mut sides).await;
    sides.rows
}
