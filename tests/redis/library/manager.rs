//! The connection manager of redis-rs. If a test fails, the library may be used: see "reconnection" and "retry" in
//! ARCHITECTURE.md.

use redis::Client;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

use crate::support::engine::{MS, PATIENCE};
use crate::support::other_runtime::{Fate, Other};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

async fn id(manager: &mut ConnectionManager) -> i64 {
    let mut id = redis::cmd("CLIENT");
    id.arg("ID").query_async(manager).await.unwrap()
}

#[tokio::test]
async fn hung_connection_is_kept_after_timeouts() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let config = ConnectionManagerConfig::new().set_response_timeout(Some(100 * MS));
    let client = Client::open(proxy.url()).unwrap();
    let mut manager = client
        .get_connection_manager_with_config(config)
        .await
        .unwrap();
    // A new connection would pass.
    proxy.freeze();
    for _ in 0..3 {
        let error = redis::cmd("PING")
            .exec_async(&mut manager)
            .await
            .unwrap_err();
        assert!(error.is_timeout(), "{error}");
    }
    assert_eq!(proxy.accepted(), 1);
}

/// A command that must follow another one cannot be bound to its connection.
#[tokio::test]
async fn next_command_uses_new_connection_silently() {
    let server = RedisServer::start();
    let (sender, mut pushes) = unbounded_channel();
    let config = ConnectionManagerConfig::new().set_push_sender(sender);
    let client = Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
    let mut manager = client
        .get_connection_manager_with_config(config)
        .await
        .unwrap();
    let first = id(&mut manager).await;
    server.cli(&["CLIENT", "KILL", "ID", &first.to_string()]);
    timeout(PATIENCE, pushes.recv())
        .await
        .expect("the end is announced");
    assert_ne!(id(&mut manager).await, first);
}

#[tokio::test]
async fn ended_runtime_breaks_connection_of_others() {
    let server = RedisServer::start();
    let client = Client::open(server.url()).unwrap();
    let config = ConnectionManagerConfig::new();
    let mut manager = ConnectionManager::new_lazy_with_config(client, config).unwrap();
    let mut dialler = manager.clone();
    let _ended = Other::after(Fate::Ends, async move { id(&mut dialler).await });
    let error = redis::cmd("PING")
        .exec_async(&mut manager)
        .await
        .unwrap_err();
    assert!(error.is_connection_dropped(), "{error}");
}

/// The connection that ours uses: it sends each command once, and the caller decides.
#[tokio::test]
async fn multiplexed_connection_sends_command_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let client = Client::open(proxy.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    proxy.truncate_answers(0);
    let mut increment = redis::cmd("INCR");
    let error = increment
        .arg("k")
        .exec_async(&mut connection)
        .await
        .unwrap_err();
    assert!(error.is_connection_dropped(), "{error}");
    assert_eq!(server.cli(&["GET", "k"]), "1");
}
