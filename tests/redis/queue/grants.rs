//! Transfers, which the waiter confirms: the engine on a server.

use std::future::IntoFuture as _;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tower_lock::{LockGuard, LockManager, RedisBackend};

use super::model::CONFIRM;
use super::scripts::{CHANNEL, QUEUE};
use crate::support::engine::{
    MS, Monitor, PATIENCE, SECOND, eventually, manager, nothing_is_left, pttl, scripts_called,
};
use crate::support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);
const FENCE: &str = "lock:{fencing-token}%";

type Waiting = JoinHandle<LockGuard>;

/// Starts to wait in the queue. Returns the lease of the place, when an attempt that listens has taken effect.
///
/// The reply to that attempt can still be in flight. A message that follows is not read before the reply.
async fn waits(server: &RedisServer, locks: &LockManager, fixed: bool) -> (Waiting, String) {
    let acquire = locks.acquire("a").wait(PATIENCE);
    let acquire = if fixed { acquire.lease(LEASE) } else { acquire };
    let waiting = tokio::spawn(async move { acquire.await.unwrap() });
    let owner = locks.new_owner().to_string();
    // The script marks the place of a waiter that listens.
    let manager = format!("!{}", owner.split(':').next().unwrap());
    let mut lease = String::new();
    eventually("a place", || {
        let places = server.cli(&["ZRANGE", QUEUE, "0", "-1"]);
        let place = places.lines().find(|place| place.starts_with(&manager));
        lease = place.map(|it| it[1..].to_owned()).unwrap_or_default();
        !lease.is_empty() && locks.snapshot().queued == 1
    })
    .await;
    (waiting, lease)
}

async fn granted(waiting: Waiting) -> LockGuard {
    timeout(PATIENCE, waiting).await.unwrap().unwrap()
}

fn publish(server: &RedisServer, lease: &str, counter: i64) {
    let manager = lease.split(':').next().unwrap();
    let channel = format!("{CHANNEL}%{manager}");
    server.cli(&["PUBLISH", &channel, &format!("{lease} {counter}")]);
}

fn counter(server: &RedisServer) -> i64 {
    server.cli(&["GET", FENCE]).parse().unwrap()
}

/// With an empty prefix, the keys `a` and `{a}` have the same channel, as in Redisson.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_of_key_with_same_channel_grants_nothing() {
    let server = RedisServer::start();
    let connect = async || {
        let backend = RedisBackend::builder(server.url()).prefix("");
        let locks = LockManager::builder(backend.connect().await.unwrap());
        locks.build().unwrap()
    };
    let (holder, waiter) = (connect().await, connect().await);
    for (held, other) in [("{a}", "a"), ("b", "{b}")] {
        let guard = holder.acquire(held).await.unwrap();
        let other = holder.acquire(other).await.unwrap();
        let waiting = waiter.acquire(held).wait(PATIENCE);
        let mut waiting = tokio::spawn(async move { waiting.await.unwrap() });
        eventually("a place", || waiter.snapshot().queued == 1).await;
        other.release().await.unwrap();
        assert!(timeout(SECOND / 2, &mut waiting).await.is_err(), "{held}");
        guard.release().await.unwrap();
        granted(waiting).await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_is_confirmed_for_whole_lease() {
    let server = RedisServer::start();
    let holder = manager(server.url(), LEASE).await;
    let waiter = manager(server.url(), LEASE).await;
    for fixed in [false, true] {
        let guard = holder.acquire("a").await.unwrap();
        let (waiting, _) = waits(&server, &waiter, fixed).await;
        let (token, before) = (guard.fencing_token(), scripts_called(&server));
        guard.release().await.unwrap();
        let guard = granted(waiting).await;
        assert_eq!(scripts_called(&server), before + 2);
        assert!(guard.is_held() && guard.fencing_token() > token);
        let of_counter = guard.fencing_token().get() / 256;
        assert_eq!(of_counter, counter(&server));
        assert!(pttl(&server, "a") > 2 * CONFIRM);
        guard.release().await.unwrap();
    }
    nothing_is_left(&server, &[&holder, &waiter], SECOND, "the end").await;
}

/// The release of a busy process enters its next waiter into the queue. The subscription of the last wait lingers, so the
/// process attempts only to confirm its transfer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn place_of_release_needs_one_attempt() {
    let server = RedisServer::start();
    let one = manager(server.url(), LEASE).await;
    let other = manager(server.url(), LEASE).await;
    let guard = other.acquire("a").await.unwrap();
    let (waiting, _) = waits(&server, &one, false).await;
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    let (waiting, _) = waits(&server, &other, false).await;
    let mut next = Box::pin(one.acquire("a").wait(PATIENCE).into_future());
    assert!(futures_util::poll!(&mut next).is_pending());

    let monitor = Monitor::start(&server);
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let there = granted(waiting).await;
    assert!(there.fencing_token() > token);
    let token = there.fencing_token();
    // An attempt of the other process would come within 6 ms.
    sleep(50 * MS).await;
    there.release().await.unwrap();
    let guard = next.await.unwrap();
    assert!(guard.is_held() && guard.fencing_token() > token);
    let lines = monitor.lines_until_now(&server).await;
    // Only the commands that enter or refresh a place, or confirm its transfer, have this argument.
    let enters = |line: &&String| line.contains("\"EVALSHA\"") && line.contains("\"!\"");
    let places = lines.iter().filter(enters).count();
    assert_eq!(places, 3, "a release and two confirmations: {lines:#?}");
    guard.release().await.unwrap();
    nothing_is_left(&server, &[&one, &other], SECOND, "the end").await;
}

/// A version in which a message was a grant sends a counter with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_with_counter_grants_nothing() {
    let server = RedisServer::start();
    let holder = manager(server.url(), LEASE).await;
    let waiter = manager(server.url(), LEASE).await;
    let guard = holder.acquire("a").await.unwrap();
    let (waiting, lease) = waits(&server, &waiter, false).await;
    let before = scripts_called(&server);
    publish(&server, &lease, counter(&server) + 1_000_000_000);
    eventually("an attempt", || scripts_called(&server) > before).await;
    // A refresh follows a second later, in which a grant would be in effect.
    let before = scripts_called(&server);
    eventually("a refresh", || scripts_called(&server) > before).await;
    assert_eq!(waiter.snapshot().held, 0);
    assert!(guard.is_held());
    guard.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
    nothing_is_left(&server, &[&holder, &waiter], SECOND, "the end").await;
}
