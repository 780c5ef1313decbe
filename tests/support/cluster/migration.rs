//! A slot on its way from one primary to another, in steps: tests hold it in the middle.

use super::view::View;
use super::{Cluster, until};

/// How many keys go at a time, and for how many milliseconds at most.
const BATCH: &str = "100";
const TIMEOUT: &str = "5000";

impl Cluster {
    pub(crate) async fn migrate_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_migration(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_migration(slot, from, to).await;
    }

    /// From now on `from` answers `ASK` for keys of the slot that it does not have; `to` takes them
    /// from those who say `ASKING`.
    pub(crate) fn begin_migration(&self, slot: u16, from: usize, to: usize) {
        let (slot, source, target) = (slot.to_string(), self.id(from), self.id(to));
        // In this order: `ASK` must lead to somebody who knows of it.
        self.cli(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        self.cli(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    }

    /// Moves the keys of the slot that are there by now.
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

    /// Gives the slot to `to`. Returns when all nodes that run know it.
    ///
    /// # Panics
    ///
    /// If `from` has keys of the slot left.
    pub(crate) async fn end_migration(&self, slot: u16, from: usize, to: usize) {
        let (number, target) = (slot.to_string(), self.id(to));
        let assign = ["CLUSTER", "SETSLOT", &number, "NODE", &target];
        // The new one first: were it the last, nobody would serve the slot for a moment.
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
