//! The servers that other tests start, and the behavior that those tests require.
//!
//! It is a program of its own: it sets the TLS provider of the process, and the tests of TLS must find none.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use support::cluster::Cluster;
use support::patience::until;
use support::proxy::Proxy;
use support::redis_server::RedisServer;
use support::sentinel::SentinelSet;

/// A failover takes two or three seconds, and more per election without a winner.
const FAILOVER: Duration = Duration::from_secs(15);

#[tokio::test]
async fn sentinels_replace_and_readmit_killed_primary() {
    let mut set = SentinelSet::start();
    let first = set.primary();
    set.cli(first, &["SET", "kept", "1"]);
    assert_eq!(set.cli(first, &["WAIT", "2", "5000"]), "2");

    assert_eq!(set.kill_primary(), first);
    let took = set.failover().await;
    assert!(took < FAILOVER, "{took:?}");
    let second = set.primary();
    assert_ne!(second, first);
    assert_eq!(set.cli(second, &["GET", "kept"]), "1");

    set.restart(first).await;
    assert_eq!(set.primary(), second);
    assert!(set.cli(first, &["ROLE"]).starts_with("slave"));
    assert_eq!(set.cli(first, &["GET", "kept"]), "1");

    // The second failover starts from the same state as the first.
    set.kill_primary();
    set.failover().await;
    assert_ne!(set.primary(), second);
}

#[tokio::test]
async fn resumed_primary_stays_one_until_reconfigured() {
    let mut set = SentinelSet::start();
    let first = set.stop_primary();
    set.failover().await;
    set.continue_node(first);
    assert!(set.cli(first, &["ROLE"]).starts_with("master"));
    set.in_order_again().await;
    assert!(set.cli(first, &["ROLE"]).starts_with("slave"));
}

#[tokio::test]
async fn stopped_replicas_acknowledge_nothing() {
    let mut set = SentinelSet::start();
    let primary = set.primary();
    set.stop_replicas();
    set.cli(primary, &["SET", "key", "1"]);
    assert_eq!(set.cli(primary, &["WAIT", "1", "100"]), "0");
    set.continue_replicas();
    assert_eq!(set.cli(primary, &["WAIT", "2", "5000"]), "2");
    assert_eq!(set.primary(), primary);

    // The old primary runs, and stays the primary until the Sentinels elect another.
    set.in_order_again().await;
    let order = ["SENTINEL", "FAILOVER", set.service()];
    set.sentinel(0).cli(&order);
    set.failover().await;
    assert_ne!(set.primary(), primary);
}

#[tokio::test]
async fn sentinels_and_nodes_have_separate_passwords() {
    let nodes = ["--requirepass", "of-nodes", "--masterauth", "of-nodes"];
    let mut set = SentinelSet::start_with(&nodes, &["--requirepass", "of-sentinels"]);
    let accepts = |port: u16, password: &str| {
        let url = format!("redis://:{password}@127.0.0.1:{port}");
        let client = redis::Client::open(url).unwrap();
        let ping = |mut connection| redis::cmd("PING").exec(&mut connection);
        client.get_connection().and_then(ping).is_ok()
    };
    let (node, sentinel) = (set.node(0).port(), set.sentinel(0).port());
    assert!(accepts(node, "of-nodes") && !accepts(node, "of-sentinels"));
    assert!(accepts(sentinel, "of-sentinels") && !accepts(sentinel, "of-nodes"));
    let killed = set.kill_primary();
    set.failover().await;
    set.restart(killed).await;
}

#[tokio::test]
async fn cluster_serves_each_key_on_one_node() {
    let cluster = Cluster::start();
    assert_eq!(cluster.primaries(), [0, 1, 2]);
    for key in ["a", "b", "c", "d", "{a}b"] {
        let node = cluster.node_of(key);
        cluster.cli(node, &["SET", key, "1"]);
        for other in (0..3).filter(|other| *other != node) {
            let error = cluster.node(other).command(&["SET", key, "1"]).unwrap_err();
            let moved = format!("{} {}", cluster.slot(key), cluster.node(node).address());
            assert_eq!(error.code(), Some("MOVED"));
            assert_eq!(error.detail(), Some(moved.as_str()));
        }
    }
    assert_eq!(cluster.slot("a"), cluster.slot("{a}b"));
    assert_eq!(cluster.keys(), ["a", "b", "c", "d", "{a}b"]);
}

#[tokio::test]
async fn cluster_replaces_and_readmits_killed_primary() {
    let mut cluster = Cluster::start();
    let (slot, first) = (cluster.slot("kept"), cluster.node_of("kept"));
    let replica = cluster.replica_of(first);
    cluster.cli(first, &["SET", "kept", "1"]);
    assert_eq!(cluster.cli(first, &["WAIT", "1", "5000"]), "1");

    cluster.kill(first);
    let took = cluster.failover(slot, first).await;
    assert!(took < FAILOVER, "{took:?}");
    assert_eq!(cluster.node_of("kept"), replica);
    assert_eq!(cluster.cli(replica, &["GET", "kept"]), "1");

    cluster.restart(first).await;
    assert_eq!(cluster.node_of("kept"), replica);
    assert_eq!(cluster.replica_of(replica), first);

    cluster.stop_process(replica);
    cluster.failover(slot, replica).await;
    cluster.continue_process(replica);
    cluster.in_order_again().await;
    assert_eq!(cluster.node_of("kept"), first);
}

