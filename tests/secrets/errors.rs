//! Every error of a connection, and its logs.

use std::convert::Infallible;
use std::time::Duration;

use deadpool_redis::{Config, Runtime};
use tower_lock::backend::Backend as _;
use tower_lock::backend::redis::{Credentials, RedisBackendBuilder};
use tower_lock::{ConnectError, ErrorKind, LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use crate::canary::{Canary, KEY, PASSWORD, USER, admit, assert_no_login, encoded, with_login};
use crate::observed::observed;
use crate::support::engine::{PATIENCE, SECOND, eventually, within};
use crate::support::exports::words;
use crate::support::redis_server::RedisServer;
use crate::support::tls::{Authority, TlsServer};

/// Fails to connect, and reports this without any secret.
async fn fails(canary: &mut Canary, builder: RedisBackendBuilder) -> ConnectError {
    fails_within(PATIENCE, canary, builder).await
}

async fn fails_within(
    patience: Duration,
    canary: &mut Canary,
    builder: RedisBackendBuilder,
) -> ConnectError {
    let builder = builder.connect_timeout(patience).response_timeout(patience);
    let error = builder.connect().await.unwrap_err();
    canary.error(&error);
    error
}

fn is_config(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Config(_))
}

/// Returns the URLs as users type them: with and without percent-encoding, with any character between two
/// words, and with leading digits, which could be a port.
fn passwords() -> Vec<String> {
    let two = PASSWORD.split_once('/').unwrap();
    let mut passwords = vec![PASSWORD.to_owned(), encoded(PASSWORD), two.0.to_owned()];
    for between in [
        "/", "?", "#", "@", ":", "%", "[", "]", "\\", " ", ",", "&", "=",
    ] {
        passwords.push(format!("{}{between}zebra", two.0));
        passwords.push(format!("12{between}zebra"));
        passwords.push(format!("12{between}zebra/koala"));
    }
    passwords
}

/// No server can listen at this port.
#[tokio::test]
async fn invalid_url_is_not_repeated() {
    let mut canary = Canary::default();
    for password in passwords() {
        for url in [
            format!("redis://{USER}:{password}@127.0.0.1:1"),
            format!("redis://:{password}@127.0.0.1:1"),
            format!("redis://{password}@127.0.0.1:1"),
            format!("redis://{USER}:{password}@127.0.0.1:one"),
            format!("redis://{USER}:{password}@127.0.0.1:1/{password}"),
            format!("redis://{USER}:{password}@"),
            format!("redis://127.0.0.1:1?pass={password}"),
            format!("redis://127.0.0.1:1#{password}"),
            format!("rediss://{USER}:{password}@127.0.0.1:1"),
            format!("rediss://{USER}:{password}@127.0.0.1:1#insecure"),
            format!("redis+unix:///nowhere?user={USER}&pass={password}"),
            format!("redis+unix:///nowhere?user={USER}&pass={password}&db={password}"),
            format!("redis+sentinel://{USER}:{password}@127.0.0.1:1/locks"),
            format!("redis+sentinel://{USER}:{password}@127.0.0.1:1,127.0.0.1:1/locks/{password}"),
            format!("redis+sentinel://{USER}:{password}@127.0.0.1:1"),
            format!("redis+cluster://{USER}:{password}@127.0.0.1:1,127.0.0.1:1"),
            format!("redis+cluster://{USER}:{password}@127.0.0.1:1/{password}"),
            format!("http://{USER}:{password}@127.0.0.1:1"),
            format!("{USER}:{password}@127.0.0.1:1"),
            password.clone(),
        ] {
            fails(&mut canary, RedisBackend::builder(&url)).await;
            let notify = RedisBackend::builder("redis://127.0.0.1:1").notify(&url);
            fails(&mut canary, notify).await;
            assert!(LockManager::connect(&url).await.is_err(), "{url}");
        }
    }
}

