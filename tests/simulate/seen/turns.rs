//! The turns of the processes, as their replies and grants show them.

use tower_lock::backend::{LeaseId, Mode};

use super::Seen;
use crate::environment::Environment;
use crate::plan::Command;
use crate::store::{Item, Outcome};
use crate::time::{MS, Time};

/// A turn goes on for so long, however many waiters there were at its begin.
const SHORTEST_TURN: Time = 2 * MS;

/// What waits for a key at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waits {
    Place(LeaseId),
    /// The clients outside the queue.
    Outside,
}

/// The hand-offs of a lease under its present counters.
#[derive(Debug, Clone, Copy, Default)]
pub struct HandOffs {
    /// How many tokens of the lease come before that of its last guard.
    pub last: u64,
    pub turn: Option<Turn>,
}

/// The rest of a turn whose process knows that others wait.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// The most tokens of the lease.
    pub tokens: u64,
    /// Until then, there may be more.
    pub until: Time,
}

impl Seen {
    /// Takes note of a guard with a token that so many tokens of its lease come before.
    pub fn handed_off(&mut self, lease: LeaseId, before: u64) {
        let it = self.hand_offs.entry(lease).or_default();
        it.last = before.max(it.last);
    }

    pub fn waiting(&self, manager: usize, key: usize) -> u64 {
        let waiters = self.waiters.iter();
        let waiting = waiters.filter(|it| it.manager == manager && it.keys.contains(&key));
        waiting.count() as u64
    }

    /// Begins a turn that its process limits to `tokens`.
    pub fn turn_begins(&mut self, lease: LeaseId, tokens: u64, now: Time) {
        let it = self.hand_offs.entry(lease).or_default();
        it.turn = Some(Turn {
            tokens: it.turn.map_or(tokens, |turn| turn.tokens.min(tokens)),
            until: now + SHORTEST_TURN,
        });
    }
}

/// How long a process waits at least for the reply to a release, from its effect on: 500 ms from its send.
const AWAITED: Time = 400 * MS;

impl Environment {
    /// Takes note of an outcome that its process receives now.
    pub fn replied(&self, manager: usize, command: Command, item: &Item, outcome: Outcome) {
        let Some(lease) = item.lease else { return };
        let (key, now) = (item.key, self.now());
        let (waited, mode, ended) = {
            let record = &self.store.lock().unwrap().records[&lease];
            let ended = record.released.unwrap_or(record.decided);
            (record.waited, record.mode, ended)
        };
        // A process that was blocked for longer may have forgotten the command, and the reply then changes nothing.
        let is_awaited = now < ended.saturating_add(AWAITED);
        let mut seen = self.seen.lock().unwrap();
        seen.renewed(lease, outcome, now);
        // Each owner waits for permits of its own.
        if mode == Mode::Permit {
            return;
        }
        if let Outcome::Granted { .. } = outcome {
            seen.yielded.remove(&(manager, key));
        }
        match outcome {
            Outcome::Granted { .. } if command == Command::Contend && waited => {
                let waiting = seen.waiting(manager, key);
                seen.turn_begins(lease, waiting, now);
            }
            Outcome::Kept { counter } => {
                let it = seen.hand_offs.entry(lease).or_default();
                it.turn = None;
                it.last = if counter.is_some() { 0 } else { it.last };
            }
            Outcome::Transferred | Outcome::Entered | Outcome::LeftToOthers
                if command != Command::Leave && is_awaited =>
            {
                seen.yielded.insert((manager, key), now);
            }
            _ => {}
        }
    }
}
