//! A rejected key, a slot without a node, full memory and paused writes affect only what depends on them.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, Hints, LeaseId, Release,
    Released, Renewal, Renewed,
};
use tower_lock::{LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use crate::support::cluster::Cluster;
use crate::support::engine::{MS, SECOND, connected, eventually, pttl, subscribers};
use crate::support::process::version;
use crate::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(30);

/// A busy machine must not cause timeouts.
async fn connect(url: String) -> RedisBackend {
    let builder = RedisBackend::builder(url).response_timeout(10 * SECOND);
    builder.connect().await.unwrap()
}

/// Acquires all keys in one call, behind one that is in flight. The lease of a key is its position.
async fn acquire_all(
    backend: &RedisBackend,
    manager: Uuid,
    names: &[&str],
) -> Vec<Result<Acquired, BackendError>> {
    let names = std::iter::once("first").chain(names.iter().copied());
    let acquires = names.zip(0..).map(|(name, number)| async move {
        let (key, lease) = (LockKey::new(name), LeaseId::new(manager, number));
        let request = AcquireRequest::new(key, lease, TTL);
        backend.try_acquire(&request).await
    });
    join_all(acquires).await.split_off(1)
}

/// Returns the ids of the connections with subscriptions.
fn subscription_ids(server: &RedisServer) -> Vec<String> {
    let clients = server.clients("pubsub");
    let ids = clients.iter().filter_map(|it| it.split(' ').next());
    ids.map(str::to_owned).collect()
}

/// Releases a key and expects a message, before the next poll.
async fn expect_hint(backend: &RedisBackend, key: &LockKey, hints: &mut Hints) {
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let request = AcquireRequest::new(key.clone(), lease, TTL);
    let acquired = backend.try_acquire(&request).await;
    assert!(is_granted(&acquired), "{acquired:?}");
    backend.release(&[Release::new(key.clone(), lease)]).await;
    let message = timeout(300 * MS, hints.next()).await;
    message.expect("the release is reported");
}

fn is_granted(outcome: &Result<Acquired, BackendError>) -> bool {
    matches!(outcome, Ok(Acquired::Granted { .. }))
}

#[tokio::test]
async fn forbidden_key_in_batch_fails_alone() {
    let server = RedisServer::start();
    let patterns = "~lock:k* ~lock:first ~lock:self-test* ~lock:{fencing-token}*";
    let rules = format!("ACL SETUSER some reset on >secret &* +@all {patterns}");
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let backend = connect(server.url_of("some", "secret")).await;
    let manager = Uuid::new_v4();
    let names = ["k1", "k2", "forbidden", "k3", "k4"];
    let is_forbidden = |index: usize| names[index] == "forbidden";

    let acquired = acquire_all(&backend, manager, &names).await;
    for (index, outcome) in acquired.iter().enumerate() {
        match outcome {
            Err(error) if is_forbidden(index) => {
                assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
            }
            outcome => assert!(is_granted(outcome), "{}: {outcome:?}", names[index]),
        }
    }
    let leases = names.iter().zip(1..);
    let leases = leases.map(|(name, number)| (LockKey::new(*name), LeaseId::new(manager, number)));
    let renewals = leases
        .clone()
        .map(|(key, lease)| Renewal::new(key, lease, TTL));
    let renewed = backend.renew(&renewals.collect::<Vec<_>>()).await;
    for (index, outcome) in renewed.iter().enumerate() {
        let succeeded = matches!(outcome, Ok(Renewed::Renewed));
        assert_ne!(succeeded, is_forbidden(index), "{outcome:?}");
    }
    let releases = leases.map(|(key, lease)| Release::new(key, lease));
    let releases: Vec<_> = releases.collect();
    let released = backend.release(&releases).await;
    acquire_all(&backend, manager, &names).await;
    let left = backend.leave(&releases).await;
    for outcomes in [released, left] {
        for (index, outcome) in outcomes.iter().enumerate() {
            let succeeded = matches!(outcome, Ok(Released::Released));
            assert_ne!(succeeded, is_forbidden(index), "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn foreign_key_in_batch_of_leave_fails_alone() {
    let server = RedisServer::start();
    let backend = connect(server.url()).await;
    let (manager, names) = (Uuid::new_v4(), ["k1", "text", "endless", "k2"]);
    let acquired = acquire_all(&backend, manager, &names).await;
    assert!(acquired.iter().all(is_granted), "{acquired:?}");
    server.cli(&["SET", "lock:text", "precious"]);
    server.cli(&["PERSIST", "lock:endless"]);
    let leases = names.iter().zip(1..);
    let leases = leases.map(|(name, number)| (LockKey::new(*name), LeaseId::new(manager, number)));
    let leases: Vec<_> = leases.collect();
    let renewals = leases.iter().cloned();
    let renewals = renewals.map(|(key, lease)| Renewal::new(key, lease, TTL));
    let renewed = backend.renew(&renewals.collect::<Vec<_>>()).await;
    // A lease without an end has one again.
    assert!(pttl(&server, "endless") > 0);
    for (name, outcome) in names.iter().zip(&renewed) {
        match outcome {
            Err(error) => assert_eq!((*name, error.kind()), ("text", BackendErrorKind::Conflict)),
            Ok(renewed) => assert_eq!((*name != "text", *renewed), (true, Renewed::Renewed)),
        }
    }
    server.cli(&["PERSIST", "lock:endless"]);
    let left = leases.into_iter();
    let left = left.map(|(key, lease)| Release::new(key, lease));
    let left = backend.leave(&left.collect::<Vec<_>>()).await;
    for (name, outcome) in names.iter().zip(&left) {
        match outcome {
            Err(error) => assert_eq!((*name, error.kind()), ("text", BackendErrorKind::Conflict)),
            Ok(left) => assert_eq!((*name != "text", *left), (true, Released::Released)),
        }
    }
    assert_eq!(server.cli(&["GET", "lock:text"]), "precious");
    assert_eq!(
        server.cli(&["EXISTS", "lock:k1", "lock:endless", "lock:k2"]),
        "0"
    );
}

#[tokio::test]
async fn foreign_keys_beside_forbidden_key_fail_alone() {
    let server = RedisServer::start();
    server.cli(&["SET", "lock:ktext", "precious", "EX", "100"]);
    server.cli(&["HSET", "lock:kendless", "field", "precious"]);
    let patterns = "~lock:k* ~lock:first ~lock:self-test* ~lock:{fencing-token}*";
    let rules = format!("ACL SETUSER some reset on >secret &* +@all {patterns}");
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let backend = connect(server.url_of("some", "secret")).await;
    let held = acquire_all(&backend, Uuid::new_v4(), &["kheld"]).await;
    assert!(is_granted(&held[0]), "{held:?}");
    server.cli(&["DEL", "lock:first"]);
    let names = ["k1", "ktext", "forbidden", "kendless", "kheld", "k2"];
    let outcomes = acquire_all(&backend, Uuid::new_v4(), &names).await;
    let kinds = outcomes.iter().map(|outcome| match outcome {
        Ok(Acquired::Granted { .. }) => "granted",
        Ok(_) => "busy",
        Err(error) if error.kind() == BackendErrorKind::Conflict => "conflict",
        Err(error) if error.kind() == BackendErrorKind::Misconfigured => "misconfigured",
        Err(_) => "unavailable",
    });
    let expected = [
        "granted",
        "conflict",
        "misconfigured",
        "conflict",
        "busy",
        "granted",
    ];
    assert_eq!(kinds.collect::<Vec<_>>(), expected, "{outcomes:?}");
}

#[tokio::test]
async fn held_key_in_batch_is_busy_with_full_memory() {
    held_key_in_batch_is_busy_after(set_to_one("maxmemory")).await;
}

#[tokio::test]
async fn held_key_in_batch_is_busy_without_replicas() {
    held_key_in_batch_is_busy_after(set_to_one("min-replicas-to-write")).await;
}

#[tokio::test]
async fn held_key_in_batch_is_busy_after_failed_save() {
    held_key_in_batch_is_busy_after(async |server: &RedisServer| {
        let dir = server.cli(&["CONFIG", "GET", "dir"]);
        let dir = dir.lines().last().unwrap();
        // A directory with the name of the file makes saving fail.
        std::fs::create_dir(format!("{dir}/dump.rdb")).unwrap();
        std::fs::write(format!("{dir}/dump.rdb/file"), "").unwrap();
        server.cli(&["CONFIG", "SET", "save", "3600 1000000"]);
        server.cli(&["BGSAVE"]);
        let failed = || {
            let persistence = server.cli(&["INFO", "persistence"]);
            persistence.contains("rdb_last_bgsave_status:err")
        };
        eventually("a failed save", failed).await;
        let rejection = server.command(&["SET", "other", ""]).unwrap_err();
        assert_eq!(rejection.code(), Some("MISCONF"));
    })
    .await;
}

fn set_to_one(setting: &str) -> impl AsyncFnOnce(&RedisServer) {
    async move |server: &RedisServer| {
        server.cli(&["CONFIG", "SET", setting, "1"]);
    }
}

/// The server rejects writes after `limit`.
async fn held_key_in_batch_is_busy_after(limit: impl AsyncFnOnce(&RedisServer)) {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let backend = connect(server.url()).await;
    let held = acquire_all(&backend, Uuid::new_v4(), &["held"]).await;
    assert!(is_granted(&held[0]), "{held:?}");
    limit(&server).await;
    let outcomes = acquire_all(&backend, Uuid::new_v4(), &["k1", "held", "k2"]).await;
    let [k1, held, k2] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    assert!(matches!(held, Ok(Acquired::Busy { .. })), "{held:?}");
    for free in [k1, k2] {
        let error = free.as_ref().unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
        assert!(!error.may_have_taken_effect());
    }
    assert_eq!(server.cli(&["EXISTS", "lock:k1", "lock:k2"]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_memory_keeps_local_hand_offs() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let locks = LockManager::builder(connect(server.url()).await).build();
    let locks = locks.unwrap();
    let first = locks.acquire("k").await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    // Each holder takes longer than a hand-off budget.
    let waiters = (0..4).map(|_| async {
        let guard = locks.acquire("k").await.unwrap();
        sleep(150 * MS).await;
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        token
    });
    let first_token = first.fencing_token();
    let (tokens, ()) = tokio::join!(join_all(waiters), async {
        sleep(150 * MS).await;
        drop(first);
    });
    let mut last = first_token;
    for token in tokens {
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_memory_sends_no_topology_query() {
    let cluster = Cluster::start_with(&["--maxmemory-policy", "noeviction"]);
    let backend = connect(cluster.url()).await;
    let queries = || {
        let calls = |node: &RedisServer| node.calls("cluster|slots");
        cluster.nodes().iter().map(calls).sum::<u64>()
    };
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    }
    let before = queries();
    assert!(before > 0, "the first topology query was not counted");
    for number in 0..5 {
        let lease = LeaseId::new(Uuid::new_v4(), number);
        let request = AcquireRequest::new(LockKey::new("k"), lease, TTL);
        let error = backend.try_acquire(&request).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
        sleep(100 * MS).await;
    }
    // A waiter also subscribes and polls.
    let locks = LockManager::builder(backend).build().unwrap();
    let error = locks.acquire("k").wait(2 * SECOND).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(queries() - before, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_without_node_keeps_other_subscriptions() {
    let cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"]);
    let backend = connect(cluster.url()).await;
    let served = LockKey::new("served");
    let owner = cluster.node_of("lock:served");
    let orphan = (0..).map(|number| format!("orphan-{number}"));
    let mut orphan = orphan.filter(|name| cluster.node_of(&format!("lock:{name}")) == owner);
    let orphan = orphan.next().unwrap();
    let node = cluster.node(owner);

    let mut hints = backend.watch(&served, Uuid::new_v4());
    let confirmed = timeout(10 * SECOND, hints.next()).await;
    confirmed.expect("the subscription is confirmed");
    let before = subscription_ids(node);
    assert_eq!(before.len(), 1, "{before:?}");

    // The other nodes still report this one as the owner of the slot.
    let slot = cluster.slot(&format!("lock:{orphan}")).to_string();
    node.cli(&["CLUSTER", "DELSLOTS", &slot]);
    // The plain messages of Redis 6 need no slot.
    let answered = || match version() {
        ..7 => cluster
            .nodes()
            .iter()
            .any(|it| subscribers(it, &orphan) == 1),
        _ => node.cli(&["INFO", "errorstats"]).contains("CLUSTERDOWN"),
    };
    let orphaned = backend.watch(&LockKey::new(&*orphan), Uuid::new_v4());
    eventually("the server replies to the subscription", answered).await;
    // Long enough for the connection to be replaced.
    sleep(SECOND).await;
    assert_eq!(subscription_ids(node), before);

    expect_hint(&backend, &served, &mut hints).await;
    drop(orphaned);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_without_node_fails_only_its_key() {
    let cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"]);
    let backend = connect(cluster.url()).await;
    let manager = Uuid::new_v4();
    let names = ["served", "orphan", "other"];
    let slot = cluster.slot("lock:orphan").to_string();
    let owner = cluster.node_of("lock:orphan");
    let leases = names.iter().zip(1..);
    let leases = leases.map(|(name, number)| (LockKey::new(*name), LeaseId::new(manager, number)));
    let leases: Vec<_> = leases.collect();
    let acquired = acquire_all(&backend, manager, &names).await;
    assert!(acquired.iter().all(is_granted), "{acquired:?}");
    let check = |outcomes: Vec<Option<BackendError>>| {
        for (name, error) in names.iter().zip(&outcomes) {
            let unavailable = error.as_ref().map(BackendError::kind);
            let expected = (*name == "orphan").then_some(BackendErrorKind::Unavailable);
            assert_eq!(unavailable, expected, "{name}: {error:?}");
        }
    };
    // The other nodes still report the owner of the slot.
    cluster.cli(owner, &["CLUSTER", "DELSLOTS", &slot]);
    for no_node_has_it in [false, true] {
        if no_node_has_it {
            for node in cluster.nodes() {
                // A node may have noticed.
                drop(node.command(&["CLUSTER", "DELSLOTS", &slot]));
            }
        }
        let renewals = leases.iter().cloned();
        let renewals = renewals.map(|(key, lease)| Renewal::new(key, lease, TTL));
        let renewed = backend.renew(&renewals.collect::<Vec<_>>()).await;
        check(renewed.into_iter().map(Result::err).collect());
        let acquired = acquire_all(&backend, manager, &names).await;
        check(acquired.into_iter().map(Result::err).collect());
        let releases = leases.iter().cloned();
        let releases = releases.map(|(key, lease)| Release::new(key, lease));
        let released = backend.release(&releases.collect::<Vec<_>>()).await;
        check(released.into_iter().map(Result::err).collect());
        let left = leases.iter().cloned();
        let left = left.map(|(key, lease)| Release::new(key, lease));
        let left = backend.leave(&left.collect::<Vec<_>>()).await;
        check(left.into_iter().map(Result::err).collect());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_unsubscribe_keeps_subscriptions() {
    let server = RedisServer::start();
    let rules = "ACL SETUSER some reset on >secret ~* &* +@all";
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let backend = connect(server.url_of("some", "secret")).await;
    let key = LockKey::new("k");
    let mut hints = backend.watch(&key, Uuid::new_v4());
    let mut ending = backend.watch(&LockKey::new("ending"), Uuid::new_v4());
    for hints in [&mut hints, &mut ending] {
        let confirmed = timeout(10 * SECOND, hints.next()).await;
        confirmed.expect("the subscription is confirmed");
    }
    let before = subscription_ids(&server);
    assert_eq!(before.len(), 1, "{before:?}");

    server.cli(&["ACL", "SETUSER", "some", "-unsubscribe"]);
    drop(ending);
    let rejected = || server.cli(&["INFO", "errorstats"]).contains("NOPERM");
    eventually("the end of the subscription is rejected", rejected).await;
    // Long enough for the connection to be replaced.
    sleep(SECOND).await;
    assert_eq!(subscription_ids(&server), before);
    expect_hint(&backend, &key, &mut hints).await;

    server.cli(&["ACL", "SETUSER", "some", "+unsubscribe"]);
    let ended = || subscribers(&server, "ending") == 0;
    eventually("the subscription ends", ended).await;
    assert_eq!(subscription_ids(&server), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_channel_keeps_other_subscriptions() {
    let server = RedisServer::start();
    let channels = ["k", "self-test"].map(|name| format!("&redisson_lock__channel:{{lock:{name}*"));
    let rules = format!(
        "ACL SETUSER some reset on >secret ~* +@all resetchannels {}",
        channels.join(" ")
    );
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let backend = connect(server.url_of("some", "secret")).await;
    let key = LockKey::new("k");
    let mut hints = backend.watch(&key, Uuid::new_v4());
    let confirmed = timeout(10 * SECOND, hints.next()).await;
    confirmed.expect("the subscription is confirmed");
    let before = subscription_ids(&server);
    assert_eq!(before.len(), 1, "{before:?}");

    let forbidden = backend.watch(&LockKey::new("forbidden"), Uuid::new_v4());
    let rejected = || server.cli(&["INFO", "errorstats"]).contains("NOPERM");
    eventually("the forbidden channel is rejected", rejected).await;
    // Long enough for the connection to be replaced.
    sleep(SECOND).await;
    assert_eq!(subscription_ids(&server), before);
    expect_hint(&backend, &key, &mut hints).await;
    drop(forbidden);
}

/// Returns the addresses of our connections. The administrator of the test has one over the Unix socket.
fn addresses(server: &RedisServer) -> HashSet<String> {
    let clients = server.clients("normal").into_iter();
    let address = |client: String| {
        let (_, rest) = client.split_once(" addr=127.0.0.1:")?;
        Some(rest.split(' ').next()?.to_owned())
    };
    clients.filter_map(address).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_writes_open_bounded_connections() {
    let server = RedisServer::start();
    let builder = || RedisBackend::builder(server.url()).response_timeout(100 * MS);
    let backend = connected(builder).await;
    let manager = Uuid::new_v4();
    let held = acquire_all(&backend, manager, &["held"]).await;
    assert!(is_granted(&held[0]), "{held:?}");
    server.cli(&["CLIENT", "PAUSE", "5000", "WRITE"]);
    let paused = Instant::now();
    let (mut most, mut before) = (0, HashSet::new());
    for number in 2.. {
        let name = format!("k{number}");
        let key = LockKey::new(&*name);
        let request = AcquireRequest::new(key, LeaseId::new(manager, number), TTL);
        let outcome = backend.try_acquire(&request).await;
        // On a busy machine the server may list a closed connection beside its replacement, but not for the
        // time of two attempts.
        let now = addresses(&server);
        most = most.max(now.intersection(&before).count());
        before = now;
        if is_granted(&outcome) {
            break;
        }
        assert!(paused.elapsed() < 20 * SECOND, "the pause is over");
    }
    assert!(most <= 2, "{most} connections");
    // All attempts whose reply was lost are undone.
    eventually("only the held keys remain", || {
        let keys = server.cli(&["KEYS", "lock:k*"]);
        keys.split_ascii_whitespace().count() <= 1
    })
    .await;
}
