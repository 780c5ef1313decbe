//! The Redis backend's data format, error handling, connections and subscriptions.
// Test helpers follow the rules for tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::num::NonZeroUsize;
use std::time::Duration;

use deadpool_redis::{Config, Runtime};
use futures_util::future::join_all;
use futures_util::poll;
use redis::Commands as _;
use static_assertions::assert_impl_all;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::redis::{RedisBackend, RedisBackendBuilder};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, Extended, ForceReleased,
    Hints, KeepRequest, LeaseId, Release, Released, ReleasedOrKept, Renewal, Renewed,
};
use tower_lock::{ConnectError, LockKey};
use uuid::Uuid;

use support::engine::subscribers;
use support::errors::debug_chain;
use support::proxy::Proxy;
use support::redis_server::RedisServer;

assert_impl_all!(RedisBackend: Clone, Send, Sync, std::fmt::Debug, Unpin);
assert_impl_all!(RedisBackendBuilder: Send, Sync, std::fmt::Debug, Unpin);

const TTL: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(10);
const MANAGER: Uuid = Uuid::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef);
const LEASE: &str = "01234567-89ab-4def-8123-456789abcdef:7";

fn lease() -> LeaseId {
    LeaseId::new(MANAGER, 7)
}

fn stranger() -> LeaseId {
    LeaseId::new(Uuid::new_v4(), 1)
}

/// Connects with a long response timeout, because a busy machine must not fail these tests.
async fn connect(server: &RedisServer) -> RedisBackend {
    let builder = RedisBackend::builder(server.url()).response_timeout(PATIENCE);
    builder.connect().await.unwrap()
}

async fn grant(backend: &RedisBackend, key: &str) -> u64 {
    let key = LockKey::new(key);
    match backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap()
    {
        Acquired::Granted { counter, .. } => counter,
        other => panic!("{other:?}"),
    }
}

async fn release(backend: &RedisBackend, key: &str) -> Result<Released, BackendError> {
    let mut answers = backend
        .release(&[Release::new(LockKey::new(key), lease())])
        .await;
    answers.remove(0)
}

async fn renew(backend: &RedisBackend, key: &str) -> Result<Renewed, BackendError> {
    let renewal = Renewal::new(LockKey::new(key), lease(), TTL);
    backend.renew(&[renewal]).await.remove(0)
}

async fn hinted(hints: &mut Hints) -> bool {
    timeout(PATIENCE, hints.next()).await.is_ok()
}

/// Returns the number of connections that the server has accepted since its start.
fn connections(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "stats"]);
    let prefix = "total_connections_received:";
    let count = stats.lines().find_map(|line| line.strip_prefix(prefix));
    count.unwrap().trim().parse().unwrap()
}

/// Completes when `is_so` returns `true`.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

// ---- data format ----

#[tokio::test]
async fn lock_format_matches_redisson() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    grant(&backend, "order:42").await;
    assert_eq!(
        server.cli(&["HGETALL", "lock:order:42"]),
        format!("{LEASE}\n1")
    );
    let left: u64 = server.cli(&["PTTL", "lock:order:42"]).parse().unwrap();
    assert!((29_000..=30_000).contains(&left), "{left}");
    assert_eq!(
        release(&backend, "order:42").await.unwrap(),
        Released::Released
    );
    let keys = server.cli(&["KEYS", "*"]);
    assert_eq!(keys, "lock:{fencing-token}%", "only the counter remains");
}

#[tokio::test]
async fn release_publishes_zero_on_redisson_channel() {
    let server = RedisServer::start();
    let backend = RedisBackend::builder(server.url())
        .prefix("")
        .connect()
        .await
        .unwrap();
    for (key, channel) in [
        ("order", "redisson_lock__channel:{order}"),
        ("{a}:b", "redisson_lock__channel:{a}:b"),
    ] {
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut listener = connection.as_pubsub();
        listener.subscribe(channel).unwrap();
        grant(&backend, key).await;
        release(&backend, key).await.unwrap();
        let message = listener.get_message().unwrap();
        assert_eq!(message.get_payload::<String>().unwrap(), "0");
    }
}

#[tokio::test]
async fn redisson_lock_is_busy_and_its_unlock_hints() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    server.cli(&["HSET", "lock:order", "java-uuid:33", "2"]);
    server.cli(&["PEXPIRE", "lock:order", "30000"]);
    let key = LockKey::new("order");
    let answer = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap();
    assert!(
        matches!(answer, Acquired::Busy { ttl, .. } if ttl > TTL / 2),
        "{answer:?}"
    );
    let holder = backend.inspect(&key).await.unwrap().unwrap();
    assert_eq!((holder.id.as_str(), holder.hold_count), ("java-uuid:33", 2));

    let mut hints = backend.watch(&key, MANAGER);
    assert!(hinted(&mut hints).await, "the subscription is in force");
    server.cli(&["DEL", "lock:order"]);
    server.cli(&["PUBLISH", "redisson_lock__channel:{lock:order}", "0"]);
    assert!(hinted(&mut hints).await, "Redisson's message");
}

