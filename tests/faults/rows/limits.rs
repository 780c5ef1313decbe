//! Too many locks, waiters and bytes, and misconfigured servers.

use std::time::Duration;

use deadpool_redis::{Config, PoolConfig, Runtime};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::{poll, stream};
use tokio::time::{Instant, sleep};
use tower_lock::{ErrorKind, LockManager, RedisBackend};

use super::Row;
use crate::load::{kept, millis};
use crate::store::Topology::{Own, Single};
use crate::support::engine::{
    MS, PATIENCE, SECOND, by, eventually, manager, nothing_is_left, scripts_called, subscribers,
    within,
};
use crate::support::redis_server::RedisServer;
use crate::world::{PROCESSES, World};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            Single(&[]),
            "a flood of acquires on one connection",
            |world| Box::pin(flood(world)),
        ),
        Row::new(Own, "pool exhausted", |world| {
            Box::pin(no_connection(world))
        }),
        Row::new(Single(&[]), "10 000 waiters on one key", |world| {
            Box::pin(crowd(world))
        }),
        Row::new(Own, "100 000 locks held", |world| {
            Box::pin(hundred_thousand(world))
        })
        .once(),
        Row::new(Single(&[]), "key of 1 MB, hostile bytes", |world| {
            Box::pin(hostile_keys(world))
        }),
        Row::new(
            Own,
            "eviction policy, a replica, memory full: warned",
            |world| Box::pin(warned(world)),
        ),
    ]
}

/// Attempts for other keys do not starve renewals and releases.
async fn flood(world: &mut World) {
    let since = Instant::now();
    let locks = world.managers[0].clone();
    let mut answered = 0;
    while since.elapsed() < 2 * SECOND {
        let tries = (0..100).map(|n| locks.acquire(format!("flood:{n}")).no_wait().into_future());
        for outcome in join_all(tries).await {
            answered += usize::from(outcome.is_ok());
        }
    }
    for process in 0..PROCESSES {
        let kept = world.held_from(&kept(process), since);
        world.referee.expect(kept, "holders", || {
            format!("process {process} lost its lock")
        });
    }
    world.proof(answered > 300, format!("{answered} grants beside the load"));
}

