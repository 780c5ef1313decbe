//! The counts of one manager.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use super::histogram::Distribution;
use super::layer::{LayerTally, add};
use super::names::{Name, Names};
use super::rare::Rare;
use super::striped::Striped;
use super::totals::{Totals, TrafficTotals};
use crate::observe::outcome::{Command, CommandOutcome, Forced, Outcome, Permit, Reply, WokenBy};
use crate::observe::via::{LostReason, Via};

/// Whether any feature reads the counts. Otherwise the compiler removes the calls.
const IS_READ: bool = cfg!(any(feature = "metrics", feature = "dashboard"));

/// The counts of one manager, by layer name.
#[derive(Debug)]
pub(crate) struct Tally {
    names: Names,
    layers: [OnceLock<Box<LayerTally>>; Name::COUNT],
    traffic: Striped<Traffic>,
    rare: Rare,
    #[cfg(feature = "metrics")]
    exporter: crate::observe::metrics::Exporter,
}

#[derive(Debug, Default)]
struct Traffic {
    renewals: [AtomicU64; Reply::COUNT],
    releases: [AtomicU64; Reply::COUNT],
    wakeups: [AtomicU64; WokenBy::COUNT],
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            names: Names::default(),
            layers: [const { OnceLock::new() }; Name::COUNT],
            traffic: Striped::default(),
            rare: Rare::default(),
            #[cfg(feature = "metrics")]
            exporter: crate::observe::metrics::Exporter::default(),
        }
    }
}

/// The reports of the engine. They neither wait nor allocate, except for the first use of a name by a thread.
impl Tally {
    /// Returns the number of a layer name.
    pub(crate) fn number(&self, name: &str) -> Name {
        self.names.number(name, || self.register())
    }

    /// Returns the text of a layer name, or `None` for acquires without one.
    pub(crate) fn text(&self, name: Name) -> Option<&str> {
        self.names.text(name)
    }

    #[inline]
    fn layer(&self, name: Name) -> &LayerTally {
        self.layers[name.number()].get_or_init(Box::default)
    }

    /// Counts the end of an acquire.
    #[inline]
    pub(crate) fn acquired(&self, name: Name, outcome: Outcome, waited: Duration) {
        if IS_READ {
            self.layer(name).acquired(outcome, waited);
        }
    }

    /// Counts a granted key.
    #[inline]
    pub(crate) fn granted(&self, name: Name, via: Via) {
        if IS_READ {
            self.layer(name).grants.own().via[via as usize].fetch_add(1, Relaxed);
        }
    }

    /// Counts the end of the last hold of a key.
    #[inline]
    pub(crate) fn ended(&self, name: Name, held: Duration) {
        if IS_READ {
            self.layer(name).grants.own().hold.record(held);
        }
    }

    /// Counts the loss of a key that was held.
    pub(crate) fn lost(&self, name: Name, reason: LostReason) {
        if IS_READ {
            self.layer(name).lost[reason as usize].fetch_add(1, Relaxed);
        }
    }

    /// Counts the reply to the renewal of one lease.
    pub(crate) fn renewed(&self, reply: Reply) {
        if IS_READ {
            self.traffic.own().renewals[reply as usize].fetch_add(1, Relaxed);
        }
    }

    /// Counts the reply to the release of one lease.
    #[inline]
    pub(crate) fn released(&self, reply: Reply) {
        if IS_READ {
            self.traffic.own().releases[reply as usize].fetch_add(1, Relaxed);
        }
    }

    /// Counts what woke the acquire loop before its grant.
    pub(crate) fn woken(&self, by: WokenBy) {
        if IS_READ {
            self.traffic.own().wakeups[by as usize].fetch_add(1, Relaxed);
        }
    }

    #[cold]
    fn register(&self) {
        #[cfg(feature = "metrics")]
        self.report(None);
    }
}

/// Reports that are no part of a request.
impl Tally {
    /// The backend sends commands, which are timed.
    pub(crate) fn set_sends_commands(&self) {
        self.rare.sends_commands.store(true, Relaxed);
    }

    /// Counts a command of the backend, and its time.
    pub(crate) fn command(&self, command: Command, outcome: CommandOutcome, took: Duration) {
        let histogram = &self.rare.commands[command as usize][outcome as usize];
        histogram.get_or_init(Box::default).record(took);
    }

    /// Counts a forced release.
    pub(crate) fn force_released(&self, outcome: Forced) {
        self.rare.force_releases[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Counts a request that runs without its lock.
    pub(crate) fn unlocked(&self, permit: Permit) {
        self.rare.unlocked[permit as usize].fetch_add(1, Relaxed);
    }

    /// Reports how late a round of the watchdog began.
    pub(crate) fn watchdog_late(&self, by: Duration) {
        if IS_READ {
            self.rare.watchdog_lag.lock().add(by, Instant::now());
        }
    }
}

/// The reports to the recorder of metrics.
#[cfg(feature = "metrics")]
impl Tally {
    /// Reports what was counted since the last report to this recorder, and the gauges if there are any.
    pub(crate) fn report(&self, gauges: Option<&super::Gauges>) {
        self.exporter.report(self, gauges);
    }

    /// Reports for the last time, and removes this manager from the gauges.
    pub(crate) fn end_reports(&self) {
        self.exporter.end(self);
    }
}

/// The reading side.
impl Tally {
    /// Returns the layer names in use, with that of acquires without a name.
    pub(crate) fn names(&self) -> impl Iterator<Item = Name> {
        self.names.all()
    }

    /// Returns the counts of one layer name.
    pub(crate) fn totals_of(&self, name: Name) -> Totals {
        let mut totals = Totals::default();
        if let Some(layer) = self.layers[name.number()].get() {
            layer.add_to(&mut totals);
        }
        totals
    }

    /// Returns the counts of all layer names together.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for layer in self.layers.iter().filter_map(OnceLock::get) {
            layer.add_to(&mut totals);
        }
        totals
    }

    /// Returns `true` if the layer name has counts.
    pub(crate) fn is_used(&self, name: Name) -> bool {
        self.layers[name.number()].get().is_some()
    }

    /// Returns `true` if the commands of the backend are timed.
    pub(crate) fn sends_commands(&self) -> bool {
        self.rare.sends_commands.load(Relaxed)
    }

    /// Returns the times of a command, or `None` if none has ended in this way.
    pub(crate) fn durations(
        &self,
        command: Command,
        outcome: CommandOutcome,
    ) -> Option<Distribution> {
        let histogram = self.rare.commands[command as usize][outcome as usize].get()?;
        let mut durations = Distribution::default();
        histogram.add_to(&mut durations);
        Some(durations)
    }

    /// Returns the longest delay of the watchdog in the last one to two minutes.
    pub(crate) fn watchdog_lag(&self) -> Duration {
        self.rare.watchdog_lag.lock().at(Instant::now())
    }

    /// Returns the counts without a layer name.
    pub(crate) fn traffic(&self) -> TrafficTotals {
        let mut totals = TrafficTotals::default();
        for stripe in self.traffic.iter() {
            add(&mut totals.renewals, &stripe.renewals);
            add(&mut totals.releases, &stripe.releases);
            add(&mut totals.wakeups, &stripe.wakeups);
        }
        add(&mut totals.force_releases, &self.rare.force_releases);
        add(&mut totals.unlocked, &self.rare.unlocked);
        totals
    }
}
