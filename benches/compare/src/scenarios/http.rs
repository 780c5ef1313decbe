//! A request through axum, with a lock of its own and without.

use std::process::Command;

use crate::bench::{Bench, turns};
use crate::child::{Speaker, this_program};
use crate::table::{Series, ratio};

const SCENARIO: &str = "HTTP, 64 connections, another key for each request: requests";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/distinct.lua");
/// One thread of `wrk`: the other core is for the server.
const LOAD: [&str; 4] = [
    "--threads=1",
    "--connections=64",
    "--duration=2s",
    "--script",
];

pub(crate) fn run(bench: &mut Bench) {
    let url = bench.server.url();
    let servers = [
        ("axum, no lock", "none"),
        ("axum and tower-lock on memory", "memory"),
        ("axum and tower-lock on Redis", "redis"),
        ("axum and rslock", "rslock"),
        ("axum and bare `EVALSHA`, with the token", "bare"),
        (
            "axum and the scripts of tower-lock, called together",
            "together",
        ),
    ];
    let served = servers.map(|(name, locks)| Served::start(name, locks, &url));
    let measured = served.into_iter().collect::<Result<Vec<_>, _>>();
    match measured.and_then(|served| measure(bench.rounds, served)) {
        Ok(served) => tell(bench, &served),
        Err(reason) => bench.table.left_out(SCENARIO, "axum", &reason),
    }
}

fn measure(rounds: usize, mut all: Vec<Served>) -> Result<Vec<Served>, String> {
    for round in 0..rounds {
        for at in turns(round, all.len()) {
            let rate = requests_per_second(&all[at].address)?;
            all[at].rate.add(rate);
        }
    }
    Ok(all)
}

fn tell(bench: &mut Bench, all: &[Served]) {
    for Served { name, rate, .. } in all {
        let ratio = ratio(rate, &all[0].rate, "no lock");
        bench
            .table
            .row(SCENARIO, name, rate.text(0, "/s"), ratio, "");
    }
}

struct Served {
    name: &'static str,
    address: String,
    rate: Series,
    /// Serves until it is dropped.
    _process: Speaker,
}

impl Served {
    fn start(name: &'static str, locks: &str, url: &str) -> Result<Self, String> {
        let mut process = Speaker::start(this_program(&["serve", locks, url]))?;
        Ok(Self {
            name,
            address: process.expect("ready")?,
            rate: Series::default(),
            _process: process,
        })
    }
}

fn requests_per_second(address: &str) -> Result<f64, String> {
    let output = Command::new("wrk")
        .args(LOAD)
        .args([SCRIPT, address])
        .output()
        .map_err(|error| format!("`wrk` cannot be run ({error})"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let value = |name| text.lines().find_map(|line| line.trim().strip_prefix(name));
    if let Some(refused) = value("Non-2xx or 3xx responses:") {
        return Err(format!("{} requests were refused", refused.trim()));
    }
    let rate = value("Requests/sec:").and_then(|rate| rate.trim().parse().ok());
    rate.ok_or_else(|| format!("`wrk` says `{}`", text.trim()))
}
