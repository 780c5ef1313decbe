//! Logs of outages: one line when an outage begins and one when it ends.

use std::collections::BTreeMap;
use std::future::IntoFuture as _;
use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::task::JoinHandle;
use tower_lock::backend::{AcquireRequest, LeaseId};
use tower_lock::{Backend as _, Error, ErrorKind, LockGuard, LockKey, LockManager, RedisBackend};
use tracing_subscriber::filter::LevelFilter;
use uuid::Uuid;

use crate::support::cluster::Cluster;
use crate::support::engine::{MS, PATIENCE, SECOND, eventually, manager};
use crate::support::log::Log;
use crate::support::proxy::{Proxy, Swallow};
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::SentinelSet;

pub(super) const LEASE: Duration = Duration::from_secs(12);

const UNREACHED: &str = "WARN lock store unreachable";
const REACHED: &str = "INFO lock store reachable again";
pub(super) const REFUSED: &str = "WARN locks cannot be acquired";
pub(super) const GRANTED: &str = "INFO locks can be acquired again";
pub(super) const UNHEARD: &str = "WARN release notifications unavailable";
const HEARD: &str = "INFO release notifications available again";
const LEFT: &str = "INFO server removed";
const MOVED: &str = "INFO primary changed";

impl Log {
    /// Returns the level and message of each line about a server, with the server's address.
    fn told(&self) -> Vec<(String, String)> {
        let text = self.text();
        let lines = text.lines().filter_map(|line| {
            let (message, fields) = line.trim_start().split_once(" address=\"")?;
            let (address, _) = fields.split_once('"')?;
            Some((message.to_owned(), address.to_owned()))
        });
        lines.collect()
    }

    pub(super) fn messages(&self) -> Vec<String> {
        let told = self.told().into_iter();
        told.map(|(message, _)| message).collect()
    }

    fn count(&self, message: &str) -> usize {
        self.messages().iter().filter(|it| *it == message).count()
    }

    /// Returns the addresses with an unfinished outage.
    fn troubled(&self) -> Vec<String> {
        let mut open = BTreeMap::<_, i32>::new();
        for (message, address) in self.told() {
            let change = if message.starts_with("WARN") { 1 } else { -1 };
            *open.entry(address).or_default() += change;
        }
        open.retain(|_, open| *open != 0);
        open.into_keys().collect()
    }
}

/// Runs `work` and its tasks on this thread and passes it their log.
pub(super) fn logged<F: Future>(work: impl FnOnce(Log) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let log = Log::default();
    let recorder = log.clone();
    recorder.record(LevelFilter::INFO, || runtime.block_on(work(log)));
}

async fn is_unavailable(locks: &LockManager) {
    let error = locks.acquire("k").no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn full_memory_with_releases_is_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let locks = manager(server.url(), LEASE).await;
        let mut held = Vec::new();
        for key in ["a", "b", "c"] {
            held.push(locks.acquire(key).await.unwrap());
        }
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        for guard in held {
            is_unavailable(&locks).await;
            guard.release().await.unwrap();
        }
        is_unavailable(&locks).await;
        assert_eq!(log.messages(), [REFUSED]);
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        for _ in 0..2 {
            drop(locks.acquire("k").wait(PATIENCE).await.unwrap());
        }
        assert_eq!(log.messages(), [REFUSED, GRANTED]);
        let text = log.text();
        let cause = text.matches("'maxmemory'").count();
        assert_eq!(cause, 1, "the cause is not logged once: {text}");
    });
}

