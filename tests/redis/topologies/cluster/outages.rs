//! Nodes that die or hang.

use std::future::IntoFuture as _;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::{ErrorKind, LockManager, RedisBackend};

use super::support::{LONG, SHORT, key_of_each, nothing_is_left, subscribers, waiter};
use crate::support::cluster::Cluster;
use crate::support::engine::{
    MS, PATIENCE, SECOND, eventually, fails_at_its_deadline, lost_at_its_deadline, prompt_manager,
    prompt_managers, within,
};
use crate::support::redis_server::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_node_affects_only_its_own_keys() {
    let cluster = Cluster::start_with(&["--cluster-node-timeout", "60000"]);
    let patient = || async {
        // The response timeout is much longer than the lease.
        let backend = RedisBackend::builder(cluster.url()).response_timeout(10 * SECOND);
        let backend = backend.connect().await.unwrap();
        let locks = LockManager::builder(backend).watchdog_timeout(SHORT);
        locks.build().unwrap()
    };
    let (here, there) = (patient().await, patient().await);
    let keys = key_of_each(&cluster);
    let (still, own) = &keys[0];
    // Enough locks that renewals for several nodes would share commands if they could.
    let many = (0..300).map(|n| here.acquire(format!("many {n}")).into_future());
    let many: Vec<_> = join_all(many)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let (mine, others): (Vec<_>, Vec<_>) = many
        .into_iter()
        .partition(|guard| cluster.node_of(&format!("lock:{}", guard.key().as_str())) == *still);
    assert!(mine.len() > 50 && others.len() > 100);

    cluster.stop_process(*still);
    let until = Instant::now() + 3 * SHORT;
    let mut longest = Duration::ZERO;
    let late = there.acquire(own.as_str());
    let late = tokio::spawn(async move { fails_at_its_deadline(late, 2 * SECOND).await });
    let lost = join_all(mine.iter().map(|guard| lost_at_its_deadline(guard)));
    let busy = async {
        while Instant::now() < until {
            for (_, key) in &keys[1..] {
                let start = Instant::now();
                there
                    .acquire(key.as_str())
                    .await
                    .unwrap()
                    .release()
                    .await
                    .unwrap();
                longest = longest.max(start.elapsed());
            }
            assert!(
                others.iter().all(|guard| guard.is_held()),
                "renewed on time"
            );
            sleep(10 * MS).await;
        }
    };
    let (_, ()) = futures_util::future::join(lost, busy).await;
    assert_eq!(late.await.unwrap().kind(), ErrorKind::Unavailable);
    assert!(longest < SECOND, "the other nodes reply in {longest:?}");
    cluster.continue_process(*still);
    let again = there.acquire(own.as_str()).wait(PATIENCE).await.unwrap();
    drop((mine, others, again));
    nothing_is_left(&cluster, &[&here, &there]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_of_killed_node_keeps_its_locks() {
    let mut cluster = Cluster::start();
    let (here, there) = prompt_managers(cluster.url(), LONG).await;
    let (node, key) = key_of_each(&cluster).remove(1);
    let slot = cluster.slot(&format!("lock:{key}"));
    let guard = here.acquire(key.as_str()).await.unwrap();
    let token = guard.fencing_token();
    let waiting = waiter(&there, &key).await;
    eventually("it subscribes", || subscribers(&cluster, &key) == 1).await;
    // By then the replica has the lease.
    sleep(100 * MS).await;
    let end = Instant::now() + guard.remaining();
    cluster.kill(node);
    cluster.failover(slot, node).await;
    let over = Instant::now();
    let free = here
        .acquire(format!("{{{key}}}"))
        .wait(PATIENCE)
        .await
        .unwrap();
    assert!(
        over.elapsed() < SECOND,
        "the next grant after {:?}",
        over.elapsed()
    );
    drop(free);
    within(PATIENCE, "renewed there", || {
        Instant::now() + guard.remaining() > end + 10 * MS
    })
    .await;
    assert!(guard.is_held());
    within(SECOND, "the subscription moved", || {
        subscribers(&cluster, &key) == 1
    })
    .await;
    guard.release().await.unwrap();
    let released = Instant::now();
    let next = waiting.await.unwrap().unwrap();
    assert!(
        released.elapsed() < 500 * MS,
        "woken by the poll, not by the message"
    );
    assert!(next.fencing_token() > token);
    drop(next);
    cluster.restart(node).await;
    nothing_is_left(&cluster, &[&here, &there]).await;
}

/// While slots have no node, all nodes reject all keys by default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_outage_is_unavailable_and_keeps_locks() {
    let mut cluster = Cluster::start();
    let (here, there) = prompt_managers(cluster.url(), LONG).await;
    let mut keys = key_of_each(&cluster).into_iter();
    let ((gone, _), (up, key)) = (keys.next().unwrap(), keys.next().unwrap());
    let replica = cluster.replica_of(gone);
    let guard = here.acquire(key.as_str()).await.unwrap();
    // The replica dies first, so no node can fail over.
    cluster.kill(replica);
    cluster.kill(gone);
    let name = format!("lock:{key}");
    let refusal = || cluster.node(up).command(&["EXISTS", &name]);
    within(PATIENCE, "the others reject", || {
        let refused = refusal().err();
        refused.is_some_and(|error| error.code() == Some("CLUSTERDOWN"))
    })
    .await;

    let late = there.acquire(format!("{{{key}}}:other"));
    let error = fails_at_its_deadline(late, SECOND).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(refusal().is_err(), "the outage ended too early");
    let late = there.acquire(format!("{{{key}}}:other")).wait(PATIENCE);
    let late = tokio::spawn(late.into_future());
    cluster.restart_all().await;
    let late = late.await.unwrap().expect("within its wait");
    assert!(guard.is_held(), "its node kept it");
    guard.release().await.unwrap();
    drop(late);
    nothing_is_left(&cluster, &[&here, &there]).await;
}

/// The nodes report other names than the URL, so the seeds are no known nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refreshes_of_degraded_cluster_keep_connections() {
    let mut cluster = Cluster::start();
    let url = cluster.url().replace("127.0.0.1", "localhost");
    let locks = prompt_manager(url, LONG).await;
    let (dead, key) = key_of_each(&cluster).swap_remove(0);
    let replica = cluster.replica_of(dead);
    cluster.kill(replica);
    cluster.kill(dead);
    let waiting = tokio::spawn(locks.acquire(key).wait_forever().into_future());
    let sum = |count: &dyn Fn(&RedisServer) -> u64| -> u64 {
        let primaries = cluster.primaries().into_iter();
        primaries.map(|it| count(cluster.node(it))).sum()
    };
    let asked = || sum(&|node| node.calls("cluster|slots"));
    let opened = || {
        sum(&|node| {
            let stats = node.cli(&["INFO", "stats"]);
            let mut lines = stats.lines();
            let count = lines.find_map(|it| it.strip_prefix("total_connections_received:"));
            count.unwrap().trim().parse().unwrap()
        })
    };
    // Until the seeds have been asked.
    let before = asked();
    eventually("refreshes", || asked() >= before + 10).await;
    let (before, connections) = (asked(), opened());
    eventually("more refreshes", || asked() >= before + 40).await;
    let connections = opened() - connections;
    assert!(connections <= 3, "{connections} connections");
    waiting.abort();
}
