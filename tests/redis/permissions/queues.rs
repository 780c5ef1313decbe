//! Users that may not use some queues, and names without a prefix.

use std::future::IntoFuture as _;

use tokio::time::Instant;
use tower_lock::backend::{
    AcquireRequest, Backend as _, BackendError, Contended, KeepRequest, LeaseId, Release, Released,
    ReleasedOrKept,
};
use tower_lock::{ErrorKind, LockKey, LockManager};
use uuid::Uuid;

use super::{CHANNEL, IN_CLUSTER, LOCKER, allow, at};
use crate::support::cluster::Cluster;
use crate::support::engine::{MS, PATIENCE, SECOND, eventually};
use crate::support::redis_server::RedisServer;

/// The names of locks without a prefix. The rules permit the invoices and forget their queues, which the trial at
/// the start cannot find out.
const WITHOUT_QUEUES: &str =
    "~order:* ~invoice:* ~self-test:* ~{fencing-token* ~{order:* ~{self-test:*";

/// Names shared with Java have no prefix, so the rules must list the names.
#[tokio::test]
async fn user_without_prefix_locks_allowed_names() {
    const BESIDE_THE_NAMES: &str = "~self-test:* ~{fencing-token*";
    assert!(include_str!("../../../src/guide/redisson.rs").contains(BESIDE_THE_NAMES));
    let server = RedisServer::start();
    let guide = include_str!("../../../src/guide/redisson.rs");
    const OF_QUEUES: &str = "~{order:* ~{self-test:*";
    assert!(guide.contains(OF_QUEUES));
    for of_queues in ["", OF_QUEUES] {
        let names = format!("~order:* {BESIDE_THE_NAMES} {of_queues}");
        allow(&server, &LOCKER.replace("~lock:*", &names));
        let backend = at(&server.url()).prefix("").connect().await.unwrap();
        let queues_are_denied = backend.warnings().len() == 1;
        assert_eq!(queues_are_denied, of_queues.is_empty());
        let other = at(&server.url()).prefix("").connect().await.unwrap();
        let [locks, others] =
            [backend, other].map(|backend| LockManager::builder(backend).build().unwrap());
        let guard = locks.acquire("order:42").await.unwrap();
        let waiting = others.acquire("order:42").wait(PATIENCE).into_future();
        let ((), next) = tokio::join!(async { guard.release().await.unwrap() }, waiting);
        next.unwrap().release().await.unwrap();
        let refused = locks.acquire("invoice:42").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused);
    }
}

#[tokio::test]
async fn lock_with_denied_queue_is_acquired_and_released() {
    let server = RedisServer::start();
    allow(&server, &LOCKER.replace("~lock:*", WITHOUT_QUEUES));
    let mut managers = Vec::new();
    for _ in 0..2 {
        let backend = at(&server.url()).prefix("").connect().await.unwrap();
        assert_eq!(backend.warnings(), <&[String]>::default());
        managers.push(LockManager::builder(backend).build().unwrap());
    }
    let [locks, others] = &managers[..] else {
        unreachable!("two managers")
    };
    let guard = locks.acquire("invoice:1").await.unwrap();
    let busy = others.acquire("invoice:1").no_wait().await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(others.inspect("invoice:1").await.unwrap().is_some());
    let waiting = others.acquire("invoice:1").wait(PATIENCE).into_future();
    let local = locks.acquire("invoice:1").wait(PATIENCE).into_future();
    let ((), next, local) = tokio::join!(
        async { guard.release().await.unwrap() },
        async { waiting.await.unwrap().release().await },
        async { local.await.unwrap().release().await },
    );
    next.unwrap();
    local.unwrap();
    let several = [1, 2, 3].map(|n| locks.acquire(format!("invoice:{n}")).into_future());
    for guard in futures_util::future::join_all(several).await {
        drop(guard.unwrap());
    }
    eventually("all are released", || {
        server.cli(&["KEYS", "invoice:*"]).is_empty()
    })
    .await;
}

const LOCK: &str = "lock:a";
const QUEUE: &str = "lock:{lock:a}%queue";

/// Returns the connection of a client that listens outside the queue.
fn outsider(server: &RedisServer) -> redis::Connection {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut subscribe = redis::cmd("SUBSCRIBE");
    subscribe.arg(CHANNEL).exec(&mut connection).unwrap();
    connection
}

