//! Credentials that change, in redis-rs. If a test fails, the library may be used: see "credentials" in
//! ARCHITECTURE.md.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{Stream, StreamExt as _, stream};
use redis::{AsyncConnectionConfig, BasicAuth, Client, RedisResult, StreamingCredentialsProvider};

use crate::support::engine::eventually;
use crate::support::redis_server::RedisServer;

#[derive(Clone, Default)]
struct Source(Arc<AtomicU64>);

impl StreamingCredentialsProvider for Source {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let login = BasicAuth::new("some".to_owned(), "secret".to_owned());
        stream::iter([Ok(login)]).boxed()
    }
}

#[tokio::test]
async fn provider_is_asked_twice_per_connection() {
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "some", "on", ">secret", "+@all"]);
    let source = Source::default();
    let config = AsyncConnectionConfig::new().set_credentials_provider(source.clone());
    let client = Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let _connection = connection.await.unwrap();
    assert_eq!(source.0.load(Ordering::SeqCst), 2);
    eventually("it logs in twice", || server.calls("auth") == 2).await;
}
