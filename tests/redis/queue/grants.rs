//! Transfers that their messages grant: the engine on a server.

use std::future::IntoFuture as _;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::redis::RedisBackend;
use tower_lock::{LockGuard, LockManager};

use super::model::CONFIRM;
use super::scripts::{CHANNEL, QUEUE};
use crate::support::engine::{
    Monitor, PATIENCE, SECOND, eventually, lost_at_its_deadline, manager, nothing_is_left, pttl,
    scripts_called, within,
};
use crate::support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);
const FENCE_KEY: &str = "{fencing-token}%";
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
async fn transfer_grants_without_confirmation() {
    let server = RedisServer::start();
    let holder = manager(server.url(), LEASE).await;
    let waiter = manager(server.url(), LEASE).await;
    let guard = holder.acquire("a").await.unwrap();
    let (waiting, _) = waits(&server, &waiter, false).await;
    let monitor = Monitor::start(&server);
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    assert!(guard.is_held() && guard.fencing_token() > token);
    let of_counter = guard.fencing_token().get() / 256;
    assert_eq!(of_counter, counter(&server));
    guard.release().await.unwrap();
    let lines = monitor.lines_until_now(&server).await;
    // An attempt of a waiter that listens has this argument. It refreshes its place until the release.
    let is_attempt = |line: &str| line.contains("\"!\"");
    let calls = lines.iter().filter(|line| line.contains("\"EVALSHA\""));
    let calls: Vec<_> = calls.skip_while(|line| is_attempt(line)).collect();
    assert!(!calls.iter().any(|line| is_attempt(line)), "{lines:#?}");
    assert!(
        (2..=3).contains(&calls.len()),
        "two releases and a renewal: {lines:#?}"
    );
    nothing_is_left(&server, &[&holder, &waiter], SECOND, "the end").await;
}

/// The release of a busy process enters its next waiter into the queue. The subscription of the last wait lingers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn place_of_release_needs_no_attempt() {
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
    there.release().await.unwrap();
    let guard = next.await.unwrap();
    assert!(guard.is_held() && guard.fencing_token() > token);
    let lines = monitor.lines_until_now(&server).await;
    // Only the commands that enter or refresh a place have this argument.
    let enters = |line: &&String| line.contains("\"EVALSHA\"") && line.contains("\"!\"");
    let places = lines.iter().filter(enters).count();
    assert!(places <= 1, "{lines:#?}");
    // Behind a `PING`, the message of the transfer is written before the reply. Only `release_or_keep` has
    // 3 keys and 8 arguments, behind its name, its hash and the number of keys.
    let is_transfer = |line: &str| line.matches('"').count() == 2 * 14;
    let transfer = lines.iter().position(|line| is_transfer(line)).unwrap();
    assert!(lines[transfer - 1].contains("\"PING\""), "{lines:#?}");
    guard.release().await.unwrap();
    nothing_is_left(&server, &[&one, &other], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn granted_transfer_is_renewed() {
    let server = RedisServer::start();
    let holder = manager(server.url(), LEASE).await;
    let waiter = manager(server.url(), LEASE).await;
    let guard = holder.acquire("a").await.unwrap();
    let (waiting, _) = waits(&server, &waiter, false).await;
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    within(SECOND, "renewed", || pttl(&server, "a") > 2 * CONFIRM).await;
    within(SECOND, "known", || guard.remaining() > LEASE / 2).await;
    sleep(2 * SECOND).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    nothing_is_left(&server, &[&holder, &waiter], SECOND, "the end").await;
}

/// Its remaining TTL would differ from the one that the caller requested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_to_fixed_lease_is_confirmed() {
    let server = RedisServer::start();
    let holder = manager(server.url(), LEASE).await;
    let waiter = manager(server.url(), LEASE).await;
    let guard = holder.acquire("a").await.unwrap();
    let (waiting, _) = waits(&server, &waiter, true).await;
    let before = scripts_called(&server);
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    assert_eq!(scripts_called(&server), before + 2);
    assert!(pttl(&server, "a") > 2 * CONFIRM);
    guard.release().await.unwrap();
}

