//! The check at the connect.

use std::num::NonZeroUsize;
use std::time::Duration;

use tower_lock::{ConnectError, RedisBackend};

use super::trio::{Trio, error_of, grant};
use crate::support::engine::{FENCE, MS, PATIENCE, SECOND, eventually};
use crate::support::errors::chain;
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn connect_without_enough_replicas_is_rejected() {
    let server = RedisServer::start();
    let one = NonZeroUsize::MIN;
    let builder = RedisBackend::builder(server.url()).min_replicas(one, 100 * MS);
    let builder = builder.connect_timeout(PATIENCE).response_timeout(PATIENCE);
    let error = builder.connect().await.unwrap_err();
    let ConnectError::Config(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.field(), "min_replicas");
    let said = format!(
        "0 of 1 replicas of the server {} acknowledged a grant",
        server.address()
    );
    assert!(error.to_string().contains(&said), "{error}");
    assert_eq!(server.cli(&["KEYS", "*"]), FENCE, "keys are left");
    eventually("no connection is left", || {
        server.clients("normal").is_empty() && server.clients("pubsub").is_empty()
    })
    .await;

    let trio = Trio::start();
    let error = trio.builder(3, 3 * SECOND).connect().await.unwrap_err();
    assert!(
        chain(&error).contains("2 of 3 replicas"),
        "{}",
        chain(&error)
    );
    let error = error_of(trio.builder(257, SECOND)).await;
    assert!(error.contains("more than 256"), "{error}");
    let error = error_of(trio.builder(1, Duration::ZERO)).await;
    assert!(error.contains("not within"), "{error}");
}

#[tokio::test]
async fn connect_without_wait_permission_is_rejected() {
    let trio = Trio::start();
    let rules = "ACL SETUSER locker reset on >secret ~* &* +@all -wait";
    trio.primary
        .cli(&rules.split_ascii_whitespace().collect::<Vec<_>>());
    let url = || trio.primary.url_of("locker", "secret");
    let error = trio.builder_at(url(), 2, SECOND).connect().await;
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    assert_eq!(trio.primary.cli(&["KEYS", "*"]), FENCE, "released");
    trio.primary.cli(&["ACL", "SETUSER", "locker", "+wait"]);
    let backend = trio.builder_at(url(), 2, PATIENCE).connect().await.unwrap();
    grant(&backend, "k").await;
}
