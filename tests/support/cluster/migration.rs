//! The migration of a slot from one primary to another, in steps, so that tests can pause it.

use super::view::View;
use super::{Cluster, until};

/// The number of keys per step, and its timeout in milliseconds.
const BATCH: &str = "100";
const TIMEOUT: &str = "5000";

impl Cluster {
    pub(crate) async fn migrate_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_migration(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_migration(slot, from, to).await;
    }

    /// Begins the migration. `from` then replies `ASK` for keys of the slot that it does not have, and `to`
    /// accepts commands for them after `ASKING`.
    pub(crate) fn begin_migration(&self, slot: u16, from: usize, to: usize) {
        let (slot, source, target) = (slot.to_string(), self.id(from), self.id(to));
        // The target comes first, because `ASK` must lead to a node that imports the slot.
        self.cli(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        self.cli(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    }

    /// Moves the keys of the slot that exist now.
    pub(crate) fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (slot, port) = (slot.to_string(), self.nodes[to].port().to_string());
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", TIMEOUT];
        let password = self.nodes[to].option("--requirepass");
        let auth: Vec<_> = password.iter().flat_map(|it| ["AUTH", *it]).collect();
        loop {
            let keys = self.cli(from, &["CLUSTER", "GETKEYSINSLOT", &slot, BATCH]);
            let keys: Vec<_> = keys.lines().collect();
            if keys.is_empty() {
                return;
            }
            self.cli(from, &[&migrate[..], &auth, &["KEYS"], &keys].concat());
        }
    }

    /// Assigns the slot to `to`. Returns when all running nodes agree.
    ///
    /// # Panics
    ///
    /// Panics if `from` has keys of the slot left.
    pub(crate) async fn end_migration(&self, slot: u16, from: usize, to: usize) {
        let (number, target) = (slot.to_string(), self.id(to));
        let assign = ["CLUSTER", "SETSLOT", &number, "NODE", &target];
        // The new owner comes first. In the other order, no node would serve the slot for a moment.
        self.cli(to, &assign);
        self.cli(from, &assign);
        for other in self.primaries() {
            self.cli(other, &assign);
        }
        let port = self.nodes[to].port();
        let known = || {
            self.running().all(|(_, server)| {
                let view = View::of(server);
                let serving = view.nodes.iter().find(|node| node.serves(slot));
                serving.is_some_and(|node| node.port == port)
            })
        };
        until("a migrated slot", || self.logs(), known).await;
    }
}
