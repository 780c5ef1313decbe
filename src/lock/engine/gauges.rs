//! The thread that reports counts and gauges to the metrics recorder. Gauges look at all lanes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Engine;
use crate::backend::Mode;
use crate::mutex::Mutex;
use crate::observe::{Gauges, Name, Tally};
use crate::task::every;

/// The time between two reports of the counts.
const PERIOD: Duration = Duration::from_secs(1);

/// The number of reports between two reports of the gauges, which look at all lanes.
const PER_LOOK: u32 = 5;

/// The managers whose counts the thread reports. It runs while there are some.
static REPORTED: Mutex<Vec<Manager>> = Mutex::new(Vec::new());

#[derive(Clone)]
struct Manager {
    tally: Arc<Tally>,
    /// An unused manager must be droppable.
    engine: Weak<Engine>,
}

impl Manager {
    fn report(&self, checks: bool) {
        let engine = checks.then(|| self.engine.upgrade()).flatten();
        match engine {
            Some(engine) => engine.report(),
            // The engine must not end on this thread, which may have another recorder.
            None => self.tally.report(None),
        }
    }
}

impl Engine {
    /// Reports to the recorder from now on, by a thread that all managers share. A task would delay the end of its
    /// runtime, and would stop with it.
    ///
    /// It precedes the first acquire: an exporter with an idle timeout removes a series that is not written, and does
    /// not show it again.
    pub(crate) fn report_regularly(self: &Arc<Self>) {
        let mut reported = REPORTED.lock();
        reported.push(Manager {
            tally: Arc::clone(&self.tally),
            engine: Arc::downgrade(self),
        });
        if reported.len() == 1 {
            let mut round = 0;
            let started = every(PERIOD, move || {
                round += 1;
                report_all(round % PER_LOOK == 0)
            });
            // Without a thread, the ends of managers and `flush_metrics` report. The next manager tries again.
            if started.is_err() {
                reported.clear();
            }
        }
    }

    /// Reports the counts and the gauges to the recorder now.
    pub(crate) fn report(&self) {
        self.tally.report(Some(&self.gauges()));
    }

    fn gauges(&self) -> Gauges {
        let now = self.now();
        let mut gauges = Gauges {
            held: [[0; Mode::COUNT]; Name::COUNT],
            waiting: [0; Name::COUNT],
            waiting_limit: self.options.max_waiters,
            unreleased: self.unconfirmed(),
            kept: 0,
            oldest_hold: Duration::ZERO,
            oldest_wait: Duration::ZERO,
            watchdog_lag: self.tally.watchdog_lag(),
        };
        self.lanes.inspect_all(|_, lane| {
            gauges.unreleased += usize::from(lane.is_unreleased(now));
            gauges.kept += usize::from(lane.kept_lease().is_some());
            let mode = lane.mode() as usize;
            for grant in lane.holders() {
                gauges.held[grant.name.number()][mode] += 1;
                gauges.oldest_hold = gauges.oldest_hold.max(now.since(grant.granted_at));
            }
            for claim in lane.claims() {
                gauges.waiting[claim.name.number()] += 1;
                gauges.oldest_wait = gauges.oldest_wait.max(now.since(claim.since));
            }
        });
        gauges
    }
}

/// Returns `false` if no manager is left.
fn report_all(checks: bool) -> bool {
    let mut reported = REPORTED.lock();
    reported.retain(|it| it.engine.strong_count() > 0);
    let managers = reported.clone();
    // A recorder may call into this crate, and the last handle of a manager may be dropped here.
    drop(reported);
    managers.iter().for_each(|manager| manager.report(checks));
    !managers.is_empty()
}