#[tokio::test]
async fn counter_ahead_of_clock_continues_from_last() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let ahead = 4_000_000_000_000_000_u64;
    server.cli(&["SET", "lock:{fencing-token}%", &ahead.to_string()]);
    assert_eq!(grant(&backend, "a").await, ahead + 1);
    assert_eq!(grant(&backend, "b").await, ahead + 2);
    let stored = server.cli(&["GET", "lock:{fencing-token}%"]);
    assert_eq!(stored, (ahead + 2).to_string());
}

#[tokio::test]
async fn counter_is_within_one_ms_of_clock() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let now = || -> u64 {
        let time = server.cli(&["TIME"]);
        let (seconds, micros) = time.split_once('\n').unwrap();
        seconds.parse::<u64>().unwrap() * 1_000_000 + micros.trim().parse::<u64>().unwrap()
    };
    for (key, behind) in [("a", now()), ("b", 3_600_000_000), ("c", 2_000)] {
        let last = now() - behind;
        server.cli(&["SET", "lock:{fencing-token}%", &last.to_string()]);
        let earliest = now() - 1_000;
        let counter = grant(&backend, key).await;
        assert!(
            counter > last && counter >= earliest,
            "{counter}, {earliest}"
        );
        assert!(counter <= now(), "ahead of the clock");
    }
}

#[tokio::test]
async fn foreign_value_at_counter_is_named_and_unchanged() {
    const COUNTER: &str = "lock:{fencing-token}%";
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for [command, value] in [["SET", "a text"], ["SET", "1.5"], ["RPUSH", "a list"]] {
        server.cli(&["DEL", COUNTER]);
        server.cli(&[command, COUNTER, value]);
        let before = server.cli(&["DUMP", COUNTER]);
        let answer = backend
            .try_acquire(&AcquireRequest::new(LockKey::new("a"), lease(), TTL))
            .await;
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{value}");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains(COUNTER), "{cause}");
        assert_eq!(server.cli(&["DUMP", COUNTER]), before);
        assert_eq!(server.cli(&["EXISTS", "lock:a"]), "0");
    }
}

/// A reply below 1 does not mean a counter.
#[tokio::test]
async fn negative_redisson_counter_grants_nothing() {
    const COUNTER: &str = "redisson_lock_token:{a}";
    let server = RedisServer::start();
    let builder = RedisBackend::builder(server.url()).prefix("");
    let builder = builder.response_timeout(PATIENCE).redisson_fencing_tokens();
    let backend = builder.connect().await.unwrap();
    server.cli(&["SET", COUNTER, "-7"]);
    let answer = backend
        .try_acquire(&AcquireRequest::new(LockKey::new("a"), lease(), TTL))
        .await;
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("below zero"), "{cause}");
    assert_eq!(server.cli(&["EXISTS", "a"]), "0");
}

#[tokio::test]
async fn counter_after_empty_restart_still_grows() {
    let mut server = RedisServer::start();
    let backend = connect(&server).await;
    let before = grant(&backend, "a").await;
    server.restart_empty();
    assert_eq!(renew(&backend, "a").await.unwrap(), Renewed::NotHeld);
    assert!(grant(&backend, "a").await > before);
}

#[tokio::test]
async fn restart_with_data_keeps_lease() {
    let mut server = RedisServer::start();
    let backend = connect(&server).await;
    grant(&backend, "a").await;
    server.restart_with_data();
    assert_eq!(renew(&backend, "a").await.unwrap(), Renewed::Renewed);
}

#[tokio::test]
async fn flushed_scripts_are_reloaded_once() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let loads = || server.calls("eval");
    for round in 0..3 {
        let before = loads();
        server.cli(&["SCRIPT", "FLUSH"]);
        grant(&backend, "a").await;
        server.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(renew(&backend, "a").await.unwrap(), Renewed::Renewed);
        server.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(release(&backend, "a").await.unwrap(), Released::Released);
        assert_eq!(loads() - before, 3, "round {round}: one load each");
    }
}

