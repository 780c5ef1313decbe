//! The figures of one contender in one cell.

use std::time::Duration;

use super::cell::Cell;
use crate::bench::Bench;
use crate::contenders::Contender;
use crate::contention::Contention;
use crate::job::Keys;
use crate::table::Series;
use crate::target::{self, Target};
use crate::team::Team;

pub(super) struct Figures {
    pub(super) contention: Contention,
    /// The smallest share of a client, divided by an equal share.
    pub(super) share: Series,
    /// Script calls for each grant.
    pub(super) scripts: Series,
    /// In milliseconds.
    p50: Series,
    p99: Series,
}

impl Figures {
    pub(super) fn over(window: Duration) -> Self {
        Self {
            contention: Contention::over(window),
            share: Series::default(),
            scripts: Series::default(),
            p50: Series::default(),
            p99: Series::default(),
        }
    }

    /// Runs one window and adds what it shows.
    pub(super) fn measure(&mut self, bench: &mut Bench, cell: Cell, team: &mut Team) {
        let (processes, clients) = match cell.has_processes() {
            true => (cell.managers, 1),
            false => (1, cell.managers),
        };
        let mut job = bench.job(Keys::Shared(1), clients, bench.herd_window);
        job.hold = cell.hold;
        bench.server.cli(&["CONFIG", "RESETSTAT"]);
        let Some(report) = team.run_in(processes, &job) else {
            return;
        };
        let waits = report.waits();
        // The server counts calls until the last waiter is granted, so pairs count until then as well.
        let for_each_grant = |calls: u64| calls as f64 / report.pairs() as f64;
        let calls = |command| bench.server.calls(command);
        self.scripts
            .add(for_each_grant(calls("evalsha") + calls("eval")));
        self.contention.add(&report);
        self.share.add(report.smallest_part(cell.managers));
        self.p50.add(waits.at(0.5) * 1e3);
        self.p99.add(waits.at(0.99) * 1e3);
    }

    /// Returns the text beside the rate, which begins with the targets that are missed.
    pub(super) fn note(&self, contender: Contender, targets: &[Target]) -> String {
        let mut notes = Vec::new();
        let share = self.share.text(2, "");
        notes.push(format!("smallest share {share} of an equal one"));
        let longest = self.contention.longest.text(1, "ms");
        notes.push(format!("longest wait {longest}"));
        if contender == Contender::Ours {
            let (p50, p99) = (self.p50.text(3, "ms"), self.p99.text(2, "ms"));
            notes.push(format!("p50 {p50}, p99 {p99}"));
        }
        notes.push(format!(
            "{} scripts for each grant",
            self.scripts.text(2, "")
        ));
        target::note(targets, notes.join("; "))
    }
}
