//! The figures of one script.

use super::calls::Calls;
use super::formats::Format;
use crate::bench::Bench;
use crate::table::{Series, ratio};
use crate::target::{self, Target};

/// The most additional time of the server for one release, in microseconds.
const MORE: f64 = 0.5;
/// The largest median time of a pair, and the smallest rate of pairs, of those before the queue.
const P50: f64 = 1.02;
const PAIRS: f64 = 0.98;

#[derive(Default)]
pub(super) struct Measured {
    /// The time of the server for a release, in microseconds.
    server: Series,
    /// Pairs per second.
    pairs: Series,
    /// The median time of a pair in microseconds.
    p50: Series,
}

impl Measured {
    /// Runs one window of each kind with the script at `format`.
    pub(super) fn add(
        &mut self,
        bench: &Bench,
        calls: &mut Calls<'_>,
        format: usize,
    ) -> Result<(), String> {
        self.server.add(calls.server_time(bench, format)?);
        let (pairs, p50) = calls.pairs(format)?;
        self.pairs.add(pairs);
        self.p50.add(p50);
        Ok(())
    }
}

/// Adds the rows of calls with so many leases each.
pub(super) fn tell(bench: &mut Bench, size: usize, all: &[Measured; Format::ALL.len()]) {
    let [ours, before] = all;
    for (format, measured) in Format::ALL.into_iter().zip(all) {
        let targets = |target| match format {
            Format::Queue => vec![target],
            Format::Before => Vec::new(),
        };
        let mut row = |what: &str, figure, ratio, target| {
            let scenario = format!("release of a free lock, {size} in a call: {what}");
            let note = target::note(&targets(target), String::new());
            bench
                .table
                .row(&scenario, format.name(), figure, ratio, note);
        };
        let of_before = |this: &Series, that| ratio(this, that, Format::Before.name());
        row(
            "time of the server for each",
            measured.server.text(2, "µs"),
            of_before(&measured.server, &before.server),
            more(ours, before),
        );
        if size == 1 {
            row(
                "p50 of a pair on one core",
                measured.p50.text(1, "µs"),
                of_before(&measured.p50, &before.p50),
                p50(ours, before),
            );
        } else {
            row(
                "pairs on one core",
                measured.pairs.text(0, "/s"),
                of_before(&measured.pairs, &before.pairs),
                pairs(ours, before),
            );
        }
    }
}

fn more(ours: &Measured, before: &Measured) -> Target {
    let more = ours.server.median() - before.server.median();
    Target::at_most("µs more than before", more, MORE, 1)
}

fn pairs(ours: &Measured, before: &Measured) -> Target {
    let ratio = ours.pairs.median() / before.pairs.median();
    Target::at_least("pairs over those before", ratio, PAIRS, 2)
}

fn p50(ours: &Measured, before: &Measured) -> Target {
    let ratio = ours.p50.median() / before.p50.median();
    Target::at_most("p50 over that before", ratio, P50, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(server: f64, pairs: f64, p50: f64) -> Measured {
        let mut measured = Measured::default();
        measured.server.add(server);
        measured.pairs.add(pairs);
        measured.p50.add(p50);
        measured
    }

    #[test]
    fn script_is_compared_with_script_before_queue() {
        let before = measured(2.0, 10_000.0, 100.0);
        let missed = |ours: &Measured| {
            let targets = [
                more(ours, &before),
                pairs(ours, &before),
                p50(ours, &before),
            ];
            target::note(&targets, String::new())
        };
        assert_eq!(missed(&measured(2.5, 9_800.0, 102.0)), "");
        let all = "**missed: µs more than before ≤ 0.5, pairs over those before ≥ 0.98, p50 over that \
                   before ≤ 1.02**";
        assert_eq!(missed(&measured(2.6, 9_700.0, 103.0)), all);
    }
}
