//! Requirements on holders: they keep their locks, or they lose them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, sleep};
use tower_lock::ErrorKind;

use super::{PROCESSES, Run};
use crate::referee::{Hold, Outage};
use crate::support::engine::{Monitor, SECOND};

/// Requirements that can be judged only at the end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Expectation {
    /// All locks from before the outage are lost within a second of its end.
    AllLost(Outage),
    /// The locks that each process holds throughout, one of them shared and one a permit, are held during the
    /// whole outage.
    AllKept(Outage),
}

impl Run {
    pub(crate) fn expect_all_lost(&mut self, outage: Outage) {
        self.expectations.push(Expectation::AllLost(outage));
    }

    /// The long-held locks are kept. Waits for two more renewals.
    pub(crate) async fn expect_all_kept(&mut self, outage: Outage) {
        self.expectations.push(Expectation::AllKept(outage));
        sleep(self.row.lease).await;
    }

    /// Judges the requirements after the end of the load.
    pub(super) fn check(&self, expectation: Expectation) {
        let log = self.referee.log();
        let mut violations = Vec::new();
        match expectation {
            Expectation::AllLost(outage) => {
                let limit = outage.usable + SECOND;
                let limit = limit + self.referee.stall_detector.delay(outage.usable, limit);
                let of_old = |hold: &&Hold| hold.renewed && hold.granted < outage.begin;
                let held = log
                    .holds
                    .iter()
                    .filter(of_old)
                    .filter(|it| it.end() > limit);
                for hold in held {
                    let end = hold.end() - outage.usable;
                    violations.push(format!("{} held for {end:?} without its data", hold.key));
                }
            }
            Expectation::AllKept(outage) => {
                let keys = |process| {
                    self.load
                        .kept(process)
                        .into_iter()
                        .map(move |it| (it, process))
                };
                for (key, process) in (0..PROCESSES).flat_map(keys) {
                    let kept = log.holds.iter().any(|hold| {
                        hold.key == key
                            && hold.process == process
                            && hold.granted < outage.begin
                            && hold.end() > outage.usable + self.row.lease / 2
                    });
                    if !kept {
                        violations.push(format!("{key} of process {process} was lost"));
                    }
                }
            }
        }
        drop(log);
        for what in violations {
            self.referee.violation("holders", what);
        }
    }

    /// Returns `true` if the process has the locks that it holds throughout.
    pub(super) fn keeps(&self, process: usize) -> bool {
        let (log, now) = (self.referee.log(), Instant::now());
        let held = |key: &String| {
            let held =
                |hold: &Hold| hold.process == process && hold.key == *key && hold.end() > now;
            log.holds.iter().any(held)
        };
        self.load.kept(process).iter().all(held)
    }

    /// These long-held keys are held without a gap until now.
    pub(crate) fn expect_kept(&mut self, keys: &[String], outage: Outage) {
        for key in keys {
            let kept = self.held_from(key, outage.begin);
            self.referee
                .expect(kept, "holders", || format!("{key} was lost"));
        }
    }

    /// Returns the largest delay of a renewal of these keys beyond a third of the lease, since the outage
    /// began.
    pub(crate) fn renewals_late(&self, keys: &[String], outage: Outage) -> Duration {
        let log = self.referee.log();
        let of_keys = log.holds.iter().filter(|hold| keys.contains(&hold.key));
        let gaps = of_keys.flat_map(|hold| {
            let since = hold.deadlines.windows(2).filter(move |pair| {
                // Each deadline is one lease after the command that set it.
                pair[1] > outage.begin + hold.lease
            });
            since.map(|pair| (pair[1] - pair[0]).saturating_sub(hold.lease / 3))
        });
        gaps.max().unwrap_or_default()
    }

    /// Returns the number of grants of a process after a moment.
    pub(crate) fn grants(&self, process: usize, after: Instant) -> usize {
        let log = self.referee.log();
        let granted = |hold: &&Hold| hold.process == process && hold.granted > after;
        log.holds.iter().filter(granted).count()
    }

    /// Returns the grants that the server made after a moment, by its own clock, which is in the token. The
    /// reply to an acquire or a hand-off from before may arrive later.
    pub(crate) fn granted_since(&self, moment: SystemTime) -> Vec<Hold> {
        let moment = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        let log = self.referee.log();
        let since =
            |hold: &&Hold| u128::from((hold.token >> 8).unsigned_abs()) > moment.as_micros();
        log.holds.iter().filter(since).cloned().collect()
    }

    pub(crate) fn refusals(&self, kind: ErrorKind) -> usize {
        let log = self.referee.log();
        log.refusals.iter().filter(|it| it.kind == kind).count()
    }

    /// Returns the number of failed acquires whose error contains a text.
    pub(crate) fn refused_with(&self, why: &str) -> usize {
        let log = self.referee.log();
        log.refusals
            .iter()
            .filter(|it| it.why.contains(why))
            .count()
    }

    /// Returns `true` if the holder of the key before a moment still holds it.
    pub(crate) fn held_from(&self, key: &str, moment: Instant) -> bool {
        let log = self.referee.log();
        let now = Instant::now();
        let held = |it: &&Hold| it.key == key && it.granted < moment && it.end() > now;
        log.holds.iter().any(|hold| held(&hold))
    }

    /// Returns all commands that the server has received.
    pub(crate) fn wire(&self) -> Vec<String> {
        self.monitors.iter().flat_map(Monitor::all_lines).collect()
    }

    /// As [`wire`](Self::wire), but only the commands that contain a text.
    pub(crate) fn wire_with(&self, text: &str) -> Vec<String> {
        let lines = self.monitors.iter().map(|it| it.lines_with(text));
        lines.flatten().collect()
    }

    /// The process received no grant from this moment until now, or had no outage. It must run before the
    /// fault ends, because a grant just after the end would count.
    pub(crate) fn expect_silence(&mut self, process: usize, since: Instant) {
        let granted = self.grants(process, since);
        self.proof(granted == 0, format!("{granted} grants"));
    }
}
