//! Replicas behind Sentinel and in a Cluster.

use std::num::NonZeroUsize;

use futures_util::future::join;
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend as _, Contended, Hint, LeaseId, Release, Released,
};
use tower_lock::{LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use super::trio::{TTL, Trio, connected, error_of, exists, grant, lease, release};
use crate::backend::contract::passes_conformance;
use crate::support::cluster::Cluster;
use crate::support::engine::{MS, PATIENCE, SECOND};
use crate::support::sentinel::SentinelSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_failover_counts_new_primary_replicas() {
    let mut set = SentinelSet::start();
    let one = NonZeroUsize::MIN;
    let builder = || RedisBackend::builder(set.url(set.service())).min_replicas(one, SECOND);
    let locks = LockManager::builder(connected(builder).await);
    let locks = locks.build().unwrap();
    let guard = locks.acquire("k").await.unwrap();
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    // Only acquires run during the failover, so they must find the new primary.
    let before = set.kill_primary();
    let (next, _) = join(
        locks.acquire("k").wait(PATIENCE).into_future(),
        set.failover(),
    )
    .await;
    let next = next.unwrap();
    assert!(next.fencing_token() > token);
    let primary = set.primary();
    assert_ne!(primary, before);
    let others = (0..3).filter(|node| *node != before);
    let holding = others.filter(|node| exists(set.node(*node), "k"));
    assert_eq!(holding.count(), 2, "the new primary, and its replica");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_grants_reach_replicas_after_slot_move() {
    let cluster = Cluster::start();
    let connect = || {
        let builder = RedisBackend::builder(cluster.url());
        let builder = builder.connect_timeout(PATIENCE).response_timeout(PATIENCE);
        builder.min_replicas(NonZeroUsize::MIN, PATIENCE).connect()
    };
    let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
    passes_conformance(&one, &other).await;

    let (slot, from) = (cluster.slot("{user}"), cluster.node_of("{user}"));
    let mut others = cluster.primaries().into_iter().filter(|it| *it != from);
    let to = others.next().unwrap();
    let on_replica_of = |primary: usize, key: &str| {
        let replica = cluster.node(cluster.replica_of(primary));
        let keys = replica.cli(&["KEYS", "*"]);
        keys.lines().any(|it| it == format!("lock:{key}"))
    };
    let counter = grant(&one, "{user}:1").await;
    assert!(on_replica_of(from, "{user}:1"));
    // ASK: the other node has the keys of the slot, but does not own the slot yet.
    cluster.begin_migration(slot, from, to);
    cluster.move_keys(slot, from, to);
    assert!(grant(&one, "{user}:1").await > counter);
    assert!(on_replica_of(to, "{user}:1"));
    let stranger = LeaseId::new(Uuid::new_v4(), 1);
    let key = LockKey::new("{user}:1");
    let busy = other
        .try_acquire(&AcquireRequest::new(key.clone(), stranger, TTL))
        .await;
    assert!(matches!(busy, Ok(Acquired::Busy { .. })), "{busy:?}");
    cluster.end_migration(slot, from, to).await;
    // MOVED: the slot map of the other backend is stale.
    grant(&other, "{user}:3").await;
    assert!(on_replica_of(to, "{user}:3"));
    assert_eq!(release(&other, "{user}:3").await, Released::Released);
    assert_eq!(release(&one, "{user}:1").await, Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_node_without_replicas_rejects_connect() {
    let cluster = Cluster::start();
    let mut replicas = (3..6).map(|node| cluster.node(node));
    replicas.next().unwrap().stop_process();
    let builder = RedisBackend::builder(cluster.url()).response_timeout(PATIENCE);
    let error = error_of(builder.min_replicas(NonZeroUsize::MIN, 300 * MS)).await;
    let address = cluster.node(0).address();
    assert!(error.contains(&address), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_transfer_requires_replicas() {
    let trio = Trio::start();
    let backend = trio.backend(300 * MS).await;
    let key = LockKey::new("transferred");
    let [holder, first, second] = [1, 2, 3].map(lease);
    let contend = async |lease| {
        let request = AcquireRequest::new(key.clone(), lease, TTL);
        backend.contend(&request).await
    };
    let release = async |lease| {
        let release = [Release::new(key.clone(), lease)];
        backend.release(&release).await.remove(0).unwrap()
    };
    assert!(matches!(
        contend(holder).await,
        Ok(Contended::Granted { .. })
    ));
    for waiter in [first, second] {
        let waiting = contend(waiter).await;
        assert!(
            matches!(waiting, Ok(Contended::Waiting { .. })),
            "{waiting:?}"
        );
    }
    assert_eq!(release(holder).await, Released::Transferred);
    assert!(matches!(
        contend(first).await,
        Ok(Contended::Granted { .. })
    ));
    assert_eq!(release(first).await, Released::Transferred);
    trio.stop_replicas();
    // An earlier confirmation may have been granted, so only the caller can decide to leave.
    let error = contend(second).await.unwrap_err();
    assert!(error.may_have_taken_effect(), "{error:?}");
    trio.continue_replicas();
    let leaver = [Release::new(key.clone(), second)];
    let left = backend.leave(&leaver).await.remove(0).unwrap();
    assert_eq!(left, Released::Released);
    assert!(!trio.has("transferred"));
}

/// A message does not wait for the replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_message_before_replicas_is_no_grant() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    let key = LockKey::new("transferred");
    let [holder, waiter] = [1, 2].map(lease);
    let contend = async |lease| {
        let request = AcquireRequest::new(key.clone(), lease, TTL).with_listening(true);
        backend.contend(&request).await.unwrap()
    };
    let granted = |outcome| matches!(outcome, Contended::Granted { .. });
    assert!(granted(contend(holder).await));
    let mut hints = backend.watch(&key, waiter.manager());
    assert_eq!(hints.next().await, Hint::Released, "subscribed");
    let waiting = contend(waiter).await;
    let listens = matches!(
        waiting,
        Contended::Waiting {
            poll_after: None,
            ..
        }
    );
    assert!(listens, "{waiting:?}");
    let release = [Release::new(key.clone(), holder)];
    let released = backend.release(&release).await.remove(0);
    assert_eq!(released.unwrap(), Released::Transferred);
    let hint = hints.next().await;
    let confirms = |hint| matches!(hint, Hint::Transferred { lease, .. } if lease == waiter);
    assert!(confirms(hint), "{hint:?}");
    assert!(granted(contend(waiter).await));
}