#[tokio::test]
async fn release_or_keep_depends_on_other_subscribers() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let key = LockKey::new("a");
    let first = grant(&one, "a").await;
    let alone = one
        .release_or_keep(&KeepRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap();
    let ReleasedOrKept::Kept {
        counter: second, ..
    } = alone
    else {
        panic!("no subscriber: {alone:?}");
    };
    assert!(second > Some(first));

    // The subscription outlives its last subscriber briefly.
    let mut own = one.watch(&key, MANAGER);
    assert!(hinted(&mut own).await);
    drop(own);
    assert_eq!(subscribers(&server, "a"), 1);
    let watched_before = one
        .release_or_keep(&KeepRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap();
    assert!(matches!(watched_before, ReleasedOrKept::Kept { counter, .. } if counter > second));

    let mut others = other.watch(&key, MANAGER);
    assert!(hinted(&mut others).await);
    let watched_there = one
        .release_or_keep(&KeepRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap();
    assert_eq!(watched_there, ReleasedOrKept::released(1));

    // A clone of the backend stands for another manager on the same connections.
    let key = LockKey::new("b");
    grant(&one, "b").await;
    let mut clones = one.clone().watch(&key, MANAGER);
    assert!(hinted(&mut clones).await);
    let extended = one
        .extend(&KeepRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap();
    assert_eq!(extended, Extended::wanted(1));
    let watched_here = one
        .release_or_keep(&KeepRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap();
    assert_eq!(watched_here, ReleasedOrKept::released(1));
}

#[tokio::test]
async fn release_or_keep_without_notify_always_releases() {
    let server = RedisServer::start();
    let pool = Config::from_url(server.url());
    let pool = pool.create_pool(Some(Runtime::Tokio1)).unwrap();
    let backend = RedisBackend::from_pool(pool).connect().await.unwrap();
    grant(&backend, "a").await;
    let passed = backend
        .release_or_keep(&KeepRequest::new(LockKey::new("a"), lease(), TTL))
        .await;
    assert_eq!(passed.unwrap(), ReleasedOrKept::released(1));
    assert_eq!(server.clients("pubsub"), [""; 0]);
}

// ---- conflicts and rejected commands ----

#[tokio::test]
async fn foreign_value_is_conflict_and_stays_unchanged() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    server.cli(&["SET", "lock:text", "precious"]);
    server.cli(&["SET", "lock:mortal", "precious", "EX", "100"]);
    server.cli(&["RPUSH", "lock:list", "precious"]);
    server.cli(&["HSET", "lock:hash", "field", "precious"]);
    let dump = |key: &str| server.cli(&["DUMP", key]);
    for name in ["text", "mortal", "list", "hash"] {
        let key = LockKey::new(name);
        let before = dump(&format!("lock:{name}"));
        let errors = [
            backend
                .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
                .await
                .map(drop),
            backend.inspect(&key).await.map(drop),
            backend.force_release(&key).await.map(drop),
        ];
        for (command, error) in errors.into_iter().enumerate() {
            let error = error.expect_err(name);
            assert_eq!(error.kind(), BackendErrorKind::Conflict, "{name} {command}");
            assert!(!error.may_have_taken_effect());
        }
        // A foreign hash does not contain the lease; any other type is a conflict.
        if name != "hash" {
            let outcomes = [
                renew(&backend, name).await.map(drop),
                release(&backend, name).await.map(drop),
                backend
                    .release_or_keep(&KeepRequest::new(key.clone(), lease(), TTL))
                    .await
                    .map(drop),
            ];
            for error in outcomes.map(Result::unwrap_err) {
                assert_eq!(error.kind(), BackendErrorKind::Conflict);
            }
        }
        assert_eq!(dump(&format!("lock:{name}")), before, "{name} was changed");
    }
}

#[tokio::test]
async fn conflict_in_batch_affects_only_its_key() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    server.cli(&["SET", "lock:text", "precious"]);
    grant(&backend, "a").await;
    grant(&backend, "b").await;
    let renewals = ["a", "text", "b"].map(|key| Renewal::new(LockKey::new(key), lease(), TTL));
    let answers = backend.renew(&renewals).await;
    assert_eq!(*answers[0].as_ref().unwrap(), Renewed::Renewed);
    let error = answers[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Conflict);
    assert_eq!(*answers[2].as_ref().unwrap(), Renewed::Renewed);
}

/// Two managers can share a backend.
#[tokio::test]
async fn one_key_twice_in_call_has_one_holder() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    // The first one is sent alone, and most others in shared calls.
    let acquires: Vec<_> = (0..100)
        .map(|number| {
            let (key, lease) = (format!("k{}", number / 2), LeaseId::new(MANAGER, number));
            AcquireRequest::new(LockKey::new(key), lease, TTL)
        })
        .collect();
    let outcomes = join_all(acquires.iter().map(|it| backend.try_acquire(it))).await;
    let granted = |outcome: &_| matches!(outcome, Ok(Acquired::Granted { .. }));
    for (key, pair) in outcomes.chunks(2).enumerate() {
        assert!(granted(&pair[0]) != granted(&pair[1]), "k{key}: {pair:?}");
        assert_eq!(server.cli(&["HLEN", &format!("lock:k{key}")]), "1");
    }
}

#[tokio::test]
async fn full_memory_rejects_only_acquires() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let backend = connect(&server).await;
    grant(&backend, "held").await;
    grant(&backend, "passed").await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);

    let key = LockKey::new("new");
    let error = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(!error.may_have_taken_effect(), "{}", debug_chain(&error));
    assert_eq!(server.cli(&["EXISTS", "lock:new"]), "0");

    server.cli(&["PEXPIRE", "lock:held", "10000"]);
    assert_eq!(renew(&backend, "held").await.unwrap(), Renewed::Renewed);
    let left: u64 = server.cli(&["PTTL", "lock:held"]).parse().unwrap();
    assert!(left > 20_000, "renewed: {left}");
    assert_eq!(release(&backend, "held").await.unwrap(), Released::Released);
    assert_eq!(server.cli(&["EXISTS", "lock:held"]), "0");
    let forced = backend.force_release(&LockKey::new("passed")).await;
    assert_eq!(forced.unwrap(), ForceReleased::Released);
}

