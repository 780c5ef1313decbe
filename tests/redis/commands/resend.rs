//! A command whose reply was lost is sent again, and affects only the holder it was meant for.

use std::num::NonZeroU16;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::{sleep, timeout};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, Contended, Downgraded,
    ForceReleased, KeepRequest, LeaseId, Mode, Release, Released, ReleasedOrKept, Renewal, Renewed,
};
use tower_lock::manager::Acquire;
use tower_lock::{LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use crate::support::engine::{MS, SECOND, scripts_called};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(30);

const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permit];

/// A busy machine must not cause timeouts.
async fn connect(url: String) -> RedisBackend {
    let builder = RedisBackend::builder(url).response_timeout(10 * SECOND);
    builder.connect().await.unwrap()
}

fn key() -> LockKey {
    LockKey::new("k")
}

async fn acquire(backend: &RedisBackend) -> (LeaseId, bool) {
    acquire_in(backend, Mode::Exclusive).await
}

/// A permit has the limit 1.
async fn acquire_in(backend: &RedisBackend, mode: Mode) -> (LeaseId, bool) {
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let limit = (mode == Mode::Permit).then_some(NonZeroU16::MIN);
    let request = AcquireRequest::new(key(), lease, TTL);
    let request = request.with_mode(mode).with_limit(limit);
    let acquired = backend.try_acquire(&request).await.unwrap();
    (lease, matches!(acquired, Acquired::Granted { .. }))
}

async fn grant(backend: &RedisBackend) -> LeaseId {
    grant_in(backend, Mode::Exclusive).await
}

async fn grant_in(backend: &RedisBackend, mode: Mode) -> LeaseId {
    let (lease, granted) = acquire_in(backend, mode).await;
    assert!(granted);
    lease
}

async fn renew(backend: &RedisBackend, lease: LeaseId) -> Renewed {
    renew_in(backend, Mode::Exclusive, lease).await
}

async fn renew_in(backend: &RedisBackend, mode: Mode, lease: LeaseId) -> Renewed {
    let renewal = Renewal::new(key(), lease, TTL).with_mode(mode);
    backend.renew(&[renewal]).await.remove(0).unwrap()
}

async fn release(backend: &RedisBackend, lease: LeaseId) -> Released {
    let release = Release::new(key(), lease);
    backend.release(&[release]).await.remove(0).unwrap()
}

/// Forces releases whose replies are lost, while another client waits for the key.
async fn spares_next_holder(
    forced: impl AsyncFn(&RedisBackend, &LockKey, &str) -> Result<ForceReleased, BackendError>,
) {
    join_all(MODES.map(|mode| spares_next_in(mode, &forced))).await;
}

async fn spares_next_in(
    mode: Mode,
    forced: &impl AsyncFn(&RedisBackend, &LockKey, &str) -> Result<ForceReleased, BackendError>,
) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (direct, backend) = (connect(server.url()).await, connect(proxy.url()).await);
    // The replies are longer than the step, so each of them is cut.
    for bytes in (0..150).step_by(3) {
        let holder = grant_in(&direct, mode).await;
        // Long enough for the next holder before the resend.
        proxy.delay(20 * MS);
        proxy.truncate_answers(bytes);
        let key = key();
        let next = async {
            // A reader would share the lock.
            while direct.inspect(&key).await.unwrap().is_some() {
                sleep(MS).await;
            }
            grant_in(&direct, mode).await
        };
        let id = holder.to_string();
        let (forced, next) = join(forced(&backend, &key, &id), next).await;
        let case = format!("{mode:?}, {bytes} bytes");
        assert_eq!(forced.unwrap(), ForceReleased::Released, "{case}");
        let renewed = renew_in(&direct, mode, holder).await;
        assert_eq!(renewed, Renewed::NotHeld, "{case}");
        let renewed = renew_in(&direct, mode, next).await;
        assert_eq!(renewed, Renewed::Renewed, "{case}");
        assert_eq!(release(&direct, next).await, Released::Released);
        proxy.heal();
    }
}

