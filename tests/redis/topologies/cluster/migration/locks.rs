//! Acquires, holds and waits in a slot between two nodes.

use std::future::IntoFuture as _;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::{Instant, sleep, sleep_until};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{ErrorKind, LockGuard, LockManager, RedisBackend};

use super::{FREE, HELD, LEASE, Moving, TAG};
use crate::support::cluster::Cluster;
use crate::support::engine::{MS, PATIENCE, eventually, manager, within};

const LONG: Duration = Duration::from_secs(5);

async fn token(locks: &LockManager, key: &str) -> i64 {
    let guard = locks.acquire(key).no_wait().await.unwrap();
    let token = guard.fencing_token().get();
    guard.release().await.unwrap();
    token
}

async fn is_busy(locks: &LockManager, key: &str) {
    let error = locks.acquire(key).no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn free_lock_in_moving_slot_is_acquired() {
    free_lock_is_acquired_with(|builder| builder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slot_with_min_replicas_grants() {
    free_lock_is_acquired_with(|builder| builder.min_replicas(NonZeroUsize::MIN, PATIENCE)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slot_with_redisson_counters_grants() {
    free_lock_is_acquired_with(RedisBackendBuilder::redisson_fencing_tokens).await;
}

async fn free_lock_is_acquired_with(settings: impl Fn(RedisBackendBuilder) -> RedisBackendBuilder) {
    let cluster = Cluster::start();
    let connect = async || {
        let builder = RedisBackend::builder(cluster.url()).response_timeout(PATIENCE);
        let backend = settings(builder).connect().await.unwrap();
        let locks = LockManager::builder(backend).watchdog_timeout(LEASE);
        locks.build().unwrap()
    };
    let (here, there) = (connect().await, connect().await);
    let mut last = token(&here, FREE).await;
    let (moving, held) = Moving::begin(&here, cluster).await;
    for counter_has_moved in [false, true] {
        if counter_has_moved {
            moving.move_counter();
        }
        for locks in [&here, &there, &there, &here] {
            let next = token(locks, FREE).await;
            assert!(next > last, "counter moved: {counter_has_moved}");
            last = next;
        }
    }
    drop(held);
    moving.end().await;
    for locks in [&here, &there] {
        let next = token(locks, FREE).await;
        assert!(next > last, "after the migration");
        last = next;
    }
}

/// The body and the counter are at several nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_in_moving_slot_is_downgraded() {
    let cluster = Cluster::start();
    let connect = async || manager(cluster.url(), LEASE).await;
    let (here, there) = (connect().await, connect().await);
    let (moving, mut held) = Moving::begin(&here, cluster).await;
    // At the source. The next body is at the target, first without the counter.
    for counter_moves in [false, false, true] {
        if counter_moves {
            moving.move_counter();
        }
        let exclusive = held.fencing_token();
        held.downgrade().await.unwrap();
        let shared = held.fencing_token();
        assert!(shared > exclusive, "{shared} after {exclusive}");
        let reader = there.acquire(HELD).shared().no_wait().await.unwrap();
        is_busy(&there, HELD).await;
        reader.release().await.unwrap();
        held.release().await.unwrap();
        held = here.acquire(HELD).wait(PATIENCE).await.unwrap();
        let next = held.fencing_token();
        assert!(next > shared, "{next} after {shared}");
    }
    moving.end().await;
    held.downgrade().await.unwrap();
    held.release().await.unwrap();
}

/// No node has the queue beside the body, so a renewal names the body alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_leases_in_moving_slot_are_renewed() {
    const PERMITS: &str = "{user}:permits";
    let cluster = Cluster::start();
    let url = cluster.url();
    let (here, there) = (manager(&url, LONG).await, manager(&url, LONG).await);
    let permit = here.acquire(PERMITS).permits(1).await.unwrap();
    let (moving, mut held) = Moving::begin(&here, cluster).await;
    held.downgrade().await.unwrap();
    // At the target.
    let reader = here.acquire(FREE).shared().no_wait().await.unwrap();
    let leases = [&permit, &held, &reader];
    // Twice the length of a lease.
    for _ in 0..2 {
        join_all(leases.map(renewed_for_a_lease)).await;
    }
    for key in [HELD, FREE] {
        is_busy(&there, key).await;
        let shared = there.acquire(key).shared().no_wait().await.unwrap();
        shared.release().await.unwrap();
    }
    let full = there.acquire(PERMITS).permits(1).no_wait().await;
    assert_eq!(full.unwrap_err().kind(), ErrorKind::PermitsExhausted);
    moving.end().await;
    join_all(leases.map(renewed_for_a_lease)).await;
}

/// Its attempts cannot name the queue, so it has no place and polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_reader_in_moving_slot_is_granted() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let (here, there) = (manager(&url, PATIENCE).await, manager(&url, PATIENCE).await);
    let (moving, mut held) = Moving::begin(&here, cluster).await;
    let rejections = || -> u64 {
        let rejections = |node: usize| {
            let stats = moving.cluster.cli(node, &["INFO", "errorstats"]);
            let line = |line: &str| line.strip_prefix("errorstat_TRYAGAIN:count=")?.parse().ok();
            stats.lines().find_map(line).unwrap_or(0)
        };
        [moving.from, moving.to].map(rejections).iter().sum()
    };
    let before = rejections();
    let reader = tokio::spawn(there.acquire(HELD).shared().wait(PATIENCE).into_future());
    // The acquire, and an attempt of the waiter.
    eventually("a waiter", || rejections() >= before + 2).await;
    held.downgrade().await.unwrap();
    let reader = reader.await.unwrap().unwrap();
    assert!(reader.fencing_token() > held.fencing_token());
    is_busy(&there, HELD).await;
    held.release().await.unwrap();
    is_busy(&here, HELD).await;
    reader.release().await.unwrap();
    let writer = here.acquire(HELD).no_wait().await.unwrap();
    writer.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slot_without_counter_grants() {
    let cluster = Cluster::start();
    let (slot, from) = (cluster.slot(TAG), cluster.node_of(TAG));
    let to = cluster.primaries().into_iter().find(|it| *it != from);
    cluster.begin_migration(slot, from, to.unwrap());
    let locks = manager(cluster.url(), LEASE).await;
    let first = token(&locks, FREE).await;
    assert!(token(&locks, FREE).await > first);
    cluster.move_keys(slot, from, to.unwrap());
    cluster.end_migration(slot, from, to.unwrap()).await;
    assert!(token(&locks, FREE).await > first);
}

/// Waits until renewals have moved the end of the lease by its length.
async fn renewed_for_a_lease(guard: &LockGuard) {
    let end = || Instant::now() + guard.remaining();
    let first = end();
    within(PATIENCE, "renewals", || end() > first + LONG).await;
    assert!(guard.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_lock_in_moving_slot_stays_busy() {
    let cluster = Cluster::start();
    let url = cluster.url();
    // A busy machine may delay a renewal by more than a second.
    let (here, there) = (manager(&url, LONG).await, manager(&url, LONG).await);
    let (moving, old) = Moving::begin(&here, cluster).await;
    is_busy(&there, HELD).await;
    moving.move_counter();
    is_busy(&there, HELD).await;
    let new = here.acquire(FREE).no_wait().await.unwrap();
    is_busy(&there, FREE).await;
    // Renewed at both nodes.
    join(renewed_for_a_lease(&old), renewed_for_a_lease(&new)).await;
    moving.move_names("held");
    is_busy(&there, HELD).await;
    join(renewed_for_a_lease(&old), renewed_for_a_lease(&new)).await;
    let before = old.fencing_token();
    old.release().await.unwrap();
    new.release().await.unwrap();
    let next = there.acquire(HELD).no_wait().await.unwrap();
    assert!(next.fencing_token() > before);
    is_busy(&here, HELD).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_lock_in_moving_slot_has_one_holder() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let managers = [manager(&url, LEASE).await, manager(&url, LEASE).await];
    let (moving, held) = Moving::begin(&managers[0], cluster).await;
    // The last token, or none while a guard is held.
    let last = Arc::new(Mutex::new(Some(0)));
    let contend = |n: usize| {
        let (locks, last) = (managers[n % 2].clone(), Arc::clone(&last));
        tokio::spawn(async move {
            for _ in 0..20 {
                let guard = locks.acquire(FREE).wait(PATIENCE).await.unwrap();
                let before = last.lock().unwrap().take().expect("one holder");
                let token = guard.fencing_token().get();
                assert!(token > before, "{token} after {before}");
                sleep(5 * MS).await;
                *last.lock().unwrap() = Some(token);
                guard.release().await.unwrap();
            }
        })
    };
    let contenders = || (0..6).map(contend).collect::<Vec<_>>();
    let done = async |contenders| {
        for contender in join_all::<Vec<tokio::task::JoinHandle<()>>>(contenders).await {
            contender.unwrap();
        }
    };
    let between = contenders();
    sleep(200 * MS).await;
    moving.move_counter();
    done(between).await;
    let until_the_end = contenders();
    sleep(200 * MS).await;
    moving.end().await;
    done(until_the_end).await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quarantine_in_moving_slot_ends() {
    const PERIOD: Duration = Duration::from_secs(3);
    let cluster = Cluster::start();
    let (slot, from) = (cluster.slot(TAG), cluster.node_of(TAG));
    let to = cluster.primaries().into_iter().find(|it| *it != from);
    cluster.begin_migration(slot, from, to.unwrap());
    let builder = RedisBackend::builder(cluster.url()).response_timeout(PATIENCE);
    let start = Instant::now();
    // A missing counter looks like a loss of data.
    let backend = builder.quarantine(PERIOD).connect().await.unwrap();
    assert_eq!(backend.warnings().len(), 3, "{:?}", backend.warnings());
    for warning in backend.warnings() {
        assert!(warning.contains("is new, restarted"), "{warning}");
    }
    let counters = |node: usize| cluster.cli(node, &["KEYS", "*%"]).lines().count();
    assert_eq!((0..3).map(counters).sum::<usize>(), 16_384);
    let locks = LockManager::builder(backend).build().unwrap();
    is_paused(&locks, FREE, start, PERIOD).await;

    // The counter is lost, and nothing else.
    let to = to.unwrap();
    let slot = slot.to_string();
    let names = cluster.cli(to, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
    let counter = names.lines().find(|name| name.ends_with('%')).unwrap();
    cluster.cli(to, &["ASKING"]);
    assert_eq!(cluster.cli(to, &["DEL", counter]), "1");
    is_paused(&locks, FREE, Instant::now(), PERIOD - 100 * MS).await;
}

/// The process is young, and its data are complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_restart_with_data_pauses_moving_slot() {
    const PERIOD: Duration = Duration::from_secs(6);
    let mut cluster = Cluster::start_with(&["--cluster-node-timeout", "60000"]);
    let (slot, from) = (cluster.slot(TAG), cluster.node_of(TAG));
    let to = cluster.primaries().into_iter().find(|it| *it != from);
    let to = to.unwrap();
    let builder = RedisBackend::builder(cluster.url()).response_timeout(PATIENCE);
    let backend = builder.quarantine(PERIOD).connect().await.unwrap();
    // The uptime of a node is in full seconds.
    sleep_until(Instant::now() + PERIOD + Duration::from_secs(1)).await;
    let locks = LockManager::builder(backend).build().unwrap();
    cluster.begin_migration(slot, from, to);
    cluster.move_keys(slot, from, to);
    token(&locks, FREE).await;
    let staying = (0..).map(|n| format!("k{n}"));
    let mut staying = staying.filter(|key| cluster.node_of(&format!("lock:{key}")) == to);
    let staying = staying.next().unwrap();
    token(&locks, &staying).await;

    cluster.cli(to, &["SAVE"]);
    cluster.kill(to);
    let start = Instant::now();
    cluster.restart(to).await;
    let names = cluster.cli(to, &["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]);
    assert_eq!(names, "1", "the counter");
    join(
        is_paused(&locks, FREE, start, PERIOD),
        is_paused(&locks, &staying, start, PERIOD),
    )
    .await;
}

/// Expects the first grant when `period` has passed since `start`, and rejections before. On a busy machine, the
/// period may have passed already.
async fn is_paused(locks: &LockManager, key: &str, start: Instant, period: Duration) {
    if let Err(error) = locks.acquire(key).no_wait().await {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let guard = locks.acquire(key).wait(PATIENCE).await.unwrap();
        // The next acquire finds a free lock.
        guard.release().await.unwrap();
    }
    assert!(start.elapsed() >= period);
}

/// The locks of a slot move along, so no holder has to check its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrated_slots_renew_no_leases() {
    const HOLDERS: usize = 20;
    let cluster = Cluster::start();
    // Its watchdog renews after 20 s.
    let locks = manager(cluster.url(), Duration::from_secs(60)).await;
    let held = join_all((0..HOLDERS).map(|n| locks.acquire(format!("k{n}")).into_future())).await;
    let held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
    let calls = |name| -> u64 {
        let nodes = cluster.nodes().iter();
        nodes.map(|node| node.calls(name)).sum()
    };
    // The connect tries the scripts, and no watchdog renews at its begin.
    let (renewed, asked) = (calls("hexists"), calls("cluster|slots"));
    let (slot, from) = (cluster.slot("lock:{a}"), cluster.node_of("lock:{a}"));
    let to = cluster.primaries().into_iter().find(|it| *it != from);
    let to = to.unwrap();
    // Only a refresh of the map shows the second migration.
    let mut others = [slot + 1, slot - 1].into_iter();
    let other = others.find(|it| cluster.node_of_slot(*it) == from).unwrap();
    cluster.migrate_slot(slot, from, to).await;
    cluster.migrate_slot(other, from, to).await;
    drop(locks.acquire("{a}").await.unwrap());
    // Two nodes reply per refresh, and a renewal follows at once.
    eventually("several refreshes", || calls("cluster|slots") >= asked + 8).await;
    assert_eq!(calls("hexists"), renewed, "renewals");
    drop(held);
}