#[tokio::test]
async fn unsuitable_server_is_reported_in_warnings() {
    let server = RedisServer::start();
    assert_eq!(connect(&server).await.warnings(), [""; 0]);
    let warned_of = async |what: &str| {
        let backend = connect(&server).await;
        let warnings = backend.warnings();
        assert!(
            warnings.iter().any(|warning| warning.contains(what)),
            "{what} is not in {warnings:?}"
        );
    };
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    warned_of("allkeys-lru").await;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    warned_of("cannot grant locks now").await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    warned_of("is a replica").await;
}

#[tokio::test]
async fn unauthorized_client_is_rejected_on_connect() {
    let server = RedisServer::start();
    let refused = async |url: String| {
        let outcome = RedisBackend::builder(url).connect().await;
        let error = outcome.expect_err("the client is unauthorized");
        assert!(
            matches!(&error, ConnectError::Refused { address, .. }
                if *address == format!("127.0.0.1:{}", server.port())),
            "{}",
            debug_chain(&error)
        );
        debug_chain(&error)
    };
    // This user can only log in.
    server.cli(&["ACL", "SETUSER", "guest", "reset", "on", ">secret"]);
    refused(server.url_of("guest", "secret")).await;
    // This user can run everything except one command inside the scripts.
    let all = [
        "ACL", "SETUSER", "most", "reset", "on", ">secret", "~*", "&*", "+@all",
    ];
    server.cli(&[&all[..], &["-pexpire"]].concat());
    let said = refused(server.url_of("most", "secret")).await;
    assert!(
        [
            "The user executing the script can't",
            "ACL failure in script"
        ]
        .iter()
        .any(|it| said.contains(it)),
        "{said}"
    );
    let bodies = server.cli(&["KEYS", "lock:self-test*"]);
    assert_eq!(bodies, "", "a self-test key without a TTL was deleted");
    // This user cannot subscribe.
    server.cli(&[&all[..], &["-subscribe"]].concat());
    refused(server.url_of("most", "secret")).await;
    // The password is wrong, and then missing.
    refused(server.url_of("most", "wrong")).await;
    server.cli(&["CONFIG", "SET", "requirepass", "secret"]);
    refused(server.url()).await;
}

#[tokio::test]
async fn revoked_permission_is_misconfigured() {
    let server = RedisServer::start();
    let all = [
        "ACL", "SETUSER", "some", "reset", "on", ">secret", "~*", "&*", "+@all",
    ];
    server.cli(&all);
    let url = server.url_of("some", "secret");
    let backend = RedisBackend::builder(url).connect().await.unwrap();
    server.cli(&["ACL", "SETUSER", "some", "-hset"]);
    let key = LockKey::new("a");
    let error = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    server.cli(&["ACL", "SETUSER", "some", "-evalsha"]);
    let error = renew(&backend, "a").await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
}

#[tokio::test]
async fn inspect_without_hgetall_omits_holder_id() {
    let server = RedisServer::start();
    let rules = "ACL SETUSER some reset on >secret ~* &* +@all -hgetall";
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let url = server.url_of("some", "secret");
    let backend = RedisBackend::builder(url).connect().await.unwrap();
    grant(&backend, "a").await;
    let holder = backend.inspect(&LockKey::new("a")).await.unwrap().unwrap();
    assert_eq!((holder.id.as_str(), holder.hold_count), ("", 1));
}

// ---- settings ----

