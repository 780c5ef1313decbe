//! What the load itself has seen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tower_lock::manager::{LostReason, Via};
use tower_lock::{Error, ErrorKind, Held};

use crate::recording::Scrape;

/// Counts by metric and labels, as the exporter renders them. Clones share the counts.
#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<BTreeMap<String, u64>>>);

impl History {
    fn count(&self, series: String) {
        *self.0.lock().unwrap().entry(series).or_default() += 1;
    }

    fn acquire(&self, outcome: &str, waits: &str, layer: &str) {
        self.count(format!(
            "tower_lock_acquires_total{{outcome=\"{outcome}\",layer=\"{layer}\"}}"
        ));
        self.count(format!(
            "tower_lock_wait_seconds_count{{outcome=\"{waits}\",layer=\"{layer}\"}}"
        ));
    }

    pub(crate) fn granted(&self, held: &Held, layer: &str) {
        self.acquire("granted", "granted", layer);
        let via = match held.via() {
            Via::Backend => "backend",
            Via::HandOff => "handoff",
            Via::Reclaimed => "reclaimed",
            Via::Kept => "kept",
            via => panic!("no owner has a lock twice: {via:?}"),
        };
        self.count(format!(
            "tower_lock_grants_total{{via=\"{via}\",layer=\"{layer}\"}}"
        ));
    }

    pub(crate) fn failed(&self, error: &Error, layer: &str) {
        let outcome = match error.kind() {
            ErrorKind::Busy => "busy",
            ErrorKind::Unavailable => "unavailable",
            kind => panic!("no fault has this error: {kind:?}"),
        };
        self.acquire(outcome, "rejected", layer);
    }

    pub(crate) fn cancelled(&self, layer: &str) {
        self.acquire("cancelled", "cancelled", layer);
    }

    /// Counts a hold that ended, and why if it was lost.
    pub(crate) fn ended(&self, released: &Result<(), Error>, held: &Held, layer: &str) {
        self.count(format!(
            "tower_lock_hold_seconds_count{{layer=\"{layer}\"}}"
        ));
        if !released.as_ref().is_err_and(Error::is_lost) {
            return;
        }
        let reason = match held.lost_reason() {
            Some(LostReason::Expired) => "expired",
            Some(LostReason::NotHeld) => "not_held",
            reason => panic!("no fault has this loss: {reason:?}"),
        };
        self.count(format!(
            "tower_lock_lost_total{{reason=\"{reason}\",layer=\"{layer}\"}}"
        ));
    }

    /// Returns the sum of the counts whose series begin with `name`.
    pub(crate) fn total(&self, name: &str) -> u64 {
        let counts = self.0.lock().unwrap();
        let counts = counts.iter().filter(|(series, _)| series.starts_with(name));
        counts.map(|(_, count)| count).sum()
    }

    /// Expects that the metrics have the same counts, and no others. A grant that meets the cancellation of its acquire is
    /// released at once: the metrics count it as a grant and as a hold.
    pub(crate) fn expect_same(&self, scrape: &Scrape) {
        const COUNTED: [&str; 5] = [
            "tower_lock_acquires_total{",
            "tower_lock_wait_seconds_count{",
            GRANTS,
            HOLDS,
            "tower_lock_lost_total{",
        ];
        const GRANTS: &str = "tower_lock_grants_total{";
        const HOLDS: &str = "tower_lock_hold_seconds_count{";
        let counted = scrape.iter().filter(|(series, value)| {
            *value != "0" && COUNTED.iter().any(|name| series.starts_with(name))
        });
        let counted: BTreeMap<_, u64> = counted
            .map(|(series, value)| (series.clone(), value.parse().unwrap()))
            .collect();
        let more = |name: &str| {
            let counted = counted
                .iter()
                .filter(|(series, _)| series.starts_with(name));
            counted.map(|(_, count)| count).sum::<u64>() - self.total(name)
        };
        let released_at_once = more(GRANTS);
        let cancelled = self.total("tower_lock_acquires_total{outcome=\"cancelled\"");
        assert!(
            released_at_once <= cancelled,
            "{released_at_once} of {cancelled}"
        );
        assert_eq!(released_at_once, more(HOLDS));
        let may_be_more = |series: &str| series.starts_with(GRANTS) || series.starts_with(HOLDS);
        let others = |counts: &BTreeMap<String, u64>| -> BTreeMap<_, _> {
            let counts = counts.iter().filter(|(series, _)| !may_be_more(series));
            counts
                .map(|(series, count)| (series.clone(), *count))
                .collect()
        };
        assert_eq!(others(&counted), others(&self.0.lock().unwrap()));
    }
}
