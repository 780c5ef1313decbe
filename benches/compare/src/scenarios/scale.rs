//! Very many locks, waiters and keys in one manager: what they cost, and that nothing is lost.

use crate::bench::Bench;
use crate::child::{Speaker, this_program};
use crate::scaling::{HELD, KEYS, LEASE, WAITERS, WINDOW};
use crate::table::Series;

/// A round takes most of a minute.
const MOST_ROUNDS: usize = 3;

#[derive(Default)]
struct Figures {
    /// Bytes for each held lock.
    held: Series,
    /// Of a core, in per cent.
    renewing: Series,
    renewals: Series,
    lost: Series,
    /// Bytes for each waiter.
    waiting: Series,
    /// Megabytes that are more after very many keys.
    passed: Series,
}

pub(crate) fn run(bench: &mut Bench) {
    let mut figures = Figures::default();
    for _ in 0..bench.rounds.min(MOST_ROUNDS) {
        if let Err(reason) = figures.add(bench) {
            let note = format!("failed: {reason}");
            bench
                .table
                .row("scale", "tower-lock", String::new(), String::new(), note);
            return;
        }
    }
    tell(bench, &figures);
}

impl Figures {
    fn add(&mut self, bench: &Bench) -> Result<(), String> {
        let expirations = bench.server.calls("pexpire");
        let [held, renewing, lost] = scale(bench, "held")?;
        // Each lock got its lease once by its acquire.
        let expirations = bench.server.calls("pexpire") - expirations;
        let [waiting] = scale(bench, "waiting")?;
        let [passed] = scale(bench, "passed")?;
        self.held.add(held);
        self.renewing.add(renewing * 100.0);
        self.renewals.add(expirations as f64 / HELD as f64 - 1.0);
        self.lost.add(lost);
        self.waiting.add(waiting);
        self.passed.add(passed / 1e6);
        Ok(())
    }
}

/// The numbers that such a process says, and an empty server after it.
fn scale<const N: usize>(bench: &Bench, what: &str) -> Result<[f64; N], String> {
    let mut process = Speaker::start(this_program(&["scale", what, &bench.server.url()]))?;
    let figures = process.expect("done")?;
    drop(process);
    bench.server.cli(&["FLUSHALL"]);
    let figures: Result<Vec<f64>, _> = figures.split(' ').map(str::parse).collect();
    let figures = figures.map_err(|error| error.to_string())?;
    figures.try_into().map_err(|_| "other figures".to_owned())
}

fn tell(bench: &mut Bench, figures: &Figures) {
    let Figures {
        held,
        renewing,
        renewals,
        lost,
        waiting,
        passed,
    } = figures;
    let lease = LEASE.as_secs();
    let renewed = format!(
        "lease {lease} s, each renewed {} times within {} s; {} lost",
        renewals.text(1, ""),
        WINDOW.as_secs(),
        lost.text(0, ""),
    );
    let rows = [
        (
            format!("{HELD} locks held: CPU of the client"),
            renewing.text(1, "% of a core"),
            renewed.as_str(),
        ),
        (
            format!("{HELD} locks held: memory of each"),
            held.text(0, "bytes"),
            "resident; its guard and key included",
        ),
        (
            format!("{WAITERS} waiters for one key: memory of each"),
            waiting.text(0, "bytes"),
            "resident; its task included",
        ),
        (
            format!("{KEYS} keys have passed through: memory more"),
            passed.text(2, "MB"),
            "resident, than after 50 000 keys",
        ),
    ];
    for (scenario, figure, note) in rows {
        bench
            .table
            .row(&scenario, "tower-lock", figure, String::new(), note);
    }
}