#[test]
fn permission_loss_and_recovery_are_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let allow = |rule| server.cli(&["ACL", "SETUSER", "some", rule]);
        for rule in ["on", ">secret", "~*", "&*", "+@all"] {
            allow(rule);
        }
        let locks = manager(server.url_of("some", "secret"), LEASE).await;
        allow("-hset");
        for _ in 0..3 {
            let error = locks.acquire("k").no_wait().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misconfigured);
        }
        assert_eq!(log.messages(), [REFUSED]);
        // The server does not name a command that a script may not use.
        let (text, remedy) = (log.text(), "`ACL LOG` on the server names the command");
        assert_eq!(text.matches(remedy).count(), 1, "{text}");
        allow("+hset");
        drop(locks.acquire("k").wait(PATIENCE).await.unwrap());
        assert_eq!(log.messages(), [REFUSED, GRANTED]);
    });
}

/// The grants of other keys do not show that this one can be acquired again.
#[test]
fn forbidden_key_beside_others_is_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let keys = "~lock:k* ~lock:self-test* ~lock:{*";
        let rules = format!("ACL SETUSER some on >secret &* +@all {keys}");
        server.cli(&rules.split(' ').collect::<Vec<_>>());
        let locks = manager(server.url_of("some", "secret"), LEASE).await;
        for n in 0..5 {
            let error = locks.acquire("forbidden").no_wait().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misconfigured);
            drop(locks.acquire(format!("k{n}")).await.unwrap());
        }
        assert_eq!(log.messages(), [REFUSED]);
        server.cli(&["ACL", "SETUSER", "some", "~*"]);
        drop(locks.acquire("forbidden").wait(PATIENCE).await.unwrap());
        assert_eq!(log.messages(), [REFUSED, GRANTED]);
    });
}

/// Its waiters leave before the next attempt to subscribe.
#[test]
fn forbidden_channel_beside_others_is_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let forbidden = "redisson_lock__channel:{lock:forbidden}*";
        let rules = "ACL SETUSER some on >secret ~* +@all resetchannels \
                     &redisson_lock__channel:{lock:self-test* &redisson_lock__channel:{lock:k*";
        server.cli(&rules.split_ascii_whitespace().collect::<Vec<_>>());
        let locks = manager(server.url_of("some", "secret"), LEASE).await;
        let other = manager(server.url(), LEASE).await;
        let held = other.acquire("forbidden").await.unwrap();
        let permitted = other.acquire("k").await.unwrap();
        for _ in 0..2 {
            for key in ["forbidden", "k"] {
                let waiting = locks.acquire(key).wait(300 * MS).await;
                assert_eq!(waiting.unwrap_err().kind(), ErrorKind::Busy);
            }
            // Longer than a channel outlives its waiters, and than the backoff.
            tokio::time::sleep(3 * SECOND).await;
        }
        assert_eq!(log.messages(), [UNHEARD]);
        server.cli(&["ACL", "SETUSER", "some", &format!("&{forbidden}")]);
        let waiting = tokio::spawn(locks.acquire("forbidden").wait(PATIENCE).into_future());
        eventually("the end", || log.messages() == [UNHEARD, HEARD]).await;
        drop((held, permitted));
        drop(waiting.await.unwrap().unwrap());
    });
}

/// A `FAILOVER` pauses writes in the same way; the server still replies to `PING`.
#[test]
fn write_pause_and_recovery_are_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let locks = manager(server.url(), LEASE).await;
        server.cli(&["CLIENT", "PAUSE", "3000", "WRITE"]);
        for _ in 0..3 {
            let waiting = locks.acquire("k").wait(SECOND * 3 / 4);
            assert_eq!(waiting.await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(log.messages(), [UNREACHED]);
        drop(locks.acquire("k").wait(PATIENCE).await.unwrap());
        assert_eq!(log.messages(), [UNREACHED, REACHED]);
    });
}

