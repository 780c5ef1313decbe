//! Medians and ranges over rounds, as Markdown.

use std::fmt::Write as _;

use crate::contenders::Contender;
use crate::team::Team;

/// One figure, once per window.
#[derive(Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_by(f64::total_cmp);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the middle value, or the mean of the two in the middle.
    pub(crate) fn median(&self) -> f64 {
        let (low, high) = ((self.0.len() - 1) / 2, self.0.len() / 2);
        self.0[low].midpoint(self.0[high])
    }

    pub(crate) fn range(&self) -> (f64, f64) {
        (self.0[0], self.0[self.0.len() - 1])
    }

    /// Median and range with this many decimals: `5.2 µs (4.9–6.0)`.
    pub(crate) fn text(&self, decimals: usize, unit: &str) -> String {
        let (min, max) = self.range();
        let [median, min, max] = [self.median(), min, max].map(|it| thousands(it, decimals));
        let space = if unit.is_empty() { "" } else { " " };
        format!("{median}{space}{unit} ({min}–{max})")
    }
}

/// Formats a number with separators and this many decimals: `150,000`.
pub(crate) fn thousands(number: f64, decimals: usize) -> String {
    let digits = format!("{number:.decimals$}");
    let end = digits.find('.').unwrap_or(digits.len());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if (1..end).contains(&at) && (end - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the ratio of the medians. Rounds alternate, so all contenders saw the machine under the same
/// conditions.
pub(crate) fn ratio(this: &Series, that: &Series, name: &str) -> String {
    if this.is_empty() || that.is_empty() {
        return String::new();
    }
    let ratio = this.median() / that.median();
    let decimals = if ratio < 0.1 { 3 } else { 2 };
    format!("{ratio:.decimals$} × {name}")
}

#[derive(Default)]
pub(crate) struct Table(Vec<[String; 5]>);

impl Table {
    pub(crate) fn row(
        &mut self,
        scenario: &str,
        contender: &str,
        figure: impl Into<String>,
        ratio: impl Into<String>,
        note: impl Into<String>,
    ) {
        let row = [
            scenario.to_owned(),
            contender.to_owned(),
            figure.into(),
            ratio.into(),
            note.into(),
        ];
        eprintln!("{}", row.join(" | "));
        self.0.push(row);
    }

    /// Adds a row with the reason for missing figures.
    pub(crate) fn left_out(&mut self, scenario: &str, contender: &str, reason: &str) {
        self.row(scenario, contender, "", "", format!("left out: {reason}"));
    }

    /// Adds the rate of a team beside tower-lock's, or the reason for its absence.
    pub(crate) fn rate(
        &mut self,
        scenario: &str,
        team: &Team,
        rate: &Series,
        ours: &Series,
        note: impl FnOnce() -> String,
    ) {
        let figure = match rate.is_empty() {
            true => [String::new(), String::new(), String::new()],
            false => [rate.text(0, "/s"), ratio(rate, ours, "tower-lock"), note()],
        };
        let [figure, ratio, note] = figure;
        let note = team.noted(note);
        self.row(scenario, team.contender.name(), figure, ratio, note);
    }

    /// Adds the median and the 99th percentile of each team in microseconds, beside those of the scripts
    /// alone.
    pub(crate) fn latencies(
        &mut self,
        scenario: &str,
        teams: &[Team],
        latencies: &[(&Series, &Series)],
    ) {
        let is_bare = |team: &Team| team.contender == Contender::Bare;
        let bare = teams.iter().position(is_bare);
        let to_bare = |p50| {
            bare.map_or(String::new(), |at| {
                ratio(p50, latencies[at].0, "scripts alone")
            })
        };
        for (team, (p50, p99)) in teams.iter().zip(latencies) {
            let name = team.contender.name();
            if p50.is_empty() {
                self.row(scenario, name, "", "", team.noted(String::new()));
                continue;
            }
            let note = team.noted(format!("p99 {}", p99.text(0, "µs")));
            self.row(scenario, name, p50.text(1, "µs"), to_bare(p50), note);
        }
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from(
            "| scenario | contender | median (range) | ratio | note |\n|---|---|---|---|---|\n",
        );
        for row in &self.0 {
            // Foreign text, such as an error, must not end a cell.
            let cells = row.each_ref().map(|cell| cell.replace('|', "\\|"));
            writeln!(text, "| {} |", cells.join(" | ")).expect("a string takes it");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators() {
        let text = |number, decimals| thousands(number, decimals);
        assert_eq!([text(0.0, 0), text(999.6, 0)], ["0", "1,000"]);
        assert_eq!(text(1_604_356.0, 0), "1,604,356");
        assert_eq!([text(477.6, 1), text(5_230.34, 1)], ["477.6", "5,230.3"]);
    }
}
