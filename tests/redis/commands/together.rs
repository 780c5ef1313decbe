//! Concurrent requests share calls, and each has its own reply.

use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, LeaseId, Mode, Release,
    Released,
};
use tower_lock::{LockKey, RedisBackend};
use uuid::Uuid;

use crate::support::engine::{MS, Monitor, SECOND, connected, eventually, reconnected};
use crate::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(30);

const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permit];

type Outcome = Result<Acquired, BackendError>;

/// Connects with a long response timeout for a busy machine.
async fn connect(url: String) -> RedisBackend {
    let builder = RedisBackend::builder(url).response_timeout(10 * SECOND);
    builder.connect().await.unwrap()
}

/// Acquires each key with its own lease, after a first acquire that is sent alone.
async fn acquire_all(backend: &RedisBackend, mode: Mode, names: &[&str]) -> Vec<Outcome> {
    let requests = names.iter().map(|name| request(mode, name));
    send_all(backend, mode, requests).await
}

fn request(mode: Mode, name: &str) -> AcquireRequest {
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let request = AcquireRequest::new(LockKey::new(name), lease, TTL).with_mode(mode);
    // A permit that is left behind excludes the next one.
    request.with_limit((mode == Mode::Permit).then_some(NonZeroU16::MIN))
}

/// Sends these acquires after a first one, which is sent alone.
async fn send_all(
    backend: &RedisBackend,
    mode: Mode,
    requests: impl Iterator<Item = AcquireRequest>,
) -> Vec<Outcome> {
    let requests = std::iter::once(request(mode, "the first")).chain(requests);
    let acquires = requests.map(|it| async move { backend.try_acquire(&it).await });
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
    for mode in MODES {
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
            async move { acquire_all(&backend, mode, &each(&names)).await }
        });
        let outcomes = outcomes.await.unwrap();
        let counters: BTreeSet<_> = outcomes.iter().map(counter).collect();
        assert_eq!(counters.len(), 450);
        // The worker may send a batch before all acquires are queued.
        let calls = server.calls("evalsha") - calls;
        assert!(calls <= 450 / 10, "{calls} calls, {mode:?}");
        assert_eq!(exist(&server, &names), 450);
        for name in &names {
            let left: u64 = server
                .cli(&["PTTL", &format!("lock:{name}")])
                .parse()
                .unwrap();
            assert!(left > 20_000, "{name} ends in {left} ms");
        }
        // A later acquire has a larger token.
        let later = acquire_all(&backend, mode, &["later"]).await;
        assert!(counters.last().unwrap() < &counter(&later[0]));
    }
}

