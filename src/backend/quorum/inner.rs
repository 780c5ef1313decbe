//! The shared state of the handles and tasks of one quorum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use smallvec::SmallVec;

use super::fault::Cause;
use super::flight::Flight;
use super::ledger::Ledger;
use super::node::ErasedNode;
use super::owed::Repeating;
use crate::mutex::Mutex;
use crate::task::spawn_here;

pub(super) struct Inner {
    pub(super) nodes: Vec<Arc<dyn ErasedNode>>,
    pub(super) node_timeout: Duration,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) repeating: Mutex<Repeating>,
    clock: fn() -> u64,
    /// The largest counter that this process proposed or saw.
    largest: AtomicU64,
}

impl Inner {
    pub(super) fn new(
        nodes: Vec<Arc<dyn ErasedNode>>,
        node_timeout: Duration,
        clock: fn() -> u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            ledger: Ledger::new(nodes.len()),
            repeating: Mutex::default(),
            nodes,
            node_timeout,
            clock,
            largest: AtomicU64::new(0),
        })
    }

    /// Returns the cause to grant nothing, if two nodes are one server.
    pub(super) fn duplicate(&self) -> Option<Cause> {
        let ids: SmallVec<[_; 5]> = self.nodes.iter().map(|node| node.server_id()).collect();
        let same = |node: usize| {
            let first = ids.iter().position(|id| *id == ids[node])?;
            let cause = Cause::SameServer(first + 1, node + 1);
            (ids[node].is_some() && first < node).then_some(cause)
        };
        (1..ids.len()).find_map(same)
    }

    pub(super) fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// Returns a counter larger than all counters that this process proposed or saw.
    ///
    /// It is the wall clock in microseconds, or more if a larger counter was seen. A majority then normally has
    /// no larger counter and agrees in one round. If more nodes lose their counters than a quorum tolerates,
    /// tokens still continue.
    pub(super) fn propose(&self) -> u64 {
        self.saw((self.clock)() - 1);
        self.largest.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn saw(&self, counter: u64) {
        self.largest.fetch_max(counter, Ordering::Relaxed);
    }

    /// Polls the commands in flight to their end in a task.
    pub(super) fn finish<T: Send + 'static>(&self, mut flight: Flight<T>) {
        if !flight.is_empty() {
            spawn_here(async move { while !flight.next().await.is_empty() {} });
        }
    }
}

/// At most 2^52, which is the year 2112, so that a wrong clock does not exhaust the counters.
pub(super) fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since.map_or(1, |since| since.as_micros());
    u64::try_from(micros).unwrap_or(u64::MAX).clamp(1, 1 << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposals_exceed_clock_and_seen_counters() {
        let inner = Inner::new(Vec::new(), Duration::ZERO, || 100);
        assert_eq!([(); 3].map(|()| inner.propose()), [100, 101, 102]);
        inner.saw(500);
        inner.saw(200);
        assert_eq!(inner.propose(), 501);
    }
}