/// A message that is late, or arrives twice, has a counter from before the last attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_message_does_not_grant() {
    let server = RedisServer::start();
    let holder = manager(server.url(), LEASE).await;
    let waiter = manager(server.url(), LEASE).await;
    let guard = holder.acquire("a").await.unwrap();
    let (waiting, lease) = waits(&server, &waiter, false).await;
    let mut other = lease.clone();
    other.push('0');
    let stale = counter(&server);
    for (lease, counter) in [(&lease, stale), (&lease, stale - 1), (&other, i64::MAX)] {
        let before = scripts_called(&server);
        publish(&server, lease, counter);
        // An attempt for the lease of the place, a `leave` for the other one.
        eventually("a command", || scripts_called(&server) > before).await;
        // A grant would be in effect before its renewal is sent.
        assert_eq!(waiter.snapshot().held, 0);
    }
    assert!(guard.is_held());
    // Under a later counter, the same message is a grant. The server sends such a message only after a transfer.
    let forged = stale + 1_000_000_000;
    publish(&server, &lease, forged);
    // The renewal that follows reports its loss.
    assert_eq!(granted(waiting).await.fencing_token().get() / 256, forged);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn granted_transfer_is_lost_at_deadline() {
    let mut server = RedisServer::start();
    let holder = manager(server.url(), LEASE).await;
    // The first renewal can be faster than the end of the server.
    let lease = 2 * SECOND;
    let waiter = manager(server.url(), lease).await;
    let guard = holder.acquire("a").await.unwrap();
    let (waiting, _) = waits(&server, &waiter, false).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    server.kill();
    let held = guard.held();
    lost_at_its_deadline(&held).await;
    assert!(!guard.is_held());
    let lost_after = released.elapsed();
    assert!(lost_after < lease + SECOND, "{lost_after:?}");
}

/// With a quarantine, a grant requires a check by the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_in_guarded_store_is_confirmed() {
    let server = RedisServer::start();
    let guarded = async || {
        let backend = RedisBackend::builder(server.url()).quarantine(SECOND);
        LockManager::builder(backend.connect().await.unwrap())
            .build()
            .unwrap()
    };
    let holder = guarded().await;
    let waiter = guarded().await;
    let plain = manager(server.url(), LEASE).await;
    let guard = holder.acquire("a").wait(PATIENCE).await.unwrap();
    let (waiting, _) = waits(&server, &waiter, false).await;
    let before = scripts_called(&server);
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    assert_eq!(scripts_called(&server), before + 2);
    // A message with a counter does not grant either, as the reply to the last attempt has none.
    guard.release().await.unwrap();
    let guard = plain.acquire("a").await.unwrap();
    let (waiting, _) = waits(&server, &waiter, false).await;
    let before = scripts_called(&server);
    guard.release().await.unwrap();
    let guard = granted(waiting).await;
    assert_eq!(scripts_called(&server), before + 2);
    guard.release().await.unwrap();
}

/// The scripts contain the name of the counter, in which the quotes and backslashes of the prefix are escaped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_under_quoted_prefix_carries_counter() {
    const PREFIX: &str = r#"it's "a" \n prefix\"#;
    let server = RedisServer::start();
    let locks = async || {
        let backend = RedisBackend::builder(server.url()).prefix(PREFIX);
        LockManager::builder(backend.connect().await.unwrap())
            .build()
            .unwrap()
    };
    let (holder, waiter) = (locks().await, locks().await);
    let guard = holder.acquire("a").await.unwrap();
    let waiting = tokio::spawn(async move { waiter.acquire("a").wait(PATIENCE).await.unwrap() });
    let queue = format!("{PREFIX}{{{PREFIX}a}}%queue");
    eventually("a place that listens", || {
        server.cli(&["ZRANGE", &queue, "0", "-1"]).contains('!')
    })
    .await;
    let monitor = Monitor::start(&server);
    guard.release().await.unwrap();
    let token = granted(waiting).await.fencing_token();
    let counter = server.cli(&["GET", &format!("{PREFIX}{FENCE_KEY}")]);
    assert_eq!((token.get() / 256).to_string(), counter);
    let lines = monitor.lines_until_now(&server).await;
    let attempts = lines.iter().filter(|line| line.contains("\"!\""));
    assert_eq!(attempts.count(), 0, "{lines:#?}");
}
