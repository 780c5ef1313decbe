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
        ("axum and tower-lock on Redis", url.as_str()),
    ];
    match servers
        .map(|(_, locks)| Served::start(locks))
        .into_iter()
        .collect()
    {
        Ok(served) => measure(bench, &servers.map(|(name, _)| name), served),
        Err(reason) => left_out(bench, &reason),
    }
}

fn measure(bench: &mut Bench, names: &[&str], mut all: Vec<Served>) {
    for round in 0..bench.rounds {
        for at in turns(round, all.len()) {
            match requests_per_second(&all[at].address) {
                Ok(rate) => all[at].rate.add(rate),
                Err(reason) => return left_out(bench, &reason),
            }
        }
    }
    let without = &all[0].rate;
    for (name, served) in names.iter().zip(&all) {
        let (rate, ratio) = (
            served.rate.text(0, "/s"),
            ratio(&served.rate, without, "no lock"),
        );
        bench.table.row(SCENARIO, name, rate, ratio, String::new());
    }
}

fn left_out(bench: &mut Bench, reason: &str) {
    let note = format!("left out: {reason}");
    bench.table.row(
        SCENARIO,
        "axum and tower-lock",
        String::new(),
        String::new(),
        note,
    );
}

struct Served {
    address: String,
    rate: Series,
    /// Serves until it is dropped.
    _process: Speaker,
}

impl Served {
    fn start(locks: &str) -> Result<Self, String> {
        let mut process = Speaker::start(this_program(&["serve", locks]))?;
        Ok(Self {
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
