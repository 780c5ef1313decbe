//! Failovers, and what follows them.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_lock::{Error, LockGuard, LockManager};

use crate::support::engine::{PATIENCE, SECOND, eventually, pttl, subscribers};
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::SentinelSet;

/// For locks that must expire without a primary: shorter than a failover.
pub(super) const SHORT: Duration = SECOND;

/// For locks that must survive a failover.
pub(super) const LONG: Duration = Duration::from_secs(20);

/// The limit for the next grant once most Sentinels name the new primary.
pub(super) const NEXT_GRANT: Duration = SECOND;

/// Attempts with an unknown outcome are released by retries up to a second apart.
pub(super) const GIVEN_BACK: Duration = Duration::from_secs(2);

/// The second failover starts from the state after the first.
pub(super) const FAILOVERS: usize = 2;

pub(super) fn url(set: &SentinelSet) -> String {
    set.url(set.service())
}

/// Spawns an acquire and returns once it is in the queue.
pub(super) async fn waiter(locks: &LockManager, key: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let before = locks.snapshot().waiting;
    let waiter = tokio::spawn(locks.acquire(key).wait_forever().into_future());
    eventually("it waits", || locks.snapshot().waiting > before).await;
    waiter
}

/// Waits until both replicas have all writes so far, so that no failover loses them.
pub(super) fn replicated(set: &SentinelSet) {
    // `WAIT` covers only the writes of its own connection.
    set.cli(set.primary(), &["PUBLISH", "unused", ""]);
    assert_eq!(set.cli(set.primary(), &["WAIT", "2", "5000"]), "2");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failover {
    /// `kill -9`.
    Killed,
    /// It accepts connections and sends no replies. When it resumes, it still acts as the primary.
    Stopped,
    /// `SENTINEL FAILOVER`: the old primary accepts writes until a Sentinel demotes it.
    Commanded,
}

impl Failover {
    /// Starts the failover and returns the old primary.
    pub(super) fn begin(self, set: &mut SentinelSet) -> usize {
        match self {
            Self::Killed => set.kill_primary(),
            Self::Stopped => set.stop_primary(),
            Self::Commanded => {
                let primary = set.primary();
                let service = set.service();
                set.sentinel(0).cli(&["SENTINEL", "FAILOVER", service]);
                primary
            }
        }
    }

    /// Brings the old primary back as a replica.
    pub(super) async fn end(self, set: &mut SentinelSet, old: usize) {
        match self {
            Self::Killed => set.restart(old).await,
            Self::Stopped => {
                set.continue_node(old);
                set.in_order_again().await;
            }
            Self::Commanded => set.in_order_again().await,
        }
    }
}

/// Acquires locks until one is at this node, and returns how long that took.
pub(super) async fn next_grant_at(set: &SentinelSet, node: usize, locks: &LockManager) -> Duration {
    let start = Instant::now();
    for n in 0.. {
        let key = format!("probe:{n}");
        let guard = locks.acquire(&*key).wait(PATIENCE).await.unwrap();
        let took = start.elapsed();
        if pttl(set.node(node), &key) > 0 {
            return took;
        }
        drop(guard);
    }
    unreachable!("the numbers do not end");
}

/// Returns `true` if no backend of this process uses the server. Backends send only scripts and
/// subscriptions.
pub(super) fn is_unused(node: &RedisServer) -> bool {
    let ours = |client: &String| client.contains("cmd=eval");
    subscribers(node, "k") == 0 && !node.clients("normal").iter().any(ours)
}