/// The link recovers while its replacement is being opened; the replacement then fails.
#[test]
fn failed_dial_beside_healthy_link_is_not_logged() {
    logged(|log| async move {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port()).await;
        let builder = RedisBackend::builder(proxy.url()).response_timeout(SECOND / 5);
        let backend = builder.connect_timeout(SECOND).connect().await.unwrap();
        let key = LockKey::new("k");
        let mut number = 0;
        let mut acquire = async || {
            number += 1;
            let lease = LeaseId::new(Uuid::new_v4(), number);
            let request = AcquireRequest::new(key.clone(), lease, LEASE);
            backend.try_acquire(&request).await
        };
        proxy.freeze();
        acquire().await.unwrap_err();
        // The frozen link loses no bytes, the next one loses all.
        proxy.swallow(Swallow::Both);
        let dials = proxy.accepted();
        acquire().await.unwrap_err();
        assert_eq!(proxy.accepted(), dials + 1, "a dial is in flight");
        assert_eq!(log.messages(), [UNREACHED]);
        proxy.heal();
        eventually("the link recovers", || log.messages().len() > 1).await;
        assert_eq!(log.messages(), [UNREACHED, REACHED]);
        // Until the dial has failed.
        tokio::time::sleep(SECOND).await;
        assert_eq!(log.messages(), [UNREACHED, REACHED]);
        acquire().await.unwrap();
    });
}

/// The backend works without the commands that this user cannot run.
#[test]
fn guide_acl_user_logs_nothing() {
    let manual = include_str!("../../../src/guide/redis.rs").replace("//!", "");
    let (_, rules) = manual.split_once("ACL SETUSER locker ").unwrap();
    let (rules, _) = rules.split_once("```").unwrap();
    logged(|log| async move {
        let server = RedisServer::start();
        let rules: Vec<_> = rules.split_ascii_whitespace().collect();
        server.cli(&[&["ACL", "SETUSER", "locker"], &rules[..]].concat());
        let locks = manager(server.url_of("locker", "SECRET"), LEASE).await;
        let guard = locks.acquire("k").await.unwrap();
        locks.inspect("k").await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(log.text(), "");
    });
}

#[test]
fn server_loss_and_recovery_are_logged_once() {
    logged(|log| async move {
        let mut server = RedisServer::start();
        let locks = manager(server.url(), LEASE).await;
        server.kill();
        for _ in 0..3 {
            is_unavailable(&locks).await;
        }
        assert_eq!(log.messages(), [UNREACHED]);
        server.launch_again();
        let again = async { while locks.acquire("k").no_wait().await.is_err() {} };
        tokio::time::timeout(PATIENCE, again).await.unwrap();
        assert_eq!(log.messages(), [UNREACHED, REACHED]);
    });
}

/// Makes one attempt without retries, which must fail.
async fn fails(backend: &RedisBackend) {
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::new_v4(), 1));
    let acquired = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease, LEASE))
        .await;
    acquired.unwrap_err();
}

#[test]
fn server_hang_and_recovery_are_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let backend = RedisBackend::builder(server.url()).connect();
        let backend = backend.await.unwrap();
        server.stop_process();
        fails(&backend).await;
        assert_eq!(log.messages(), [UNREACHED]);
        server.continue_process();
        // The release that follows the acquire on the same connection gets a reply.
        eventually("a reply", || log.messages() == [UNREACHED, REACHED]).await;
    });
}

/// A dropped backend cannot observe a recovery.
#[test]
fn backend_drop_ends_outage() {
    logged(|log| async move {
        let mut server = RedisServer::start();
        let backend = RedisBackend::builder(server.url()).connect();
        let backend = backend.await.unwrap();
        server.kill();
        fails(&backend).await;
        assert_eq!(log.messages(), [UNREACHED]);
        drop(backend);
        eventually("the end", || log.messages() == [UNREACHED, LEFT]).await;
    });
}

