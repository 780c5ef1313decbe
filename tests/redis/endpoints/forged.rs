//! Replies that show a wrong server, and replies that do not.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::backend::redis::Publish;
use tower_lock::{LockManager, RedisBackend};

use super::support::{Client, LEASE, NEXT_GRANT, acknowledged};
use crate::support::engine::{MS, SECOND, eventually, manager_from, manager_on, prompt_manager};
use crate::support::forger::Forger;
use crate::support::process::version;
use crate::support::redis_server::RedisServer;
use crate::support::service::Service;

fn is_script(command: &[&str]) -> bool {
    matches!(command[0], "EVALSHA" | "EVAL")
}

fn error(text: &str) -> String {
    format!("-{text}\r\n")
}

/// A cluster of one node, whose replies to scripts can be forged.
struct Node {
    _server: RedisServer,
    forger: Forger,
}

impl Node {
    async fn start() -> Self {
        let server = RedisServer::start();
        let forger = Forger::start(server.port()).await;
        let node = Self {
            _server: server,
            forger,
        };
        node.reply_to_scripts(|| None);
        node
    }

    fn url(&self) -> String {
        format!("redis+cluster://{}", self.forger.address())
    }

    fn reply_to_scripts(&self, reply: impl Fn() -> Option<String> + Send + 'static) {
        let slots = self.forger.slots();
        self.forger.forge(move |command| match command {
            ["CLUSTER", "SLOTS"] => Some(slots.clone()),
            command if is_script(command) => reply(),
            _ => None,
        });
    }

    fn redirection(&self, kind: &str) -> String {
        error(&format!("{kind} 1 {}", self.forger.address()))
    }
}

async fn grant(locks: &LockManager, key: &str) {
    let guard = locks.acquire(key).no_wait().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejections_of_right_server_keep_connection() {
    let node = Node::start().await;
    let locks = prompt_manager(node.url(), LEASE).await;
    for rejection in [
        "LOADING Redis is loading the dataset in memory",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "CLUSTERDOWN Hash slot not served",
        "MOVED 1 127.0.0.1:1",
        "ASK 1 127.0.0.1:1",
    ] {
        grant(&locks, rejection).await;
        let before = node.forger.last("EVALSHA");
        node.reply_to_scripts(move || Some(error(rejection)));
        locks.acquire("k").no_wait().await.unwrap_err();
        node.reply_to_scripts(|| None);
        // A redirection is followed until the next refresh of the map.
        let deadline = Instant::now() + 5 * SECOND;
        for attempt in 0.. {
            let acquire = locks.acquire(format!("{rejection} {attempt}"));
            if acquire.no_wait().await.is_ok() {
                break;
            }
            assert!(Instant::now() < deadline, "{rejection}");
            sleep(50 * MS).await;
        }
        assert_eq!(node.forger.last("EVALSHA"), before, "{rejection}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejection_by_wrong_server_is_sent_again() {
    let node = Node::start().await;
    let locks = prompt_manager(node.url(), LEASE).await;
    for rejection in [
        error("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
        error("READONLY You can't write against a read only replica."),
        node.redirection("MOVED"),
        node.redirection("ASK"),
    ] {
        grant(&locks, "k").await;
        let before = node.forger.last("EVALSHA");
        let first = AtomicBool::new(true);
        let reply = rejection.clone();
        node.reply_to_scripts(move || first.swap(false, Ordering::SeqCst).then(|| reply.clone()));
        grant(&locks, "k").await;
        let after = node.forger.last("EVALSHA");
        assert!(after > before, "{rejection}");
        // Later ones wait for their turn.
        sleep(3 * SECOND).await;
    }
}

/// The server names itself, and its role is that of a primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_redirects_to_itself_is_spared() {
    for kind in ["MOVED", "ASK"] {
        let node = Node::start().await;
        let backends = [1, 4].map(|count| {
            let count = std::num::NonZeroUsize::new(count).unwrap();
            RedisBackend::builder(node.url()).connections(count)
        });
        let locks = join_all(backends.map(|it| manager_from(it, 20 * SECOND))).await;
        for locks in &locks {
            grant(locks, "k").await;
        }
        let (redirection, start) = (node.redirection(kind), Instant::now());
        node.reply_to_scripts(move || Some(redirection.clone()));
        let acquires = (0..50).map(|n| {
            let acquire = locks[n % 2].acquire(format!("k{n}")).wait(20 * SECOND);
            tokio::spawn(acquire.into_future())
        });
        let acquires: Vec<_> = acquires.collect();
        sleep(4 * SECOND).await;
        let most = node.forger.most_accepted(start, 3 * SECOND);
        assert!((2..=10).contains(&most), "{most} connections");
        node.reply_to_scripts(|| None);
        let end = Instant::now();
        let guards = join_all(acquires).await;
        // Fifty acquires take some seconds on a busy machine.
        assert!(end.elapsed() < 4 * NEXT_GRANT, "{:?}", end.elapsed());
        for guard in guards {
            guard.unwrap().unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirected_subscription_opens_another_connection() {
    if version() < 7 {
        // It has no sharded messages.
        return;
    }
    let node = Node::start().await;
    let builder = RedisBackend::builder(node.url()).publish(Publish::Sharded);
    let backend = builder.connect().await.unwrap();
    let [locks, other] = [manager_on(&backend), manager_on(&backend)];
    let (slots, redirection) = (node.forger.slots(), node.redirection("MOVED"));
    let first = AtomicBool::new(true);
    let before = node.forger.last("SSUBSCRIBE");
    node.forger.forge(move |command| match command[0] {
        "CLUSTER" => Some(slots.clone()),
        "SSUBSCRIBE" if first.swap(false, Ordering::SeqCst) => Some(redirection.clone()),
        _ => None,
    });
    let guard = locks.acquire("k").await.unwrap();
    let waiting = tokio::spawn(other.acquire("k").wait_forever().into_future());
    // The connection of the self-test, the redirected one and the next.
    eventually("subscribed", || {
        node.forger.last("SSUBSCRIBE") >= before + 2
    })
    .await;
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

/// The sentinels name a host that leads to another server than before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_from_sentinel_is_followed() {
    let service = Service::start().await;
    let sentinel = Forger::start(service.servers[0].port()).await;
    let port = service.vip.port();
    sentinel.forge(move |command| match command {
        ["SENTINEL", "MASTER", ..] => Some(error("NOPERM no permissions to run 'master'")),
        ["SENTINEL", ..] => {
            let port = port.to_string();
            let end = format!("${}\r\n{port}\r\n", port.len());
            Some(format!("*2\r\n$9\r\n127.0.0.1\r\n{end}"))
        }
        _ => None,
    });
    let url = || RedisBackend::builder(format!("redis+sentinel://{}/locks", sentinel.address()));
    let alone = Client::connect("alone", url()).await;
    let replicas = Client::connect("replicas", acknowledged(url())).await;
    service.promote().await;
    service.lead_to_new();
    let deadline = Instant::now() + NEXT_GRANT;
    tokio::join!(alone.is_served(deadline), replicas.is_served(deadline));
    tokio::join!(alone.keeps_lock(), replicas.keeps_lock());
}
