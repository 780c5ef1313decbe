//! Locks in a slot whose migration is unfinished.

mod commands;
mod locks;

use std::time::Duration;

use tower_lock::{LockGuard, LockManager};

use crate::support::cluster::Cluster;

/// All keys with this tag have one slot.
const TAG: &str = "{user}";

const HELD: &str = "{user}:held";

const FREE: &str = "{user}:free";

const LEASE: Duration = Duration::from_millis(1_500);

/// A slot with a counter and a held lock, between two nodes.
struct Moving {
    cluster: Cluster,
    slot: u16,
    from: usize,
    to: usize,
}

impl Moving {
    /// Begins a migration. No key of the slot has moved yet.
    async fn begin(locks: &LockManager, cluster: Cluster) -> (Self, LockGuard) {
        let held = locks.acquire(HELD).await.unwrap();
        let (slot, from) = (cluster.slot(TAG), cluster.node_of(TAG));
        let to = cluster.primaries().into_iter().find(|it| *it != from);
        let to = to.unwrap();
        cluster.begin_migration(slot, from, to);
        let moving = Self {
            cluster,
            slot,
            from,
            to,
        };
        (moving, held)
    }

    fn names_at(&self, node: usize) -> Vec<String> {
        let slot = self.slot.to_string();
        let names = self
            .cluster
            .cli(node, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
        names.lines().map(ToOwned::to_owned).collect()
    }

    /// Moves the keys whose names contain `part`.
    fn move_names(&self, part: &str) {
        let names = self.names_at(self.from);
        let names = names.iter().filter(|name| name.contains(part));
        let port = self.cluster.node(self.to).port().to_string();
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(names.map(String::as_str));
        assert_eq!(self.cluster.cli(self.from, &migrate), "OK");
    }

    fn move_counter(&self) {
        self.move_names("token");
        assert!(
            !self
                .names_at(self.from)
                .iter()
                .any(|name| name.contains("token"))
        );
    }

    async fn end(&self) {
        self.cluster.move_keys(self.slot, self.from, self.to);
        self.cluster
            .end_migration(self.slot, self.from, self.to)
            .await;
    }
}
