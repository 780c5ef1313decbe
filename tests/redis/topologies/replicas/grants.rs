//! Grants with enough replicas.

use tower_lock::LockKey;
use tower_lock::backend::{Backend as _, Released, Renewed};

use super::trio::{Trio, exists, grant, release, renew};
use crate::backend::contract::passes_conformance;
use crate::support::engine::PATIENCE;

#[tokio::test]
async fn grant_reply_follows_replication() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    let mut last = 0;
    for n in 0..50 {
        let key = format!("key {n}");
        let counter = grant(&backend, &key).await;
        let encoded = LockKey::new(&key);
        for replica in &trio.replicas {
            assert!(exists(replica, encoded.as_str()), "{key}");
        }
        assert!(counter > last);
        last = counter;
    }
}

#[tokio::test]
async fn renew_release_and_inspect_skip_replica_wait() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    grant(&backend, "k").await;
    let before = trio.primary.calls("wait");
    assert_eq!(renew(&backend, "k").await, Renewed::Renewed);
    assert_eq!(release(&backend, "k").await, Released::Released);
    let holder = backend.inspect(&LockKey::new("k")).await.unwrap();
    assert_eq!(holder, None);
    assert_eq!(trio.primary.calls("wait"), before);
}

#[tokio::test]
async fn redis_with_replicas_passes_conformance() {
    let trio = Trio::start();
    let (one, other) = (trio.backend(PATIENCE).await, trio.backend(PATIENCE).await);
    passes_conformance(&one, &other).await;
}

#[tokio::test]
async fn flushed_script_is_reloaded() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    for _ in 0..3 {
        trio.primary.cli(&["SCRIPT", "FLUSH"]);
        grant(&backend, "k").await;
        release(&backend, "k").await;
    }
    // The server has the script again from here on.
    let before = trio.primary.calls("eval");
    grant(&backend, "k").await;
    assert_eq!(trio.primary.calls("eval"), before);
}
