//! Servers whose clocks differ.

use tokio::time::{Instant, sleep};

use super::support::LEASE;
use crate::support::engine::{MS, SECOND, by, eventually, prompt_managers, pttl};
use crate::support::process::version;
use crate::support::redis_server::RedisServer;
use crate::support::vip::Vip;

/// Redis 7 sends its replicas the time at which a lease ends. Older versions send the TTL, and the lease survives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_primary_with_clock_ahead_ends_leases() {
    let old = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let new = RedisServer::start_with_clock();
    new.step_clock(60_000);
    new.cli(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]);
    let replication = || new.cli(&["INFO", "replication"]);
    eventually("in sync", || {
        replication().contains("master_link_status:up")
    })
    .await;
    let vip = Vip::start(old.port()).await;
    let (here, there) = prompt_managers(format!("redis://{}", vip.address()), LEASE).await;
    let guard = here.acquire("k").await.unwrap();
    let end = Instant::now() + guard.remaining();
    assert!(pttl(&old, "k") > 0);
    let count = |server: &RedisServer| server.cli(&["DBSIZE"]);
    eventually("replicated", || count(&new) == count(&old)).await;
    new.cli(&["REPLICAOF", "NO", "ONE"]);
    old.cli(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    vip.lead_to(new.port());
    if version() < 7 {
        sleep(LEASE + SECOND).await;
        assert!(guard.is_held());
        return;
    }
    // The lease has ended at the new primary. The renewal reports that, before the deadline.
    by(end - 100 * MS, "the loss", guard.lost()).await;
    let next = there.acquire("k").wait(5 * SECOND).await.unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
}
