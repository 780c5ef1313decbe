//! The end of a run, which must leave nothing behind.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tower_lock::LockManager;
use tower_lock::manager::Snapshot;

use super::{AFTERMATH, Run};
use crate::load::hot;
use crate::referee::wire::Wire;
use crate::referee::{Referee, Verdict, silence};
use crate::rows::Row;
use crate::store::Store;
use crate::support::engine::{MS, SECOND};

impl Run {
    /// Continues the load for a while, ends it, and checks the remains.
    pub(crate) async fn finish(mut self) -> Verdict {
        let (contended, mixed) = if self.managers.is_empty() {
            (Vec::new(), Vec::new())
        } else {
            let now = Instant::now();
            self.granted(&hot(), now).await;
            self.granted(&self.load.mixed(), now).await;
            sleep(AFTERMATH).await;
            (hot(), self.load.mixed())
        };
        for panic in self.load.stop().await {
            self.referee.violation("panic", panic);
        }
        silence::judge(&self.referee, &self.managers, self.row);
        let orphans = left_over(&self.store, &self.managers, &self.referee, self.row).await;
        if self.has_silent_connections {
            // The server still counts dead connections and their subscriptions.
            self.gates.iter().for_each(|gate| gate.messages.cut());
        }
        no_subscription_is_left(&self.store, &self.referee).await;
        let managers: Vec<String> = self.managers.iter().map(silence::identity).collect();
        let judge = Wire {
            referee: &self.referee,
            alone: !matches!(self.store, Store::Quorum(_)),
            managers: &managers,
        };
        let (mut renewals, mut shared, mut releases) = (0, 0, 0);
        for monitor in &self.monitors {
            let seen = judge.judge(&monitor.all_lines());
            renewals += seen.renewals;
            shared += seen.shared;
            releases += seen.releases;
        }
        if !self.monitors.is_empty() {
            // Without any, I8 and I9 would be untested.
            let seen = format!(
                "{renewals} renewals, {shared} of them shared, {releases} releases received"
            );
            self.proof(renewals > shared && shared > 0 && releases > 10, seen);
            let (again, everywhere) = self.duplicate_releases();
            self.proof(everywhere, format!("{again} releases once more"));
        }
        for expectation in &self.expectations {
            self.check(*expectation);
        }
        let wire = self.wire();
        self.managers.clear();
        if !self.has_silent_connections {
            no_connection_is_left(&self.store, &self.referee).await;
        }
        self.gates.clear();
        self.sentinels.clear();
        if let Store::Service(_) = self.store {
            // Its address forwards each connection by a task.
            self.store = Store::Own;
        }
        no_task_is_left(&self.referee).await;
        let mut verdict = Verdict::of(self.row, &self.referee, &contended, &mixed);
        verdict.orphans = orphans;
        if !verdict.violations.is_empty() {
            self.evidence.push(keep(&wire));
        }
        verdict.evidence = self.evidence.join("; ");
        verdict
    }
}

/// Writes the lines of `MONITOR` to a file, and returns its path.
fn keep(wire: &[String]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let name = format!("faults-{}.log", now.unwrap_or_default().as_micros());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, wire.join("\n")).expect("a file in the folder of the tests");
    path.display().to_string()
}

/// I10, I13, and the number of keys that outlive the waiters. A key without a release disappears with its
/// lease, and would look released. The limit is therefore shorter than the lease.
async fn left_over(store: &Store, managers: &[LockManager], referee: &Referee, row: &Row) -> usize {
    let limit = Instant::now() + row.clearance;
    loop {
        let late = Instant::now() > limit;
        let snapshots: Vec<Snapshot> = managers.iter().map(LockManager::snapshot).collect();
        let keys = store.locks();
        let is_idle = snapshots.iter().all(Snapshot::is_idle);
        if is_idle && keys.is_empty() {
            break;
        }
        if late {
            referee.expect(is_idle, "I10", || format!("left: {snapshots:?}"));
            referee.expect(keys.is_empty(), "I10", || {
                format!("orphans: {:?}", store.contents())
            });
            return keys.len();
        }
        sleep(5 * MS).await;
    }
    0
}

async fn no_subscription_is_left(store: &Store, referee: &Referee) {
    // Connections linger for a second, and are checked four times a second.
    let limit = Instant::now() + 3 * SECOND;
    while !store.channels().is_empty() {
        if Instant::now() > limit {
            let channels = store.channels();
            referee.violation("I10", format!("subscriptions: {channels:?}"));
            return;
        }
        sleep(20 * MS).await;
    }
}

/// I10. The tasks of connections run on a thread of the crate, and end with their connections. Nodes of a
/// set or of a cluster also have connections to each other.
async fn no_connection_is_left(store: &Store, referee: &Referee) {
    let servers = match store {
        Store::Single(_) | Store::Quorum(_) => store.servers(),
        _ => return,
    };
    let limit = Instant::now() + 5 * SECOND;
    for server in servers {
        loop {
            let kinds = ["normal", "pubsub"].into_iter();
            let clients = kinds.flat_map(|kind| server.clients(kind));
            let ours = clients.filter(|client| !client.contains("cmd=monitor"));
            let ours = ours.count();
            if ours == 0 {
                break;
            }
            if Instant::now() > limit {
                referee.violation("I10", format!("{ours} connections"));
                return;
            }
            sleep(20 * MS).await;
        }
    }
}

async fn no_task_is_left(referee: &Referee) {
    let alive = || Handle::current().metrics().num_alive_tasks();
    let limit = Instant::now() + 5 * SECOND;
    // The remaining task is the stall detector.
    while alive() > 1 {
        if Instant::now() > limit {
            referee.violation("I10", format!("{} tasks", alive() - 1));
            return;
        }
        sleep(5 * MS).await;
    }
}
