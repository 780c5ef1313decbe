//! Locks in a slot whose migration is unfinished.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::{Instant, sleep};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend as _, ContendRequest, Contended, Extended, KeepRequest,
    LeaseId, Release, Released, ReleasedOrKept, Renewal, Renewed,
};
use tower_lock::{ErrorKind, LockGuard, LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use crate::support::cluster::Cluster;
use crate::support::engine::{MS, PATIENCE, eventually, manager, within};

/// All keys with this tag have one slot.
const TAG: &str = "{user}";
const HELD: &str = "{user}:held";
const FREE: &str = "{user}:free";
const GRANTED: &str = "{user}:granted";
const LEASE: Duration = Duration::from_millis(1_500);
const LONG: Duration = Duration::from_secs(5);

/// A slot with a counter and a held lock, between two nodes.
struct Moving {
    cluster: Cluster,
    slot: u16,
    from: usize,
    to: usize,
}

impl Moving {
    /// Begins a migration. No key of the slot has moved yet.
    async fn begin(locks: &LockManager, cluster: Cluster) -> (Self, LockGuard) {
        let held = locks.acquire(HELD).await.unwrap();
        let (slot, from) = (cluster.slot(TAG), cluster.node_of(TAG));
        let to = cluster.primaries().into_iter().find(|it| *it != from);
        let to = to.unwrap();
        cluster.begin_migration(slot, from, to);
        let moving = Self {
            cluster,
            slot,
            from,
            to,
        };
        (moving, held)
    }

    fn names_at(&self, node: usize) -> Vec<String> {
        let slot = self.slot.to_string();
        let names = self
            .cluster
            .cli(node, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
        names.lines().map(ToOwned::to_owned).collect()
    }

    /// Moves the keys whose names contain `part`.
    fn move_names(&self, part: &str) {
        let names = self.names_at(self.from);
        let names = names.iter().filter(|name| name.contains(part));
        let port = self.cluster.node(self.to).port().to_string();
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(names.map(String::as_str));
        assert_eq!(self.cluster.cli(self.from, &migrate), "OK");
    }

    fn move_counter(&self) {
        self.move_names("fencing-token");
        assert!(
            !self
                .names_at(self.from)
                .iter()
                .any(|name| name.contains("fencing-token"))
        );
    }

    async fn end(&self) {
        self.cluster.move_keys(self.slot, self.from, self.to);
        self.cluster
            .end_migration(self.slot, self.from, self.to)
            .await;
    }
}

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
    let cluster = Cluster::start();
    let url = cluster.url();
    let (here, there) = (manager(&url, LEASE).await, manager(&url, LEASE).await);
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
        let contend = ContendRequest::new(key.clone(), waiter, PATIENCE, true);
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
        let extended = backend.extend(&keep).await.unwrap();
        assert!(matches!(extended, Extended::Wanted { .. }), "{extended:?}");
        let ended = backend.release_or_keep(&keep).await.unwrap();
        assert!(
            matches!(ended, ReleasedOrKept::Released { .. }),
            "{ended:?}"
        );
        let ended = backend.release_or_keep(&keep).await.unwrap();
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
        let contend = ContendRequest::new(key.clone(), lease, PATIENCE, false);
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
    moving.move_names("%queue");
    let release = |lease| [Release::new(key.clone(), lease)];
    let ended = backend.leave(&release(left)).await.remove(0).unwrap();
    assert_eq!(ended, Released::NotHeld);
    let ended = backend.release(&release(holder)).await.remove(0).unwrap();
    assert_eq!(ended, Released::Released);
    let contend = ContendRequest::new(key.clone(), granted, PATIENCE, false);
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
    is_paused(&locks, start, PERIOD).await;

    // The counter is lost, and nothing else.
    let to = to.unwrap();
    let slot = slot.to_string();
    let names = cluster.cli(to, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
    let counter = names.lines().find(|name| name.ends_with('%')).unwrap();
    cluster.cli(to, &["ASKING"]);
    assert_eq!(cluster.cli(to, &["DEL", counter]), "1");
    is_paused(&locks, Instant::now(), PERIOD - 100 * MS).await;
}

/// Expects the first grant when `period` has passed since `start`, and rejections before. On a busy machine, the
/// period may have passed already.
async fn is_paused(locks: &LockManager, start: Instant, period: Duration) {
    if let Err(error) = locks.acquire(FREE).no_wait().await {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        drop(locks.acquire(FREE).wait(PATIENCE).await.unwrap());
    }
    assert!(start.elapsed() >= period);
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
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
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
    let renewals = calls("hexists") - renewed;
    assert!(renewals < HOLDERS as u64, "{renewals} renewals");
    drop(held);
}