#[tokio::test]
async fn resent_force_release_spares_next_holder() {
    spares_next_holder(async |backend, key, _| backend.force_release(key, None).await).await;
}

/// As the dashboard does.
#[tokio::test]
async fn resent_release_of_named_holder_spares_next() {
    spares_next_holder(async |backend, key, holder| backend.force_release(key, Some(holder)).await)
        .await;
}

#[tokio::test]
async fn force_release_without_hgetall_is_misconfigured() {
    let server = RedisServer::start();
    server.cli(&[
        "ACL", "SETUSER", "some", "reset", "on", ">secret", "~*", "&*", "+@all", "-hgetall",
    ]);
    let backend = connect(server.url_of("some", "secret")).await;
    let holder = grant(&backend).await;
    let error = backend.force_release(&key(), None).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    assert!(!error.may_have_taken_effect());
    assert_eq!(release(&backend, holder).await, Released::Released);
    let forced = backend.force_release(&key(), None).await;
    assert_eq!(forced.unwrap(), ForceReleased::NotHeld);
}

/// Each reply is cut, also that of the counter, which is the longest.
#[tokio::test]
async fn resent_downgrade_is_shared_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (direct, backend) = (connect(server.url()).await, connect(proxy.url()).await);
    for bytes in (0..18).step_by(3) {
        let lease = grant(&direct).await;
        proxy.truncate_answers(bytes);
        let downgrade = Renewal::new(key(), lease, TTL);
        let downgraded = backend.downgrade(&downgrade).await.unwrap();
        assert!(matches!(downgraded, Downgraded::Shared { .. }));
        assert_eq!(server.cli(&["HLEN", "lock:k"]), "2", "the mode and a lease");
        assert_eq!(release(&direct, lease).await, Released::Released);
        assert_eq!(server.cli(&["EXISTS", "lock:k"]), "0");
        proxy.heal();
    }
}

#[tokio::test]
async fn resent_release_without_lease_is_done() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let backend = connect(proxy.url()).await;
    for mode in MODES {
        let holder = grant_in(&backend, mode).await;
        proxy.truncate_answers(0);
        let released = release(&backend, holder).await;
        assert_eq!(released, Released::Released, "{mode:?}");
        assert_eq!(server.cli(&["EXISTS", "lock:k"]), "0");
        // The first attempt finds nothing: the lease was lost.
        let released = release(&backend, holder).await;
        assert_eq!(released, Released::NotHeld, "{mode:?}");
    }

    let locks = LockManager::builder(backend).build().unwrap();
    let modes: [fn(Acquire) -> Acquire; 3] = [|it| it, Acquire::shared, |it| it.permits(1)];
    for mode in modes {
        let guard = mode(locks.acquire("k")).await.unwrap();
        proxy.truncate_answers(0);
        guard.release().await.unwrap();
    }
}

/// The first attempt ends one of two leases that share the key.
#[tokio::test]
async fn resent_release_spares_other_reader() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (direct, backend) = (connect(server.url()).await, connect(proxy.url()).await);
    let first = grant_in(&backend, Mode::Shared).await;
    let other = grant_in(&direct, Mode::Shared).await;
    proxy.truncate_answers(0);
    assert_eq!(release(&backend, first).await, Released::Released);
    let renewed = renew_in(&direct, Mode::Shared, other).await;
    assert_eq!(renewed, Renewed::Renewed);
    assert!(!acquire(&direct).await.1);
}

