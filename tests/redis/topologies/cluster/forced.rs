//! Forced releases of one holder, at each node.

use super::support::{LONG, key_of_each, nothing_is_left};
use crate::support::cluster::Cluster;
use crate::support::engine::prompt_manager;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_at_each_node_is_compared_and_released() {
    let cluster = Cluster::start();
    let (here, there) = (
        prompt_manager(cluster.url(), LONG).await,
        prompt_manager(cluster.url(), LONG).await,
    );
    for (node, key) in key_of_each(&cluster) {
        let first = there.acquire(&key).await.unwrap();
        let owner = here.inspect(&key).await.unwrap().unwrap().owner;
        first.release().await.unwrap();
        let second = there.acquire(&key).await.unwrap();
        // The second one has another lease.
        let spared = here.force_release_held_by(&key, &owner).await;
        assert!(!spared.unwrap(), "node {node}");
        let owner = here.inspect(&key).await.unwrap().unwrap().owner;
        assert!(here.force_release_held_by(&key, &owner).await.unwrap());
        assert!(!here.is_locked(&key).await.unwrap(), "node {node}");
        let next = here.acquire(&key).no_wait().await.unwrap();
        assert!(next.fencing_token() > second.fencing_token());
        drop((next, second));
    }
    nothing_is_left(&cluster, &[&here, &there]).await;
}
