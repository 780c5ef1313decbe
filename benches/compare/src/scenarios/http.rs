//! A request through axum, with one lock per request and without.

use std::process::Command;

use crate::bench::{Bench, turns};
use crate::child::{Speaker, this_program};
use crate::table::{Series, ratio};

const SCENARIO: &str = "HTTP, 64 connections, another key for each request: requests";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/distinct.lua");
/// The load generator shares the cores with the server and Redis. One thread takes the least from them.
const LOAD: [&str; 3] = ["--threads=1", "--connections=64", "--script"];
const WARM_UP: &str = "--duration=1s";
const WINDOW: &str = "--duration=2s";

pub(crate) fn run(bench: &mut Bench) {
    let url = bench.server.url();
    let servers = [
        ("axum, no lock", "none"),
        ("axum and tower-lock on memory", "memory"),
        ("axum and tower-lock on Redis", "redis"),
        ("axum and rslock", "rslock"),
        ("axum and the scripts alone, with the token", "bare"),
        (
            "axum and the scripts of tower-lock, called together",
            "together",
        ),
    ];
    let mut all = servers.map(|(name, locks)| Measured::start(name, locks, &url));
    for round in 0..bench.rounds {
        for at in turns(round, all.len()) {
            all[at].measure();
        }
    }
    for measured in &all {
        measured.tell(bench, &all[0].rate);
    }
}

struct Measured {
    name: &'static str,
    /// The server, or the reason for its absence.
    served: Result<Served, String>,
    rate: Series,
}

impl Measured {
    fn start(name: &'static str, locks: &str, url: &str) -> Self {
        let served = Served::start(locks, url).and_then(|served| {
            requests_per_second(&served.address, WARM_UP)?;
            Ok(served)
        });
        Self {
            name,
            served,
            rate: Series::default(),
        }
    }

    fn measure(&mut self) {
        let Ok(served) = &self.served else { return };
        match requests_per_second(&served.address, WINDOW) {
            Ok(rate) => self.rate.add(rate),
            Err(reason) => self.served = Err(reason),
        }
    }

    fn tell(&self, bench: &mut Bench, unlocked: &Series) {
        match &self.served {
            Err(reason) => bench.table.left_out(SCENARIO, self.name, reason),
            Ok(_) => {
                let ratio = ratio(&self.rate, unlocked, "no lock");
                let rate = self.rate.text(0, "/s");
                bench.table.row(SCENARIO, self.name, rate, ratio, "");
            }
        }
    }
}

struct Served {
    address: String,
    /// A server that ends when dropped.
    _process: Speaker,
}

impl Served {
    fn start(locks: &str, url: &str) -> Result<Self, String> {
        let mut process = Speaker::start(this_program(&["serve", locks, url]))?;
        Ok(Self {
            address: process.expect("ready")?,
            _process: process,
        })
    }
}

fn requests_per_second(address: &str, duration: &str) -> Result<f64, String> {
    let output = Command::new("wrk")
        .arg(duration)
        .args(LOAD)
        .args([SCRIPT, address])
        .output()
        .map_err(|error| format!("`wrk` cannot be run ({error})"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let value = |name| text.lines().find_map(|line| line.trim().strip_prefix(name));
    for failure in ["Non-2xx or 3xx responses:", "Socket errors:"] {
        if let Some(failed) = value(failure) {
            return Err(format!("{failure}{failed}"));
        }
    }
    let rate = value("Requests/sec:").and_then(|rate| rate.trim().parse().ok());
    // `wrk` reports no failure if a server sends no response at all.
    let rate = rate.filter(|rate| *rate > 0.0);
    rate.ok_or_else(|| format!("`wrk` says `{}`", text.trim()))
}