#[tokio::test]
async fn batched_acquires_return_reply_per_key() {
    let server = RedisServer::start();
    let backend = connect(server.url()).await;
    counter(&acquire_all(&backend, Mode::Exclusive, &["taken"]).await[0]);
    server.cli(&["DEL", "lock:the first"]);
    server.cli(&["SET", "lock:text", "precious", "EX", "100"]);
    server.cli(&["HSET", "lock:endless", "field", "precious"]);
    let outcomes = acquire_all(
        &backend,
        Mode::Exclusive,
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

/// Locks that are held, foreign or full cost the others no call of their own. As above, one worker makes one batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn batched_shared_acquires_return_reply_per_key() {
    let server = RedisServer::start();
    let backend = connect(server.url()).await;
    counter(&acquire_all(&backend, Mode::Exclusive, &["taken"]).await[0]);
    let shared = |name| request(Mode::Shared, name);
    let permit = |name| request(Mode::Permit, name);
    let holders = [shared("read"), permit("full"), permit("permits")];
    let held = send_all(&backend, Mode::Shared, holders.into_iter()).await;
    let read = counter(&held[0]);
    held.iter().map(counter).for_each(drop);
    server.cli(&["DEL", "lock:the first"]);
    server.cli(&["SET", "lock:text", "precious", "EX", "100"]);
    server.cli(&["HSET", "lock:endless", "field", "precious"]);
    server.cli(&["SET", "lock:{lock:b}%queue", "precious"]);
    let calls = server.calls("evalsha");
    let requests = [
        shared("a"),
        shared("taken"),
        shared("text"),
        shared("read"),
        shared("endless"),
        permit("full"),
        shared("permits"),
        permit("one"),
        shared("b"),
    ];
    let outcomes = tokio::spawn({
        let backend = backend.clone();
        async move { send_all(&backend, Mode::Shared, requests.into_iter()).await }
    });
    let outcomes = outcomes.await.unwrap();
    let sent = server.calls("evalsha") - calls;
    let [a, taken, text, joined, endless, full, other, one, b] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    let counters: BTreeSet<_> = [a, joined, one, b].into_iter().map(counter).collect();
    assert_eq!(counters.len(), 4);
    assert!(*counters.first().unwrap() > read, "{counters:?}");
    for busy in [taken, full] {
        match busy {
            Ok(Acquired::Busy { ttl, .. }) => assert!(*ttl > 20 * SECOND && *ttl <= TTL),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(other, Ok(Acquired::Busy { .. })), "{other:?}");
    for foreign in [text, endless] {
        let error = foreign.as_ref().unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Conflict);
        assert!(!error.may_have_taken_effect());
    }
    assert_eq!(server.cli(&["GET", "lock:text"]), "precious");
    assert_eq!(server.cli(&["HGET", "lock:endless", "field"]), "precious");
    assert_eq!(server.cli(&["HLEN", "lock:read"]), "3");
    assert_eq!(server.cli(&["HLEN", "lock:one"]), "3");
    // One alone and one for the others. On a busy machine, the task of the batch before may still run, and takes all.
    assert!((1..=2).contains(&sent), "{sent} calls");
}

#[tokio::test]
async fn resent_acquire_is_granted_again() {
    let server = RedisServer::start();
    let backend = connect(server.url()).await;
    for mode in MODES {
        let name = format!("{mode:?}");
        let again = request(mode, &name);
        let mut counters = Vec::new();
        for _ in 0..2 {
            let requests = [again.clone(), request(mode, &format!("{}", Uuid::new_v4()))];
            let outcomes = send_all(&backend, mode, requests.into_iter()).await;
            counters.push(counter(&outcomes[0]));
        }
        assert!(counters[0] < counters[1]);
        let fields = match mode {
            Mode::Exclusive => "1",
            Mode::Shared => "2",
            _ => "3",
        };
        assert_eq!(server.cli(&["HLEN", &format!("lock:{name}")]), fields);
    }
}

#[tokio::test]
async fn full_memory_grants_none_and_leaves_no_keys() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let backend = connect(server.url()).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let names = names(10);
    for mode in MODES {
        for outcome in acquire_all(&backend, mode, &each(&names)).await {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Unavailable);
            assert!(!error.may_have_taken_effect());
        }
        assert_eq!(exist(&server, &names), 0);
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    for mode in MODES {
        let outcomes = acquire_all(&backend, mode, &each(&names)).await;
        outcomes.iter().map(counter).for_each(drop);
        server.cli(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn flushed_scripts_do_not_fail_acquires() {
    let server = RedisServer::start();
    let backend = connect(server.url()).await;
    for mode in MODES {
        server.cli(&["SCRIPT", "FLUSH"]);
        let names = ["a", "b", "c"].map(|name| format!("{mode:?} {name}"));
        let outcomes = acquire_all(&backend, mode, &each(&names)).await;
        outcomes.iter().map(counter).for_each(drop);
        server.cli(&["DEL", "lock:the first"]);
    }
}

#[tokio::test]
async fn late_batched_grants_are_released() {
    for mode in MODES {
        let server = RedisServer::start();
        let builder = || RedisBackend::builder(server.url()).response_timeout(SECOND);
        let backend = connected(builder).await;
        counter(&acquire_all(&backend, mode, &["before"]).await[0]);
        let granted = server.calls("hset");
        server.cli(&["CLIENT", "PAUSE", "2500", "ALL"]);
        let names = names(150);
        let outcomes = acquire_all(&backend, mode, &each(&names)).await;
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
        reconnected(&backend).await;
        let outcomes = acquire_all(&backend, mode, &each(&names)).await;
        outcomes.iter().map(counter).for_each(drop);
    }
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
    drop(first.spawn(async move { acquire_all(&forsaken, Mode::Exclusive, &["a", "b"]).await }));
    std::thread::sleep(50 * MS);
    first.shutdown_background();
    let outcomes = second.block_on(acquire_all(&backend, Mode::Exclusive, &["c", "d"]));
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
