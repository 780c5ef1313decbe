//! Servers that reject commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{join, join_all};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::{ErrorKind, LockManager};

use super::holder::{LONG, SHORT, acquired_again, end_of, renewed_beyond, waiter};
use crate::support::engine::{
    MS, PATIENCE, SECOND, eventually, fails_at_its_deadline, lost_at_its_deadline, manager,
    managers, nothing_is_left, pttl, scripts_called, within,
};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_on_demoted_server_reconnects() {
    let server = RedisServer::start();
    let locks = manager(server.url(), LONG).await;
    let guard = locks.acquire("k").await.unwrap();
    let before = server.clients("normal");
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    // Each line of `CLIENT LIST` begins with the client ID.
    let number = |client: &String| client.split(' ').next().map(ToOwned::to_owned);
    let before: Vec<_> = before.iter().map(number).collect();
    within(LONG, "the connection is closed", || {
        let now = server.clients("normal");
        now.iter().all(|it| !before.contains(&number(it)))
    })
    .await;
    let end = end_of(&guard);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    renewed_beyond(end, &guard).await;
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_under_load_preserves_locks() {
    let server = RedisServer::start();
    let managers = [
        manager(server.url(), SHORT).await,
        manager(server.url(), SHORT).await,
    ];
    let held = managers[0].acquire("held").await.unwrap();
    let inside = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let locks = managers[n % 2].clone();
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                for _ in 0..25 {
                    let guard = locks.acquire("k").wait_forever().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders at once");
                    sleep(MS).await;
                    assert!(inside.swap(false, Ordering::SeqCst));
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    let end = end_of(&held);
    // A flush can also fall between loading a script and calling it.
    while !tasks.iter().all(JoinHandle::is_finished) {
        server.cli(&["SCRIPT", "FLUSH"]);
        sleep(MS).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    server.cli(&["SCRIPT", "FLUSH"]);
    renewed_beyond(end, &held).await;
    held.release().await.unwrap();
    nothing_is_left(&server, &[&managers[0], &managers[1]], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_memory_rejects_acquires_and_keeps_leases() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let (here, there) = managers(server.url(), SHORT).await;
    let guard = here.acquire("held").await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let once = there.acquire("new").no_wait().await.unwrap_err();
    assert_eq!(once.kind(), ErrorKind::Unavailable);
    let error = fails_at_its_deadline(there.acquire("new"), 2 * SHORT).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // The failed acquire lasted two leases, so the watchdog renewed this lock.
    assert!(guard.is_held());
    let held = there.acquire("held").no_wait().await.unwrap_err();
    assert_eq!(
        held.kind(),
        ErrorKind::Busy,
        "the lock is held, whatever the memory"
    );
    // The next waiter needs no memory of the server: the lease continues with a token that it has left.
    let (next, token) = (here.acquire("held"), guard.fencing_token());
    let next = tokio::spawn(next.into_future());
    eventually("queued", || here.snapshot().waiting == 1).await;
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(next.fencing_token() > token);
    // Without a waiter, the lease is released.
    next.release().await.unwrap();
    assert_eq!(pttl(&server, "held"), -2);
    nothing_is_left(&server, &[&here, &there], SECOND, "full").await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    drop(acquired_again(&there, "new").await);
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_value_is_conflict_and_stays_unchanged() {
    let server = RedisServer::start();
    let locks = manager(server.url(), SHORT).await;
    server.cli(&["SET", "lock:text", "precious"]);
    server.cli(&["RPUSH", "lock:list", "precious"]);
    server.cli(&["HSET", "lock:hash", "field", "precious"]);
    for name in ["text", "list", "hash"] {
        let key = format!("lock:{name}");
        let before = server.cli(&["DUMP", &key]);
        let start = Instant::now();
        let outcomes = join(
            locks.acquire(name).into_future(),
            locks.acquire(name).no_wait().into_future(),
        );
        let (waiting, once) = outcomes.await;
        assert_eq!(waiting.unwrap_err().kind(), ErrorKind::KeyConflict);
        let once = once.unwrap_err().kind();
        // The first acquire may have made the second one busy.
        assert!(matches!(once, ErrorKind::KeyConflict | ErrorKind::Busy));
        assert!(start.elapsed() < 4 * SECOND, "waiting does not help");
        let forced = locks.force_release(name).await.unwrap_err();
        assert_eq!(forced.kind(), ErrorKind::KeyConflict);
        assert_eq!(server.cli(&["DUMP", &key]), before, "{name} was changed");
    }
    // An overwritten lock is lost at its deadline, and the new value stays unchanged.
    let guard = locks.acquire("overwritten").await.unwrap();
    server.cli(&["SET", "lock:overwritten", "precious"]);
    lost_at_its_deadline(&guard).await;
    assert!(guard.release().await.unwrap_err().is_lost());
    eventually("the release is abandoned", || locks.snapshot().is_idle()).await;
    assert_eq!(server.cli(&["GET", "lock:overwritten"]), "precious");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnects_to_demoted_server_back_off() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let locks = manager(proxy.url(), LONG).await;
    let guard = locks.acquire("k").await.unwrap();
    // No primary listens there, so the replica keeps its data.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let before = proxy.accepted();
    let start = Instant::now();
    while start.elapsed() < 2 * SECOND {
        let error = locks.acquire("new").no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        sleep(MS).await;
    }
    // Connections follow at once, and then after 50, 100, 200, 400, 400, … ms.
    let made = proxy.accepted() - before;
    let allowed = 6 + start.elapsed().as_millis() as u64 / 350;
    assert!((2..=allowed).contains(&made), "{made} connections");
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    drop(acquired_again(&locks, "new").await);
    assert!(guard.is_held());
    drop(guard);
    nothing_is_left(&server, &[&locks], 2 * SECOND, "the end").await;
}

/// Returns a server with an unrestricted user and a manager that logs in as that user.
async fn with_a_user() -> (RedisServer, LockManager) {
    let server = RedisServer::start();
    let rules = "ACL SETUSER some reset on >secret ~* &* +@all";
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let locks = manager(server.url_of("some", "secret"), SHORT).await;
    (server, locks)
}

/// A server rejects all commands while it loads its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_at_loading_server_waits_for_data() {
    let mut server = RedisServer::start();
    let url = server.url();
    let (here, there) = (manager(&url, 5 * LONG).await, manager(&url, 5 * LONG).await);
    let guard = here.acquire("held").await.unwrap();
    // A server that loads its data replies once every 2 MB, which is 105 keys.
    let fill = "local text = string.rep('x', 20000)
        for n = 1, 3000 do redis.call('set', 'filler:' .. n, text) end";
    server.cli(&["EVAL", fill, "0"]);
    server.cli(&["CONFIG", "SET", "rdbcompression", "no"]);
    server.cli(&["SAVE"]);
    server.kill();
    let launched = tokio::task::spawn_blocking(move || {
        // The server loads each key in one millisecond.
        server.launch_again_with(&["--key-load-delay", "1000"]);
        server
    });
    let client = redis::Client::open(url).unwrap();
    let loads = || {
        let connection = client.get_connection();
        let asked = connection.and_then(|mut it| redis::cmd("EXISTS").arg("k").exec(&mut it));
        asked.is_err_and(|error| error.code() == Some("LOADING"))
    };
    within(PATIENCE, "the server loads its data", loads).await;
    let error = fails_at_its_deadline(there.acquire("other"), 500 * MS).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(loads(), "the server still loads its data");
    let late = there.acquire("other").wait(PATIENCE).await;
    let late = late.expect("acquired within its wait");
    let server = launched.await.unwrap();
    assert!(guard.is_held(), "nothing was lost");
    guard.release().await.unwrap();
    late.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "lock:held", "lock:other"]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_password_is_misconfigured_without_storm() {
    let (server, locks) = with_a_user().await;
    let other = manager(server.url(), LONG).await;
    let guard = locks.acquire("k").await.unwrap();
    let _theirs = other.acquire("theirs").await.unwrap();
    let waiter = waiter(&locks, "theirs").await;
    server.cli(&["ACL", "SETUSER", "some", "resetpass", ">changed"]);
    let log_ins = || server.calls("hello") + server.calls("auth");
    let before = log_ins();
    server.cli(&["CLIENT", "KILL", "USER", "some"]);
    // The waiter fails with the cause long before its wait ends.
    let start = Instant::now();
    let rejected = timeout(5 * SECOND, waiter).await.expect("rejected early");
    assert_eq!(rejected.unwrap().unwrap_err().kind(), ErrorKind::Refused);
    while start.elapsed() < 3 * SECOND {
        let error = locks.acquire("new").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        sleep(MS).await;
    }
    assert!(!guard.is_held());
    let attempts = log_ins() - before;
    let allowed = 2 * (10 + start.elapsed().as_secs());
    assert!((2..=allowed).contains(&attempts), "{attempts} log-ins");
    server.cli(&["ACL", "SETUSER", "some", ">secret"]);
    let deadline = Instant::now() + PATIENCE;
    while locks.acquire("new").await.is_err() {
        assert!(Instant::now() < deadline, "the server is still unavailable");
        sleep(10 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_permission_is_misconfigured_without_storm() {
    for rule in ["-evalsha", "-hset", "-@all"] {
        let (server, locks) = with_a_user().await;
        let guard = locks.acquire("k").await.unwrap();
        server.cli(&["ACL", "SETUSER", "some", rule]);
        let before = scripts_called(&server);
        let waits = (0..100).map(|_| locks.acquire("new").into_future());
        let start = Instant::now();
        for outcome in join_all(waits).await {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Refused);
        }
        assert!(start.elapsed() < 4 * SECOND, "waiting does not help");
        let sent = scripts_called(&server) - before;
        // Each acquire that follows the first reply sends at most one command.
        assert!(sent <= 100, "{sent} commands include retries");
        if rule == "-hset" {
            // Renewals and releases need no `HSET` and continue.
            renewed_beyond(end_of(&guard), &guard).await;
            guard.release().await.unwrap();
        } else {
            lost_at_its_deadline(&guard).await;
            let sent = scripts_called(&server) - before;
            assert!(sent <= 60, "{sent} renewals");
        }
    }
}
