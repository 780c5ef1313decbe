//! The data in Redis, which Redisson shares.

use deadpool_redis::{Config, Runtime};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendErrorKind, Contended, KeepRequest, LeaseId, Released,
    ReleasedOrKept, Renewed,
};
use tower_lock::{LockKey, RedisBackend};

use super::client::{LEASE, MANAGER, PATIENCE, TTL, connect, grant, hinted, lease, release, renew};
use crate::support::engine::{scripts_called, subscribers};
use crate::support::redis_server::RedisServer;

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
        .release_or_keep(&[KeepRequest::new(key.clone(), lease(), TTL)])
        .await
        .remove(0)
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
        .release_or_keep(&[KeepRequest::new(key.clone(), lease(), TTL)])
        .await
        .remove(0)
        .unwrap();
    assert!(matches!(watched_before, ReleasedOrKept::Kept { counter, .. } if counter > second));

    let mut others = other.watch(&key, MANAGER);
    assert!(hinted(&mut others).await);
    let watched_there = one
        .release_or_keep(&[KeepRequest::new(key.clone(), lease(), TTL)])
        .await
        .remove(0)
        .unwrap();
    assert_eq!(watched_there, ReleasedOrKept::released(1));

    // A clone of the backend stands for another manager on the same connections.
    let key = LockKey::new("b");
    grant(&one, "b").await;
    let mut clones = one.clone().watch(&key, MANAGER);
    assert!(hinted(&mut clones).await);
    let watched_here = one
        .release_or_keep(&[KeepRequest::new(key.clone(), lease(), TTL)])
        .await
        .remove(0)
        .unwrap();
    assert_eq!(watched_here, ReleasedOrKept::released(1));
}

#[tokio::test]
async fn leases_are_kept_by_one_call() {
    const COUNTERS: u32 = 4;
    let server = RedisServer::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let keep = |key| KeepRequest::new(LockKey::new(key), lease(), 2 * TTL).with_counters(COUNTERS);
    let before = [grant(&one, "a").await, grant(&one, "b").await][1];
    let calls = scripts_called(&server);
    let kept = one
        .release_or_keep(&[keep("a"), keep("absent"), keep("b")])
        .await;
    assert_eq!(scripts_called(&server) - calls, 1);
    let [
        Ok(ReleasedOrKept::Kept {
            counter: Some(first),
            ..
        }),
        Ok(ReleasedOrKept::NotHeld),
        Ok(ReleasedOrKept::Kept {
            counter: Some(second),
            ..
        }),
    ] = kept[..]
    else {
        panic!("nobody waits: {kept:?}");
    };
    assert!(before < first && second == first + u64::from(COUNTERS));
    let next = grant(&one, "c").await;
    assert!(second + u64::from(COUNTERS) <= next, "{second}, {next}");
    let left: u64 = server.cli(&["PTTL", "lock:a"]).parse().unwrap();
    assert!(u128::from(left) > TTL.as_millis(), "{left}");

    // A key whose queue has waiters, and one with a subscriber, do not stop the others from being kept.
    let waits = AcquireRequest::new(LockKey::new("b"), LeaseId::new(MANAGER, 2), TTL);
    let waits = other.contend(&waits).await.unwrap();
    assert!(matches!(waits, Contended::Waiting { .. }), "{waits:?}");
    let mut hints = other.watch(&LockKey::new("c"), MANAGER);
    assert!(hinted(&mut hints).await);
    let [kept, transferred, released] = &one
        .release_or_keep(&[keep("a"), keep("b"), keep("c")])
        .await[..]
    else {
        panic!("one outcome for each lease");
    };
    assert!(
        matches!(kept, Ok(ReleasedOrKept::Kept { counter, .. }) if *counter > Some(next)),
        "{kept:?}"
    );
    let to_queue = ReleasedOrKept::passed(Released::Transferred, 1, false);
    assert_eq!(transferred.as_ref().unwrap(), &to_queue);
    assert_eq!(released.as_ref().unwrap(), &ReleasedOrKept::released(1));
}

#[tokio::test]
async fn full_memory_keeps_leases_without_counters() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let keep = ["a", "b"].map(|key| KeepRequest::new(LockKey::new(key), lease(), TTL));
    for key in ["a", "b"] {
        grant(&backend, key).await;
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let kept = backend.release_or_keep(&keep).await;
    for outcome in kept {
        assert_eq!(outcome.unwrap(), ReleasedOrKept::kept(None));
    }
}

#[tokio::test]
async fn data_of_another_type_concerns_its_key_alone() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    grant(&backend, "a").await;
    server.cli(&["SET", "lock:text", "no lock"]);
    let keep = ["text", "a"].map(|key| KeepRequest::new(LockKey::new(key), lease(), TTL));
    let [text, kept] = &backend.release_or_keep(&keep).await[..] else {
        panic!("one outcome for each lease");
    };
    let conflict = text.as_ref().expect_err("it is no lock").kind();
    assert_eq!(conflict, BackendErrorKind::Conflict);
    assert!(matches!(kept, Ok(ReleasedOrKept::Kept { .. })), "{kept:?}");
}

#[tokio::test]
async fn release_or_keep_without_notify_always_releases() {
    let server = RedisServer::start();
    let pool = Config::from_url(server.url());
    let pool = pool.create_pool(Some(Runtime::Tokio1)).unwrap();
    let backend = RedisBackend::from_pool(pool).connect().await.unwrap();
    grant(&backend, "a").await;
    let passed = backend
        .release_or_keep(&[KeepRequest::new(LockKey::new("a"), lease(), TTL)])
        .await
        .remove(0);
    assert_eq!(passed.unwrap(), ReleasedOrKept::released(1));
    assert_eq!(server.clients("pubsub"), [""; 0]);
}
