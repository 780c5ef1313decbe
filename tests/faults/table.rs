//! The results, one line per row.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::referee::Verdict;
use crate::rows::Row;

const HEAD: [&str; 9] = [
    "fault",
    "servers",
    "runs",
    "violations",
    "longest overlap",
    "recovery median",
    "max",
    "orphans",
    "lost() late, net",
];
/// The number of violations of one row that are printed in full.
const SPELLED_OUT: usize = 12;

/// All runs of one row.
#[derive(Default)]
pub(crate) struct Runs(pub(crate) Vec<Verdict>);

impl Runs {
    pub(crate) fn are_good(&self) -> bool {
        let good = |run: &Verdict| run.violations.is_empty() && run.orphans == 0;
        self.0.iter().all(good)
    }

    fn cells(&self, row: &Row) -> [String; 9] {
        let runs = &self.0;
        let longest = |what: fn(&Verdict) -> Duration| runs.iter().map(what).max();
        let mut recoveries: Vec<_> = runs.iter().filter_map(|run| run.recovery).collect();
        recoveries.sort_unstable();
        let overlap = longest(|run| run.longest_overlap).unwrap_or_default();
        let (late, net) = (
            longest(|run| run.reported_late.0).unwrap_or_default(),
            longest(|run| run.reported_late.1).unwrap_or_default(),
        );
        [
            row.name.to_owned(),
            row.topology.name().to_owned(),
            runs.len().to_string(),
            self.violations(),
            millis(Some(&overlap)),
            millis(recoveries.get(recoveries.len() / 2)),
            millis(recoveries.last()),
            runs.iter()
                .map(|run| run.orphans)
                .sum::<usize>()
                .to_string(),
            format!("{}, {}", millis(Some(&late)), millis(Some(&net))),
        ]
    }

    /// Returns the number of violations of each invariant.
    fn violations(&self) -> String {
        let mut counts = BTreeMap::<_, usize>::new();
        for violation in self.0.iter().flat_map(|run| &run.violations) {
            *counts.entry(violation.of).or_default() += 1;
        }
        if counts.is_empty() {
            return "0".to_owned();
        }
        let counts = counts.iter().map(|(of, count)| format!("{count} {of}"));
        counts.collect::<Vec<_>>().join(", ")
    }
}

fn millis(time: Option<&Duration>) -> String {
    time.map_or("-".to_owned(), |time| {
        format!("{:.0} ms", time.as_secs_f64() * 1e3)
    })
}

/// Prints the table, and the violations below it.
pub(crate) fn print(rows: &[(&Row, Runs)]) {
    let mut lines = vec![HEAD.map(ToOwned::to_owned)];
    lines.extend(rows.iter().map(|(row, runs)| runs.cells(row)));
    let mut widths = [0; HEAD.len()];
    for (column, width) in widths.iter_mut().enumerate() {
        let lengths = lines.iter().map(|line| line[column].chars().count());
        *width = lengths.max().unwrap_or(0);
    }
    println!();
    for line in &lines {
        let cells = line.iter().zip(widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 | 1 | 3 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    for (row, runs) in rows.iter().filter(|(_, runs)| !runs.are_good()) {
        println!("\n{}:", row.name);
        let violations = runs
            .0
            .iter()
            .enumerate()
            .flat_map(|(run, verdict)| verdict.violations.iter().map(move |it| (run + 1, it)));
        for (run, violation) in violations.take(SPELLED_OUT) {
            println!("  run {run}: {}: {}", violation.of, violation.what);
        }
    }
}
