//! The pools of deadpool-redis. If a test fails, the library may be used: see "pools" in ARCHITECTURE.md.

use deadpool_redis::{Config, Runtime};

use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn pool_checkout_sends_two_commands() {
    let server = RedisServer::start();
    let pool = Config::from_url(server.url()).create_pool(Some(Runtime::Tokio1));
    let pool = pool.unwrap();
    let sent = || ["unwatch", "ping"].map(|command| server.calls(command));
    drop(pool.get().await.unwrap());
    let before = sent();
    drop(pool.get().await.unwrap());
    assert_eq!(sent(), before.map(|calls| calls + 1));
}
