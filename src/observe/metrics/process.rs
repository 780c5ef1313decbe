//! What all managers of the process report together.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::{Label, counter, gauge};

use super::families;
use super::series::record;
use crate::mutex::Mutex;
use crate::observe::queue::{self, QueueTotals};
use crate::observe::servers::{self, Part};

/// What was reported to each recorder, whichever manager reported it.
static REPORTED: Mutex<BTreeMap<usize, Reported>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Clone, Default)]
struct Reported {
    queue: Option<QueueTotals>,
    incidents: BTreeMap<(String, Part), u64>,
}

/// Reports what no manager has reported to the recorder yet. Backends that send no command have no queue.
pub(super) fn report(recorder: usize, has_queue: bool) {
    let mut all = REPORTED.lock();
    let reported = all.entry(recorder).or_default();
    if has_queue {
        let totals = queue::totals();
        let is_new = reported.queue.is_none();
        let added = totals.since(&reported.queue.take().unwrap_or_default());
        counter!(families::TRANSFERS).increment(added.transfers);
        counter!(families::PASSED_OVER).increment(added.passed_over);
        record(families::TRANSFER, vec![], &added.transfer, is_new);
        reported.queue = Some(totals);
    }
    for server in servers::read() {
        let labels = vec![
            Label::new("server", server.address.clone()),
            Label::from_static_parts("part", server.part.as_str()),
        ];
        gauge!(families::BACKEND_UP, labels.clone()).set(if server.is_up { 1.0 } else { 0.0 });
        let key = (server.address, server.part);
        let before = reported.incidents.insert(key, server.incidents);
        let added = server.incidents.saturating_sub(before.unwrap_or(0));
        counter!(families::BACKEND_INCIDENTS, labels).increment(added);
    }
}

/// The values of one manager in gauges that show the largest one of all managers.
pub(super) struct Largest {
    recorder: usize,
    id: u64,
}

/// One for each of the gauges.
pub(super) type Values = [f64; 4];

/// By recorder and manager.
static LARGEST: Mutex<BTreeMap<(usize, u64), Values>> = Mutex::new(BTreeMap::new());

impl Largest {
    pub(super) fn new(recorder: usize) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Relaxed);
        Self { recorder, id }
    }

    /// Replaces the values of this manager, and returns the largest ones of all managers.
    pub(super) fn among_managers(&self, own: Values) -> Values {
        let Self { recorder, id } = *self;
        let mut all = LARGEST.lock();
        // A manager that has ended leaves nothing.
        match own == Values::default() {
            true => all.remove(&(recorder, id)),
            false => all.insert((recorder, id), own),
        };
        let all = all.range((recorder, 0)..=(recorder, u64::MAX));
        all.fold(own, |largest, (_, values)| {
            std::array::from_fn(|at| largest[at].max(values[at]))
        })
    }
}
