use tokio::task::yield_now;
use uuid::Uuid;

use crate::LockManager;
use crate::backend::{Hint, HintSender};
use crate::lock::lane::Lane;
use crate::lock::tests::{SECOND, Slow, key};

use super::*;

/// Returns a manager, its engine, and the sender of a subscription of it that has ended.
fn subscribed_once() -> (LockManager, Arc<Engine>, HintSender) {
    let backend = Slow {
        is_silent: true,
        release_takes: SECOND,
        ..Slow::default()
    };
    let silenced = Arc::clone(&backend.silenced);
    let locks = LockManager::builder(backend).build().expect("defaults");
    let engine = Arc::clone(locks.engine());
    let home = engine.current_home().expect("a runtime");
    drop(engine.watch(&key(), None, home));
    let sender = silenced.lock().expect("no panic").remove(0);
    (locks, engine, sender)
}

/// Returns `true` if the transfer to the lease with this number is left.
async fn is_left(engine: &Engine, sender: &HintSender, number: u64) -> bool {
    is_left_by(engine, sender, LeaseId::new(engine.id, number)).await
}

async fn is_left_by(engine: &Engine, sender: &HintSender, lease: LeaseId) -> bool {
    let before = engine.unresolved();
    sender.send(Hint::transferred(lease));
    // The check is a task.
    yield_now().await;
    engine.unresolved() > before
}

#[tokio::test(start_paused = true)]
async fn transfer_to_lease_of_no_lane_is_left() {
    let (locks, engine, sender) = subscribed_once();
    let guard = locks.acquire(key()).await.expect("free");
    let held = engine.lanes.inspect(&key(), Lane::lease_number).flatten();
    let held = held.expect("held").get();
    assert!(is_left(&engine, &sender, held + 1).await);
    assert!(!is_left(&engine, &sender, held).await);
    let of_other = LeaseId::new(Uuid::nil(), held + 2);
    assert!(!is_left_by(&engine, &sender, of_other).await);
    assert!(guard.is_held());
    drop(guard);
    assert!(
        !is_left(&engine, &sender, held).await,
        "the release may fail"
    );
    assert!(locks.shutdown(4 * SECOND).await.is_idle());
    assert!(is_left(&engine, &sender, held).await);
}

#[tokio::test(start_paused = true)]
async fn transfer_to_permit_of_no_owner_is_left() {
    let (locks, engine, sender) = subscribed_once();
    let permits = [(); 2].map(|()| locks.acquire(key()).permits(2).into_future());
    let permits = futures_util::future::try_join_all(permits)
        .await
        .expect("free");
    let held: Vec<_> = engine.permits_of(&key()).into_values().flatten().collect();
    assert_eq!(held.len(), permits.len());
    let last = held.iter().map(|it| it.get()).max().expect("two");
    assert!(is_left(&engine, &sender, last + 1).await);
    for lease in held {
        assert!(!is_left(&engine, &sender, lease.get()).await);
    }
}
