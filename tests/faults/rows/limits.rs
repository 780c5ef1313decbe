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
use crate::run::{PROCESSES, Run};
use crate::store::Topology::{Own, Single};
use crate::support::engine::{
    MS, PATIENCE, SECOND, by, eventually, manager, nothing_is_left, scripts_called, subscribers,
    within,
};
use crate::support::redis_server::RedisServer;

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            Single(&[]),
            "a flood of acquires on one connection",
            |run| Box::pin(flood(run)),
        ),
        Row::new(Own, "pool exhausted", |run| Box::pin(no_connection(run))),
        Row::new(Single(&[]), "10 000 waiters on one key", |run| {
            Box::pin(crowd(run))
        }),
        Row::new(Own, "100 000 locks held", |run| {
            Box::pin(hundred_thousand(run))
        })
        .once(),
        Row::new(Single(&[]), "key of 1 MB, hostile bytes", |run| {
            Box::pin(hostile_keys(run))
        }),
        Row::new(
            Own,
            "eviction policy, a replica, memory full: warned",
            |run| Box::pin(warned(run)),
        ),
    ]
}

/// Attempts for other keys do not starve renewals and releases.
async fn flood(run: &mut Run) {
    let since = Instant::now();
    let locks = run.managers[0].clone();
    let mut answered = 0;
    while since.elapsed() < 2 * SECOND {
        let tries = (0..100).map(|n| locks.acquire(format!("flood:{n}")).no_wait().into_future());
        for outcome in join_all(tries).await {
            answered += usize::from(outcome.is_ok());
        }
    }
    for process in 0..PROCESSES {
        let kept = run.held_from(&kept(process), since);
        run.referee.expect(kept, "holders", || {
            format!("process {process} lost its lock")
        });
    }
    run.proof(answered > 300, format!("{answered} grants beside the load"));
}

/// An exhausted pool of the program is reported in time. A later connection stays out of the pool.
async fn no_connection(run: &mut Run) {
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
    let refused = by(start + 600 * MS, "a rejection", connect()).await;
    run.proof(refused.is_err(), "nothing left");
    drop(taken);
    let backend = connect().await.expect("a connection was released");
    let locks = LockManager::builder(backend)
        .watchdog_timeout(SECOND)
        .build()
        .expect("valid");
    // The connection has left the pool, so the program can exhaust the pool again.
    let others = pool.get().await.expect("room for another");
    let guard = locks.acquire("k").await.expect("it is free");
    sleep(1_500 * MS).await;
    run.referee
        .expect(guard.is_held(), "holders", || "not renewed".to_owned());
    guard.release().await.expect("it was held");
    drop(others);
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

async fn crowd(run: &mut Run) {
    let server_url = run.server().url();
    let (here, there) = (
        manager(server_url.clone(), run.row.lease).await,
        manager(server_url, run.row.lease).await,
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
    run.evidence("10 000 wait".to_owned());
    eventually("subscribed", || subscribers(run.server(), "crowd") == 1).await;
    let tries = |run: &Run| {
        let lines = run.wire();
        let tries = lines
            .iter()
            .filter(|line| line.contains("\"2\" \"lock:crowd\""));
        tries.count()
    };
    let before = tries(run);
    sleep(SECOND).await;
    let tries = tries(run) - before;
    run.referee.expect(tries <= 3, "I15", || {
        format!("{tries} tries for 10 000 waiters")
    });
    let mut last = guard.fencing_token();
    drop(guard);
    // I11. A tenth of the waiters suffices.
    for waiter in waiters.drain(..1_000) {
        let guard = waiter.await.expect("no panic").expect("served");
        let token = guard.fencing_token();
        run.referee
            .expect(token > last, "I11", || "out of order".to_owned());
        last = token;
    }
    // Dropping the handle also drops the guard of a waiter that was granted in between.
    waiters.into_iter().for_each(|waiter| waiter.abort());
    within(2 * SECOND, "idle", || here.snapshot().is_idle()).await;
}

/// Leases are renewed in batches, and none is lost.
async fn hundred_thousand(run: &mut Run) {
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
    run.proof(
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
    let time = format!("{sweep:.1?} to renew");
    run.referee.expect(in_time, "sweep", || time.clone());
    run.evidence(time);
    let sent = scripts_called(&server) - commands;
    let renewed = renewals() - before;
    run.referee.expect(sent <= renewed / 80, "I15", || {
        format!("{sent} commands for {renewed} renewals")
    });
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    run.referee
        .expect(lost == 0, "holders", || format!("{lost} lost"));
    drop(guards);
    within(30 * SECOND, "released", || locks.snapshot().is_idle()).await;
    run.referee
        .expect(server.cli(&["DBSIZE"]) == "1", "I10", || {
            "keys are left".to_owned()
        });
}

/// Each key in Redis is bounded in length and contains no ambiguous byte.
async fn hostile_keys(run: &mut Run) {
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
        let first = run.managers[0].acquire(key.clone()).await.expect("free");
        let second = run.managers[1].acquire(key).no_wait().await;
        let busy = second.is_err_and(|error| error.kind() == ErrorKind::Busy);
        run.referee
            .expect(busy, "I1", || format!("hostile key {n} was granted twice"));
        let name = first.key().as_str().to_owned();
        let in_redis = run.server().cli(&["EXISTS", &format!("lock:{name}")]) == "1";
        run.referee.expect(in_redis, "I15", || {
            format!("hostile key {n} has another name in Redis")
        });
        names.push(name);
        drop(first.release().await);
        sleep(millis(1..5)).await;
    }
    let empty = run.managers[0].acquire("").no_wait().await;
    let refused = empty.is_err_and(|error| error.kind() == ErrorKind::InvalidKey);
    run.referee
        .expect(refused, "I15", || "the empty key was acquired".to_owned());
    let longest = names.iter().map(String::len).max().unwrap_or(0);
    let clean = names.iter().all(|name| !name.chars().any(char::is_control));
    run.proof(
        names.len() == hostile.len(),
        format!("{longest} bytes at most"),
    );
    run.referee.expect(
        longest <= tower_lock::LockKey::MAX_LEN && clean,
        "I15",
        || "a key was not encoded".to_owned(),
    );
}

async fn warned(run: &mut Run) {
    let server = RedisServer::start();
    let warnings = async || {
        let backend = RedisBackend::builder(server.url()).connect().await;
        backend.expect("it connects").warnings().to_vec()
    };
    let quiet = warnings().await;
    run.proof(quiet.is_empty(), "none without a reason");
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
        run.proof(!said.is_empty(), format!("warned of {bad:?}"));
        server.cli(&good.split(' ').collect::<Vec<_>>());
    }
}
