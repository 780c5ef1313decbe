//! Clients leave a primary that was replaced.

use tokio::time::{Instant, timeout};

use super::support::{GIVEN_BACK, LONG, NEXT_GRANT, is_unused, url, waiter};
use crate::support::engine::{
    MS, PATIENCE, SECOND, by, nothing_is_left, prompt_manager, prompt_managers, pttl, subscribers,
    within,
};
use crate::support::sentinel::SentinelSet;

/// The old primary is unaware of the failover and grants a lock held at the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_client_after_failover_leaves_stale_primary() {
    let mut set = SentinelSet::start();
    let (asleep, awake) = prompt_managers(url(&set), LONG).await;
    let old = set.stop_primary();
    set.failover().await;
    let guard = awake.acquire("k").wait(PATIENCE).await.unwrap();
    set.continue_node(old);
    match asleep.acquire("k").no_wait().await {
        Err(error) => assert!(error.is_busy(), "{error:?}"),
        Ok(void) => {
            let lost = timeout(500 * MS, void.lost()).await;
            lost.expect("no notice that another owner holds the lock");
            assert!(void.release().await.unwrap_err().is_lost());
        }
    }
    let waiting = waiter(&asleep, "k").await;
    let new = set.node(set.primary());
    within(SECOND, "subscribed", || subscribers(new, "k") == 1).await;
    assert!(is_unused(set.node(old)));
    let role = set.cli(old, &["ROLE"]);
    assert!(
        role.starts_with("master"),
        "the old primary was demoted too early: {role}"
    );
    assert!(guard.is_held());
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    set.in_order_again().await;
    nothing_is_left(set.node(old), &[&asleep, &awake], GIVEN_BACK, "the end").await;
}

/// `stale`: whether a disconnected replica replies from its own data.
async fn is_left_as_a_replica(stale: &str) {
    let mut set = SentinelSet::start_with(&["--replica-serve-stale-data", stale], &[]);
    let locks = prompt_manager(url(&set), LONG).await;
    let old = set.primary();
    set.cli(old, &["REPLICAOF", "127.0.0.1", "1"]);
    let acquire = tokio::spawn(locks.acquire("k").wait(PATIENCE).into_future());
    within(2 * SECOND, "left", || is_unused(set.node(old))).await;
    // A connection sends `HELLO` to log in, and again to read the role. Sentinels and replicas, which
    // may connect more often, send none.
    let connections = |set: &SentinelSet| set.node(old).calls("hello") / 2;
    let (before, start) = (connections(&set), Instant::now());
    set.replace_demoted_primary();
    set.failover().await;
    // The role reported by the server is a failure like any other: commands and messages each
    // connect at most 2.5 times per second.
    let tried = connections(&set) - before;
    let allowed = 15 + 5 * start.elapsed().as_secs();
    assert!(
        (1..=allowed).contains(&tried),
        "{tried} in {:?}",
        start.elapsed()
    );
    let deadline = Instant::now() + NEXT_GRANT;
    let guard = by(deadline, "a waiter", acquire).await.unwrap().unwrap();
    assert!(pttl(set.node(set.primary()), "k") > 0);
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_with_stale_reads_is_replaced() {
    is_left_as_a_replica("yes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_without_stale_reads_is_replaced() {
    is_left_as_a_replica("no").await;
}
