//! A request through axum, with one lock per request and without.

use std::process::Command;

use crate::bench::{Bench, turns};
use crate::child::{Speaker, this_program};
use crate::cpu;
use crate::table::{Series, ratio};
use crate::target::{self, Target};

/// The load generator shares the cores with the server and Redis. One thread takes the least from them.
const LOAD: [&str; 3] = ["--threads=1", "--connections=64", "--script"];
const WARM_UP: &str = "--duration=1s";
const WINDOW: &str = "--duration=2s";

const DISTINCT: &str = "another key for each request";
const REPEATED: &str = "64 keys in turns";

const NONE: (&str, &str) = ("axum, no lock", "none");
const MEMORY: (&str, &str) = ("axum and tower-lock on memory", "memory");
const REDIS: (&str, &str) = ("axum and tower-lock on Redis", "redis");

pub(crate) fn run(bench: &mut Bench) {
    let distinct = [
        NONE,
        ("axum and a set of the keys", "set"),
        MEMORY,
        REDIS,
        ("axum and rslock", "rslock"),
        ("axum and the scripts alone, with the token", "bare"),
        (
            "axum and the scripts of tower-lock, called together",
            "together",
        ),
    ];
    compare(bench, DISTINCT, "distinct.lua", &distinct);
    let repeated = [
        NONE,
        MEMORY,
        REDIS,
        (
            "axum and tower-lock on Redis, leases kept for 10 ms",
            "kept-10",
        ),
        (
            "axum and tower-lock on Redis, leases kept for 50 ms",
            "kept-50",
        ),
    ];
    compare(bench, REPEATED, "repeated.lua", &repeated);
}

/// Measures these servers with the requests of a script for `wrk`.
fn compare(bench: &mut Bench, keys: &str, script: &str, servers: &[(&'static str, &'static str)]) {
    let (url, script) = (
        bench.server.url(),
        format!("{}/{script}", env!("CARGO_MANIFEST_DIR")),
    );
    let servers = servers.iter();
    let mut all: Vec<_> = servers
        .map(|server| Measured::start(*server, &script, &url))
        .collect();
    for round in 0..bench.rounds {
        for at in turns(round, all.len()) {
            all[at].measure(&script);
        }
    }
    for measured in &all {
        measured.tell(bench, keys, &all);
    }
}

struct Measured {
    name: &'static str,
    locks: &'static str,
    /// The server, or the reason for its absence.
    served: Result<Served, String>,
    rate: Series,
    /// The CPU time of the server per request, in microseconds.
    cpu: Series,
}

impl Measured {
    fn start((name, locks): (&'static str, &'static str), script: &str, url: &str) -> Self {
        let served = Served::start(locks, url).and_then(|served| {
            load(&served.address, script, WARM_UP)?;
            Ok(served)
        });
        Self {
            name,
            locks,
            served,
            rate: Series::default(),
            cpu: Series::default(),
        }
    }

    fn measure(&mut self, script: &str) {
        let Ok(served) = &self.served else { return };
        match served.measure(script) {
            Ok((rate, cpu)) => {
                self.rate.add(rate);
                self.cpu.add(cpu * 1e6);
            }
            Err(reason) => self.served = Err(reason),
        }
    }

    fn tell(&self, bench: &mut Bench, keys: &str, all: &[Self]) {
        let scenario = format!("HTTP, 64 connections, {keys}: requests");
        match &self.served {
            Err(reason) => bench.table.left_out(&scenario, self.name, reason),
            Ok(_) => {
                let ratio = ratio(&self.rate, &all[0].rate, "no lock");
                let note = format!("{} of CPU of the server for each", self.cpu.text(1, "µs"));
                let note = target::note(&self.targets(all), note);
                (bench.table).row(&scenario, self.name, self.rate.text(0, "/s"), ratio, note);
            }
        }
    }

    fn targets(&self, all: &[Self]) -> Vec<Target> {
        let memory = all
            .iter()
            .find(|it| it.locks == MEMORY.1 && it.served.is_ok());
        let over = |figure: fn(&Self) -> &Series| {
            memory.map_or(f64::NAN, |it| figure(self).median() / figure(it).median())
        };
        match self.locks.starts_with("kept-") {
            true => vec![
                Target::at_least("requests / memory", over(|it| &it.rate), 0.95, 2),
                Target::at_most("CPU / memory", over(|it| &it.cpu), 1.1, 1),
            ],
            false => Vec::new(),
        }
    }
}

struct Served {
    address: String,
    /// A server that ends when dropped.
    process: Speaker,
}

impl Served {
    fn start(locks: &str, url: &str) -> Result<Self, String> {
        let mut process = Speaker::start(this_program(&["serve", locks, url]))?;
        Ok(Self {
            address: process.expect("ready")?,
            process,
        })
    }

    /// Returns the requests per second, and the seconds of CPU of the server for each.
    fn measure(&self, script: &str) -> Result<(f64, f64), String> {
        let cpu = || cpu::seconds(self.process.process()).map_err(|error| error.to_string());
        let before = cpu()?;
        let [requests, rate] = load(&self.address, script, WINDOW)?;
        Ok((rate, (cpu()? - before) / requests))
    }
}

/// Returns the number of requests, and how many there were per second.
fn load(address: &str, script: &str, duration: &str) -> Result<[f64; 2], String> {
    let output = Command::new("wrk")
        .arg(duration)
        .args(LOAD)
        .args([script, address])
        .output()
        .map_err(|error| format!("`wrk` cannot be run ({error})"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let value = |name| text.lines().find_map(|line| line.trim().strip_prefix(name));
    for failure in ["Non-2xx or 3xx responses:", "Socket errors:"] {
        if let Some(failed) = value(failure) {
            return Err(format!("{failure}{failed}"));
        }
    }
    let requests = text
        .lines()
        .find_map(|line| line.split_once(" requests in "));
    let requests = requests.and_then(|(requests, _)| requests.trim().parse().ok());
    let rate = value("Requests/sec:").and_then(|rate| rate.trim().parse().ok());
    // `wrk` reports no failure if a server sends no response at all.
    let figures = requests.zip(rate).filter(|(_, rate)| *rate > 0.0);
    let (requests, rate) = figures.ok_or_else(|| format!("`wrk` says `{}`", text.trim()))?;
    Ok([requests, rate])
}