#[tokio::test]
async fn resent_release_or_keep_after_release_is_done() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (direct, backend) = (connect(server.url()).await, connect(proxy.url()).await);
    let mut hints = direct.watch(&key(), Uuid::new_v4());
    let confirmed = timeout(10 * SECOND, hints.next()).await;
    confirmed.expect("the subscription is confirmed");
    let holder = grant(&backend).await;
    let request = KeepRequest::new(key(), holder, TTL);
    proxy.truncate_answers(0);
    let outcome = backend
        .release_or_keep(std::slice::from_ref(&request))
        .await
        .remove(0)
        .unwrap();
    assert!(
        matches!(outcome, ReleasedOrKept::Released { .. }),
        "{outcome:?}"
    );
    assert_eq!(server.cli(&["EXISTS", "lock:k"]), "0");
    let outcome = backend
        .release_or_keep(std::slice::from_ref(&request))
        .await
        .remove(0)
        .unwrap();
    assert_eq!(outcome, ReleasedOrKept::NotHeld);
}

/// No other process waits, so each attempt keeps the lease. The first one could also arrive later, and end it.
#[tokio::test]
async fn resent_release_or_keep_after_keep_releases() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (direct, backend) = (connect(server.url()).await, connect(proxy.url()).await);
    let holder = grant(&backend).await;
    let request = KeepRequest::new(key(), holder, TTL);
    proxy.truncate_answers(0);
    let calls = scripts_called(&server);
    let outcome = backend
        .release_or_keep(std::slice::from_ref(&request))
        .await
        .remove(0)
        .unwrap();
    assert!(
        matches!(outcome, ReleasedOrKept::Released { .. }),
        "{outcome:?}"
    );
    assert_eq!(scripts_called(&server) - calls, 3);
    assert_eq!(server.cli(&["EXISTS", "lock:k"]), "0");
    assert_eq!(release(&backend, holder).await, Released::NotHeld);
    assert!(acquire(&direct).await.1, "the key is free");
}

async fn contend(backend: &RedisBackend, lease: LeaseId) -> Contended {
    let request = AcquireRequest::new(key(), lease, TTL);
    backend.contend(&request).await.unwrap()
}

#[tokio::test]
async fn resent_contend_and_leave_affect_one_place() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (direct, backend) = (connect(server.url()).await, connect(proxy.url()).await);
    let holder = grant(&direct).await;
    let [first, second] = [1, 2].map(|_| LeaseId::new(Uuid::new_v4(), 1));
    for (place, lease) in [(1, first), (2, second)] {
        proxy.truncate_answers(0);
        match contend(&backend, lease).await {
            Contended::Waiting { queued, .. } => assert_eq!(queued, Some(place)),
            outcome => panic!("{outcome:?}"),
        }
    }
    proxy.truncate_answers(0);
    // The first attempt transfers the key, and the second one finds nothing.
    assert_eq!(release(&backend, holder).await, Released::Released);
    proxy.truncate_answers(0);
    let confirmed = contend(&backend, first).await;
    assert!(
        matches!(confirmed, Contended::Granted { .. }),
        "{confirmed:?}"
    );
    assert_eq!(renew(&direct, first).await, Renewed::Renewed);
    let leaver = [Release::new(key(), first)];
    proxy.truncate_answers(0);
    let left = backend.leave(&leaver).await.remove(0).unwrap();
    assert_eq!(left, Released::Released);
    let confirmed = contend(&direct, second).await;
    assert!(
        matches!(confirmed, Contended::Granted { .. }),
        "{confirmed:?}"
    );
}

#[tokio::test]
async fn resent_renewal_without_lease_is_lost() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let backend = connect(proxy.url()).await;
    for mode in MODES {
        let holder = grant_in(&backend, mode).await;
        proxy.truncate_answers(0);
        let renewed = renew_in(&backend, mode, holder).await;
        assert_eq!(renewed, Renewed::Renewed, "{mode:?}");
        server.cli(&["DEL", "lock:k"]);
        proxy.truncate_answers(0);
        let renewed = renew_in(&backend, mode, holder).await;
        assert_eq!(renewed, Renewed::NotHeld, "{mode:?}");
    }
}
