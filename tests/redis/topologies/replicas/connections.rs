//! The connections of waiting acquires.

use std::num::NonZeroUsize;

use deadpool_redis::{Manager, Pool};
use futures_util::future::{join, join_all};
use futures_util::poll;
use tokio::time::{Instant, timeout};
use tower_lock::RedisBackend;
use tower_lock::backend::{Released, Renewed};

use super::trio::{LENT, Trio, acquire, connected, connections, grant, is_short, release, renew};
use crate::support::engine::{FENCE, MS, PATIENCE, SECOND, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_grants_share_bounded_connections() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    let before = connections(&trio.primary);
    let keys: Vec<_> = (0..500).map(|n| format!("key {n}")).collect();
    join_all(keys.iter().map(|key| grant(&backend, key))).await;
    let opened = connections(&trio.primary) - before;
    assert!((2..=LENT).contains(&opened), "{opened} connections");
    join_all(keys.iter().map(|key| release(&backend, key))).await;
    // The pool reuses its connections.
    join_all(keys.iter().map(|key| grant(&backend, key))).await;
    let opened = connections(&trio.primary) - before;
    assert!((2..=LENT).contains(&opened), "{opened} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exhausted_pool_allows_renewal_and_release() {
    let trio = Trio::start();
    let backend = trio.backend(SECOND).await;
    grant(&backend, "held").await;
    trio.stop_replicas();
    let crowd: Vec<_> = (0..4 * LENT).map(|n| format!("key {n}")).collect();
    let crowd = join_all(crowd.iter().map(|key| acquire(&backend, key)));
    let mut crowd = std::pin::pin!(crowd);
    assert!(poll!(&mut crowd).is_pending());
    let held = async {
        eventually("all are taken", || {
            let clients = trio.primary.cli(&["INFO", "clients"]);
            clients.contains(&format!("blocked_clients:{LENT}"))
        })
        .await;
        let start = Instant::now();
        assert_eq!(renew(&backend, "held").await, Renewed::Renewed);
        assert_eq!(release(&backend, "held").await, Released::Released);
        assert!(start.elapsed() < 900 * MS, "behind the acquires");
    };
    let (outcomes, ()) = join(crowd, held).await;
    for outcome in outcomes {
        // The first reply fails the queued acquires without attempts of their own.
        is_short(&outcome.unwrap_err(), "0 of 2");
    }
    assert_eq!(trio.primary.cli(&["KEYS", "*"]), FENCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_pool_keeps_one_connection_free() {
    let trio = Trio::start();
    // Long timeouts keep a busy machine from failing the test.
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE));
    let config = config.set_response_timeout(Some(PATIENCE));
    let manager = Manager::new_with_config(trio.primary.url(), config).unwrap();
    let pool = Pool::builder(manager).max_size(4).build().unwrap();
    let two = NonZeroUsize::new(2).unwrap();
    let builder = || {
        let builder = RedisBackend::from_pool(pool.clone()).min_replicas(two, SECOND);
        builder.connect_timeout(PATIENCE).response_timeout(PATIENCE)
    };
    let backend = connected(builder).await;
    let before = connections(&trio.primary);
    let keys: Vec<_> = (0..100).map(|n| format!("key {n}")).collect();
    join_all(keys.iter().map(|key| grant(&backend, key))).await;
    assert!(connections(&trio.primary) - before <= 3, "pool used up");
    // While its connections are in use, the pool can still lend one.
    trio.stop_replicas();
    let mut waiting = std::pin::pin!(join_all(
        ["a", "b", "c", "d"].map(|key| acquire(&backend, key))
    ));
    assert!(poll!(&mut waiting).is_pending());
    let another = async {
        eventually("all are taken", || {
            let clients = trio.primary.cli(&["INFO", "clients"]);
            clients.contains("blocked_clients:3")
        })
        .await;
        timeout(900 * MS, pool.get()).await.expect("room").unwrap();
    };
    let (outcomes, ()) = join(waiting, another).await;
    assert!(outcomes.iter().all(Result::is_err));
}
