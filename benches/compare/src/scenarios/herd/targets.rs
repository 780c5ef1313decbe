//! The targets of tower-lock, as the README lists them.

use super::cell::Cell;
use super::figures::Figures;
use crate::table::Series;

const GRANTS_WITHOUT_HOLD: f64 = 70_000.0;
const LONGEST_WITHOUT_HOLD: f64 = 50.0;
/// The longest wait in turns of all managers.
const TURNS: f64 = 1.5;
/// Added to that wait, in milliseconds.
const SLACK: f64 = 50.0;
const SCRIPTS: f64 = 3.5;
const SHARE: f64 = 0.8;
/// The smallest part of the rate of one process.
const OF_ALONE: f64 = 0.95;

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Returns the targets that the medians miss. `alone` has the figures of one process.
pub(super) fn missed(cell: Cell, figures: &Figures, alone: &Figures) -> Vec<String> {
    let (grants, longest) = (&figures.contention.grants, &figures.contention.longest);
    let managers = cell.managers as f64;
    let bounds = match (cell.hold.is_zero(), cell.managers) {
        (true, 2..=16) => vec![
            ("grants/s", grants, 0, Bound::AtLeast(GRANTS_WITHOUT_HOLD)),
            (
                "longest wait in ms",
                longest,
                0,
                Bound::AtMost(LONGEST_WITHOUT_HOLD),
            ),
        ],
        (true, _) => Vec::new(),
        (false, _) => {
            let turn = managers * cell.hold.as_secs_f64() * 1e3;
            let longest_wait = Bound::AtMost(TURNS * turn + SLACK);
            let mut bounds = vec![
                ("scripts", &figures.scripts, 1, Bound::AtMost(SCRIPTS)),
                ("smallest share", &figures.share, 2, Bound::AtLeast(SHARE)),
                ("longest wait in ms", longest, 0, longest_wait),
            ];
            let alone = &alone.contention.grants;
            if !alone.is_empty() {
                let least = Bound::AtLeast(OF_ALONE * alone.median());
                bounds.push(("grants/s", grants, 0, least));
            }
            bounds
        }
    };
    let missed = bounds.into_iter().filter_map(miss);
    missed.collect()
}

fn miss((name, series, decimals, bound): (&str, &Series, usize, Bound)) -> Option<String> {
    let median = series.median();
    match bound {
        Bound::AtLeast(least) if median < least => Some(format!("{name} ≥ {least:.decimals$}")),
        Bound::AtMost(most) if median > most => Some(format!("{name} ≤ {most:.decimals$}")),
        _ => None,
    }
}
