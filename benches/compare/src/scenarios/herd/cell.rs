//! One combination of managers and hold.

use std::time::Duration;

/// The most managers that have a process each.
pub(super) const MOST_PROCESSES: usize = 8;

const MANAGERS: [usize; 5] = [1, 2, MOST_PROCESSES, 32, 128];
const HOLDS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(5)];

#[derive(Clone, Copy)]
pub(super) struct Cell {
    /// With one client each.
    pub(super) managers: usize,
    pub(super) hold: Duration,
}

impl Cell {
    /// Returns all cells, by hold and then by managers.
    pub(super) fn all() -> Vec<Self> {
        let cells = |hold| MANAGERS.map(|managers| Self { managers, hold });
        HOLDS.into_iter().flat_map(cells).collect()
    }

    pub(super) fn has_processes(self) -> bool {
        self.managers <= MOST_PROCESSES
    }

    pub(super) fn name(self) -> String {
        let (managers, hold) = (self.managers, self.hold.as_millis());
        let who = match managers {
            1 => "1 process".to_owned(),
            _ if self.has_processes() => format!("{managers} processes"),
            _ => format!("{managers} managers in one process"),
        };
        format!("herd, {who}, holds of {hold} ms: grants")
    }
}