#[tokio::test]
async fn invalid_settings_are_named() {
    let builder = || RedisBackend::builder("redis://127.0.0.1:1");
    let many = NonZeroUsize::new(1_000_000).unwrap();
    for (field, builder) in [
        ("prefix", builder().prefix("a{b}")),
        ("prefix", builder().prefix("a\n")),
        ("connections", builder().connections(many)),
        ("connect_timeout", builder().connect_timeout(Duration::ZERO)),
        ("connect_timeout", builder().connect_timeout(Duration::MAX)),
        (
            "response_timeout",
            builder().response_timeout(Duration::ZERO),
        ),
        ("notify", builder().notify("nonsense")),
        ("url", RedisBackend::builder("redis+sentinel://h")),
        ("url", RedisBackend::builder("redis+cluster://h/1")),
        (
            "notify",
            RedisBackend::builder("redis+cluster://h").notify("redis://h"),
        ),
        ("sentinel_auth", builder().sentinel_auth("", "secret")),
        ("url", RedisBackend::builder("amqp://h")),
        (
            "redisson_fencing_tokens",
            builder().redisson_fencing_tokens().quarantine(TTL),
        ),
    ] {
        match builder.connect().await {
            Err(ConnectError::Config(error)) => assert_eq!(error.field(), field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn lazy_connect_finds_server_started_later() {
    let mut server = RedisServer::start();
    server.kill();
    let builder = || RedisBackend::builder(server.url());
    builder().connect().await.unwrap_err();
    let backend = builder().connect_lazy().await.unwrap();
    let warnings = backend.warnings().concat();
    assert!(warnings.contains("cannot be reached"), "{warnings}");
    let key = LockKey::new("a");
    let refused = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), BackendErrorKind::Unavailable);
    server.launch_again();
    let deadline = Instant::now() + Duration::from_secs(10);
    while backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .is_err()
    {
        assert!(Instant::now() < deadline, "still unavailable");
        sleep(Duration::from_millis(20)).await;
    }
    // A wrong password still fails the lazy connect.
    let wrong = RedisBackend::builder(server.url_of("nobody", "wrong"));
    let error = wrong.connect_lazy().await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn unreachable_server_is_named_within_connect_timeout() {
    let patience = Duration::from_millis(300);
    // This server accepts connections and never replies.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = mute.local_addr().unwrap().to_string();
    // The listener of this address is closed.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = closed.local_addr().unwrap().to_string();
    drop(closed);
    for (url, expected) in [
        (format!("redis://user:canary@{mute}"), mute.as_str()),
        (format!("redis://user:canary@{gone}"), gone.as_str()),
        (
            "redis+unix:///no/such.sock?pass=canary".to_owned(),
            "/no/such.sock",
        ),
    ] {
        let started = Instant::now();
        let builder = RedisBackend::builder(url).connect_timeout(patience);
        let error = builder.connect().await.unwrap_err();
        assert!(started.elapsed() < patience * 4, "{:?}", started.elapsed());
        let ConnectError::Unreachable { address, .. } = &error else {
            panic!("{}", debug_chain(&error));
        };
        assert_eq!(address, expected);
        assert!(error.to_string().contains(expected));
        assert!(!debug_chain(&error).contains("canary"));
    }
}

#[tokio::test]
async fn debug_and_errors_omit_passwords() {
    let server = RedisServer::start();
    let rules = "ACL SETUSER some reset on >canary ~* &* +@all";
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let url = server.url_of("some", "canary");
    let builder = RedisBackend::builder(url.clone()).notify(url.clone());
    let mut shown = format!("{builder:?} {builder:#?}");
    let backend = builder.connect().await.unwrap();
    shown += &format!("{backend:?} {backend:#?} {:?}", backend.warnings());
    let pool = Config::from_url(url).create_pool(Some(Runtime::Tokio1));
    let builder = RedisBackend::from_pool(pool.unwrap());
    shown += &format!("{builder:?}");
    shown += &format!("{:?}", builder.connect().await.unwrap());
    let unix = format!("{}?user=some&pass=canary", server.unix_url());
    let builder = RedisBackend::builder(unix);
    shown += &format!("{builder:?}");
    shown += &format!("{:?}", builder.connect().await.unwrap());
    for url in [
        server.url_of("some", "wrong-canary"),
        server.url_of("canary", "canary"),
        "redis://some:canary@127.0.0.1:1/canary".to_owned(),
        "rediss://some:canary@127.0.0.1:1#canary".to_owned(),
    ] {
        let error = RedisBackend::builder(url).connect().await.unwrap_err();
        shown += &debug_chain(&error);
    }
    assert!(!shown.contains("canary"), "{shown}");
    assert!(shown.contains("127.0.0.1"), "the address is shown");
}

// ---- connections ----

#[tokio::test]
async fn connections_open_once_and_close_with_last_handle() {
    let server = RedisServer::start();
    let three = NonZeroUsize::new(3).unwrap();
    let builder = RedisBackend::builder(server.url()).connections(three);
    let backend = builder.connect().await.unwrap();
    eventually("the self-test disconnected", || {
        server.clients("pubsub").is_empty()
    })
    .await;
    assert_eq!(server.clients("normal").len(), 3);
    for number in 0..50 {
        let key = format!("a:{number}");
        grant(&backend, &key).await;
        release(&backend, &key).await.unwrap();
    }
    assert_eq!(
        server.clients("normal").len(),
        3,
        "a command opened a connection"
    );
    let mut hints = backend.watch(&LockKey::new("a"), MANAGER);
    assert!(hinted(&mut hints).await);
    drop(backend.clone());
    assert_eq!(server.clients("normal").len(), 3);
    drop(backend);
    eventually("all connections are closed", || {
        server.clients("normal").is_empty() && server.clients("pubsub").is_empty()
    })
    .await;
}

#[tokio::test]
async fn killed_connection_is_replaced_on_next_command() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for round in 0..3 {
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        grant(&backend, "a").await;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert_eq!(renew(&backend, "a").await.unwrap(), Renewed::Renewed);
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        let outcome = release(&backend, "a").await.unwrap();
        assert_eq!(outcome, Released::Released, "round {round}");
    }
}

#[tokio::test]
async fn commands_after_kill_open_one_connection() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let before = connections(&server);
    let backend = &backend;
    join_all((0..50).map(|number| async move { grant(backend, &format!("a:{number}")).await }))
        .await;
    assert_eq!(connections(&server) - before, 1);
}

#[tokio::test]
async fn commands_while_server_down_fail_at_once() {
    let mut server = RedisServer::start();
    let backend = connect(&server).await;
    let key = LockKey::new("a");
    server.stop_process();
    let request = AcquireRequest::new(key.clone(), lease(), TTL);
    let mut first = Box::pin(backend.try_acquire(&request));
    assert!(poll!(&mut first).is_pending());
    // The command is sent and unread.
    sleep(Duration::from_millis(50)).await;
    server.kill();
    let first = first.await.unwrap_err();
    assert_eq!(first.kind(), BackendErrorKind::Unavailable);
    assert!(
        first.may_have_taken_effect(),
        "the connection broke in flight"
    );
    let started = Instant::now();
    for _ in 0..1_000 {
        let error = backend
            .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
        assert!(!error.may_have_taken_effect(), "it was never sent");
    }
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    server.launch_again();
    let deadline = Instant::now() + PATIENCE;
    while backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .is_err()
    {
        assert!(Instant::now() < deadline, "still unavailable");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn late_acquire_is_released_automatically() {
    let server = RedisServer::start();
    let backend = RedisBackend::builder(server.url());
    let backend = backend.connect().await.unwrap();
    grant(&backend, "before").await;
    let acquires = server.calls("evalsha");
    let fence = server.cli(&["GET", "lock:{fencing-token}%"]);
    server.cli(&["CLIENT", "PAUSE", "1500", "ALL"]);

    let key = LockKey::new("late");
    let started = Instant::now();
    let error = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert!(started.elapsed() < Duration::from_millis(1_200));
    assert!(error.may_have_taken_effect(), "{}", debug_chain(&error));

    // `INFO` also waits for the end of the pause.
    eventually("the late acquire was executed", || {
        server.calls("evalsha") > acquires
    })
    .await;
    assert_ne!(
        server.cli(&["GET", "lock:{fencing-token}%"]),
        fence,
        "the acquire was granted"
    );
    eventually("the late acquire was released", || {
        server.cli(&["EXISTS", "lock:late"]) == "0"
    })
    .await;
    assert_eq!(server.cli(&["EXISTS", "lock:before"]), "1");
    grant(&backend, "late").await;
}

/// The connection of the acquire hangs, and its replacement does not. The engine's release
/// overtakes the acquire, so only a release queued on the same connection can undo it.
#[tokio::test]
async fn overtaken_acquire_is_released_on_its_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let builder = RedisBackend::builder(proxy.url());
    let builder = builder.response_timeout(Duration::from_millis(200));
    let backend = builder.connect().await.unwrap();
    grant(&backend, "before").await;

    proxy.freeze();
    let key = LockKey::new("late");
    let error = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", debug_chain(&error));
    let overtaking = release(&backend, "late").await.unwrap();
    assert_eq!(overtaking, Released::NotHeld, "on the replacement");
    let fence = || server.cli(&["GET", "lock:{fencing-token}%"]);
    let before = fence();
    let clients = server.clients("normal").len();
    assert_eq!(clients, 2, "the old connection stays for its commands");

    proxy.thaw();
    eventually("the late acquire was granted", || fence() != before).await;
    eventually("the late acquire was released", || {
        server.cli(&["EXISTS", "lock:late"]) == "0"
    })
    .await;
    eventually("the old connection was closed", || {
        server.clients("normal").len() == 1
    })
    .await;
    assert_eq!(server.cli(&["EXISTS", "lock:before"]), "1");
}

#[tokio::test]
async fn commands_to_hung_server_do_not_pile_up() {
    let server = RedisServer::start();
    let builder = RedisBackend::builder(server.url())
        .response_timeout(Duration::from_millis(100))
        .connect_timeout(Duration::from_millis(300));
    let backend = builder.connect().await.unwrap();
    let evals = server.calls("evalsha");
    server.stop_process();
    let key = LockKey::new("a");
    let first = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert!(first.may_have_taken_effect());
    let until = Instant::now() + Duration::from_secs(1);
    let mut refused = 0;
    while Instant::now() < until {
        let started = Instant::now();
        let error = backend
            .try_acquire(&AcquireRequest::new(key.clone(), stranger(), TTL))
            .await
            .unwrap_err();
        assert!(!error.may_have_taken_effect(), "{}", debug_chain(&error));
        assert!(started.elapsed() < Duration::from_millis(250));
        refused += 1;
        sleep(Duration::from_millis(1)).await;
    }
    assert!(refused > 3);
    server.continue_process();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match backend
            .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
            .await
        {
            Ok(Acquired::Granted { .. }) => break,
            outcome => assert!(Instant::now() < deadline, "{outcome:?}"),
        }
        sleep(Duration::from_millis(5)).await;
    }
    let sent = server.calls("evalsha") - evals;
    assert!(sent < 20, "{sent} commands for {refused} rejected acquires");
}

#[tokio::test]
async fn recovered_connection_is_reused() {
    let server = RedisServer::start();
    let builder = RedisBackend::builder(server.url());
    let builder = builder.response_timeout(Duration::from_millis(100));
    let backend = builder.connect().await.unwrap();
    grant(&backend, "a").await;
    let before = connections(&server);
    server.stop_process();
    let error = renew(&backend, "a").await.unwrap_err();
    assert!(error.may_have_taken_effect());
    server.continue_process();
    // No command needed a replacement, so the backend opened none.
    sleep(Duration::from_millis(300)).await;
    assert_eq!(renew(&backend, "a").await.unwrap(), Renewed::Renewed);
    assert_eq!(connections(&server), before);
}

// ---- subscriptions ----

#[tokio::test]
async fn subscriptions_share_one_connection_until_dropped() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut watches: Vec<_> = (0..1_200)
        .map(|number| backend.watch(&LockKey::new(format!("a:{number}")), MANAGER))
        .collect();
    for hints in &mut watches {
        assert!(hinted(hints).await);
    }
    let clients = server.clients("pubsub");
    assert_eq!(clients.len(), 1);
    // The channel of the releases, the one of this crate and the one of the manager.
    assert!(clients[0].contains(" sub=3600 "), "{clients:?}");

    // A watch that follows at once reuses the existing subscription.
    watches.truncate(1);
    drop(backend.watch(&LockKey::new("a:5"), MANAGER));
    eventually("the channels are unsubscribed", || {
        server
            .clients("pubsub")
            .iter()
            .any(|client| client.contains(" sub=3 "))
    })
    .await;
    watches.clear();
    let left = Instant::now();
    eventually("the connection is closed", || {
        server.clients("pubsub").is_empty()
    })
    .await;
    assert!(left.elapsed() > Duration::from_secs(1), "closed early");
    assert!(format!("{backend:?}").contains("RedisBackend"));

    let mut again = backend.watch(&LockKey::new("a:1"), MANAGER);
    assert!(hinted(&mut again).await, "the next watch subscribes again");
}

