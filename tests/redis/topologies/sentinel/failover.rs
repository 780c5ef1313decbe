//! Locks and waiters follow a failover.

use tokio::time::Instant;
use tower_lock::ErrorKind;

use super::support::{
    FAILOVERS, Failover, GIVEN_BACK, LONG, NEXT_GRANT, SHORT, is_unused, next_grant_at, replicated,
    url, waiter,
};
use crate::support::engine::{
    MS, PATIENCE, SECOND, by, eventually, fails_at_its_deadline, lost_at_its_deadline,
    nothing_is_left, prompt_manager, pttl, subscribers, within,
};
use crate::support::sentinel::SentinelSet;

async fn is_followed(failover: Failover) {
    let mut set = SentinelSet::start();
    let (here, there, brief) = (
        prompt_manager(url(&set), LONG).await,
        prompt_manager(url(&set), LONG).await,
        prompt_manager(url(&set), SHORT).await,
    );
    for _ in 0..FAILOVERS {
        let guard = here.acquire("k").await.unwrap();
        let waiting = waiter(&there, "k").await;
        let primary = set.node(set.primary());
        eventually("subscribed", || subscribers(primary, "k") == 1).await;
        let short = brief.acquire("short").await.unwrap();
        replicated(&set);

        let old = failover.begin(&mut set);
        let unserved = async {
            if failover != Failover::Commanded {
                lost_at_its_deadline(&short.held()).await;
                // Without a primary, an acquire fails at its deadline.
                let other = brief.acquire("other");
                let error = fails_at_its_deadline(other, 200 * MS).await;
                assert_eq!(error.kind(), ErrorKind::Unavailable);
            }
        };
        // Contends for the whole outage.
        let fresh = tokio::spawn(there.acquire("fresh").wait(PATIENCE).into_future());
        let (_took, ()) = futures_util::join!(set.failover(), unserved);
        let start = Instant::now();
        let new = set.primary();
        let next = by(start + NEXT_GRANT, "a waiter", fresh).await.unwrap();
        let waited = start.elapsed();
        let granted = next_grant_at(&set, new, &brief);
        let granted = by(start + NEXT_GRANT, "a newcomer", granted).await;
        if failover == Failover::Commanded {
            // The old primary still serves, but every backend must leave it: a release there would
            // be lost, and the lock would stay held until its lease expires.
            let all_left = eventually("all left", || is_unused(set.node(old)));
            by(start + NEXT_GRANT, "all left", all_left).await;
        }
        // The new primary has the lease and renews it.
        within(SECOND, "renewed", || pttl(set.node(new), "k") > 19_000).await;
        assert!(guard.is_held(), "lost a lease that was replicated");
        // The subscription moves to the new primary.
        let new = set.node(new);
        let moved = eventually("subscribed", || subscribers(new, "k") == 1);
        by(start + NEXT_GRANT, "the subscription", moved).await;
        let subscribed = start.elapsed();
        eprintln!("{failover:?}: waiter {waited:?}, newcomer {granted:?} later, {subscribed:?}");
        // The next poll is 900 ms away, so only the message can wake the waiter in time.
        let released = Instant::now();
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        let woken = by(released + 600 * MS, "the message", waiting).await;
        let guard = woken.unwrap().unwrap();
        assert!(guard.fencing_token() > token);
        drop((guard, next, short));
        let managers = [&here, &there, &brief];
        nothing_is_left(new, &managers, GIVEN_BACK, failover).await;
        failover.end(&mut set, old).await;
        nothing_is_left(set.node(old), &managers, GIVEN_BACK, failover).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_primary_failover_keeps_locks_and_waiters() {
    is_followed(Failover::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_primary_failover_keeps_locks_and_waiters() {
    is_followed(Failover::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commanded_failover_keeps_locks_and_waiters() {
    is_followed(Failover::Commanded).await;
}