/// An exhausted pool of the program is reported in time. A later connection stays out of the pool.
async fn no_connection(world: &mut World) {
    let server = RedisServer::start();
    let mut config = Config::from_url(server.url());
    config.pool = Some(PoolConfig::new(1));
    let pool = config.create_pool(Some(Runtime::Tokio1)).expect("a pool");
    let taken = pool.get().await.expect("one is left");
    let connect = || {
        RedisBackend::from_pool(pool.clone())
            .connect_timeout(500 * MS)
            .connect()
    };
    let start = Instant::now();
    let refused = by(start + 600 * MS, "a refusal", connect()).await;
    world.proof(refused.is_err(), "nothing left");
    drop(taken);
    let backend = connect().await.expect("it was given back");
    let locks = LockManager::builder(backend)
        .watchdog_timeout(SECOND)
        .build()
        .expect("valid");
    // The connection has left the pool, so the program can exhaust the pool again.
    let others = pool.get().await.expect("room for another");
    let guard = locks.acquire("k").await.expect("it is free");
    sleep(1_500 * MS).await;
    world
        .referee
        .expect(guard.is_held(), "holders", || "not renewed".to_owned());
    guard.release().await.expect("it was held");
    drop(others);
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

async fn crowd(world: &mut World) {
    let server_url = world.server().url();
    let (here, there) = (
        manager(server_url.clone(), world.row.lease).await,
        manager(server_url, world.row.lease).await,
    );
    let guard = there.acquire("crowd").await.expect("it is free");
    let mut waiters = Vec::new();
    for _ in 0..10_000 {
        // The waiters are polled here, so that they enter in this order.
        let mut waiter = Box::pin(here.acquire("crowd").wait_forever().into_future());
        assert!(poll!(&mut waiter).is_pending());
        waiters.push(tokio::spawn(waiter));
    }
    // The first one counts as a waiter once its first attempt is rejected.
    eventually("all wait", || here.snapshot().waiting == 10_000).await;
    world.evidence("10 000 wait".to_owned());
    eventually("subscribed", || subscribers(world.server(), "crowd") == 1).await;
    let tries = |world: &World| {
        let lines = world.wire();
        let tries = lines
            .iter()
            .filter(|line| line.contains("\"2\" \"lock:crowd\""));
        tries.count()
    };
    let before = tries(world);
    sleep(SECOND).await;
    let tries = tries(world) - before;
    world.referee.expect(tries <= 3, "I15", || {
        format!("{tries} tries for 10 000 waiters")
    });
    let mut last = guard.fencing_token();
    drop(guard);
    // I11. A tenth of the waiters suffices.
    for waiter in waiters.drain(..1_000) {
        let guard = waiter.await.expect("no panic").expect("served");
        let token = guard.fencing_token();
        world
            .referee
            .expect(token > last, "I11", || "out of order".to_owned());
        last = token;
    }
    // Dropping the handle also drops the guard of a waiter that was granted in between.
    waiters.into_iter().for_each(|waiter| waiter.abort());
    within(2 * SECOND, "idle", || here.snapshot().is_idle()).await;
}

/// Leases are renewed in batches, and none is lost.
async fn hundred_thousand(world: &mut World) {
    const LOCKS: u64 = 100_000;
    const LEASE: Duration = Duration::from_secs(60);
    let server = RedisServer::start();
    let locks = manager(server.url(), LEASE).await;
    let start = Instant::now();
    let guards: Vec<_> = stream::iter(0..LOCKS)
        .map(|n| locks.acquire(format!("k:{n}")).wait(PATIENCE).into_future())
        .buffer_unordered(256)
        .filter_map(async |outcome| outcome.ok())
        .collect()
        .await;
    world.proof(
        guards.len() as u64 == LOCKS,
        format!("{:.1?} to take", start.elapsed()),
    );
    let commands = scripts_called(&server);
    let renewals = || server.calls("hexists");
    let before = renewals();
    within(LEASE / 3 + PATIENCE, "the sweep", || renewals() > before).await;
    let sweep = Instant::now();
    within(PATIENCE, "renewed once", || renewals() - before >= LOCKS).await;
    let sweep = sweep.elapsed();
    let in_time = sweep < LEASE / 6;
    let told = format!("{sweep:.1?} to renew");
    world.referee.expect(in_time, "sweep", || told.clone());
    world.evidence(told);
    let sent = scripts_called(&server) - commands;
    let renewed = renewals() - before;
    world.referee.expect(sent <= renewed / 80, "I15", || {
        format!("{sent} commands for {renewed} renewals")
    });
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    world
        .referee
        .expect(lost == 0, "holders", || format!("{lost} lost"));
    drop(guards);
    within(30 * SECOND, "released", || locks.snapshot().is_idle()).await;
    world
        .referee
        .expect(server.cli(&["DBSIZE"]) == "1", "I10", || {
            "keys are left".to_owned()
        });
}

/// Each key in Redis is bounded in length and contains no ambiguous byte.
async fn hostile_keys(world: &mut World) {
    let hostile: Vec<Vec<u8>> = vec![
        vec![b'x'; 1 << 20],
        vec![0xff; 1 << 20],
        (0..=255).collect(),
        b"a\r\nFLUSHALL\r\n".to_vec(),
        b"{".to_vec(),
        b"}{a}{".to_vec(),
        b"\0".to_vec(),
    ];
    let mut names = Vec::new();
    for (n, bytes) in hostile.iter().enumerate() {
        let key = tower_lock::LockKey::new(bytes);
        let first = world.managers[0].acquire(key.clone()).await.expect("free");
        let second = world.managers[1].acquire(key).no_wait().await;
        let busy = second.is_err_and(|error| error.kind() == ErrorKind::Busy);
        world
            .referee
            .expect(busy, "I1", || format!("hostile key {n} was granted twice"));
        let name = first.key().as_str().to_owned();
        let in_redis = world.server().cli(&["EXISTS", &format!("lock:{name}")]) == "1";
        world.referee.expect(in_redis, "I15", || {
            format!("hostile key {n} has another name in Redis")
        });
        names.push(name);
        drop(first.release().await);
        sleep(millis(1..5)).await;
    }
    let empty = world.managers[0].acquire("").no_wait().await;
    let refused = empty.is_err_and(|error| error.kind() == ErrorKind::InvalidKey);
    world
        .referee
        .expect(refused, "I15", || "the empty key was taken".to_owned());
    let longest = names.iter().map(String::len).max().unwrap_or(0);
    let clean = names.iter().all(|name| !name.chars().any(char::is_control));
    world.proof(
        names.len() == hostile.len(),
        format!("{longest} bytes at most"),
    );
    world.referee.expect(
        longest <= tower_lock::LockKey::MAX_LEN && clean,
        "I15",
        || "a key was not encoded".to_owned(),
    );
}

async fn warned(world: &mut World) {
    let server = RedisServer::start();
    let warnings = async || {
        let backend = RedisBackend::builder(server.url()).connect().await;
        backend.expect("it connects").warnings().to_vec()
    };
    let quiet = warnings().await;
    world.proof(quiet.is_empty(), "none without a reason");
    for (bad, good) in [
        (
            "CONFIG SET maxmemory-policy allkeys-lru",
            "CONFIG SET maxmemory-policy noeviction",
        ),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    ] {
        server.cli(&bad.split(' ').collect::<Vec<_>>());
        let said = warnings().await;
        world.proof(!said.is_empty(), format!("warned of {bad:?}"));
        server.cli(&good.split(' ').collect::<Vec<_>>());
    }
}