#[test]
fn connect_errors_show_no_login() {
    let ((), seen) = observed(async {
        let mut canary = Canary::default();
        let server = RedisServer::start();
        let url = with_login(&server.url());
        let refused = |error| matches!(error, ConnectError::Refused { .. });
        let unreachable = |error| matches!(error, ConnectError::Unreachable { .. });

        // The user does not exist at first, and then lacks a permission.
        assert!(refused(
            fails(&mut canary, RedisBackend::builder(&url)).await
        ));
        let provided = RedisBackend::builder(server.url())
            .credentials(|| async { Ok::<_, Infallible>(Credentials::new(USER, PASSWORD)) });
        assert!(refused(fails(&mut canary, provided).await));
        admit(&server);
        server.cli(&["ACL", "SETUSER", USER, "-evalsha"]);
        assert!(refused(
            fails(&mut canary, RedisBackend::builder(&url)).await
        ));
        let unix = server.unix_url() + "?user=wombat&pass=" + &encoded(PASSWORD);
        assert!(refused(
            fails(&mut canary, RedisBackend::builder(unix)).await
        ));
        let pool = |url: &str| {
            let config = Config::from_url(url);
            RedisBackend::from_pool(config.create_pool(Some(Runtime::Tokio1)).unwrap())
        };
        assert!(refused(fails(&mut canary, pool(&url)).await));
        let nowhere = with_login("redis://127.0.0.1:1");
        assert!(unreachable(fails(&mut canary, pool(&nowhere)).await));
        admit(&server);
        let deaf = RedisBackend::builder(&url).notify(&nowhere);
        assert!(unreachable(fails(&mut canary, deaf).await));

        // The servers are no cluster, no sentinel and without TLS.
        for kind in ["redis+cluster://", "redis+sentinel://", "rediss://"] {
            let path = if kind.contains("sentinel") {
                "/locks"
            } else {
                ""
            };
            let url = url.replace("redis://", kind) + path;
            // A server that parses the greeting of TLS as half a command sends no reply.
            let builder = RedisBackend::builder(url);
            let error = fails_within(SECOND, &mut canary, builder).await;
            assert!(!is_config(&error));
        }

        let tls = TlsServer::start();
        admit(tls.server());
        let stranger = RedisBackend::builder(with_login(&tls.url()));
        assert!(refused(fails(&mut canary, stranger).await));
        let other = Authority::new().issue();
        let broken = RedisBackend::builder(with_login(&tls.url()));
        let broken = broken.client_certificate(other.certificate, PASSWORD);
        assert!(is_config(&fails(&mut canary, broken).await));

        let monitor = Some("sentinel monitor locks 127.0.0.1 1 1\n");
        let sentinel = RedisServer::try_start(monitor, &["--sentinel"]).unwrap();
        let url = with_login(&sentinel.url()).replace("redis://", "redis+sentinel://");
        let unknown = RedisBackend::builder(format!("{url}/unknown"));
        assert!(refused(fails(&mut canary, unknown).await));
        let gone = RedisBackend::builder(format!("{url}/locks"));
        assert!(unreachable(fails(&mut canary, gone).await));
        let stranger = RedisBackend::builder(format!("{url}/locks"));
        let stranger = stranger.sentinel_auth(USER, PASSWORD);
        assert!(refused(fails(&mut canary, stranger).await));
    });
    assert!(seen.contains("lock backend unreachable"), "{seen}");
    assert_no_login(&seen);
}