#[tokio::test]
async fn cluster_migrates_slot_in_steps() {
    let cluster = Cluster::start();
    let (slot, from) = (cluster.slot("{tag}"), cluster.node_of("{tag}"));
    let to = (from + 1) % 3;
    cluster.cli(from, &["SET", "{tag}there", "1"]);
    let code = |node, key| {
        let answer = cluster.node(node).command(&["GET", key]);
        answer.map_err(|error| error.code().unwrap().to_owned())
    };
    let (value, absent) = (Ok("1".to_owned()), Ok(String::new()));
    let refused = |code: &str| Err(code.to_owned());

    cluster.begin_migration(slot, from, to);
    assert_eq!(code(from, "{tag}there"), value);
    assert_eq!(code(from, "{tag}gone"), refused("ASK"));
    assert_eq!(code(to, "{tag}there"), refused("MOVED"));
    assert_eq!(cluster.node_of("{tag}"), from);

    cluster.move_keys(slot, from, to);
    assert_eq!(code(from, "{tag}there"), refused("ASK"));
    assert_eq!(code(to, "{tag}there"), refused("MOVED"));

    cluster.end_migration(slot, from, to).await;
    assert_eq!(code(from, "{tag}there"), refused("MOVED"));
    assert_eq!(code(to, "{tag}there"), value);
    assert_eq!(cluster.node_of("{tag}"), to);

    cluster.migrate_slot(slot, to, from).await;
    assert_eq!(code(from, "{tag}there"), value);
    assert_eq!(code(from, "{tag}gone"), absent);
}

#[tokio::test]
async fn proxy_truncates_reply_and_resets_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let mut stream = said_ping(&proxy).await;
    proxy.truncate_answers(9);
    // The reply arrives in two pieces, of which the second one exceeds the limit.
    stream.write_all(b"PING\r\n").await.unwrap();
    stream.read_exact(&mut [0; 7]).await.unwrap();
    stream.write_all(b"INCR counter\r\n").await.unwrap();
    stream.read_exact(&mut [0; 2]).await.unwrap();
    assert_eq!(end(&mut stream).await, Err(ErrorKind::ConnectionReset));
    assert_eq!(server.cli(&["GET", "counter"]), "1");
    said_ping(&proxy).await;
}

#[tokio::test]
async fn proxy_truncates_command_and_resets_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let command = b"INCR counter\r\n";
    for (bytes, counter) in [
        (0, ""),
        (5, ""),
        (command.len() - 1, ""),
        (command.len(), "1"),
    ] {
        let mut stream = said_ping(&proxy).await;
        proxy.truncate_commands(bytes);
        stream.write_all(command).await.unwrap();
        assert_eq!(end(&mut stream).await, Err(ErrorKind::ConnectionReset));
        let gone = || server.clients("normal").is_empty();
        until("no client", || server.log(), gone).await;
        assert_eq!(server.cli(&["GET", "counter"]), counter, "{bytes} bytes");
    }
}

/// Opens a connection that works.
async fn said_ping(proxy: &Proxy) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port()))
        .await
        .unwrap();
    stream.write_all(b"PING\r\n").await.unwrap();
    let mut pong = [0; 7];
    stream.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
    stream
}

/// Reads to the end of the stream.
async fn end(stream: &mut TcpStream) -> Result<usize, ErrorKind> {
    stream.read(&mut [0]).await.map_err(|error| error.kind())
}

/// A client of a TLS server, through rustls.
#[cfg(feature = "redis-tls")]
mod tls {
    use redis::{ClientTlsConfig, RedisResult, TlsCertificates};

    use crate::support::tls::{Authority, Identity, TlsServer};

    /// Connects with a trusted authority and optionally a certificate, and sends `PING`.
    fn ping(url: &str, trusted: &Authority, shown: Option<Identity>) -> RedisResult<String> {
        let certificates = TlsCertificates {
            client_tls: shown.map(|identity| ClientTlsConfig {
                client_cert: identity.certificate.into_bytes(),
                client_key: identity.key.into_bytes(),
            }),
            root_cert: Some(trusted.ca().to_vec()),
        };
        // The default of the process. The first test sets it, and later calls fail.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = redis::Client::build_with_tls(url, certificates)?;
        redis::cmd("PING").query(&mut client.get_connection()?)
    }

    #[test]
    fn tls_server_serves_clients_trusting_its_ca() {
        let server = TlsServer::start();
        let pong = ping(&server.url(), server.authority(), None);
        assert_eq!(pong.unwrap(), "PONG");
        let by_name = server.url().replace("127.0.0.1", "localhost");
        assert_eq!(ping(&by_name, server.authority(), None).unwrap(), "PONG");

        let error = ping(&server.url(), &Authority::new(), None).unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
        let plain = server.url().replace("rediss", "redis");
        assert!(ping(&plain, server.authority(), None).is_err());
    }

    #[test]
    fn mutual_tls_server_serves_only_signed_clients() {
        let server = TlsServer::start_mutual();
        let shown = |authority: &Authority| {
            let identity = Some(authority.issue());
            ping(&server.url(), server.authority(), identity)
        };
        assert_eq!(shown(server.authority()).unwrap(), "PONG");
        assert!(shown(&Authority::new()).is_err());
        assert!(ping(&server.url(), server.authority(), None).is_err());
    }
}
