//! Each command at a slot between two nodes.

use tower_lock::backend::{
    AcquireRequest, Acquired, Backend as _, Contended, KeepRequest, LeaseId, Release, Released,
    ReleasedOrKept, Renewal, Renewed,
};
use tower_lock::{ErrorKind, LockKey, RedisBackend};
use uuid::Uuid;

use super::{FREE, LEASE, Moving};
use crate::support::cluster::Cluster;
use crate::support::engine::{PATIENCE, manager};
use crate::support::process::version;

const GRANTED: &str = "{user}:granted";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_in_moving_slot_is_repeated_and_ended() {
    let cluster = Cluster::start();
    let locks = manager(cluster.url(), LEASE).await;
    let backend = RedisBackend::builder(cluster.url())
        .connect()
        .await
        .unwrap();
    let (moving, _held) = Moving::begin(&locks, cluster).await;
    let key = LockKey::new(FREE);
    for counter_has_moved in [false, true] {
        if counter_has_moved {
            moving.move_counter();
        }
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        let acquire = AcquireRequest::new(key.clone(), lease, PATIENCE);
        let mut counters = Vec::new();
        for _ in 0..2 {
            match backend.try_acquire(&acquire).await.unwrap() {
                Acquired::Granted { counter, .. } => counters.push(counter),
                outcome => panic!("{outcome:?}"),
            }
        }
        assert!(counters[0] < counters[1]);
        // The queue is at the other node, so a waiter polls.
        let waiter = LeaseId::new(Uuid::new_v4(), 1);
        let contend = AcquireRequest::new(key.clone(), waiter, PATIENCE).with_listening(true);
        let waiting = backend.contend(&contend).await.unwrap();
        assert!(
            matches!(waiting, Contended::Waiting { queued: None, .. }),
            "{waiting:?}"
        );
        let renewal = Renewal::new(key.clone(), lease, 2 * PATIENCE);
        let renewed = backend.renew(&[renewal]).await.remove(0).unwrap();
        assert_eq!(renewed, Renewed::Renewed);
        // The subscribers are at the other node, so there may be some.
        let keep = KeepRequest::new(key.clone(), lease, PATIENCE);
        let ended = backend
            .release_or_keep(std::slice::from_ref(&keep))
            .await
            .remove(0)
            .unwrap();
        assert!(
            matches!(ended, ReleasedOrKept::Released { .. }),
            "{ended:?}"
        );
        let ended = backend
            .release_or_keep(std::slice::from_ref(&keep))
            .await
            .remove(0)
            .unwrap();
        assert_eq!(ended, ReleasedOrKept::NotHeld);
        let release = Release::new(key.clone(), lease);
        let released = backend.release(&[release]).await.remove(0).unwrap();
        assert_eq!(released, Released::NotHeld);
    }
}

/// The body is at the source and the queue at the target.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn place_in_moving_slot_is_removed() {
    let cluster = Cluster::start();
    let locks = manager(cluster.url(), LEASE).await;
    let backend = RedisBackend::builder(cluster.url())
        .connect()
        .await
        .unwrap();
    let key = LockKey::new(FREE);
    let lease = || LeaseId::new(Uuid::new_v4(), 1);
    let [holder, left, granted] = [lease(), lease(), lease()];
    let acquire = AcquireRequest::new(key.clone(), holder, PATIENCE);
    backend.try_acquire(&acquire).await.unwrap();
    for lease in [left, granted] {
        let contend = AcquireRequest::new(key.clone(), lease, PATIENCE);
        let waiting = backend.contend(&contend).await.unwrap();
        let is_queued = matches!(
            waiting,
            Contended::Waiting {
                queued: Some(_),
                ..
            }
        );
        assert!(is_queued, "{waiting:?}");
    }
    let (moving, _held) = Moving::begin(&locks, cluster).await;
    let is_beside = |key: &LockKey| {
        let node = moving.cluster.node_of(&format!("lock:{}", key.as_str()));
        node == moving.from
    };
    let names = (0..).map(|n| LockKey::new(format!("other:{n}")));
    let others: Vec<_> = names.filter(is_beside).take(2).collect();
    for other in &others {
        let acquire = AcquireRequest::new(other.clone(), left, PATIENCE);
        backend.try_acquire(&acquire).await.unwrap();
    }
    moving.move_names("%tagged-queue");
    let release = |lease| [Release::new(key.clone(), lease)];
    // The moving slot affects no other key of the batch, on the same node.
    let batch = [&others[0], &key, &others[1]].map(|key| Release::new(key.clone(), left));
    let ended = backend.leave(&batch).await;
    let ended: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    let released = match version() {
        // Plain messages do not count the subscribers of other nodes, which may wait outside the queue.
        ..7 => Released::LeftToOthers,
        _ => Released::Released,
    };
    assert_eq!(ended, [released, Released::NotHeld, released]);
    let ended = backend.release(&release(holder)).await.remove(0).unwrap();
    assert_eq!(ended, Released::Released);
    let contend = AcquireRequest::new(key.clone(), granted, PATIENCE);
    let contended = backend.contend(&contend).await.unwrap();
    assert!(
        matches!(contended, Contended::Granted { .. }),
        "{contended:?}"
    );
    // An empty queue is no key.
    let names = moving.names_at(moving.to);
    assert!(
        !names.iter().any(|name| name.contains("queue")),
        "{names:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_counter_in_moving_slot_frees_lock() {
    let cluster = Cluster::start();
    let locks = manager(cluster.url(), PATIENCE).await;
    let (moving, _held) = Moving::begin(&locks, cluster).await;
    let backend = RedisBackend::builder(moving.cluster.url());
    let backend = backend.connect().await.unwrap();
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let granted = AcquireRequest::new(LockKey::new(GRANTED), lease, PATIENCE);
    backend.try_acquire(&granted).await.unwrap();
    let names = moving.names_at(moving.from).into_iter();
    let counter = names.filter(|name| name.contains("fencing-token"));
    for counter in counter {
        let set = ["SET", &counter, "foreign"];
        moving.cluster.cli(moving.from, &set);
    }
    let error = locks.acquire(FREE).no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    // An owner may rely on the first grant.
    let repeated = backend.try_acquire(&granted).await.unwrap_err();
    assert!(repeated.may_have_taken_effect(), "{repeated:?}");
    let renewal = Renewal::new(granted.key, lease, PATIENCE);
    let renewed = backend.renew(&[renewal]).await.remove(0).unwrap();
    assert_eq!(renewed, Renewed::Renewed);
    for node in [moving.from, moving.to] {
        let names = moving.names_at(node);
        assert!(!names.iter().any(|name| name.contains(FREE)), "{names:?}");
    }
}
