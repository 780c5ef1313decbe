//! What all managers of the process report together.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::{Gauge, Label, gauge};

use super::families;
use super::series::{CounterSeries, HistogramSeries};
use crate::observe::queue::{self, QueueTotals};
use crate::observe::servers::{self, Part, Server};

/// The most recorders that are remembered.
const RECORDERS: usize = 8;

/// What was reported to each recorder, whichever manager reported it.
static REPORTED: Mutex<Vec<(usize, Reported)>> = Mutex::new(Vec::new());

#[derive(Debug, Clone, Default)]
struct Reported {
    queue: QueueTotals,
    incidents: BTreeMap<(String, Part), u64>,
}

fn reported() -> MutexGuard<'static, Vec<(usize, Reported)>> {
    REPORTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handles of one manager for the series of the whole process.
pub(super) struct ProcessSeries {
    /// Set if a backend of the process sends commands: others have no queue across processes.
    queue: Option<QueueSeries>,
    servers: BTreeMap<(String, Part), ServerSeries>,
}

struct QueueSeries {
    transfers: CounterSeries,
    passed_over: CounterSeries,
    transfer: HistogramSeries,
}

struct ServerSeries {
    up: Gauge,
    incidents: CounterSeries,
}

impl ProcessSeries {
    pub(super) fn new() -> Self {
        Self {
            queue: None,
            servers: BTreeMap::new(),
        }
    }

    /// Reports what no manager has reported to the recorder yet.
    pub(super) fn follow(&mut self, recorder: usize, has_queue: bool) {
        let mut all = reported();
        let at = all.iter().position(|(it, _)| *it == recorder);
        let at = at.unwrap_or_else(|| {
            if all.len() == RECORDERS {
                all.remove(0);
            }
            all.push((recorder, Reported::default()));
            all.len() - 1
        });
        let (_, reported) = &mut all[at];
        if has_queue {
            let totals = queue::totals();
            let queue = self.queue.get_or_insert_with(QueueSeries::new);
            queue.add(&totals.since(&reported.queue));
            reported.queue = totals;
        }
        for server in servers::read() {
            let Server {
                address,
                part,
                is_up,
                incidents,
                ..
            } = server;
            let key = (address, part);
            let before = reported.incidents.entry(key.clone()).or_default();
            let series = self.servers.entry(key);
            let series =
                series.or_insert_with_key(|(address, part)| ServerSeries::new(address, *part));
            series.incidents.add(incidents.saturating_sub(*before));
            series.up.set(if is_up { 1.0 } else { 0.0 });
            *before = incidents;
        }
    }
}

impl QueueSeries {
    fn new() -> Self {
        Self {
            transfers: CounterSeries::new(families::TRANSFERS, vec![]),
            passed_over: CounterSeries::new(families::PASSED_OVER, vec![]),
            transfer: HistogramSeries::new(families::TRANSFER, vec![]),
        }
    }

    fn add(&mut self, added: &QueueTotals) {
        self.transfers.add(added.transfers);
        self.passed_over.add(added.passed_over);
        self.transfer.record(&added.transfer);
    }
}

impl ServerSeries {
    fn new(address: &str, part: Part) -> Self {
        let labels = || {
            vec![
                Label::new("server", address.to_owned()),
                Label::from_static_parts("part", part.as_str()),
            ]
        };
        Self {
            up: gauge!(families::BACKEND_UP, labels()),
            incidents: CounterSeries::new(families::BACKEND_INCIDENTS, labels()),
        }
    }
}

/// The values of one manager in gauges that show the largest one of all managers.
pub(super) struct Largest {
    id: u64,
    recorder: usize,
}

struct OfManager {
    id: u64,
    recorder: usize,
    values: Values,
}

/// One for each of the gauges.
pub(super) type Values = [f64; 4];

static LARGEST: Mutex<Vec<OfManager>> = Mutex::new(Vec::new());

impl Largest {
    pub(super) fn new(recorder: usize) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Self {
            id: IDS.fetch_add(1, Relaxed),
            recorder,
        }
    }

    /// Replaces the values of this manager, and returns the largest ones of all managers.
    pub(super) fn among_managers(&self, own: Values) -> Values {
        let mut all = LARGEST.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|it| it.id != self.id);
        if own != Values::default() {
            all.push(OfManager {
                id: self.id,
                recorder: self.recorder,
                values: own,
            });
        }
        let mut largest = own;
        for it in all.iter().filter(|it| it.recorder == self.recorder) {
            for (largest, value) in largest.iter_mut().zip(it.values) {
                *largest = largest.max(value);
            }
        }
        largest
    }
}
