//! The releases of one group of keys that the resolver has to send.
//!
//! A group that hangs uses up its own commands and delays no other group. Releases that wait for a
//! command share the next one.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::turns::IN_FLIGHT;
use super::unresolved::BATCH;
use crate::LockKey;
use crate::lock::lease::LeaseNumber;

/// Leases of one command at most. Those of one key are adjacent.
pub(in crate::lock) type Batch = Vec<(LockKey, LeaseNumber)>;

#[derive(Debug, Default)]
pub(in crate::lock) struct Backlog {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Batch>,
    /// The tasks that send. Each has one command in flight.
    senders: usize,
}

impl Backlog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds releases. Returns `true` if the caller has to start a sender.
    pub(in crate::lock) fn add(&self, batch: Batch) -> bool {
        let mut state = self.state();
        state.waiting.push_back(batch);
        let starts = state.senders < IN_FLIGHT;
        state.senders += usize::from(starts);
        starts
    }

    /// Returns the releases of the next command. `None` ends the sender.
    pub(in crate::lock) fn next(&self) -> Option<Batch> {
        let mut state = self.state();
        let Some(mut batch) = state.waiting.pop_front() else {
            // Under the mutex: a batch is either seen here, or starts a sender.
            state.senders -= 1;
            return None;
        };
        while let Some(more) = state.waiting.front()
            && batch.len() + more.len() <= BATCH
            && let Some(more) = state.waiting.pop_front()
        {
            batch.extend(more);
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tests::number;

    fn batch(leases: usize) -> Batch {
        let lease = |n| (LockKey::new(format!("key {n}")), number(1));
        (0..leases).map(lease).collect()
    }

    #[test]
    fn waiting_releases_share_commands() {
        let backlog = Backlog::default();
        assert!((0..IN_FLIGHT).all(|_| backlog.add(batch(1))));
        assert!(
            !backlog.add(batch(BATCH - IN_FLIGHT - 1)),
            "all are in flight"
        );
        assert!(!backlog.add(batch(2)));
        let lengths = [(); 3].map(|()| backlog.next().map(|batch| batch.len()));
        assert_eq!(lengths, [Some(BATCH - 1), Some(2), None]);
        assert!(backlog.add(batch(1)), "a sender has ended");
    }
}
