//! Very many locks, waiters and keys in one manager: their cost, and the absence of lost locks.

use std::time::Duration;

use crate::bench::Bench;
use crate::child::{Speaker, this_program};
use crate::scaling::{HELD, KEYS, LEASE, WAITERS, WINDOW};
use crate::table::{Series, thousands};

/// A round takes nearly a minute.
const MOST_ROUNDS: usize = 3;

#[derive(Default)]
struct Figures {
    /// The bytes per held lock.
    held: Series,
    /// The CPU time of renewals in percent of a core.
    renewing: Series,
    renewals: Series,
    lost: Series,
    /// The bytes per waiter in one task.
    waiting: Series,
    /// The bytes per waiter with one task each.
    tasks: Series,
    /// The additional megabytes after very many keys.
    passed: Series,
}

pub(crate) fn run(bench: &mut Bench) {
    let mut figures = Figures::default();
    for _ in 0..bench.rounds.min(MOST_ROUNDS) {
        if let Err(reason) = figures.add(bench) {
            return bench.table.left_out("scale", "tower-lock", &reason);
        }
    }
    tell(bench, &figures);
}

impl Figures {
    fn add(&mut self, bench: &Bench) -> Result<(), String> {
        let expirations = bench.server.calls("pexpire");
        let [held, renewing, lost] = hold(bench, HELD, WINDOW, &bench.server.url())?;
        // Each lock received its first lease by its acquire.
        let expirations = bench.server.calls("pexpire") - expirations;
        let [waiting] = scale(bench, "waiting")?;
        let [tasks] = scale(bench, "tasks")?;
        let [passed] = scale(bench, "passed")?;
        self.held.add(held / HELD as f64);
        self.renewing.add(renewing * 100.0);
        self.renewals.add(expirations as f64 / HELD as f64 - 1.0);
        self.lost.add(lost);
        self.waiting.add(waiting);
        self.tasks.add(tasks);
        self.passed.add(passed / 1e6);
        Ok(())
    }

    fn renewed(&self) -> String {
        let (lease, window) = (LEASE.as_secs(), WINDOW.as_secs());
        let (renewals, lost) = (self.renewals.text(1, ""), self.lost.text(0, ""));
        format!("lease {lease} s; each renewed {renewals} times in {window} s; {lost} lost")
    }
}

/// Returns the bytes of so many locks that a process holds for this time, the share of a core that their renewals take, and
/// the number of lost ones.
pub(super) fn hold(
    bench: &Bench,
    count: usize,
    window: Duration,
    url: &str,
) -> Result<[f64; 3], String> {
    let (count, seconds) = (count.to_string(), window.as_secs().to_string());
    measured(bench, &["hold", &count, &seconds, url])
}

fn scale<const N: usize>(bench: &Bench, what: &str) -> Result<[f64; N], String> {
    measured(bench, &["scale", what, &bench.server.url()])
}

/// Returns the figures that such a process prints, and empties the server after it.
fn measured<const N: usize>(bench: &Bench, arguments: &[&str]) -> Result<[f64; N], String> {
    let mut process = Speaker::start(this_program(arguments))?;
    let figures = process.expect("done")?;
    drop(process);
    bench.server.cli(&["FLUSHALL"]);
    let figures: Result<Vec<f64>, _> = figures.split(' ').map(str::parse).collect();
    let figures = figures.map_err(|error| error.to_string())?;
    figures.try_into().map_err(|_| "other figures".to_owned())
}

fn tell(bench: &mut Bench, figures: &Figures) {
    let number = |number: usize| thousands(number as f64, 0);
    let mut row = |scenario: String, figure: String, note: &str| {
        bench.table.row(&scenario, "tower-lock", figure, "", note);
    };
    row(
        format!("{} locks held: CPU of the client", number(HELD)),
        figures.renewing.text(1, "% of a core"),
        &figures.renewed(),
    );
    row(
        format!("{} locks held: memory of each", number(HELD)),
        figures.held.text(0, "bytes"),
        "resident; its guard and key included",
    );
    row(
        format!("{} waiters for one key: memory of each", number(WAITERS)),
        figures.waiting.text(0, "bytes"),
        "resident; its future included",
    );
    row(
        format!(
            "{} waiters for one key, a task each: memory of each",
            number(WAITERS)
        ),
        figures.tasks.text(0, "bytes"),
        "resident; its task included",
    );
    row(
        format!("{} keys have passed through: memory more", number(KEYS)),
        figures.passed.text(2, "MB"),
        "resident; than after a twentieth of them",
    );
}
