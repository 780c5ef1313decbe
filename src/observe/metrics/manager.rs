//! The series of one manager in one recorder.

use metrics::Label;

use super::families;
use super::series::{CounterSeries, GaugeSeries, HistogramSeries, each};
use crate::mode::Mode;
use crate::observe::outcome::{Command, CommandOutcome, Forced, Outcome, Permit, Reply, WokenBy};
use crate::observe::tally::{Gauges, Tally, Totals};
use crate::observe::via::{LostReason, Via};

/// The series of one layer name.
pub(super) struct LayerSeries {
    acquires: [CounterSeries; Outcome::COUNT],
    grants: [CounterSeries; Via::COUNT],
    lost: [CounterSeries; LostReason::COUNT],
    /// One for granted, rejected and cancelled acquires each.
    wait: [HistogramSeries; 3],
    hold: HistogramSeries,
    held: [GaugeSeries; Mode::COUNT],
    waiting: GaugeSeries,
}

impl LayerSeries {
    pub(super) fn new(layer: Option<&str>) -> Self {
        let of_layer = || layer.map(|layer| Label::new("layer", layer.to_owned()));
        let labels = |key, value| {
            let label = Label::from_static_parts(key, value);
            [label].into_iter().chain(of_layer()).collect::<Vec<_>>()
        };
        let only_layer = || of_layer().into_iter().collect::<Vec<_>>();
        Self {
            acquires: each(Outcome::ALL, |it| {
                CounterSeries::new(families::ACQUIRES, labels("outcome", it.as_str()))
            }),
            grants: each(Via::ALL, |it| {
                CounterSeries::new(families::GRANTS, labels("via", it.as_str()))
            }),
            lost: each(LostReason::ALL, |it| {
                CounterSeries::new(families::LOST, labels("reason", it.as_str()))
            }),
            wait: ["granted", "rejected", "cancelled"]
                .map(|it| HistogramSeries::new(families::WAIT, labels("outcome", it))),
            hold: HistogramSeries::new(families::HOLD, only_layer()),
            held: each(Mode::ALL, |it| {
                GaugeSeries::new(families::HELD, labels("mode", it.as_str()))
            }),
            waiting: GaugeSeries::new(families::WAITING, only_layer()),
        }
    }

    pub(super) fn follow(&mut self, totals: Totals) {
        follow(&mut self.acquires, &totals.outcomes);
        follow(&mut self.grants, &totals.grants);
        follow(&mut self.lost, &totals.lost);
        let waits = [totals.wait, totals.rejected, totals.cancelled];
        for (series, waits) in self.wait.iter_mut().zip(waits) {
            series.follow(waits);
        }
        self.hold.follow(totals.hold);
    }

    pub(super) fn follow_gauges(&mut self, held: [usize; Mode::COUNT], waiting: usize) {
        for (series, held) in self.held.iter_mut().zip(held) {
            series.follow(held);
        }
        self.waiting.follow(waiting);
    }
}

/// The series of a manager that have no layer name.
pub(super) struct ManagerSeries {
    renewals: [CounterSeries; Reply::COUNT],
    releases: [CounterSeries; Reply::COUNT],
    wakeups: [CounterSeries; WokenBy::COUNT],
    force_releases: [CounterSeries; Forced::COUNT],
    unlocked: [CounterSeries; Permit::COUNT],
    /// Set if the backend sends commands.
    commands: Option<Vec<[HistogramSeries; CommandOutcome::COUNT]>>,
    waiting_limit: GaugeSeries,
    unreleased: GaugeSeries,
}

impl ManagerSeries {
    pub(super) fn new() -> Self {
        let labels = |key, value| vec![Label::from_static_parts(key, value)];
        let replies = |name| {
            each(Reply::ALL, |it: Reply| {
                CounterSeries::new(name, labels("outcome", it.as_str()))
            })
        };
        Self {
            renewals: replies(families::RENEWALS),
            releases: replies(families::RELEASES),
            wakeups: each(WokenBy::ALL, |it| {
                CounterSeries::new(families::WAKEUPS, labels("by", it.as_str()))
            }),
            force_releases: each(Forced::ALL, |it| {
                CounterSeries::new(families::FORCE_RELEASES, labels("outcome", it.as_str()))
            }),
            unlocked: each(Permit::ALL, |it| {
                CounterSeries::new(families::UNLOCKED, labels("option", it.as_str()))
            }),
            commands: None,
            waiting_limit: GaugeSeries::new(families::WAITING_LIMIT, vec![]),
            unreleased: GaugeSeries::new(families::UNRELEASED, vec![]),
        }
    }

    pub(super) fn follow(&mut self, tally: &Tally) {
        let traffic = tally.traffic();
        follow(&mut self.renewals, &traffic.renewals);
        follow(&mut self.releases, &traffic.releases);
        follow(&mut self.wakeups, &traffic.wakeups);
        let rare = tally.rare();
        follow(&mut self.force_releases, &rare.force_releases);
        follow(&mut self.unlocked, &rare.unlocked);
        if tally.sends_commands() {
            let commands = self.commands.get_or_insert_with(command_series);
            for (series, command) in commands.iter_mut().zip(Command::ALL) {
                for (series, outcome) in series.iter_mut().zip(CommandOutcome::ALL) {
                    if let Some(durations) = tally.durations(*command, *outcome) {
                        series.follow(durations);
                    }
                }
            }
        }
    }

    pub(super) fn follow_gauges(&mut self, gauges: &Gauges) {
        self.waiting_limit.follow(gauges.waiting_limit);
        self.unreleased.follow(gauges.unreleased);
    }
}

fn command_series() -> Vec<[HistogramSeries; CommandOutcome::COUNT]> {
    let commands = Command::ALL.iter().map(|command| {
        each(CommandOutcome::ALL, |outcome: CommandOutcome| {
            let labels = vec![
                Label::from_static_parts("command", command.as_str()),
                Label::from_static_parts("outcome", outcome.as_str()),
            ];
            HistogramSeries::new(families::BACKEND_COMMAND, labels)
        })
    });
    commands.collect()
}

fn follow(series: &mut [CounterSeries], totals: &[u64]) {
    for (series, total) in series.iter_mut().zip(totals) {
        series.follow(*total);
    }
}
