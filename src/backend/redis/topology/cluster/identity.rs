//! Which cluster this is: the ids of its nodes.
//!
//! A node can leave the cluster and belong to another one at the same address. That cluster would grant keys that are
//! held here. Hence a view counts only if it shares an id with the last one. A view without ids always does.
//!
//! If all nodes are gone, another view counts as soon as all leases have expired. The time starts at the first refresh
//! without a known node: until then, a known node may have granted leases to other processes.

use std::collections::HashSet;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::mutex::Mutex;

/// The ids of the nodes in a view, replicas included. Empty from servers without ids.
pub(super) type Ids = HashSet<String>;

/// Returns `true` if both can be of one cluster.
pub(super) fn share(one: &Ids, other: &Ids) -> bool {
    one.is_empty() || other.is_empty() || !one.is_disjoint(other)
}

#[derive(Default)]
pub(super) struct Identity {
    known: Mutex<Known>,
    /// Another cluster replied, and no known node did since.
    doubted: AtomicBool,
}

#[derive(Default)]
struct Known {
    ids: Ids,
    logged: bool,
    doubted_since: Option<Instant>,
}

impl Identity {
    /// Returns `true` before the first view.
    pub(super) fn is_unknown(&self) -> bool {
        self.known.lock().ids.is_empty()
    }

    pub(super) fn shares(&self, ids: &Ids) -> bool {
        share(&self.known.lock().ids, ids)
    }

    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Relaxed)
    }

    /// Records that only nodes of another cluster reply. Returns the time since then.
    pub(super) fn doubt(&self) -> Duration {
        let mut known = self.known.lock();
        self.doubted.store(true, Ordering::Relaxed);
        let since = known.doubted_since.get_or_insert_with(Instant::now);
        since.elapsed()
    }

    /// Returns `true` the first time in a doubt.
    #[cfg(any(feature = "tracing", test))]
    pub(super) fn must_log(&self) -> bool {
        !std::mem::replace(&mut self.known.lock().logged, true)
    }

    /// Replaces the ids by those of the last view.
    pub(super) fn learn(&self, ids: &Ids) {
        let mut known = self.known.lock();
        known.ids.clone_from(ids);
        self.trust(known);
    }

    /// Records that a known node replied.
    pub(super) fn heard(&self) {
        // The load keeps the usual case free of the lock.
        if self.is_doubted() {
            self.trust(self.known.lock());
        }
    }

    fn trust(&self, mut known: MutexGuard<'_, Known>) {
        (known.doubted_since, known.logged) = (None, false);
        self.doubted.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn ids(names: &[&str]) -> Ids {
        names.iter().copied().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn view_shares_one_id_or_has_none() {
        let identity = Identity::default();
        assert!(identity.is_unknown() && identity.shares(&ids(&["a"])));
        identity.learn(&ids(&["a", "b"]));
        assert!(identity.shares(&ids(&["b", "c"])) && identity.shares(&ids(&[])));
        assert!(!identity.shares(&ids(&["c"])));
        identity.learn(&ids(&["c"]));
        assert!(!identity.shares(&ids(&["a", "b"])));
    }

    #[tokio::test(start_paused = true)]
    async fn reply_of_known_node_restarts_time() {
        let identity = Identity::default();
        identity.learn(&ids(&["a"]));
        for _ in 0..2 {
            assert_eq!(identity.doubt(), Duration::ZERO);
            assert!(identity.must_log() && !identity.must_log());
            advance(Duration::from_secs(29)).await;
            assert_eq!(identity.doubt(), Duration::from_secs(29));
            identity.heard();
            assert!(!identity.is_doubted());
        }
    }
}
