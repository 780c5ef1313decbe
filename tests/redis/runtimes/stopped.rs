//! A runtime that dialled a connection and then stops delays no caller in another runtime.

use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use futures_util::poll;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::Backend as _;
use tower_lock::{LockKey, LockManager, RedisBackend};

use crate::support::engine::{
    MS, PATIENCE, connected, eventually, manager_on, prompt_manager, pttl, subscribers, within,
};
use crate::support::other_runtime::{Fate, Other, current_thread};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;
use crate::support::sentinel::SentinelSet;

const LEASE: Duration = Duration::from_secs(30);
/// A caller that waits for the stopped runtime waits for at least this long.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The tolerance for a busy machine.
const SOON: Duration = Duration::from_secs(2);
const FATES: [Fate; 4] = [Fate::Idles, Fate::Blocks, Fate::Ends, Fate::ThreadsEnd];

async fn patient(url: String) -> LockManager {
    let builder = || RedisBackend::builder(url.clone()).response_timeout(RESPONSE_TIMEOUT);
    let backend = connected(builder).await;
    let locks = LockManager::builder(backend).watchdog_timeout(LEASE);
    locks.build().unwrap()
}

/// Connects, acquires and waits in a runtime that then stops.
fn dialled_elsewhere(fate: Fate, url: String) -> (LockManager, Other) {
    let (send, receive) = std::sync::mpsc::channel();
    let other = Other::after(fate, async move {
        let locks = patient(url).await;
        let key = format!("kept:{fate:?}");
        let kept = locks.acquire(&*key).await.unwrap();
        let mut waiting = Box::pin(locks.acquire(key).into_future());
        assert!(poll!(&mut waiting).is_pending());
        drop(locks.acquire("first").await.unwrap());
        // Waits for the subscription.
        sleep(100 * MS).await;
        send.send(locks).unwrap();
        (kept, waiting)
    });
    (receive.recv().unwrap(), other)
}

fn in_each_case(test: impl Fn(&LockManager, &RedisServer) + Sync) {
    thread::scope(|scope| {
        for fate in FATES {
            let test = &test;
            let case = thread::Builder::new().name(format!("{fate:?}"));
            let spawned = case.spawn_scoped(scope, move || {
                let server = RedisServer::start();
                let (locks, _other) = dialled_elsewhere(fate, server.url());
                test(&locks, &server);
            });
            spawned.unwrap();
        }
    });
}

#[test]
fn stopped_dialler_delays_no_command() {
    in_each_case(|locks, _| {
        current_thread().block_on(async {
            let start = Instant::now();
            let guard = locks.acquire("k").no_wait().await.unwrap();
            guard.release().await.unwrap();
            let all = (0..200).map(|n| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    let guard = locks.acquire(format!("k:{n}")).no_wait().await;
                    guard.unwrap().release().await.unwrap();
                })
            });
            for one in all.collect::<Vec<_>>() {
                one.await.unwrap();
            }
            let took = start.elapsed();
            assert!(took < SOON, "delayed for {took:?}");
        });
    });
}

#[test]
fn stopped_dialler_delays_no_renewal() {
    in_each_case(|locks, server| {
        current_thread().block_on(async {
            let guard = locks.acquire("k").await.unwrap();
            server.cli(&["PEXPIRE", "lock:k", "20000"]);
            // The end of the connection renews at once.
            server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
            within(SOON, "a renewal", || pttl(server, "k") > 25_000).await;
            assert!(guard.is_held());
        });
    });
}

#[test]
fn stopped_dialler_delays_no_loss() {
    in_each_case(|locks, server| {
        current_thread().block_on(async {
            let guard = locks.acquire("k").await.unwrap();
            server.cli(&["DEL", "lock:k"]);
            server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
            let lost = timeout(SOON, guard.lost()).await;
            lost.expect("the loss is reported");
        });
    });
}

