//! The contract of a backend with a queue.

use tower_lock::backend::Backend as _;
use tower_lock::backend::{
    AcquireRequest, Acquired, Capabilities, Contended, LeaseId, Release, Released, conformance,
};
use tower_lock::{LockKey, RedisBackend};
use uuid::Uuid;

use crate::support::engine::PATIENCE;

/// Checks the contract, and that the backend has a queue and all modes.
pub(crate) async fn passes_conformance(one: &RedisBackend, other: &RedisBackend) {
    conformance::all(one, other).await;
    let Capabilities {
        shared, permits, ..
    } = one.capabilities();
    assert!(shared && permits);
    has_queue(one, other).await;
}

/// The conformance suite also passes without a queue.
async fn has_queue(one: &RedisBackend, other: &RedisBackend) {
    let key = LockKey::new("queued");
    let [holder, waiter] = [1, 2].map(|number| LeaseId::new(Uuid::new_v4(), number));
    let acquire = AcquireRequest::new(key.clone(), holder, PATIENCE);
    let acquired = one.try_acquire(&acquire).await.unwrap();
    assert!(matches!(acquired, Acquired::Granted { .. }), "{acquired:?}");
    let contend = AcquireRequest::new(key.clone(), waiter, PATIENCE).with_listening(true);
    let waiting = other.contend(&contend).await.unwrap();
    assert!(
        matches!(
            waiting,
            Contended::Waiting {
                queued: Some(1),
                ..
            }
        ),
        "{waiting:?}"
    );
    let held = one.inspect(&key).await.unwrap().unwrap();
    assert_eq!(held.queued, 1);
    let release = [Release::new(key, holder)];
    let released = one.release(&release).await.remove(0).unwrap();
    // The waiter polls, because it has no subscription.
    assert_eq!(released, Released::Transferred);
}
