//! The calls of renewals.

use std::num::NonZeroU16;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend as _, BackendErrorKind, LeaseId, Mode, Renewal, Renewed,
};
use tower_lock::{LockGuard, LockKey, RedisBackend};
use uuid::Uuid;

use crate::support::engine::{PATIENCE, SECOND, eventually, prompt_manager, scripts_called};
use crate::support::proxy::{Proxy, Swallow};
use crate::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(30);

/// Connects with a response timeout for a busy machine.
async fn connect(url: String) -> RedisBackend {
    let builder = RedisBackend::builder(url).response_timeout(PATIENCE);
    builder.connect().await.unwrap()
}

/// A call of a hundred would occupy the server for twice as long.
#[tokio::test]
async fn shared_leases_are_renewed_by_calls_of_fifty() {
    const LEASES: u64 = 120;
    let server = RedisServer::start();
    let backend = connect(server.url()).await;
    let manager = Uuid::new_v4();
    let leases: Vec<_> = (0..LEASES)
        .map(|n| (LockKey::new(format!("k:{n}")), LeaseId::new(manager, n)))
        .collect();
    let acquires = leases.iter().map(|(key, lease)| {
        let request = AcquireRequest::new(key.clone(), *lease, TTL).with_mode(Mode::Shared);
        let backend = &backend;
        async move { backend.try_acquire(&request).await.unwrap() }
    });
    for acquired in join_all(acquires).await {
        assert!(matches!(acquired, Acquired::Granted { .. }), "{acquired:?}");
    }
    let renewals = leases.into_iter();
    let renewals = renewals.map(|(key, lease)| Renewal::new(key, lease, TTL));
    let renewals: Vec<_> = renewals.map(|it| it.with_mode(Mode::Shared)).collect();
    let before = scripts_called(&server);
    for renewed in backend.renew(&renewals).await {
        assert_eq!(renewed.unwrap(), Renewed::Renewed);
    }
    assert_eq!(scripts_called(&server) - before, 3);
}

/// The second half is not sent, which would wait for a reply once more.
#[tokio::test]
async fn lost_reply_ends_both_halves_of_renewals() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let patience = 3 * SECOND;
    let builder = RedisBackend::builder(proxy.url()).response_timeout(patience);
    let backend = builder.connect().await.unwrap();
    let renewals = (0..100).map(|n| {
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        Renewal::new(LockKey::new(format!("k:{n}")), lease, TTL).with_mode(Mode::Shared)
    });
    let renewals: Vec<_> = renewals.collect();
    let found = backend.renew(&renewals).await;
    assert!(found.iter().all(Result::is_ok), "{found:?}");
    proxy.swallow(Swallow::Answers);
    let start = Instant::now();
    let failed = backend.renew(&renewals).await;
    let took = start.elapsed();
    assert!(failed.iter().all(Result::is_err), "{failed:?}");
    assert!(took < 2 * patience, "{took:?}");
}

/// Renewals of exclusive leases and of others are two calls.
#[tokio::test]
async fn forbidden_key_in_mixed_renewals_fails_alone() {
    let server = RedisServer::start();
    server.cli(&[
        "ACL", "SETUSER", "some", "on", ">secret", "~*", "&*", "+@all",
    ]);
    let backend = connect(server.url_of("some", "secret")).await;
    let manager = Uuid::new_v4();
    let mut renewals = Vec::new();
    for (name, number) in ["k1", "s1", "x1", "k2", "s2", "x2"].into_iter().zip(1..) {
        let mode = match name {
            "k1" | "k2" => Mode::Exclusive,
            "s1" | "s2" => Mode::Shared,
            _ => Mode::Permit,
        };
        let (key, lease) = (LockKey::new(name), LeaseId::new(manager, number));
        let request = AcquireRequest::new(key.clone(), lease, TTL).with_mode(mode);
        let request = request.with_limit(NonZeroU16::new(1));
        let acquired = backend.try_acquire(&request).await;
        assert!(
            matches!(acquired, Ok(Acquired::Granted { .. })),
            "{name}: {acquired:?}"
        );
        renewals.push(Renewal::new(key, lease, TTL).with_mode(mode));
    }
    for forbidden in [&["k1"][..], &["s1"], &["x2"], &["k2", "s2"], &[]] {
        server.cli(&["ACL", "SETUSER", "some", "resetkeys"]);
        for Renewal { key, .. } in &renewals {
            let name = key.as_str();
            if !forbidden.contains(&name) {
                let patterns = [format!("~lock:{name}"), format!("~lock:{{lock:{name}}}*")];
                server.cli(&["ACL", "SETUSER", "some", &patterns[0], &patterns[1]]);
            }
        }
        let renewed = backend.renew(&renewals).await;
        for (renewal, outcome) in renewals.iter().zip(renewed) {
            let case = format!("{:?} beside {forbidden:?}: {outcome:?}", renewal.key);
            match outcome {
                Err(error) if forbidden.contains(&renewal.key.as_str()) => {
                    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{case}");
                }
                outcome => assert!(matches!(outcome, Ok(Renewed::Renewed)), "{case}"),
            }
        }
    }
}

/// All leases of the manager are due together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_leases_beside_forbidden_ones_are_kept() {
    const LEASE: Duration = Duration::from_secs(9);
    let server = RedisServer::start();
    server.cli(&[
        "ACL", "SETUSER", "some", "on", ">secret", "~*", "&*", "+@all",
    ]);
    let locks = prompt_manager(server.url_of("some", "secret"), LEASE).await;
    let acquires = ["k1", "k2", "forbidden1"].map(|key| locks.acquire(key));
    let shared = ["ks1", "ks2", "forbidden2"].map(|key| locks.acquire(key).shared());
    let acquires = acquires.into_iter().chain(shared);
    let guards = join_all(acquires.map(IntoFuture::into_future)).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let ends = || -> Vec<_> {
        let end = |guard: &LockGuard| Instant::now() + guard.remaining();
        guards.iter().map(end).collect()
    };
    let first = ends();
    let renewed = |expected: &[usize]| {
        let ends = ends();
        expected
            .iter()
            .all(|&index| ends[index] > first[index] + SECOND)
    };
    let patterns = ["resetkeys", "~lock:k*", "~lock:{lock:k*"];
    server.cli(&[&["ACL", "SETUSER", "some"], &patterns[..]].concat());
    eventually("the others are renewed", || renewed(&[0, 1, 3, 4])).await;
    assert!(guards.iter().all(|it| it.is_held()), "{guards:?}");
    assert!(
        !renewed(&[2]) && !renewed(&[5]),
        "renewed without permission"
    );
    server.cli(&["ACL", "SETUSER", "some", "~*"]);
    eventually("all are renewed", || renewed(&[0, 1, 2, 3, 4, 5])).await;
    assert!(guards.iter().all(|it| it.is_held()), "{guards:?}");
}
