//! Every public type, formatted.

use std::convert::Infallible;
use std::future::IntoFuture as _;
use std::time::Duration;

use axum::extract::FromRequestParts as _;
use deadpool_redis::{Config, Runtime};
use http::{Request, Response};
use tower::{Layer as _, Service as _, service_fn};
use tower_lock::backend::Backend as _;
use tower_lock::backend::redis::{Credentials, Publish};
use tower_lock::backend::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, Contended, Downgraded, Fence,
    ForceReleased, Hint, Hints, KeepRequest, LeaseId, Release, Released, ReleasedOrKept, Renewal,
    Renewed,
};
use tower_lock::dashboard::{Dashboard, Operator, Veto};
use tower_lock::keys::{BodyFirst, FromTarget, InvalidKey};
use tower_lock::manager::{LostReason, ScopeAcquire, TraceKeys};
use tower_lock::rejection::LockedRejection;
use tower_lock::service::{BodyFirstFuture, ReadBody, Unlocked};
use tower_lock::{
    Held, LockKey, LockKeys, LockLayer, LockManager, LockRejection, LockScope, LockScopeLayer,
    LockTarget, Locked, LockedShared, Memory, OnLost, OnUnavailable, Owner, PostgresBackend,
    Quorum, RedisBackend,
};
use uuid::Uuid;

use crate::canary::{Canary, KEY, PASSWORD, USER, admit, at, encoded, identity, with_login};
use crate::support::engine::{PATIENCE, SECOND};
use crate::support::exports::words;
use crate::support::postgres_server::PostgresServer;
use crate::support::redis_server::RedisServer;
use crate::support::tls::Authority;

#[derive(Debug, Clone)]
struct Order;

impl LockTarget for Order {
    fn lock_keys(&self) -> LockKeys {
        LockKeys::from([LockKey::new(KEY)])
    }
}

/// This test fails if a public type is missing in it.
#[tokio::test]
async fn public_types_show_no_secret() {
    let server = RedisServer::start();
    admit(&server);
    let backend = at(&server.url()).connect().await.unwrap();
    let builder = LockManager::builder(backend.clone());
    let mut canary = Canary::default();
    canary.closed(&builder);
    let locks = builder.build().unwrap();
    canary = Canary::of(&[&locks]);
    canary.closed(&LockManager::builder(backend.clone()));

    in_the_engine(&mut canary, &locks).await;
    in_the_backend(&mut canary, &backend, &identity(&locks)).await;
    in_postgres(&mut canary).await;
    over_http(&mut canary, &locks).await;
    in_the_dashboard(&mut canary, &locks).await;
    assert_eq!(canary.unseen(), <&[&str]>::default());
}

