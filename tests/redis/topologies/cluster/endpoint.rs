//! Locks at one endpoint that has the keys at several servers, and speaks RESP2 only.

use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::backend::{AcquireRequest, Acquired, Backend as _, LeaseId, conformance};
use tower_lock::{ConnectError, ErrorKind, LockKey, LockKeys, LockManager, RedisBackend};
use uuid::Uuid;

use crate::backend::contract::passes_conformance;
use crate::support::cluster::Cluster;
use crate::support::endpoint::Endpoint;
use crate::support::engine::{MS, PATIENCE, SECOND, eventually, manager, manager_from};

const LEASE: Duration = Duration::from_millis(1_500);

fn counters(cluster: &Cluster) -> Vec<String> {
    let keys = cluster.keys().into_iter();
    keys.filter(|key| key.contains("fencing-token")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sharded_endpoint_passes_conformance() {
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    let connect = || {
        let builder = RedisBackend::builder(endpoint.url());
        builder.response_timeout(10 * SECOND).connect()
    };
    let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
    assert_eq!(one.warnings(), <&[String]>::default());
    // One call of each finds out.
    assert_eq!(endpoint.rejected(), 2);
    passes_conformance(&one, &other).await;
    conformance::all_of_node(&one, &other).await;
    assert_eq!(endpoint.rejected(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sharded_endpoint_has_counter_per_slot() {
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    let url = endpoint.url();
    let managers = [manager(&url, LEASE).await, manager(&url, LEASE).await];
    for n in 0..20 {
        let key = format!("key {n}");
        let mut last = 0;
        for locks in managers.iter().cycle().take(6) {
            let guard = locks.acquire(key.as_str()).wait(PATIENCE).await.unwrap();
            let token = guard.fencing_token().get();
            assert!(token > last, "{token} after {last}");
            last = token;
            guard.release().await.unwrap();
        }
        let slot = cluster.slot(&format!("lock:{}", LockKey::new(&key).as_str()));
        assert!(counters(&cluster).iter().any(|it| cluster.slot(it) == slot));
    }
    assert!(!counters(&cluster).contains(&"lock:{fencing-token}%".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_sharded_endpoint_have_one_slot() {
    // A busy machine renews late, and no lease may end.
    const LEASE: Duration = Duration::from_secs(3);
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    // A call that times out is undone and sent again, and would count twice.
    let builder = RedisBackend::builder(endpoint.url()).response_timeout(PATIENCE);
    let locks = manager_from(builder, LEASE).await;
    let rejected = endpoint.rejected();
    let keys = (0..40).map(|n| format!("key {n}"));
    let tagged = (0..200).map(|n| format!("{{user}}:{n}"));
    let acquires = keys.chain(tagged);
    let acquires = acquires.map(|key| locks.acquire(key).wait(PATIENCE).into_future());
    let guards = join_all(acquires).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    sleep(LEASE).await;
    let before = endpoint.scripts();
    sleep(2 * LEASE).await;
    let sent = endpoint.scripts() - before;
    assert!(guards.iter().all(|guard| guard.is_held()));
    // 40 slots, and three calls for the 200 keys of one slot, each third of a lease.
    assert!((5 * 42..=8 * 45).contains(&sent), "{sent} calls");
    drop(guards);
    eventually("released", || locks.snapshot().is_idle()).await;
    assert_eq!(endpoint.rejected(), rejected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keys_at_sharded_endpoint_are_held() {
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    let url = endpoint.url();
    let (here, there) = (manager(&url, LEASE).await, manager(&url, LEASE).await);
    let keys: Vec<_> = (0..8).map(|n| LockKey::new(format!("key {n}"))).collect();
    let all = || LockKeys::from_iter(keys.clone());
    let guard = here.acquire(all()).await.unwrap();
    for key in &keys {
        let busy = there.acquire(key.clone()).no_wait().await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        assert!(there.inspect(key.clone()).await.unwrap().is_some());
    }
    guard.release().await.unwrap();
    drop(there.acquire(all()).no_wait().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_connect_finds_shards_at_first_link() {
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    endpoint.close(true);
    let builder = RedisBackend::builder(endpoint.url());
    let backend = builder.connect_lazy().unwrap();
    eventually("tried", || !backend.warnings().is_empty()).await;
    endpoint.close(false);
    // An acquire that waits for the first link has its route before.
    while backend.inspect(&LockKey::new("k")).await.is_err() {
        sleep(10 * MS).await;
    }
    let locks = LockManager::builder(backend).build().unwrap();
    drop(locks.acquire("k").await.unwrap());
    assert_eq!(endpoint.rejected(), 1);
    assert!(!counters(&cluster).contains(&"lock:{fencing-token}%".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_probe_finds_shards_at_first_acquire() {
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    endpoint.close(true);
    let builder = RedisBackend::builder(endpoint.url());
    let backend = builder.connect_lazy().unwrap();
    eventually("tried", || !backend.warnings().is_empty()).await;
    assert_eq!(backend.warnings().len(), 1, "{:?}", backend.warnings());
    endpoint.load(true);
    endpoint.close(false);
    loop {
        let error = backend.inspect(&LockKey::new("k")).await.unwrap_err();
        if format!("{error:?}").contains("loading the dataset") {
            break;
        }
        sleep(10 * MS).await;
    }
    endpoint.load(false);
    assert_eq!(endpoint.rejected(), 0);
    // The second one is sent while the first one is in flight, by the task for shared calls.
    let requests = ["a", "b"].map(|key| {
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        AcquireRequest::new(LockKey::new(key), lease, LEASE)
    });
    for outcome in join_all(requests.iter().map(|it| backend.try_acquire(it))).await {
        let outcome = outcome.unwrap();
        assert!(matches!(outcome, Acquired::Granted { .. }), "{outcome:?}");
    }
    let locks = LockManager::builder(backend).build().unwrap();
    let rejected = endpoint.rejected();
    assert!(rejected > 0);
    drop(locks.acquire("one more").no_wait().await.unwrap());
    assert_eq!(endpoint.rejected(), rejected);
    assert!(!counters(&cluster).contains(&"lock:{fencing-token}%".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quarantine_at_sharded_endpoint_covers_all_slots() {
    const PERIOD: Duration = Duration::from_secs(3);
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    let start = Instant::now();
    let builder = RedisBackend::builder(endpoint.url()).response_timeout(PATIENCE);
    let backend = builder.quarantine(PERIOD).connect().await.unwrap();
    assert_eq!(backend.warnings().len(), 1, "{:?}", backend.warnings());
    let of_slots = counters(&cluster).into_iter();
    assert_eq!(of_slots.filter(|key| key.ends_with('%')).count(), 16_384);
    let locks = LockManager::builder(backend).build().unwrap();
    drop(locks.acquire("k").wait(PATIENCE).await.unwrap());
    assert!(start.elapsed() >= PERIOD);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_at_endpoint_without_messages_poll() {
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    let url = endpoint.url();
    let (here, there) = (manager(&url, LEASE).await, manager(&url, LEASE).await);
    let guard = here.acquire("k").await.unwrap();
    let waiting = tokio::spawn(there.acquire("k").wait(PATIENCE).into_future());
    eventually("it waits", || there.snapshot().waiting > 0).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    assert!(released.elapsed() < 2 * SECOND, "{:?}", released.elapsed());
}

/// A process with a queue of its own cannot count the pollers of another process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poller_gets_its_turn_among_busy_processes() {
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    let url = endpoint.url();
    let (here, there) = (manager(&url, LEASE).await, manager(&url, LEASE).await);
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let here = here.clone();
            tokio::spawn(async move {
                loop {
                    let guard = here.acquire("k").wait(PATIENCE).await.unwrap();
                    sleep(MS).await;
                    drop(guard);
                }
            })
        })
        .collect();
    eventually("a queue", || here.snapshot().waiting > 1).await;
    let acquired = there.acquire("k").wait(PATIENCE).await;
    busy.iter().for_each(tokio::task::JoinHandle::abort);
    acquired.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notify_wakes_waiters_of_endpoint_without_messages() {
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    let connect = async || {
        let builder = RedisBackend::builder(endpoint.url());
        let backend = builder.notify(cluster.node(1).url()).connect().await;
        LockManager::builder(backend.unwrap()).build().unwrap()
    };
    let (here, there) = (connect().await, connect().await);
    let guard = here.acquire("k").await.unwrap();
    let waiting = tokio::spawn(there.acquire("k").wait(PATIENCE).into_future());
    eventually("it subscribes", || {
        !cluster.cli(1, &["PUBSUB", "CHANNELS"]).is_empty()
    })
    .await;
    sleep(50 * MS).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    assert!(released.elapsed() < 300 * MS, "{:?}", released.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoint_without_resp3_is_rejected_by_default() {
    let cluster = Cluster::start();
    let endpoint = Endpoint::start(&cluster).await;
    let error = LockManager::connect(&endpoint.url_of_resp3()).await;
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}
