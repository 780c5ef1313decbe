//! The names in the certificates of servers.

use std::future::IntoFuture as _;

use tokio::time::timeout;

use super::{SHORT, at, builder, refusal, sentinel_of};
use crate::support::engine::{PATIENCE, eventually, manager_from, subscribers};
use crate::support::tls::TlsServer;

#[tokio::test]
async fn server_of_other_name_is_rejected() {
    let server = TlsServer::start();
    server.show(&server.authority().issue_for(&["elsewhere.example"]));
    let story = refusal(builder(&server)).await;
    assert!(story.contains("not valid for name"), "{story}");
    server.show(&server.authority().issue_for(&["localhost"]));
    refusal(builder(&server)).await;
    let by_name = server.url().replace("127.0.0.1", "localhost");
    let by_name = at(by_name).ca_certificate(server.ca());
    by_name.connect().await.unwrap();
}

#[tokio::test]
async fn server_name_replaces_host_in_certificate() {
    let server = TlsServer::start();
    server.show(&server.authority().issue_for(&["locks.example"]));
    let story = refusal(builder(&server)).await;
    assert!(story.contains("not valid for name"), "{story}");
    let named = || builder(&server).tls_server_name("locks.example");
    let (here, there) = (
        manager_from(named(), SHORT).await,
        manager_from(named(), SHORT).await,
    );
    let guard = here.acquire("a").await.unwrap();
    let waiting = tokio::spawn(there.acquire("a").wait_forever().into_future());
    eventually("it subscribes", || subscribers(server.server(), "a") > 0).await;
    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    next.release().await.unwrap();
    let wrong = builder(&server).tls_server_name("elsewhere.example");
    let story = refusal(wrong).await;
    assert!(story.contains("not valid for name"), "{story}");
}

#[tokio::test]
async fn server_name_reaches_sentinel_and_primary() {
    let primary = TlsServer::start();
    let (_sentinel, url) = sentinel_of(&primary);
    primary.show(&primary.authority().issue_for(&["localhost"]));
    let builder = || at(&url).ca_certificate(primary.ca());
    let story = refusal(builder()).await;
    assert!(story.contains("primary"), "{story}");
    let locks = manager_from(builder().tls_server_name("localhost"), SHORT).await;
    locks.acquire("a").await.unwrap().release().await.unwrap();
    let story = refusal(builder().tls_server_name("locks.example")).await;
    assert!(story.contains("no sentinel could be asked"), "{story}");
}

#[tokio::test]
async fn server_name_reaches_cluster_nodes() {
    let options = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let options = [&options[..], &["--tls-auth-clients", "no"]].concat();
    let server = TlsServer::start_with(&options);
    let all = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    server.server().cli(&all);
    let info = || server.server().cli(&["CLUSTER", "INFO"]);
    eventually("a ready cluster", || info().contains("state:ok")).await;
    server.show(&server.authority().issue_for(&["locks.example"]));
    let url = server.url().replace("rediss://", "rediss+cluster://");
    let builder = || at(&url).ca_certificate(server.ca());
    refusal(builder()).await;
    let locks = manager_from(builder().tls_server_name("locks.example"), SHORT).await;
    locks.acquire("a").await.unwrap().release().await.unwrap();
}