#[tokio::test]
async fn killed_subscription_is_restored_and_hints() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut hints = [
        backend.watch(&LockKey::new("a"), MANAGER),
        backend.watch(&LockKey::new("b"), MANAGER),
    ];
    for hints in &mut hints {
        assert!(hinted(hints).await, "in force");
    }
    for _ in 0..2 {
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        for hints in &mut hints {
            assert!(hinted(hints).await, "in force again");
        }
    }
    grant(&backend, "a").await;
    release(&backend, "a").await.unwrap();
    assert!(hinted(&mut hints[0]).await, "a message");
    let quiet = timeout(Duration::from_millis(300), hints[1].next()).await;
    assert!(quiet.is_err(), "the other key was not released");
}

#[tokio::test]
async fn subscription_survives_server_restart() {
    let mut server = RedisServer::start();
    let backend = connect(&server).await;
    let mut hints = backend.watch(&LockKey::new("a"), MANAGER);
    assert!(hinted(&mut hints).await);
    server.kill();
    sleep(Duration::from_millis(300)).await;
    server.launch_again();
    assert!(hinted(&mut hints).await, "in force again");
}

#[tokio::test]
async fn silent_subscription_connection_is_replaced() {
    let server = RedisServer::start();
    let quick = Duration::from_millis(200);
    let builder = RedisBackend::builder(server.url()).connect_timeout(quick);
    let backend = builder.connect().await.unwrap();
    let mut hints = backend.watch(&LockKey::new("a"), MANAGER);
    assert!(hinted(&mut hints).await);
    server.stop_process();
    // The hang exceeds the interval and the timeout of the probe.
    sleep(Duration::from_secs(4)).await;
    server.continue_process();
    assert!(hinted(&mut hints).await, "subscribed again");
}

