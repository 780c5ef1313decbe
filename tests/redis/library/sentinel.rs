//! The Sentinel client of redis-rs. If a test fails, the library may be used: see "Sentinel" in ARCHITECTURE.md.

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelServerType};

use crate::support::redis_server::RedisServer;

const SERVICE: &str = "locks";

fn sentinel_of(primary: &RedisServer) -> RedisServer {
    let port = primary.port();
    let configuration = format!("sentinel monitor {SERVICE} 127.0.0.1 {port} 1\n");
    let sentinel = RedisServer::try_start(Some(&configuration), &["--sentinel"]);
    sentinel.unwrap_or_else(|log| panic!("no Sentinel: {log}"))
}

fn client(sentinels: &[RedisServer]) -> SentinelClient {
    let urls = sentinels.iter().map(RedisServer::url).collect();
    let primary = SentinelServerType::Master;
    SentinelClient::build(urls, SERVICE, None, primary).unwrap()
}

async fn set(connection: &mut MultiplexedConnection, key: &str) {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(1).exec_async(connection).await.unwrap();
}

#[tokio::test]
async fn first_sentinel_decides_against_majority() {
    let [former, new] = [(), ()].map(|()| RedisServer::start());
    let sentinels = [&former, &new, &new].map(sentinel_of);
    let connection = client(&sentinels).get_async_connection().await;
    set(&mut connection.unwrap(), "k").await;
    assert_eq!(former.cli(&["KEYS", "*"]), "k");
}

#[tokio::test]
async fn open_connection_stays_with_former_primary() {
    let [former, new] = [(), ()].map(|()| RedisServer::start());
    let sentinels = [sentinel_of(&former)];
    let mut client = client(&sentinels);
    let mut open = client.get_async_connection().await.unwrap();
    sentinels[0].cli(&["SENTINEL", "REMOVE", SERVICE]);
    let port = new.port().to_string();
    sentinels[0].cli(&["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", &port, "1"]);
    let mut next = client.get_async_connection().await.unwrap();
    set(&mut open, "open").await;
    set(&mut next, "next").await;
    assert_eq!(former.cli(&["KEYS", "*"]), "open");
    assert_eq!(new.cli(&["KEYS", "*"]), "next");
}
