//! The number and the delay of commands.

use futures_util::future::{join, join_all};
use futures_util::{StreamExt as _, poll, stream};
use tokio::time::{Instant, sleep};
use tower_lock::{LockManager, RedisBackend};

use super::support::{LEASE, percentile};
use crate::support::engine::{
    MS, Monitor, PATIENCE, SECOND, eventually, manager, managers, no_subscription_is_left,
    nothing_is_left, scripts_called, subscribers, within,
};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_and_release_send_one_command_each() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LEASE).await;
    let sent = || scripts_called(&server);
    let other_commands = || server.calls("eval") + server.calls("ping") + server.calls("subscribe");
    drop(locks.acquire("warm-up").await.unwrap());
    nothing_is_left(&server, &[&locks], SECOND, "warm").await;
    let before_others = other_commands();
    for _ in 0..100 {
        let before = sent();
        let guard = locks.acquire("k").await.unwrap();
        assert_eq!(sent() - before, 1, "an acquire");
        let again = locks.acquire("k").owner(guard.owner()).await.unwrap();
        again.release().await.unwrap();
        let busy = locks.acquire("k").no_wait().await.unwrap_err();
        assert!(busy.is_busy());
        assert_eq!(sent() - before, 1, "a command for a held lock");
        guard.release().await.unwrap();
        assert_eq!(sent() - before, 2, "a release");
    }
    assert_eq!(other_commands(), before_others);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_off_sends_no_command() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LEASE).await;
    let mut at_once = 0;
    for _ in 0..30 {
        let start = Instant::now();
        let guard = locks.acquire("k").await.unwrap();
        let mut next = Box::pin(locks.acquire("k").into_future());
        assert!(poll!(&mut next).is_pending());
        let before = scripts_called(&server);
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        // After 50 ms under one grant, the manager must let other processes contend.
        let within_budget = start.elapsed() < 50 * MS;
        let next = next.await.unwrap();
        if within_budget {
            at_once += 1;
            assert_eq!(scripts_called(&server), before, "a command for a hand-off");
            assert_eq!(next.fencing_token().get(), token.get() + 1);
        }
        next.release().await.unwrap();
    }
    assert!(at_once > 0, "no hand-off within 50 ms");
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_share_subscription_in_fifo_order() {
    let server = RedisServer::start();
    let there = manager(server.url(), LEASE).await;
    // A late reply on a busy machine would cause another attempt.
    let backend = RedisBackend::builder(server.url()).response_timeout(PATIENCE);
    let here = LockManager::builder(backend.connect().await.unwrap());
    let here = here.max_waiters_per_key(10_000).build().unwrap();
    let guard = there.acquire("k").await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..10_000 {
        // The first poll puts the waiters into the queue in this order.
        let mut waiter = Box::pin(here.acquire("k").wait_forever().into_future());
        assert!(poll!(&mut waiter).is_pending());
        waiters.push(tokio::spawn(waiter));
    }
    eventually("they wait", || here.snapshot().waiting == 10_000).await;
    eventually("subscribed", || subscribers(&server, "k") == 1).await;
    let (before, start) = (scripts_called(&server), Instant::now());
    sleep(2 * SECOND).await;
    assert_eq!(subscribers(&server, "k"), 1);
    assert_eq!(server.clients("pubsub").len(), 1);
    // One attempt in flight, one after the subscription, then one per 900 ms, up to ten percent early.
    let sent = scripts_called(&server) - before;
    let allowed = 2 + start.elapsed().as_millis() as u64 / 810;
    assert!(sent <= allowed, "{sent} commands of waiters");
    let mut last = guard.fencing_token();
    guard.release().await.unwrap();
    for waiter in waiters {
        let guard = waiter.await.unwrap().unwrap();
        assert!(guard.fencing_token() > last, "out of order");
        last = guard.fencing_token();
        assert!(here.snapshot().held == 1);
    }
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, "the end").await;
    no_subscription_is_left(&server).await;
}