#[tokio::test]
async fn subscribe_without_permission_backs_off() {
    let server = RedisServer::start();
    let all = [
        "ACL", "SETUSER", "some", "reset", "on", ">secret", "~*", "&*", "+@all",
    ];
    server.cli(&all);
    let url = server.url_of("some", "secret");
    let backend = RedisBackend::builder(url).connect().await.unwrap();
    server.cli(&["ACL", "SETUSER", "some", "-subscribe"]);
    let before = server.calls("auth") + server.calls("hello");
    let watch = backend.watch(&LockKey::new("a"), MANAGER);
    sleep(Duration::from_secs(2)).await;
    let attempts = server.calls("auth") + server.calls("hello") - before;
    assert!((1..=3).contains(&attempts), "{attempts} in two seconds");
    drop(watch);
}

#[test]
fn backend_moved_to_second_runtime_still_works() {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let backend = first.block_on(async {
        let backend = connect(&server).await;
        grant(&backend, "a").await;
        let mut hints = backend.watch(&LockKey::new("a"), MANAGER);
        assert!(hinted(&mut hints).await);
        backend
    });
    drop(first);
    runtime().block_on(async {
        assert_eq!(renew(&backend, "a").await.unwrap(), Renewed::Renewed);
        let mut hints = backend.watch(&LockKey::new("a"), MANAGER);
        assert!(hinted(&mut hints).await, "in force");
        release(&backend, "a").await.unwrap();
        assert!(hinted(&mut hints).await, "a message");
        let mut others = backend.watch(&LockKey::new("b"), MANAGER);
        assert!(hinted(&mut others).await, "another key");
    });
}

