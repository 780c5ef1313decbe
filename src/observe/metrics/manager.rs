//! The series of one manager in one recorder.

use metrics::Label;

use super::families;
use super::series::{GaugeSeries, count_each, record, with};
use crate::mode::Mode;
use crate::observe::outcome::{Command, CommandOutcome, Forced, Outcome, Permit, Reply, WokenBy};
use crate::observe::tally::{Distribution, Gauges, Name, Tally, Totals, TrafficTotals};
use crate::observe::via::{LostReason, Via};

/// The series of one layer name.
pub(super) struct LayerSeries {
    labels: Vec<Label>,
    /// `None` before the first report.
    reported: Option<Totals>,
    held: [GaugeSeries; Mode::COUNT],
    waiting: GaugeSeries,
}

impl LayerSeries {
    pub(super) fn new(layer: Option<&str>) -> Self {
        let labels = layer.map(|layer| Label::new("layer", layer.to_owned()));
        let labels: Vec<_> = labels.into_iter().collect();
        let held = |mode: Mode| {
            let mode = Label::from_static_parts("mode", mode.as_str());
            GaugeSeries::new(families::HELD, with(mode, &labels))
        };
        Self {
            held: std::array::from_fn(|mode| held(Mode::ALL[mode])),
            waiting: GaugeSeries::new(families::WAITING, labels.clone()),
            reported: None,
            labels,
        }
    }

    pub(super) fn follow(&mut self, totals: Totals) {
        let (labels, is_new) = (&self.labels, self.reported.is_none());
        let added = totals.since(&self.reported.take().unwrap_or_default());
        let outcomes = ("outcome", Outcome::ALL, Outcome::as_str as fn(_) -> _);
        count_each(families::ACQUIRES, outcomes, labels, &added.outcomes);
        let ways = ("via", Via::ALL, Via::as_str as fn(_) -> _);
        count_each(families::GRANTS, ways, labels, &added.grants);
        let reasons = ("reason", LostReason::ALL, LostReason::as_str as fn(_) -> _);
        count_each(families::LOST, reasons, labels, &added.lost);
        for (outcome, waits) in [
            ("granted", &added.wait),
            ("rejected", &added.rejected),
            ("cancelled", &added.cancelled),
        ] {
            let outcome = Label::from_static_parts("outcome", outcome);
            record(families::WAIT, with(outcome, labels), waits, is_new);
        }
        record(families::HOLD, labels.clone(), &added.hold, is_new);
        self.reported = Some(totals);
    }

    pub(super) fn follow_gauges(&mut self, name: Name, gauges: &Gauges) {
        for (series, held) in self.held.iter_mut().zip(gauges.held[name.number()]) {
            series.follow(held);
        }
        self.waiting.follow(gauges.waiting[name.number()]);
    }
}

/// The series of a manager that have no layer name.
pub(super) struct ManagerSeries {
    traffic: TrafficTotals,
    /// The times of commands, if the backend sends any.
    commands: Vec<[Distribution; CommandOutcome::COUNT]>,
    waiting_limit: GaugeSeries,
    unreleased: GaugeSeries,
    kept: GaugeSeries,
}

impl ManagerSeries {
    pub(super) fn new() -> Self {
        Self {
            traffic: TrafficTotals::default(),
            commands: Vec::new(),
            waiting_limit: GaugeSeries::new(families::WAITING_LIMIT, vec![]),
            unreleased: GaugeSeries::new(families::UNRELEASED, vec![]),
            kept: GaugeSeries::new(families::KEPT, vec![]),
        }
    }

    pub(super) fn follow(&mut self, tally: &Tally) {
        let traffic = tally.traffic();
        let added = traffic.since(&self.traffic);
        self.traffic = traffic;
        let replies = ("outcome", Reply::ALL, Reply::as_str as fn(_) -> _);
        count_each(families::RENEWALS, replies, &[], &added.renewals);
        count_each(families::RELEASES, replies, &[], &added.releases);
        let events = ("by", WokenBy::ALL, WokenBy::as_str as fn(_) -> _);
        count_each(families::WAKEUPS, events, &[], &added.wakeups);
        let outcomes = ("outcome", Forced::ALL, Forced::as_str as fn(_) -> _);
        count_each(
            families::FORCE_RELEASES,
            outcomes,
            &[],
            &added.force_releases,
        );
        let options = ("option", Permit::ALL, Permit::as_str as fn(_) -> _);
        count_each(families::UNLOCKED, options, &[], &added.unlocked);
        if tally.sends_commands() {
            self.follow_commands(tally);
        }
    }

    fn follow_commands(&mut self, tally: &Tally) {
        let is_new = self.commands.is_empty();
        self.commands.resize_with(Command::COUNT, Default::default);
        for (command, reported) in Command::ALL.iter().zip(&mut self.commands) {
            for (outcome, reported) in CommandOutcome::ALL.iter().zip(reported) {
                let durations = tally.durations(*command, *outcome).unwrap_or_default();
                let labels = vec![
                    Label::from_static_parts("command", command.as_str()),
                    Label::from_static_parts("outcome", outcome.as_str()),
                ];
                let added = durations.since(reported);
                record(families::BACKEND_COMMAND, labels, &added, is_new);
                *reported = durations;
            }
        }
    }

    pub(super) fn follow_gauges(&mut self, gauges: &Gauges) {
        self.waiting_limit.follow(gauges.waiting_limit);
        self.unreleased.follow(gauges.unreleased);
        self.kept.follow(gauges.kept);
    }
}
