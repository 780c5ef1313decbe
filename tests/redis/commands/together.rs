//! Concurrent requests share calls, and each has its own reply.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tower_lock::LockKey;
use tower_lock::backend::redis::RedisBackend;
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, LeaseId, Release, Released,
};
use uuid::Uuid;

use crate::support::engine::{MS, Monitor, SECOND, eventually};
use crate::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(30);

type Outcome = Result<Acquired, BackendError>;

/// Connects with a long response timeout for a busy machine.
async fn connect(url: String) -> RedisBackend {
    let builder = RedisBackend::builder(url).response_timeout(10 * SECOND);
    builder.connect().await.unwrap()
}

/// Acquires each key with its own lease, after a first acquire that is sent alone.
async fn acquire_all(backend: &RedisBackend, names: &[&str]) -> Vec<Outcome> {
    let keys = std::iter::once("the first").chain(names.iter().copied());
    let acquires = keys.map(|name| async move {
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        let key = LockKey::new(name);
        backend
            .try_acquire(&AcquireRequest::new(key.clone(), lease, TTL))
            .await
    });
    join_all(acquires).await.split_off(1)
}

fn counter(outcome: &Outcome) -> u64 {
    match outcome {
        Ok(Acquired::Granted { counter, .. }) => *counter,
        other => panic!("{other:?}"),
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("k{n}")).collect()
}

fn each(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

fn exist(server: &RedisServer, names: &[String]) -> usize {
    let is_there = |name: &&String| server.cli(&["EXISTS", &format!("lock:{name}")]) == "1";
    names.iter().filter(is_there).count()
}

/// One worker sends the batches and runs the acquires, so a busy machine makes no smaller batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn batched_acquires_return_distinct_tokens() {
    let server = RedisServer::start();
    let connected = tokio::spawn({
        let url = server.url();
        async { connect(url).await }
    });
    let backend = Arc::new(connected.await.unwrap());
    let calls = server.calls("evalsha");
    let names = names(450);
    let outcomes = tokio::spawn({
        let (backend, names) = (Arc::clone(&backend), names.clone());
        async move { acquire_all(&backend, &each(&names)).await }
    });
    let outcomes = outcomes.await.unwrap();
    let counters: BTreeSet<_> = outcomes.iter().map(counter).collect();
    assert_eq!(counters.len(), 450);
    // The worker may send a batch before all acquires are queued.
    let calls = server.calls("evalsha") - calls;
    assert!(calls <= 450 / 10, "{calls} calls");
    assert_eq!(exist(&server, &names), 450);
    for name in &names {
        let left: u64 = server
            .cli(&["PTTL", &format!("lock:{name}")])
            .parse()
            .unwrap();
        assert!(left > 20_000, "{name} ends in {left} ms");
    }
    // A later acquire has a larger token.
    let later = acquire_all(&backend, &["later"]).await;
    assert!(counters.last().unwrap() < &counter(&later[0]));
}

#[tokio::test]
async fn batched_acquires_return_reply_per_key() {
    let server = RedisServer::start();
    let backend = connect(server.url()).await;
    counter(&acquire_all(&backend, &["taken"]).await[0]);
    server.cli(&["DEL", "lock:the first"]);
    server.cli(&["SET", "lock:text", "precious", "EX", "100"]);
    server.cli(&["HSET", "lock:endless", "field", "precious"]);
    let outcomes = acquire_all(
        &backend,
        &["a", "taken", "text", "endless", "twice", "twice", "b"],
    )
    .await;
    let [a, taken, text, endless, twice, again, b] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    let counters = [a, twice, b].map(counter);
    assert!(
        counters.is_sorted_by(|one, other| one < other),
        "{counters:?}"
    );
    match taken {
        Ok(Acquired::Busy { ttl, .. }) => assert!(*ttl > 20 * SECOND && *ttl <= TTL),
        other => panic!("{other:?}"),
    }
    assert!(matches!(again, Ok(Acquired::Busy { .. })), "{again:?}");
    assert_eq!(server.cli(&["HLEN", "lock:twice"]), "1");
    for foreign in [text, endless] {
        let error = foreign.as_ref().unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Conflict);
        assert!(!error.may_have_taken_effect());
    }
    assert_eq!(server.cli(&["GET", "lock:text"]), "precious");
    assert_eq!(server.cli(&["HGET", "lock:endless", "field"]), "precious");
}

#[tokio::test]
async fn resent_acquire_is_granted_again() {
    let server = RedisServer::start();
    let backend = connect(server.url()).await;
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let (first, key) = (LockKey::new("the first"), LockKey::new("k"));
    let stranger = LeaseId::new(Uuid::new_v4(), 1);
    let first = AcquireRequest::new(first, stranger, TTL);
    let second = AcquireRequest::new(key, lease, TTL);
    let mut counters = Vec::new();
    for _ in 0..2 {
        let first = backend.try_acquire(&first);
        let (_, outcome) = tokio::join!(first, backend.try_acquire(&second));
        counters.push(counter(&outcome));
    }
    assert!(counters[0] < counters[1]);
    assert_eq!(server.cli(&["HVALS", "lock:k"]), "1");
}

