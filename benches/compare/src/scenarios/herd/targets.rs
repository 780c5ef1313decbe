//! The targets of the cells, as the README lists them.

use super::cell::Cell;
use super::figures::Figures;
use crate::table::Series;
use crate::target::Target;

const GRANTS_WITHOUT_HOLD: f64 = 70_000.0;
const LONGEST_WITHOUT_HOLD: f64 = 50.0;
/// The rate divided by that of `RFairLock`, for 8 processes and no hold.
const TIMES_FAIR: f64 = 20.0;
/// The longest wait in turns of all managers.
const TURNS: f64 = 1.5;
/// Added to that wait, in milliseconds.
const SLACK: f64 = 50.0;
const SCRIPTS: f64 = 3.5;
const SHARE: f64 = 0.8;
/// The smallest part of the rate of one process.
const OF_ALONE: f64 = 0.95;

/// Returns the targets of a cell. `alone` has the rates of one process with the same hold, and `fair` those of
/// `RFairLock` in this cell. Both are empty if they were not measured.
pub(super) fn of(cell: Cell, figures: &Figures, alone: &Series, fair: &Series) -> Vec<Target> {
    let contention = &figures.contention;
    let (grants, longest) = (contention.grants.median(), contention.longest.median());
    if cell.hold.is_zero() {
        let mut targets = Vec::new();
        if (2..=16).contains(&cell.managers) {
            let least = GRANTS_WITHOUT_HOLD;
            targets.push(Target::at_least("grants/s", grants, least, 0));
            let most = LONGEST_WITHOUT_HOLD;
            targets.push(Target::at_most("longest wait in ms", longest, most, 0));
        }
        if cell.managers == 8 && !fair.is_empty() {
            let times = grants / fair.median();
            let name = "grants/s over those of `RFairLock`";
            targets.push(Target::at_least(name, times, TIMES_FAIR, 0));
        }
        return targets;
    }
    let turn = cell.managers as f64 * cell.hold.as_secs_f64() * 1e3;
    let (scripts, share) = (figures.scripts.median(), figures.share.median());
    let mut targets = vec![
        Target::at_most("scripts", scripts, SCRIPTS, 1),
        Target::at_least("smallest share", share, SHARE, 2),
        Target::at_most("longest wait in ms", longest, TURNS * turn + SLACK, 0),
    ];
    if !alone.is_empty() {
        let least = OF_ALONE * alone.median();
        targets.push(Target::at_least("grants/s", grants, least, 0));
    }
    targets
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::target::note;

    fn series(value: f64) -> Series {
        let mut series = Series::default();
        series.add(value);
        series
    }

    /// Returns the note of a cell of so many managers and a hold, with these figures and rates.
    fn missed(managers: usize, hold: u64, grants: f64, longest: f64, fair: &Series) -> String {
        let hold = Duration::from_millis(hold);
        let mut figures = Figures::over(Duration::from_secs(1));
        figures.contention.grants.add(grants);
        figures.contention.longest.add(longest);
        figures.scripts.add(3.0);
        figures.share.add(1.0);
        let targets = of(Cell { managers, hold }, &figures, &series(160.0), fair);
        note(&targets, String::new())
    }

    #[test]
    fn eight_processes_are_compared_with_fair_lock() {
        let (slow, fast) = (series(5_000.0), series(5_001.0));
        assert_eq!(missed(8, 0, 100_000.0, 1.0, &slow), "");
        let miss = "**missed: grants/s over those of `RFairLock` ≥ 20**";
        assert_eq!(missed(8, 0, 100_000.0, 1.0, &fast), miss);
        for (managers, fair) in [(2, fast), (32, series(5_001.0)), (8, Series::default())] {
            assert_eq!(missed(managers, 0, 100_000.0, 1.0, &fair), "");
        }
    }

    #[test]
    fn rates_and_waits_depend_on_hold() {
        let none = Series::default();
        let miss = "**missed: grants/s ≥ 70000, longest wait in ms ≤ 50**";
        assert_eq!(missed(2, 0, 69_999.0, 51.0, &none), miss);
        assert_eq!(missed(32, 0, 69_999.0, 51.0, &none), "");
        let miss = "**missed: longest wait in ms ≤ 110, grants/s ≥ 152**";
        assert_eq!(missed(8, 5, 151.0, 111.0, &none), miss);
        assert_eq!(missed(8, 5, 152.0, 110.0, &none), "");
    }
}