#[test]
fn stopped_subscriber_delays_no_notification() {
    in_each_case(|locks, server| {
        current_thread().block_on(async {
            let there = prompt_manager(server.url(), LEASE).await;
            let guard = there.acquire("k").await.unwrap();
            let mut waiting = Box::pin(locks.acquire("k").into_future());
            assert!(poll!(&mut waiting).is_pending());
            let subscribed = eventually("subscribed", || subscribers(server, "k") == 1);
            tokio::select! {
                _ = &mut waiting => panic!("granted twice"),
                () = subscribed => {}
            }
            let released = Instant::now();
            guard.release().await.unwrap();
            // The next attempt by the clock is 900 ms away.
            let granted = timeout(600 * MS, waiting).await;
            let waited = released.elapsed();
            let granted = granted.unwrap_or_else(|_| panic!("{waited:?}"));
            drop(granted.unwrap());
        });
    });
}

/// The waiter subscribed before the runtime of the subscriptions ends, which is the home of another manager, and no other
/// begins to wait.
#[test]
fn end_of_subscriber_delays_no_earlier_waiter() {
    let server = RedisServer::start();
    let ending = Runtime::new().unwrap();
    current_thread().block_on(async {
        // Commands go over the thread of the crate, so their connection does not end.
        let builder = || RedisBackend::builder(server.url()).response_timeout(RESPONSE_TIMEOUT);
        let backend = connected(builder).await;
        let home = ending.handle().clone();
        let ends = LockManager::builder(backend.clone()).runtime(home).build();
        let ends = ends.unwrap();
        let locks = manager_on(&backend);
        let there = prompt_manager(server.url(), LEASE).await;
        let first = there.acquire("first").await.unwrap();
        let guard = there.acquire("k").await.unwrap();
        // The first watch of the backend, which chooses the runtime.
        let wait = ends.acquire("first").into_future();
        let wait = ending.spawn(wait);
        eventually("first subscription", || subscribers(&server, "first") == 1).await;
        let mut waiting = Box::pin(locks.acquire("k").into_future());
        tokio::select! {
            _ = &mut waiting => panic!("granted twice"),
            () = eventually("subscribed", || subscribers(&server, "k") == 1) => {}
        }
        let connections = || {
            let clients = server.clients("pubsub").into_iter();
            let id = |line: String| line.split(' ').next().unwrap().to_owned();
            clients.map(id).collect::<Vec<_>>()
        };
        let ended = connections();
        ending.shutdown_background();
        assert!(wait.await.unwrap_err().is_cancelled());
        let is_restored = || {
            let replaced = connections().iter().all(|id| !ended.contains(id));
            replaced && subscribers(&server, "k") == 1
        };
        tokio::select! {
            _ = &mut waiting => panic!("granted twice"),
            () = eventually("subscribed again", is_restored) => {}
        }
        guard.release().await.unwrap();
        // The next attempt by the clock is 800 ms away or more.
        drop(timeout(600 * MS, waiting).await.expect("notified").unwrap());
        drop(first);
    });
}

#[test]
fn stopped_dialler_delays_no_replicated_grant() {
    thread::scope(|scope| {
        for fate in FATES {
            scope.spawn(move || {
                let server = RedisServer::start();
                let port = server.port().to_string();
                let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
                current_thread().block_on(eventually("a replica", || {
                    replica.cli(&["ROLE"]).contains("connected")
                }));
                let url = server.url();
                let (send, receive) = std::sync::mpsc::channel();
                let _other = Other::after(fate, async move {
                    let builder = RedisBackend::builder(url).response_timeout(RESPONSE_TIMEOUT);
                    let builder = builder.min_replicas(NonZeroUsize::MIN, RESPONSE_TIMEOUT);
                    let locks = LockManager::builder(builder.connect().await.unwrap());
                    let locks = locks.build().unwrap();
                    drop(locks.acquire("first").await.unwrap());
                    sleep(100 * MS).await;
                    send.send(locks).unwrap();
                });
                let locks = receive.recv().unwrap();
                current_thread().block_on(async {
                    let acquire = timeout(SOON, locks.acquire("k").no_wait());
                    drop(acquire.await.expect("in time").unwrap());
                });
            });
        }
    });
}

