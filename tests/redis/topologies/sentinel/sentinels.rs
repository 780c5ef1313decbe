//! Sentinels that die, hang or disagree, and their settings.

use tokio::time::{Instant, timeout};
use tower_lock::{ConnectError, ErrorKind, LockManager, RedisBackend};

use super::support::{GIVEN_BACK, NEXT_GRANT, SHORT, replicated, url, waiter};
use crate::backend::contract::passes_conformance;
use crate::support::engine::{
    MS, PATIENCE, SECOND, by, eventually, fails_at_its_deadline, nothing_is_left, prompt_managers,
    pttl, subscribers, within,
};
use crate::support::errors::debug_chain;
use crate::support::sentinel::SentinelSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_primary_passes_conformance() {
    let set = SentinelSet::start();
    let connect = || {
        let builder = RedisBackend::builder(url(&set));
        // A busy machine must not cause timeouts.
        builder.response_timeout(10 * SECOND).connect()
    };
    let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
    assert_eq!(one.warnings(), <&[String]>::default());
    passes_conformance(&one, &other).await;
}

#[derive(Debug, Clone, Copy)]
enum Odd {
    Dead,
    Silent,
    /// It names the primary of another service.
    Wrong,
}

async fn one_is_odd(odd: Odd) {
    let mut set = SentinelSet::start();
    let other = matches!(odd, Odd::Wrong).then(SentinelSet::start);
    let url = match &other {
        Some(other) => {
            let addresses = (other.addresses(), set.addresses());
            let (wrong, (_, right)) = (
                addresses.0.split(',').next().unwrap(),
                addresses.1.split_once(',').unwrap(),
            );
            format!("redis+sentinel://{wrong},{right}/{}", set.service())
        }
        None => url(&set),
    };
    match odd {
        Odd::Dead => set.sentinel(0).kill(),
        Odd::Silent => set.sentinel(0).stop_process(),
        Odd::Wrong => {}
    }
    // A silent Sentinel costs a quarter of the connect timeout.
    let connect = RedisBackend::builder(url).connect_timeout(40 * SECOND);
    let connect = connect.response_timeout(10 * SECOND).connect();
    let backend = by(Instant::now() + 5 * SECOND, "a connection", connect).await;
    let backend = backend.unwrap();
    let locks = LockManager::builder(backend).build().unwrap();
    let guard = locks.acquire("k").await.unwrap();
    assert!(pttl(set.node(set.primary()), "k") > 0);
    replicated(&set);
    set.kill_primary();
    let next = tokio::spawn(locks.acquire("next").wait(PATIENCE).into_future());
    set.failover().await;
    let deadline = Instant::now() + NEXT_GRANT;
    drop(by(deadline, "a waiter", next).await.unwrap().unwrap());
    let new = set.node(set.primary());
    within(NEXT_GRANT, "renewed", || pttl(new, "k") > 29_000).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    nothing_is_left(new, &[&locks], GIVEN_BACK, odd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_sentinel_does_not_delay_failover() {
    one_is_odd(Odd::Dead).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_sentinel_does_not_delay_failover() {
    one_is_odd(Odd::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_naming_other_primary_is_outvoted() {
    one_is_odd(Odd::Wrong).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_outage_delays_only_new_connections() {
    let mut set = SentinelSet::start();
    let lease = 3 * SHORT;
    let (here, there) = prompt_managers(url(&set), lease).await;
    let guard = here.acquire("k").await.unwrap();
    let waiting = waiter(&there, "k").await;
    eventually("subscribed", || subscribers(set.node(0), "k") == 1).await;
    for sentinel in 0..3 {
        set.sentinel(sentinel).kill();
    }
    for n in 0..100 {
        drop(here.acquire(format!("other:{n}")).await.unwrap());
    }
    // The watchdog renews the lease more than once.
    let end = Instant::now() + guard.remaining();
    within(PATIENCE, "renewals", || {
        Instant::now() + guard.remaining() > end + lease
    })
    .await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let woken = by(released + 600 * MS, "the message", waiting).await;
    drop(woken.unwrap().unwrap());

    let error = RedisBackend::builder(url(&set))
        .connect()
        .await
        .unwrap_err();
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains(&set.addresses()), "{error}");

    set.cli(0, &["CLIENT", "KILL", "TYPE", "normal"]);
    let error = fails_at_its_deadline(here.acquire("k"), SECOND).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let waiting = waiter(&here, "k").await;
    for sentinel in 0..2 {
        set.sentinel(sentinel).launch_again();
    }
    let guard = timeout(2 * SECOND, waiting).await;
    drop(guard.expect("found again").unwrap().unwrap());
    nothing_is_left(set.node(0), &[&here, &there], GIVEN_BACK, "the end").await;
}

#[tokio::test]
async fn connect_to_unknown_service_is_rejected() {
    let mut set = SentinelSet::start();
    for dead in 0..3 {
        let error = RedisBackend::builder(set.url("unheard-of"))
            .connect()
            .await
            .unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains("unheard-of"), "{error}");
        let cause = debug_chain(&error);
        assert!(cause.contains("is unknown to the sentinels"), "{cause}");
        if dead < 2 {
            set.sentinel(dead).kill();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_and_sentinels_use_separate_passwords() {
    let nodes = ["--requirepass", "of-nodes", "--masterauth", "of-nodes"];
    let mut set = SentinelSet::start_with(&nodes, &["--requirepass", "of-sentinels"]);
    let url = |login: &str| {
        format!(
            "redis+sentinel://{login}{}/{}/3",
            set.addresses(),
            set.service()
        )
    };
    let right = url("default:of-nodes@");
    for (url, of_sentinels) in [
        (url(""), Some("of-sentinels")),
        (url(":wrong-one@"), Some("of-sentinels")),
        (url("other:of-nodes@"), Some("of-sentinels")),
        (right.clone(), Some("wrong-one")),
        (right.clone(), None),
    ] {
        let mut builder = RedisBackend::builder(url);
        if let Some(password) = of_sentinels {
            builder = builder.sentinel_auth("", password);
        }
        let error = builder.connect().await.unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
        let text = debug_chain(&error);
        for secret in ["of-nodes", "of-sentinels", "wrong-one"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    let builder = RedisBackend::builder(right).sentinel_auth("default", "of-sentinels");
    assert!(!format!("{builder:?}").contains("of-sentinels"));
    let backend = builder.connect().await.unwrap();
    assert!(!format!("{backend:?}").contains("of-"), "{backend:?}");
    let locks = LockManager::builder(backend).build().unwrap();
    drop(locks.acquire("k").await.unwrap());
    set.kill_primary();
    set.failover().await;
    let guard = locks.acquire("k").await.unwrap();
    // The lock is in the database of the URL, not in database 0.
    assert_eq!(pttl(set.node(set.primary()), "k"), -2);
    drop(guard);
}