/// A client outside the queue listens. The permissions end after the acquire.
#[tokio::test]
async fn release_without_queue_reads_frees_lock() {
    let server = RedisServer::start();
    let _outsider = outsider(&server);
    for (denied, waits, leaves) in [
        ("-pubsub", false, false),
        ("-pubsub", true, false),
        ("-pubsub", true, true),
        ("-zcount", false, false),
        ("-zcount", true, false),
        ("-zcount", true, true),
        ("-time", false, false),
        ("-time", true, false),
        ("-time", true, true),
    ] {
        let case = format!("{denied}, {waits}, {leaves}");
        server.cli(&["DEL", LOCK, QUEUE]);
        allow(&server, LOCKER);
        let backend = at(&server.url()).connect().await.unwrap();
        let (key, lease) = (LockKey::new("a"), LeaseId::new(Uuid::new_v4(), 1));
        let acquire = AcquireRequest::new(key.clone(), lease, PATIENCE);
        backend.try_acquire(&acquire).await.unwrap();
        if waits {
            let next = LeaseId::new(Uuid::new_v4(), 1);
            let contend = AcquireRequest::new(key.clone(), next, PATIENCE);
            let waiting = backend.contend(&contend).await.unwrap();
            assert!(matches!(waiting, Contended::Waiting { .. }), "{waiting:?}");
        }
        server.cli(&["ACL", "SETUSER", "locker", denied]);
        let release = [Release::new(key, lease)];
        let outcome = match leaves {
            true => backend.leave(&release).await.remove(0),
            false => backend.release(&release).await.remove(0),
        };
        assert!(
            matches!(&outcome, Ok(it) if *it != Released::NotHeld),
            "{case}: {outcome:?}"
        );
        let held = server.cli(&["HEXISTS", LOCK, &lease.to_string()]);
        assert_eq!(held, "0", "{case}");
        assert_ne!(server.cli(&["PTTL", QUEUE]), "-1", "{case}");
    }
}

/// The call also enters the next lease of the process. The permissions end after the acquire.
#[tokio::test]
async fn release_or_keep_without_permission_is_whole() {
    let server = RedisServer::start();
    let _outsider = outsider(&server);
    let denials = [
        "-time",
        "-pubsub",
        "-hdel",
        "-hset",
        "-exists",
        "-incrby",
        "-publish",
        "-zadd",
        "-zrem",
        "-zscore",
        "-zcount",
        "-zrange",
        "-zrevrangebyscore",
        "-ping",
    ];
    let cases = denials
        .iter()
        .flat_map(|denied| [(denied, false), (denied, true)]);
    for (denied, waits) in cases {
        let case = format!("{denied}, {waits}");
        server.cli(&["DEL", LOCK, QUEUE]);
        allow(&server, LOCKER);
        let backend = at(&server.url()).connect().await.unwrap();
        let key = LockKey::new("a");
        let [lease, waiter, next] = [1, 2, 3].map(|number| LeaseId::new(Uuid::new_v4(), number));
        let acquire = AcquireRequest::new(key.clone(), lease, PATIENCE);
        backend.try_acquire(&acquire).await.unwrap();
        if waits {
            let contend = AcquireRequest::new(key.clone(), waiter, PATIENCE);
            backend.contend(&contend).await.unwrap();
        }
        server.cli(&["ACL", "SETUSER", "locker", denied]);
        let mut keep = KeepRequest::new(key, lease, PATIENCE);
        keep.next = Some(next);
        let outcome = backend
            .release_or_keep(std::slice::from_ref(&keep))
            .await
            .remove(0);
        let held = server.cli(&["HEXISTS", LOCK, &lease.to_string()]);
        let expected = match outcome {
            Ok(ReleasedOrKept::Released { .. }) => "0",
            _ => "1",
        };
        assert_eq!(held, expected, "{case}: {outcome:?}");
        for key in [LOCK, QUEUE] {
            assert_ne!(server.cli(&["PTTL", key]), "-1", "{case}: {key}");
        }
    }
}