#[tokio::test]
async fn keys_with_different_prefixes_are_independent() {
    let server = RedisServer::start();
    let shop = RedisBackend::builder(server.url()).prefix("shop:");
    let shop = shop.connect().await.unwrap();
    grant(&shop, "a").await;
    grant(&connect(&server).await, "a").await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut keys: Vec<String> = client.get_connection().unwrap().keys("*:a").unwrap();
    keys.sort();
    assert_eq!(keys, ["lock:a", "shop:a"]);
}

#[tokio::test]
async fn response_timeout_includes_replica_timeout() {
    let (timeout, one) = (Duration::from_secs(3), NonZeroUsize::MIN);
    let builder = || RedisBackend::builder("redis://127.0.0.1:1").response_timeout(timeout);
    let backend = builder().connect_lazy().await.unwrap();
    assert_eq!(backend.response_timeout(), timeout);
    let replicated = builder().min_replicas(one, Duration::from_secs(2));
    let replicated = replicated.connect_lazy().await.unwrap();
    assert_eq!(replicated.response_timeout(), Duration::from_secs(5));
}

/// One lock has two counters, which follow the server's clock.
#[tokio::test]
async fn lock_under_two_prefixes_has_one_holder() {
    let server = RedisServer::start();
    let shared = RedisBackend::builder(server.url()).prefix("");
    let backends = [
        (connect(&server).await, "k"),
        (shared.connect().await.unwrap(), "lock:k"),
    ];
    let mut last = 0;
    for round in 0..20 {
        let (backend, key) = &backends[round % 2];
        let (other, same) = &backends[(round + 1) % 2];
        let counter = grant(backend, key).await;
        assert!(counter > last, "{counter} after {last}");
        last = counter;
        let request = AcquireRequest::new(LockKey::new(same), stranger(), TTL);
        let busy = other.try_acquire(&request).await.unwrap();
        assert!(matches!(busy, Acquired::Busy { .. }), "{busy:?}");
        let release = Release::new(LockKey::new(key), lease());
        backend.release(&[release]).await.remove(0).unwrap();
        // Counters are ordered only if the grants are at least 1 ms apart.
        sleep(2 * Duration::from_millis(1)).await;
    }
}