async fn in_the_dashboard(canary: &mut Canary, locks: &LockManager) {
    let (sender, requests) = std::sync::mpsc::channel();
    let board = Dashboard::new(locks.clone()).peer("b", "https://b.example/ops/locks");
    let board = board.unprotected().allow_force_release(move |release| {
        sender.send(release.clone()).unwrap();
        Err(Veto::new("not on Fridays"))
    });
    canary.closed(&board);
    canary.closed(&Operator::new("ada"));
    canary.closed(&Veto::new("not on Fridays"));
    let body = format!(r#"{{"key":"{KEY}","owner":"x:1","reason":"a good reason"}}"#);
    let request = Request::post("/api/v1/force-release")
        .header("host", "h")
        .header("origin", "http://h")
        .header("content-type", "application/json")
        .header("x-tower-lock", "1")
        .body(axum::body::Body::from(body))
        .unwrap();
    let router: axum::Router = board.router();
    let response = tower::ServiceExt::oneshot(router, request).await.unwrap();
    assert_eq!(response.status(), 403);
    canary.open(&requests.recv().unwrap());
}

async fn in_the_engine(canary: &mut Canary, locks: &LockManager) {
    // The search finds values that are shown.
    let owner = canary.owners[0].clone();
    let names_both = |text: String| assert!(text.contains(KEY) && text.contains(&owner), "{text}");
    let guard = locks.acquire(KEY).await.unwrap();
    names_both(canary.open(&guard));
    names_both(canary.open(&guard.held()));
    canary.open(guard.key());
    canary.open(&LockKeys::from([guard.key().clone()]));
    canary.open(&guard.owner());
    canary.open(&locks.inspect(KEY).await.unwrap().unwrap());
    canary.closed(&guard.fencing_token());
    canary.open(&guard.lost());
    canary.closed(&guard.via());
    canary.closed(&guard.mode());
    canary.closed(&LostReason::Forced);
    canary.closed(&TraceKeys::hashed(PASSWORD));
    let hashing = LockManager::builder(Memory::new()).trace_keys(TraceKeys::hashed(PASSWORD));
    canary.closed(&hashing);
    canary.closed(locks);
    canary.closed(&locks.snapshot());

    canary.open(&locks.acquire(KEY).owner(guard.owner()));
    let mut waiting = locks.acquire(KEY).into_future();
    assert!(futures_util::poll!(&mut waiting).is_pending());
    canary.closed(&waiting);
    canary.closed(locks);
    drop(waiting);
    let busy = locks.acquire(KEY).no_wait().await.unwrap_err();
    canary.closed(&busy.kind());
    canary.error(&busy);
    let settings = locks.acquire(KEY).lease(Duration::ZERO).await.unwrap_err();
    canary.error(&settings);
    let builder = LockManager::builder(Memory::new()).watchdog_timeout(Duration::ZERO);
    canary.error(&builder.build().unwrap_err());
    canary.error(&InvalidKey::EmptyPart(0));
    guard.release().await.unwrap();
}

async fn in_the_backend(canary: &mut Canary, backend: &RedisBackend, manager: &str) {
    let (key, ttl) = (LockKey::new(KEY), Duration::from_secs(10));
    let lease = LeaseId::new(manager.parse().unwrap(), 77);
    canary.closed(
        &backend
            .try_acquire(&AcquireRequest::new(key.clone(), lease, ttl))
            .await
            .unwrap(),
    );
    let mut hints = backend.watch(&key, Uuid::new_v4());
    hints.next().await;
    canary.closed(backend);
    canary.closed(&backend.capabilities());
    let nowhere = at("redis://127.0.0.1:1");
    canary.closed(&nowhere);
    canary.error(&nowhere.connect().await.unwrap_err());
    canary.closed(&hints);
    let (sender, transferred) = Hints::channel();
    sender.send(Hint::transferred(lease));
    canary.closed(&sender);
    canary.closed(&transferred);
    canary.open(&Hint::transferred(lease));
    canary.open(&lease);
    canary.open(&backend.inspect(&key).await.unwrap().unwrap());
    canary.open(&AcquireRequest::new(key.clone(), lease, ttl));
    canary.open(&AcquireRequest::new(key.clone(), lease, ttl).with_listening(true));
    canary.open(&KeepRequest::new(key.clone(), lease, ttl));
    canary.open(&Release::new(key.clone(), lease));
    canary.open(&Renewal::new(key.clone(), lease, ttl));
    canary.closed(&Acquired::busy(ttl));
    canary.closed(&Contended::waiting(ttl, 1));
    canary.closed(&Renewed::NotHeld);
    canary.closed(&Released::Released);
    canary.closed(&ReleasedOrKept::kept(1));
    canary.closed(&Downgraded::shared(1));
    canary.closed(&ForceReleased::NotHeld);
    canary.closed(&Credentials::new(USER, PASSWORD));
    backend.force_release(&key, None).await.unwrap();

    let memory = Memory::new();
    memory
        .try_acquire(&AcquireRequest::new(key.clone(), lease, ttl))
        .await
        .unwrap();
    let _watch = memory.watch(&key, Uuid::new_v4());
    canary.closed(&memory);
    canary.closed(&Fence::Propose(1));
    let unavailable = BackendErrorKind::Unavailable;
    canary.closed(&unavailable);
    canary.error(&BackendError::refused(unavailable, "no cause"));
    for publish in [Publish::Auto, Publish::Both] {
        canary.closed(&publish);
    }

    let nodes = Quorum::builder().node(backend.clone());
    let nodes = nodes.node(memory).node(Memory::new());
    canary.closed(&nodes);
    let quorum = nodes.build().unwrap();
    drop(
        quorum
            .try_acquire(&AcquireRequest::new(key.clone(), lease, ttl))
            .await,
    );
    let _watch = quorum.watch(&key, Uuid::new_v4());
    canary.closed(&quorum);
    drop(quorum.release(&[Release::new(key, lease)]).await);
}

async fn in_postgres(canary: &mut Canary) {
    let server = PostgresServer::start(&[]).await;
    let url = server.url_of(USER, &encoded(PASSWORD), "postgres");
    let builder = || PostgresBackend::builder(&url).response_timeout(PATIENCE);
    canary.closed(&builder());
    // PostgreSQL names the user.
    let rejected = LockManager::connect(&url).await.unwrap_err();
    let texts = format!("{rejected} {rejected:?} {rejected:#?}");
    assert!(texts.contains("28P01"), "{texts}");
    assert!(
        words(PASSWORD).all(|secret| !texts.contains(secret)),
        "{texts}"
    );
    let role = format!("CREATE ROLE {USER} SUPERUSER LOGIN PASSWORD '{PASSWORD}'");
    server.run(&role).await;
    let backend = builder().connect().await.unwrap();
    canary.closed(&backend);
    let manager = Uuid::new_v4();
    let request = AcquireRequest::new(KEY.into(), LeaseId::new(manager, 1), 10 * SECOND);
    assert!(backend.try_acquire(&request).await.is_ok());
    let _watch = backend.watch(&KEY.into(), manager);
    canary.closed(&backend);
}

async fn over_http(canary: &mut Canary, locks: &LockManager) {
    let request = || {
        let request = Request::post(format!("/{KEY}?key={KEY}")).header("key", KEY);
        request.extension(Order).body(String::new()).unwrap()
    };
    macro_rules! through {
        ($($layer:expr),+ $(,)?) => {$(
            let layer = $layer;
            canary.closed(&layer);
            let mut service = layer.layer(service_fn(|_: Request<String>| async {
                Ok::<_, Infallible>(Response::new("done".to_owned()))
            }));
            canary.closed(&service);
            let waiting = service.call(request());
            canary.closed(&waiting);
            let response = waiting.await.unwrap();
            canary.closed(response.body());
        )+};
    }
    through!(
        LockLayer::by_path(locks.clone()),
        LockLayer::by_header(locks.clone(), "key"),
        LockLayer::by_query(locks.clone(), "key"),
        LockLayer::by_extension::<Order>(locks.clone()),
        LockLayer::by_fn(locks.clone(), |_| LockKey::new(KEY)),
    );
    canary.closed(&LockLayer::by_path_params(locks.clone(), ["key"]));
    canary.closed(&LockLayer::by_path_param_as::<u64>(locks.clone(), "key"));
    canary.closed(&LockLayer::by_path_param(locks.clone(), "key"));
    canary.closed(&OnLost::Abort);
    through!(LockScopeLayer::new());

    let layer = LockLayer::by_path(locks.clone()).read_body_first(1_000, Duration::from_secs(10));
    canary.closed::<LockLayer<BodyFirst<_>>>(&layer);
    let (sender, bodies) = std::sync::mpsc::channel();
    let mut service = layer.layer(service_fn(|request: Request<ReadBody<String>>| {
        sender.send(request.into_body()).unwrap();
        std::future::ready(Ok::<_, Infallible>(Response::new(String::new())))
    }));
    let reading: BodyFirstFuture<_, _, _> = service.call(request().map(|_| KEY.to_owned()));
    canary.closed(&reading);
    reading.await.unwrap();
    canary.closed(&bodies.recv().unwrap());

    let guard = locks.acquire(KEY).await.unwrap();
    let layer = LockLayer::by_path(locks.clone()).no_wait();
    let other = LockKey::from_parts([format!("/{KEY}")]);
    let other = locks.acquire(other).await.unwrap();
    let mut service = layer.layer(service_fn(|_: Request<String>| async {
        Ok::<_, Infallible>(Response::new("done".to_owned()))
    }));
    let busy = service.call(request()).await.unwrap();
    let rejection = busy.extensions().get::<LockRejection>().unwrap();
    canary.error(rejection);
    canary.closed(&LockedRejection::<Infallible>::Lock(rejection.clone()));
    let observing = LockLayer::by_path(locks.clone()).observe_only();
    let mut service = observing.layer(service_fn(|request: Request<String>| async move {
        let unlocked = request.extensions().get::<Unlocked>().cloned();
        Ok::<_, Infallible>(
            Response::builder()
                .extension(unlocked)
                .body("done".to_owned())
                .unwrap(),
        )
    }));
    let response = service.call(request()).await.unwrap();
    let unlocked = response.extensions().get::<Option<Unlocked>>();
    canary.closed(unlocked.unwrap().as_ref().unwrap());
    canary.closed(&OnUnavailable::Pass);
    drop(other);
    canary.closed(&FromTarget);
    canary.open::<Locked<_>>(&Locked(Order, guard));
    let guard = locks.acquire(KEY).shared().await.unwrap();
    canary.open::<LockedShared<_>>(&Locked(Order, guard));

    let (mut parts, _) = request().into_parts();
    let held = Held::from_request_parts(&mut parts, &()).await;
    canary.error(&held.unwrap_err());
    let owner = Owner::from_request_parts(&mut parts, &()).await;
    canary.error(&owner.unwrap_err());
    let scope = LockScope::from_request_parts(&mut parts, &()).await;
    canary.error(&scope.unwrap_err());
    let (sender, scopes) = std::sync::mpsc::channel();
    let mut service = LockScopeLayer::new().layer(service_fn(|request: Request<String>| {
        let scope = LockScope::of(request.extensions()).unwrap();
        sender.send(scope).unwrap();
        std::future::ready(Ok::<_, Infallible>(Response::new(String::new())))
    }));
    service.call(request()).await.unwrap();
    let scope = scopes.recv().unwrap();
    canary.closed(&scope);
    let acquire = scope.acquire(locks, KEY);
    canary.open::<ScopeAcquire>(&acquire);
}

/// A builder has all the values, which are not validated yet.
#[test]
fn builders_show_no_login_or_private_key() {
    let mut canary = Canary::default();
    let identity = Authority::new().issue();
    let mut builders = vec![
        RedisBackend::builder("redis://h").sentinel_auth(USER, PASSWORD),
        RedisBackend::builder("redis://h").notify(with_login("redis://h")),
        RedisBackend::builder("redis://h")
            .credentials(|| async { Ok::<_, Infallible>(Credentials::new(USER, PASSWORD)) }),
        RedisBackend::builder("rediss://h")
            .client_certificate(&*identity.certificate, &*identity.key),
        RedisBackend::from_pool({
            let config = Config::from_url(with_login("redis://h"));
            config.create_pool(Some(Runtime::Tokio1)).unwrap()
        }),
    ];
    for password in [PASSWORD, &encoded(PASSWORD)] {
        for url in [
            format!("redis://{USER}:{password}@h"),
            format!("redis://{password}@h"),
            format!("redis+unix:///s?user={USER}&pass={password}"),
            format!("rediss+sentinel://{USER}:{password}@h,i/locks"),
            format!("redis+cluster://{USER}:{password}@h,i"),
            password.to_owned(),
        ] {
            builders.push(RedisBackend::builder(url));
        }
    }
    let lines = identity.key.lines().filter(|line| !line.starts_with('-'));
    for builder in &builders {
        canary.closed(builder);
        for line in lines.clone() {
            assert!(!format!("{builder:?}").contains(line));
        }
    }
}