#[test]
fn replica_hang_and_recovery_are_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let port = server.port().to_string();
        let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
        eventually("a replica in sync", || {
            let replication = server.cli(&["INFO", "replication"]);
            replication.contains("state=online")
        })
        .await;
        // The replica timeout exceeds the second after which a new replica reports its offset.
        let builder = RedisBackend::builder(server.url());
        let builder = builder.min_replicas(NonZeroUsize::MIN, 2 * SECOND);
        let locks = LockManager::builder(builder.connect().await.unwrap());
        let locks = locks.build().unwrap();
        replica.stop_process();
        for _ in 0..3 {
            is_unavailable(&locks).await;
        }
        assert_eq!(log.messages(), [REFUSED]);
        replica.continue_process();
        let again = async { while locks.acquire("k").no_wait().await.is_err() {} };
        tokio::time::timeout(PATIENCE, again).await.unwrap();
        assert_eq!(log.messages(), [REFUSED, GRANTED]);
    });
}

/// Returns a lock held by `here` and the waiter of `there`.
async fn contended(
    here: &LockManager,
    there: &LockManager,
    key: &str,
) -> (LockGuard, JoinHandle<Result<LockGuard, Error>>) {
    let guard = here.acquire(key).wait(PATIENCE).await.unwrap();
    let before = there.snapshot().waiting;
    let waiting = tokio::spawn(there.acquire(key).wait_forever().into_future());
    eventually("queued", || there.snapshot().waiting > before).await;
    (guard, waiting)
}

#[test]
fn cluster_node_outages_end_after_recovery() {
    logged(|log| async move {
        let mut cluster = Cluster::start();
        // No server listens at this seed, which is dialed repeatedly.
        let seed = "127.0.0.1:1";
        let url = cluster.url().replace("//", &format!("//{seed},"));
        let (here, there) = (manager(&url, LEASE).await, manager(&url, LEASE).await);
        let keys = cluster.primaries().into_iter().map(|primary| {
            let mut keys = (0..).map(|n| format!("key {n}"));
            let key = keys.find(|key| cluster.node_of(&format!("lock:{key}")) == primary);
            key.unwrap()
        });
        let keys: Vec<_> = keys.collect();
        let mut held = Vec::new();
        for key in &keys {
            held.push(contended(&here, &there, key).await);
        }
        assert_eq!(log.text(), "");

        let killed = cluster.node_of(&format!("lock:{}", keys[0]));
        let address = cluster.node(killed).address();
        let slot = cluster.slot(&format!("lock:{}", keys[0]));
        cluster.kill(killed);
        cluster.failover(slot, killed).await;
        cluster.restart(killed).await;
        for (guard, waiting) in held {
            drop(guard);
            drop(waiting.await.unwrap().unwrap());
        }
        let mut held = Vec::new();
        for key in &keys {
            held.push(contended(&here, &there, key).await);
        }
        eventually("all outages are over", || log.troubled().is_empty()).await;
        let text = log.text();
        let told = log.told();
        assert!(told.contains(&(UNREACHED.to_owned(), address)), "{text}");
        assert!(told.iter().all(|(_, address)| address != seed), "{text}");
    });
}

#[test]
fn failover_is_logged_once_and_names_servers() {
    logged(|log| async move {
        let mut set = SentinelSet::start();
        let locks = manager(set.url(set.service()), LEASE).await;
        let guard = locks.acquire("held").await.unwrap();
        assert_eq!(log.text(), "");
        let old = set.node(set.primary()).address();
        let killed = set.kill_primary();
        is_unavailable(&locks).await;
        set.failover().await;
        drop(locks.acquire("other").wait(PATIENCE).await.unwrap());
        set.restart(killed).await;
        drop(locks.acquire("another").wait(PATIENCE).await.unwrap());
        let text = log.text();
        assert_eq!(log.count(MOVED), 1, "{text}");
        let new = set.node(set.primary()).address();
        assert!(text.contains(&format!("primary=\"{new}\"")), "{text}");
        assert_eq!(log.count(UNREACHED), 1, "{text}");
        assert_eq!(log.count(REACHED), 1, "{text}");
        let cause = format!("primary {old} is unusable: ");
        assert!(text.contains(&cause), "{text}");
        drop(guard);
    });
}