/// The sentinels were first asked in the stopped runtime.
#[test]
fn stopped_dialler_delays_no_failover() {
    let mut set = SentinelSet::start();
    let url = set.url(set.service());
    let driven = current_thread();
    let others = FATES.map(|fate| {
        let (locks, other) = dialled_elsewhere(fate, url.clone());
        let acquire = locks.acquire(format!("k:{fate:?}")).into_future();
        let guard = driven.block_on(acquire).unwrap();
        (fate, locks, guard, other)
    });
    // The count of `WAIT` is of its own connection's writes.
    set.cli(set.primary(), &["PUBLISH", "unused", ""]);
    assert_eq!(set.cli(set.primary(), &["WAIT", "2", "5000"]), "2");
    set.kill_primary();
    driven.block_on(set.failover());
    for (fate, locks, guard, _other) in &others {
        let key = format!("after:{fate:?}");
        let acquire = locks.acquire(key).wait(PATIENCE).into_future();
        let granted = driven.block_on(async { timeout(SOON, acquire).await });
        drop(
            granted
                .unwrap_or_else(|_| panic!("{fate:?}: late"))
                .unwrap(),
        );
        assert!(guard.is_held());
    }
}

/// A task of the blocked runtime sends the shared calls of its own callers only.
#[test]
fn blocked_runtime_delays_no_shared_call() {
    let server = RedisServer::start();
    let here = current_thread();
    // The proxy forwards only while this runtime is driven, so no reply arrives early.
    let proxy = here.block_on(Proxy::start(server.port()));
    let locks = here.block_on(patient(proxy.url()));
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let there = builder.worker_threads(1).enable_all().build().unwrap();
    let (blocks, is_blocked) = std::sync::mpsc::channel();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let others = locks.clone();
    drop(there.spawn(async move {
        let mut acquires = ["a", "b"].map(|key| Box::pin(others.acquire(key).into_future()));
        for acquire in &mut acquires {
            assert!(poll!(acquire).is_pending());
        }
        blocks.send(()).unwrap();
        is_over.recv().unwrap_err();
    }));
    is_blocked.recv().unwrap();
    here.block_on(async {
        let granted = timeout(SOON, locks.acquire("k").into_future()).await;
        drop(granted.expect("in time").unwrap());
    });
    drop(over);
}

/// The acquire waits for its turn in a shared call while its runtime ends. Its release overtakes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runtime_end_leaves_no_unsent_acquire() {
    const DELAY: Duration = Duration::from_millis(300);
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let locks = patient(proxy.url()).await;
    drop(locks.acquire("before").await.unwrap());
    eventually("released", || pttl(&server, "before") == -2).await;
    proxy.delay(DELAY);
    // The first one is sent alone, and the second one in a shared call.
    let sent = ["first", "second"].map(|key| tokio::spawn(locks.acquire(key).into_future()));
    sleep(50 * MS).await;
    let there = locks.clone();
    let work = async move {
        drop(tokio::spawn(there.acquire("unsent").into_future()));
        sleep(50 * MS).await;
    };
    let other = tokio::task::spawn_blocking(|| Other::after(Fate::Ends, work));
    let _other = other.await.unwrap();
    for sent in sent {
        drop(sent.await.unwrap().unwrap());
    }
    // Sent after all of them.
    drop(locks.acquire("last").await.unwrap());
    proxy.heal();
    for key in ["first", "second", "unsent", "last"] {
        within(SOON, key, || pttl(&server, key) == -2).await;
    }
}

/// The command was sent in the stopped runtime, and gets no reply.
#[test]
fn command_awaited_elsewhere_times_out() {
    let limit = 500 * MS;
    thread::scope(|scope| {
        for fate in FATES {
            scope.spawn(move || {
                let server = RedisServer::start();
                let url = server.url();
                let (send, receive) = std::sync::mpsc::channel();
                let (sent, stopped) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
                let other = thread::spawn(move || {
                    Other::after(fate, async move {
                        let builder = RedisBackend::builder(url).response_timeout(limit);
                        let backend = builder.connect().await.unwrap();
                        let key = LockKey::new("k");
                        assert!(backend.inspect(&key).await.unwrap().is_none());
                        sent.0.send(()).unwrap();
                        stopped.1.recv().unwrap();
                        let mut inspect = Box::pin(async move { backend.inspect(&key).await });
                        assert!(poll!(&mut inspect).is_pending());
                        send.send(inspect).unwrap();
                    })
                });
                sent.1.recv().unwrap();
                server.stop_process();
                stopped.0.send(()).unwrap();
                let inspect = receive.recv().unwrap();
                let _other = other.join().unwrap();
                let ended = current_thread().block_on(async { timeout(SOON, inspect).await });
                server.continue_process();
                ended.expect("in time").unwrap_err();
            });
        }
    });
}
