//! A backend with two groups of keys, one of which hangs.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use tokio::time::{sleep, timeout};
use tower_lock::backend::Backend;
use tower_lock::backend::{
    AcquireRequest, Acquired, BackendError, ForceReleased, Hints, Holder, Release, Released,
    Renewal, Renewed,
};
use tower_lock::{LockGuard, LockKey, LockManager, Memory};
use uuid::Uuid;

use crate::support::engine::{MS, SECOND};

const LEASE: std::time::Duration = SECOND;

/// More than all commands in flight to one group contain.
const MANY: usize = 2_000;

#[derive(Clone, Default)]
struct Groups {
    memory: Memory,
    /// Whether the commands of the first group hang. Its acquires end without a reply.
    hangs: Arc<AtomicBool>,
    /// The commands that release.
    releases: Arc<AtomicUsize>,
}

impl Groups {
    /// Commands do not mix groups.
    async fn send(&self, key: &LockKey) {
        sleep(MS).await;
        while self.hangs.load(Ordering::SeqCst) && self.group(key) == 0 {
            sleep(MS).await;
        }
    }
}

impl Backend for Groups {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        match timeout(2 * MS, self.send(&request.key)).await {
            Ok(()) => self.memory.try_acquire(request).await,
            Err(_) => Err(BackendError::unknown("no reply")),
        }
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        self.send(&renewals[0].key).await;
        self.memory.renew(renewals).await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        self.send(&leases[0].key).await;
        self.memory.release(leases).await
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        self.memory.watch(key, manager)
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.memory.inspect(key).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        self.memory.force_release(key, holder).await
    }

    fn group(&self, key: &LockKey) -> u64 {
        u64::from(!key.as_str().starts_with("first"))
    }
}

async fn first_group_is_held(locks: &LockManager) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for at in 0..MANY {
        let key = LockKey::new(format!("first{at}"));
        guards.push(locks.acquire(key).no_wait().into_future());
    }
    let guards = futures_util::future::join_all(guards).await;
    guards.into_iter().map(Result::unwrap).collect()
}

fn groups() -> (Groups, LockManager) {
    let groups = Groups::default();
    let locks = LockManager::builder(groups.clone()).watchdog_timeout(LEASE);
    (groups, locks.build().unwrap())
}

#[tokio::test(start_paused = true)]
async fn hung_group_delays_no_renewal_of_others() {
    let (groups, locks) = groups();
    let hung = first_group_is_held(&locks).await;
    let guard = locks.acquire("second").await.unwrap();
    groups.hangs.store(true, Ordering::SeqCst);
    for _ in 0..10 {
        sleep(LEASE / 2).await;
        assert!(guard.remaining() > LEASE / 3, "not renewed");
    }
    assert!(hung.iter().all(|guard| !guard.is_held()));
    guard.release().await.unwrap();
}

/// The releases are repeated by the resolver when their lanes have ended.
#[tokio::test(start_paused = true)]
async fn hung_group_delays_no_late_release_of_others() {
    let (groups, locks) = groups();
    groups.hangs.store(true, Ordering::SeqCst);
    for at in 0..MANY {
        let key = LockKey::new(format!("first{at}"));
        locks.acquire(key).no_wait().await.unwrap_err();
    }
    // This attempt is left behind, and its lease is granted.
    let second = locks.acquire("second").into_future();
    assert!(second.now_or_never().is_none());
    sleep(SECOND / 10).await;
    let holder = groups.inspect(&LockKey::new("second")).await.unwrap();
    assert!(holder.is_none(), "not released");
}

/// The acquires fail one after another, so each release is due alone.
#[tokio::test(start_paused = true)]
async fn late_releases_of_hung_group_share_commands() {
    let (groups, locks) = groups();
    groups.hangs.store(true, Ordering::SeqCst);
    for at in 0..MANY {
        let key = LockKey::new(format!("first{at}"));
        locks.acquire(key).no_wait().await.unwrap_err();
    }
    groups.hangs.store(false, Ordering::SeqCst);
    while !locks.snapshot().is_idle() {
        sleep(MS).await;
    }
    // The commands in flight during the hang, and one for each 100 of the others.
    let sent = groups.releases.load(Ordering::SeqCst);
    assert!(sent <= 16 + MANY / 100 + 1, "{sent} commands");
}