/// The proxy delays each direction by 20 ms. A process sends a command after the reply to the
/// previous one, so the server receives them at least 40 ms apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_waiters_keep_one_command_in_flight() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (here, there) = (
        manager(proxy.url(), LEASE).await,
        manager(server.url(), LEASE).await,
    );
    let guard = there.acquire("k").await.unwrap();
    proxy.delay(20 * MS);
    let monitor = Monitor::start(&server);
    let waiters: Vec<_> = (0..60)
        .map(|n| {
            let acquire = here.acquire("k").wait_forever();
            tokio::spawn(async move {
                let guard = acquire.await.unwrap();
                sleep(n % 20 * MS).await;
                drop(guard);
            })
        })
        .collect();
    eventually("they wait", || here.snapshot().waiting == 60).await;
    sleep(SECOND).await;
    // Both processes acquire and release in turns.
    let there = tokio::spawn(async move {
        guard.release().await.unwrap();
        for _ in 0..10 {
            drop(there.acquire("k").wait_forever().await.unwrap());
            sleep(10 * MS).await;
        }
        there
    });
    for waiter in waiters {
        waiter.await.unwrap();
    }
    let there = there.await.unwrap();
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, "the end").await;
    // `<seconds>.<micros> [0 <address>] "EVALSHA" …`, grouped by address.
    let lines = monitor.lines_until_now(&server).await;
    let commands = lines.iter().filter(|line| line.contains("\"lock:k\""));
    let mut times: std::collections::HashMap<&str, Vec<f64>> = Default::default();
    for line in commands {
        let mut words = line.split(' ');
        let time = words.next().unwrap().parse().unwrap();
        times.entry(words.nth(1).unwrap()).or_default().push(time);
    }
    // Only the delayed connection has such distances.
    let distances = |times: &[f64]| -> Vec<f64> {
        let pairs = times.windows(2);
        pairs.map(|pair| pair[1] - pair[0]).collect()
    };
    let slow = times.values().map(|times| distances(times));
    let slow = slow.filter(|distances| distances.iter().all(|distance| *distance >= 0.039));
    let slow: Vec<_> = slow.filter(|distances| distances.len() >= 10).collect();
    assert_eq!(slow.len(), 1, "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_held_locks_renew_in_batches_without_loss() {
    const LOCKS: u64 = 20_000;
    let server = RedisServer::start();
    // The lease scales with the speed of the machine, which may halve: all acquires fit into one lease, and all
    // renewals fit into a third of it.
    let start = Instant::now();
    let locks = manager(server.url(), LEASE).await;
    let sample = (0..5_000).map(|n| locks.acquire(format!("sample:{n}")).wait(PATIENCE));
    let sample = join_all(sample.map(IntoFuture::into_future)).await;
    assert!(sample.iter().all(Result::is_ok));
    let lease = (36 * start.elapsed()).clamp(5 * SECOND, 8 * LEASE);
    drop(sample);
    nothing_is_left(&server, &[&locks], 10 * SECOND, "the sample").await;
    let locks = manager(server.url(), lease).await;
    let guards: Vec<_> = stream::iter(0..LOCKS)
        .map(|n| locks.acquire(format!("k:{n}")).wait(PATIENCE).into_future())
        .buffer_unordered(256)
        .map(Result::unwrap)
        .collect()
        .await;
    let renewals = || server.calls("hexists");
    let (commands_before, renewals_before) = (scripts_called(&server), renewals());
    // Three rounds.
    let deadline = Instant::now() + 2 * lease + 30 * SECOND;
    while renewals() - renewals_before < 3 * LOCKS {
        assert!(Instant::now() < deadline, "three renewals of each");
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        assert_eq!(lost, 0, "after {} renewals", renewals() - renewals_before);
        sleep(500 * MS).await;
    }
    let renewals = renewals() - renewals_before;
    let commands = scripts_called(&server) - commands_before;
    assert!(
        commands <= renewals / 80,
        "{commands} commands for {renewals} renewals"
    );
    assert_eq!(server.cli(&["DBSIZE"]), (LOCKS + 1).to_string());
    drop(guards);
    within(30 * SECOND, "released", || locks.snapshot().is_idle()).await;
    assert_eq!(server.cli(&["DBSIZE"]), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_release_reaches_waiter_in_three_round_trips() {
    let server = RedisServer::start();
    let (here, there) = managers(server.url(), LEASE).await;
    let mut round_trips = Vec::new();
    let mut hand_overs = Vec::new();
    for _ in 0..200 {
        // Each round measures both times, so a busy machine slows down both.
        let start = Instant::now();
        let guard = there.acquire("k").await.unwrap();
        round_trips.push(start.elapsed());
        let acquire = here.acquire("k").wait_forever();
        let waiter = tokio::spawn(async move {
            let guard = acquire.await.unwrap();
            (guard, Instant::now())
        });
        eventually("subscribed", || {
            here.snapshot().waiting == 1 && subscribers(&server, "k") == 1
        })
        .await;
        sleep(3 * MS).await;
        let start = Instant::now();
        let (released, granted) = join(guard.release(), waiter).await;
        released.unwrap();
        let (guard, at) = granted.unwrap();
        hand_overs.push(at.saturating_duration_since(start));
        guard.release().await.unwrap();
        // For 20 ms after the transfer, an acquire enters the queue, which takes more than one round trip.
        sleep(25 * MS).await;
    }
    let round_trip = percentile(&mut round_trips, 50);
    let median = percentile(&mut hand_overs, 50);
    // The message wakes more tasks than the reply to an acquire, and on a busy machine each of them waits for a core. Without
    // a message, the waiter would poll after a second.
    assert!(
        median <= 3 * round_trip + 50 * MS,
        "{median:?} with round trips of {round_trip:?}"
    );
    // The machine determines the slowest percent, but each of these was notified.
    let slowest = percentile(&mut hand_overs, 99);
    let slow_trip = percentile(&mut round_trips, 99);
    assert!(
        slowest <= 4 * slow_trip + 200 * MS,
        "{slowest:?} with round trips of {slow_trip:?}"
    );
    assert!(percentile(&mut hand_overs, 100) < 800 * MS, "a poll");
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

/// A failover that loses writes restores a place that this process has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_to_restored_place_expires() {
    let server = RedisServer::start();
    let (here, there) = managers(server.url(), LEASE).await;
    let guard = here.acquire("k").await.unwrap();
    let waiter = tokio::spawn(there.acquire("k").into_future());
    let queue = "lock:{lock:k}%queue";
    let place = || {
        let members = server.cli(&["ZRANGE", queue, "0", "-1"]);
        let listens = members.lines().find_map(|it| it.strip_prefix('!'));
        listens.map(str::to_owned)
    };
    eventually("it listens", || place().is_some()).await;
    let place = place().unwrap();
    let (manager, _number) = place.split_once(':').unwrap();
    let deadline = format!("!{manager}:999999");
    server.cli(&["ZADD", queue, "0", &deadline[1..], "9e12", &deadline]);
    let start = Instant::now();
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    // The transferred lease expires after 1.5 s.
    assert!(start.elapsed() < 3 * SECOND, "{:?}", start.elapsed());
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}