/// The key is transferred to a waiter before the permission ends.
#[tokio::test]
async fn transfer_without_count_of_listeners_is_confirmed() {
    let server = RedisServer::start();
    allow(&server, LOCKER);
    let backend = at(&server.url()).connect().await.unwrap();
    let key = LockKey::new("a");
    let [holder, next] = [1, 2].map(|number| LeaseId::new(Uuid::new_v4(), number));
    let acquire = AcquireRequest::new(key.clone(), holder, PATIENCE);
    backend.try_acquire(&acquire).await.unwrap();
    let mut hints = backend.watch(&key, next.manager());
    hints.next().await;
    let contend = AcquireRequest::new(key.clone(), next, PATIENCE).with_listening(true);
    let waiting = backend.contend(&contend).await.unwrap();
    assert!(matches!(waiting, Contended::Waiting { .. }), "{waiting:?}");
    let release = [Release::new(key, holder)];
    let released = backend.release(&release).await.remove(0);
    assert_eq!(released.unwrap(), Released::Transferred);
    server.cli(&["ACL", "SETUSER", "locker", "-pubsub"]);
    let granted = backend.contend(&contend).await.unwrap();
    assert!(matches!(granted, Contended::Granted { .. }), "{granted:?}");
}

/// The server executes the acquires after their timeout, and then what undoes them.
#[tokio::test]
async fn late_acquire_with_denied_queue_is_undone() {
    let server = RedisServer::start();
    allow(&server, &LOCKER.replace("~lock:*", WITHOUT_QUEUES));
    let builder = at(&server.url()).response_timeout(SECOND).prefix("");
    let backend = builder.connect().await.unwrap();
    let connections = || {
        let list = server.cli(&["CLIENT", "LIST"]);
        let own = list.lines().filter(|line| line.contains("user=locker"));
        own.map(|line| line.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (before, granted) = (connections(), server.calls("hset"));
    let acquires = ["invoice:1", "invoice:2", "invoice:3"].map(|key| {
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        AcquireRequest::new(LockKey::new(key), lease, 10 * PATIENCE)
    });
    server.stop_process();
    let sent_at = Instant::now();
    let acquires = acquires.iter().map(|it| backend.try_acquire(it));
    let outcomes = futures_util::future::join_all(acquires).await;
    let errors = outcomes.into_iter().map(Result::unwrap_err);
    let sent = errors.filter(BackendError::may_have_taken_effect).count() as u64;
    // One alone and one in a call for several. The third is in that call, or is not sent.
    assert!(sent >= 2, "{sent} of 3 sent");
    server.continue_process();
    eventually("all are undone", || {
        server.calls("hset") >= granted + sent && server.cli(&["KEYS", "invoice:*"]).is_empty()
    })
    .await;
    // An acquire that is not sent opens another connection, and so does the question whether the server replies again.
    // It follows 45 ms or more after the response timeout.
    let after = connections();
    let is_asked = sent_at.elapsed() > SECOND + 40 * MS;
    assert!(sent < 3 || is_asked || after == before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_with_denied_queue_leaves_moving_slot() {
    const NAME: &str = "{user}:1";
    let cluster = Cluster::start();
    for node in 0..6 {
        let rules = format!("{LOCKER} {IN_CLUSTER}");
        let names = format!("~{NAME} ~{{*}}% ~*self-test*");
        allow(cluster.node(node), &rules.replace("~lock:*", &names));
    }
    let backend = at(&cluster.url()).prefix("").connect().await.unwrap();
    assert_eq!(backend.warnings(), <&[String]>::default());
    let (slot, from) = (cluster.slot(NAME), cluster.node_of(NAME));
    let to = cluster.primaries().into_iter().find(|it| *it != from);
    let key = LockKey::new(NAME);
    let lease = || LeaseId::new(Uuid::new_v4(), 1);
    let leave = async |lease| {
        let left = backend.leave(&[Release::new(key.clone(), lease)]).await;
        left.into_iter().next().unwrap().unwrap()
    };
    let acquired = async || {
        let lease = lease();
        let acquire = AcquireRequest::new(key.clone(), lease, 10 * PATIENCE);
        backend.try_acquire(&acquire).await.unwrap();
        lease
    };
    let mut held = acquired().await;
    cluster.begin_migration(slot, from, to.unwrap());
    // The body is at the source, which permits the queue, and then at the target.
    let rule = format!("~{NAME}%*");
    cluster.cli(from, &["ACL", "SETUSER", "locker", &rule]);
    for _ in 0..2 {
        assert_eq!(leave(lease()).await, Released::NotHeld);
        assert_eq!(leave(held).await, Released::Released);
        held = acquired().await;
    }
}
