//! What the manager has counted, and the rates that follow from it.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::LockManager;
use crate::observe::{Distribution, LostReason, Outcome, Reply, Totals, TrafficTotals, Via};

/// The counts at one moment.
#[derive(Debug)]
pub(super) struct Reading {
    at: Instant,
    totals: Totals,
    traffic: TrafficTotals,
}

/// The rates and percentiles between two readings.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) grants: f64,
    pub(super) handoffs: f64,
    pub(super) rejected: f64,
    pub(super) lost: f64,
    renewals_failed: f64,
    pub(super) wait: Percentiles,
    pub(super) hold: Percentiles,
}

/// Milliseconds, or nothing if there was no event.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Percentiles {
    pub(super) p50: Option<f64>,
    p90: Option<f64>,
    pub(super) p99: Option<f64>,
    max: Option<f64>,
}

impl Reading {
    pub(super) fn of(locks: &LockManager) -> Self {
        Self {
            at: Instant::now(),
            totals: locks.tally().totals(),
            traffic: locks.tally().traffic(),
        }
    }

    pub(super) fn since(&self, earlier: &Self) -> Figures {
        let totals = self.totals.since(&earlier.totals);
        let traffic = self.traffic.since(&earlier.traffic);
        let seconds = self.at.duration_since(earlier.at).as_secs_f64().max(0.001);
        let rate = |count: u64| count as f64 / seconds;
        Figures {
            grants: rate(totals.grants.iter().sum()),
            handoffs: rate(totals.grants(Via::HandOff)),
            rejected: rate(totals.rejections()),
            lost: rate(totals.lost.iter().sum()),
            renewals_failed: rate(traffic.renewals(Reply::Failed)),
            wait: Percentiles::of(&totals.wait),
            hold: Percentiles::of(&totals.hold),
        }
    }

    /// Returns the counts since the start of the manager.
    pub(super) fn counts(&self) -> Value {
        let lost = LostReason::ALL.iter();
        let lost = lost.map(|reason| (reason.as_str(), self.totals.lost(*reason)));
        let outcomes = Outcome::ALL.iter().filter(|it| **it != Outcome::Granted);
        let rejected = outcomes.filter(|it| **it != Outcome::Cancelled);
        let rejected = rejected.map(|it| (it.as_str(), self.totals.outcome(*it)));
        let renewals = Reply::ALL.iter();
        let renewals = renewals.map(|reply| (reply.as_str(), self.traffic.renewals(*reply)));
        json!({ "lost": map(lost), "rejected": map(rejected), "renewals": map(renewals) })
    }
}

impl Figures {
    /// Returns the rates per second.
    pub(super) fn rates(&self) -> Value {
        json!({
            "grants": rounded(self.grants),
            "handoffs": rounded(self.handoffs),
            "rejected": rounded(self.rejected),
            "lost": rounded(self.lost),
            "renewals_failed": rounded(self.renewals_failed),
        })
    }
}

impl Percentiles {
    fn of(distribution: &Distribution) -> Self {
        let millis = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1000.0);
        let quantile = |q| {
            millis(
                distribution
                    .quantile(q)
                    .filter(|_| distribution.count() > 0),
            )
        };
        Self {
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            max: millis(distribution.max()),
        }
    }

    pub(super) fn json(&self) -> Value {
        let rounded = |time: Option<f64>| time.map(rounded);
        json!({
            "p50": rounded(self.p50),
            "p90": rounded(self.p90),
            "p99": rounded(self.p99),
            "max": rounded(self.max),
        })
    }
}

fn map(counts: impl Iterator<Item = (&'static str, u64)>) -> Value {
    let counts = counts.map(|(name, count)| (name.to_owned(), json!(count)));
    Value::Object(counts.collect::<Map<_, _>>())
}

/// Returns the number with three decimals, which keeps frames short.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