#[tokio::test]
async fn full_memory_grants_none_and_leaves_no_keys() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let backend = connect(server.url()).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let names = names(10);
    for outcome in acquire_all(&backend, &each(&names)).await {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
        assert!(!error.may_have_taken_effect());
    }
    assert_eq!(exist(&server, &names), 0);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let outcomes = acquire_all(&backend, &each(&names)).await;
    outcomes.iter().map(counter).for_each(drop);
}

#[tokio::test]
async fn flushed_scripts_do_not_fail_acquires() {
    let server = RedisServer::start();
    let backend = connect(server.url()).await;
    server.cli(&["SCRIPT", "FLUSH"]);
    let outcomes = acquire_all(&backend, &["a", "b", "c"]).await;
    outcomes.iter().map(counter).for_each(drop);
}

#[tokio::test]
async fn late_batched_grants_are_released() {
    let server = RedisServer::start();
    let backend = RedisBackend::builder(server.url());
    let backend = backend.connect().await.unwrap();
    counter(&acquire_all(&backend, &["before"]).await[0]);
    let granted = server.calls("hset");
    server.cli(&["CLIENT", "PAUSE", "1500", "ALL"]);
    let names = names(150);
    let outcomes = acquire_all(&backend, &each(&names)).await;
    let errors = outcomes.into_iter().map(Result::unwrap_err);
    // The others found no connection, and were not sent.
    let sent = errors.filter(BackendError::may_have_taken_effect).count();
    assert!(sent > 0);
    eventually("they were granted", || {
        server.calls("hset") >= granted + sent as u64
    })
    .await;
    eventually("they were released", || exist(&server, &names) == 0).await;
    assert_eq!(server.cli(&["EXISTS", "lock:before"]), "1");
    let outcomes = acquire_all(&backend, &each(&names)).await;
    outcomes.iter().map(counter).for_each(drop);
}

#[test]
fn runtime_shutdown_does_not_block_other_runtime() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let server = RedisServer::start();
    let (first, second) = (runtime(), runtime());
    // The connection belongs to the second runtime, which keeps running.
    let backend = second.block_on(connect(server.url()));
    server.cli(&["CLIENT", "PAUSE", "300", "ALL"]);
    let forsaken = backend.clone();
    drop(first.spawn(async move { acquire_all(&forsaken, &["a", "b"]).await }));
    std::thread::sleep(50 * MS);
    first.shutdown_background();
    let outcomes = second.block_on(acquire_all(&backend, &["c", "d"]));
    outcomes.iter().map(counter).for_each(drop);
}

#[tokio::test]
async fn releases_batch_in_order_after_acquires() {
    let server = RedisServer::start();
    for (connections, locks, calls) in [
        (1, 60, 1..=1),
        (1, 250, 3..=3),
        (3, 60, 3..=3),
        (3, 250, 3..=5),
        (3, 450, 6..=6),
    ] {
        let count = NonZeroUsize::new(connections).unwrap();
        let builder = RedisBackend::builder(server.url()).connections(count);
        let builder = builder.response_timeout(10 * SECOND);
        let backend = builder.connect().await.unwrap();
        let monitor = Monitor::start(&server);
        let manager = Uuid::new_v4();
        let lock = |n: u64| Release::new(LockKey::new(format!("k{n}")), LeaseId::new(manager, n));
        let locks: Vec<_> = (0..locks).map(lock).collect();
        let is_held = |n: usize| !n.is_multiple_of(7);
        for (n, lock) in locks.iter().enumerate() {
            if is_held(n) {
                let request = AcquireRequest::new(lock.key.clone(), lock.lease, TTL);
                counter(&backend.try_acquire(&request).await);
            }
        }
        let before = server.calls("evalsha");
        for (n, answer) in backend.release(&locks).await.into_iter().enumerate() {
            assert_eq!(answer.unwrap() == Released::Released, is_held(n), "{n}");
        }
        let sent = server.calls("evalsha") - before;
        assert!(calls.contains(&sent), "{sent} calls");
        let lines = monitor.lines_until_now(&server).await;
        for Release { key, lease, .. } in &locks {
            let about = lines
                .iter()
                .filter(|it| it.contains(&format!("\"{lease}\"")));
            // `<time> [<database> <address>] …`
            let senders: BTreeSet<_> = about.filter_map(|it| it.split(' ').nth(2)).collect();
            assert_eq!(senders.len(), 1, "{key:?}: {senders:?}");
        }
    }
}
