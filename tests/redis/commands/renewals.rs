//! The calls of renewals.

use std::time::Duration;

use futures_util::future::join_all;
use tower_lock::LockKey;
use tower_lock::backend::redis::RedisBackend;
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend as _, LeaseId, Mode, Renewal, Renewed,
};
use uuid::Uuid;

use crate::support::engine::{PATIENCE, scripts_called};
use crate::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(30);

/// A call of a hundred would occupy the server for twice as long.
#[tokio::test]
async fn shared_leases_are_renewed_by_calls_of_fifty() {
    const LEASES: u64 = 120;
    let server = RedisServer::start();
    // A call in time on a busy machine.
    let builder = RedisBackend::builder(server.url()).response_timeout(PATIENCE);
    let backend = builder.connect().await.unwrap();
    let manager = Uuid::new_v4();
    let leases: Vec<_> = (0..LEASES)
        .map(|n| (LockKey::new(format!("k:{n}")), LeaseId::new(manager, n)))
        .collect();
    let acquires = leases.iter().map(|(key, lease)| {
        let request = AcquireRequest::new(key.clone(), *lease, TTL).with_mode(Mode::Shared);
        let backend = &backend;
        async move { backend.try_acquire(&request).await.unwrap() }
    });
    for acquired in join_all(acquires).await {
        assert!(matches!(acquired, Acquired::Granted { .. }), "{acquired:?}");
    }
    let renewals = leases.into_iter();
    let renewals = renewals.map(|(key, lease)| Renewal::new(key, lease, TTL));
    let renewals: Vec<_> = renewals.map(|it| it.with_mode(Mode::Shared)).collect();
    let before = scripts_called(&server);
    for renewed in backend.renew(&renewals).await {
        assert_eq!(renewed.unwrap(), Renewed::Renewed);
    }
    assert_eq!(scripts_called(&server) - before, 3);
}
