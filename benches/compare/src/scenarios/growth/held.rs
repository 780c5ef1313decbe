//! More locks that are held and renewed at a time.

use std::time::Duration;

use super::{ROUND_TRIPS, Spent, draw, named, rounds, slope};
use crate::bench::Bench;
use crate::scaling::LEASE;
use crate::scenarios::scale::hold;
use crate::table::{Series, thousands};

const LEVELS: [usize; 5] = [1, 100, 10_000, 100_000, 1_000_000];
/// A third of the lease, after which the watchdog renews.
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Figures {
    /// The memory of the process in megabytes.
    memory: [Series; LEVELS.len()],
    /// The CPU time of renewals in percent of a core.
    renewing: [Series; LEVELS.len()],
    /// The CPU of Redis for an acquire and a renewal of each lock in microseconds.
    cpu: [Series; LEVELS.len()],
    bytes: [Series; LEVELS.len()],
    lost: [Series; LEVELS.len()],
}

pub(super) fn run(bench: &mut Bench, urls: &[String; 2]) {
    let mut all = [Figures::default(), Figures::default()];
    for _ in 0..rounds(bench) {
        for (level, held) in LEVELS.into_iter().enumerate() {
            for (url, figures) in urls.iter().zip(&mut all) {
                if let Err(reason) = figures.add(bench, url, level, held) {
                    return bench
                        .table
                        .left_out("growth: locks held", "tower-lock", &reason);
                }
            }
        }
    }
    for (round_trip, figures) in ROUND_TRIPS.into_iter().zip(&all) {
        for (level, held) in LEVELS.into_iter().enumerate() {
            let scenario = format!(
                "growth, {} held, {}: CPU of the client",
                thousands(held as f64, 0),
                named(round_trip)
            );
            let renewing = figures.renewing[level].text(2, "% of a core");
            let slope = slope(&LEVELS, &figures.renewing, level);
            (bench.table).row(
                &scenario,
                "tower-lock",
                renewing,
                slope,
                figures.note(level),
            );
        }
    }
    let lines = ROUND_TRIPS.into_iter().zip(&all);
    let lines = lines.map(|(round_trip, it)| (named(round_trip), &it.memory[..]));
    let axes = ["locks held", "memory of the process in MB"];
    let title = "Locks that are held and renewed";
    draw(
        "growth-held.svg",
        title,
        axes,
        &LEVELS,
        &lines.collect::<Vec<_>>(),
    );
}

impl Figures {
    fn add(&mut self, bench: &Bench, url: &str, level: usize, held: usize) -> Result<(), String> {
        let before = Spent::now(bench);
        let [memory, renewing, lost] = hold(bench, held, WINDOW, url)?;
        // An acquire, a renewal and no release: the process ends.
        let [cpu, bytes] = Spent::since(before, bench, held as u64);
        self.memory[level].add(memory / 1e6);
        self.renewing[level].add(renewing * 100.0);
        self.cpu[level].add(cpu);
        self.bytes[level].add(bytes);
        self.lost[level].add(lost);
        Ok(())
    }

    fn note(&self, level: usize) -> String {
        let (lease, each) = (LEASE.as_secs(), WINDOW.as_secs());
        let (memory, lost) = (
            self.memory[level].text(1, "MB"),
            self.lost[level].text(0, ""),
        );
        let note =
            format!("lease {lease} s, renewed each {each} s; {memory} resident; {lost} lost");
        // The cost of a connection hides that of few locks.
        if LEVELS[level] < 10_000 {
            return note;
        }
        let (cpu, bytes) = (&self.cpu[level], &self.bytes[level]);
        let (micros, bytes) = (cpu.text(1, "µs"), bytes.text(0, "bytes"));
        format!("{note}; an acquire and a renewal take {micros} of Redis and {bytes}")
    }
}
