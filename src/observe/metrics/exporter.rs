//! Reports the counts of one manager to the recorder.

use std::collections::BTreeMap;
use std::ptr;

use metrics::{Gauge, gauge, with_recorder};

use super::families;
use super::manager::{LayerSeries, ManagerSeries};
use super::process::{self, Largest, Values};
use crate::mutex::Mutex;
use crate::observe::tally::{Gauges, Name, Tally};

/// What a manager has reported.
#[derive(Default)]
pub(in crate::observe) struct Exporter {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By recorder. A program mostly has one, and a test one for its thread.
    exports: BTreeMap<usize, Box<Export>>,
    has_ended: bool,
}

impl Exporter {
    /// Reports what the tally has counted since the last report, and the gauges if there are any.
    pub(in crate::observe) fn report(&self, tally: &Tally, gauges: Option<&Gauges>) {
        self.state.lock().report(tally, gauges);
    }

    /// Reports the counts for the last time. The parts of this manager in the gauges become zero.
    pub(in crate::observe) fn end(&self, tally: &Tally) {
        let mut state = self.state.lock();
        state.report(tally, None);
        state.has_ended = true;
        state.exports.clear();
    }
}

impl State {
    fn report(&mut self, tally: &Tally, gauges: Option<&Gauges>) {
        if self.has_ended {
            return;
        }
        let recorder = current_recorder();
        let export = self.exports.entry(recorder);
        let export = export.or_insert_with(|| Box::new(Export::new(recorder)));
        export.report(tally, gauges);
    }
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

/// Identifies the recorder to which the handles of metrics belong. A recorder that is installed later does not receive
/// what earlier handles report.
fn current_recorder() -> usize {
    with_recorder(|recorder| ptr::from_ref(recorder).cast::<()>().addr())
}

/// What one manager has reported to one recorder.
struct Export {
    recorder: usize,
    layers: [Option<LayerSeries>; Name::COUNT],
    manager: ManagerSeries,
    largest: Largest,
    /// The gauges of [`largest`](Self::largest).
    gauges: [Gauge; 4],
}

impl Export {
    fn new(recorder: usize) -> Self {
        families::describe();
        let export = Self {
            recorder,
            layers: std::array::from_fn(|_| None),
            manager: ManagerSeries::new(),
            largest: Largest::new(recorder),
            gauges: [
                gauge!(families::OLDEST_HOLD),
                gauge!(families::OLDEST_WAIT),
                gauge!(families::WATCHDOG_LAG),
                gauge!(families::WAITING_RATIO),
            ],
        };
        export.set_largest(Values::default());
        export
    }

    fn report(&mut self, tally: &Tally, gauges: Option<&Gauges>) {
        for name in tally.names() {
            // Only names beyond the limit have this one.
            if name == Name::OTHER && !tally.is_used(name) {
                continue;
            }
            let layer = &mut self.layers[name.number()];
            let layer = layer.get_or_insert_with(|| LayerSeries::new(tally.text(name)));
            layer.follow(tally.totals_of(name));
            if let Some(gauges) = gauges {
                layer.follow_gauges(name, gauges);
            }
        }
        self.manager.follow(tally);
        process::report(self.recorder, tally.sends_commands());
        if let Some(gauges) = gauges {
            self.manager.follow_gauges(gauges);
            self.set_largest([
                gauges.oldest_hold.as_secs_f64(),
                gauges.oldest_wait.as_secs_f64(),
                gauges.watchdog_lag.as_secs_f64(),
                gauges.waiting_ratio(),
            ]);
        }
    }

    fn set_largest(&self, own: Values) {
        let largest = self.largest.among_managers(own);
        for (gauge, largest) in self.gauges.iter().zip(largest) {
            gauge.set(largest);
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.set_largest(Values::default());
    }
}