#[test]
fn lock_errors_and_logs_show_no_key_or_owner() {
    let (canary, seen) = observed(async {
        let mut server = RedisServer::start();
        admit(&server);
        let builder = RedisBackend::builder(with_login(&server.url()));
        let backend = builder.response_timeout(SECOND).connect();
        let backend = backend.await.unwrap();
        let builder = LockManager::builder(backend.clone()).wait(SECOND);
        let locks = builder.watchdog_timeout(SECOND).build().unwrap();
        let mut canary = Canary::of(&[&locks]);

        // The value is not a lock.
        server.cli(&["SET", "lock:narwhal", "something"]);
        let conflict = locks.acquire(KEY).await.unwrap_err();
        assert_eq!(conflict.kind(), ErrorKind::KeyConflict);
        canary.error(&conflict);
        server.cli(&["DEL", "lock:narwhal"]);

        let guard = locks.acquire(KEY).await.unwrap();
        canary.error(&locks.acquire(KEY).await.unwrap_err());
        let mut hints = backend.watch(&LockKey::new(KEY), Uuid::new_v4());
        hints.next().await;

        // The permission is withdrawn.
        server.cli(&["ACL", "SETUSER", USER, "resetkeys", "resetchannels"]);
        let refused = locks.acquire("other").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused);
        canary.error(&refused);
        let inspected = backend.inspect(&LockKey::new(KEY)).await;
        canary.error(&inspected.unwrap_err());
        guard.lost().await;
        canary.error(&guard.release().await.unwrap_err());
        admit(&server);

        // The server has ended.
        server.kill();
        let gone = locks.acquire(KEY).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Unavailable);
        canary.error(&gone);
        server.launch_again();
        admit(&server);
        let again = async { while locks.acquire(KEY).await.is_err() {} };
        tokio::time::timeout(PATIENCE, again).await.unwrap();
        drop(locks.acquire("other").await.unwrap());

        // The server is silent.
        server.stop_process();
        let silent = locks.acquire(format!("{KEY}:2")).await.unwrap_err();
        canary.error(&silent);
        server.continue_process();
        hints.next().await;
        within(PATIENCE, "nothing left", || locks.snapshot().is_idle()).await;
        eventually("released", || {
            server.cli(&["EXISTS", "lock:narwhal"]) == "0"
        })
        .await;
        locks.shutdown(Duration::ZERO).await;
        canary.error(&locks.acquire(KEY).await.unwrap_err());
        canary.closed(&locks);
        canary
    });
    for expected in [
        "lock backend unreachable",
        "lock backend reachable again",
        "locks cannot be acquired",
        "release notifications unavailable",
        "lock lost",
        "outcome=\"refused\"",
        "tower_lock_acquires_total",
        "tower_lock_wait_seconds",
        "tower_lock_hold_seconds",
        "tower_lock_backend_up",
        "lock granted",
        "lock.acquire",
        "renewal failed",
    ] {
        assert!(seen.contains(expected), "{expected} is not in {seen}");
    }
    canary.silent(&seen);
    assert!(words(PASSWORD).count() > 6, "all of them are looked for");
}

/// Redis quotes the arguments of a command that it does not know.
#[test]
fn renamed_command_reveals_no_secret() {
    let (canary, seen) = observed(async {
        let without = |name| ["--rename-command", name, ""];
        let server = RedisServer::start_with(&without("HELLO"));
        admit(&server);
        let mut canary = Canary::default();
        let builder = RedisBackend::builder(with_login(&server.url()));
        let refused = fails(&mut canary, builder).await;
        assert!(matches!(refused, ConnectError::Refused { .. }));

        let mut server = RedisServer::start();
        let builder = RedisBackend::builder(server.url()).response_timeout(PATIENCE);
        let backend = builder.connect().await.unwrap();
        let [locks, others] = [backend.clone(), backend]
            .map(|backend| LockManager::builder(backend).wait(SECOND).build().unwrap());
        let mut canary = Canary::of(&[&locks, &others]);
        server.kill();
        server.launch_again_with(&without("SUBSCRIBE"));
        let again = async {
            loop {
                if let Ok(guard) = locks.acquire(KEY).await {
                    return guard;
                }
            }
        };
        let guard = tokio::time::timeout(PATIENCE, again).await.unwrap();
        // A waiter subscribes.
        canary.error(&others.acquire(KEY).await.unwrap_err());
        drop(guard);
        server.kill();
        server.launch_again_with(&without("EVALSHA"));
        let again = async {
            loop {
                let error = locks.acquire(KEY).await.unwrap_err();
                canary.error(&error);
                if error.kind() == ErrorKind::Refused {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, again).await.unwrap();
        canary
    });
    for expected in [
        "locks cannot be acquired",
        "release notifications unavailable",
        "unknown command EVALSHA",
        "unknown command SUBSCRIBE",
    ] {
        assert!(seen.contains(expected), "{expected} is not in {seen}");
    }
    canary.silent(&seen);
}
