//! Sessions and servers that end, hang or lose data.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::{Backend, BackendErrorKind, Release, Released, Renewal, Renewed};
use tower_lock::{LockKey, LockManager, PostgresBackend};
use uuid::Uuid;

use super::support::postgres_server::PostgresServer;
use super::support::process::signal;
use super::{LONG, acquire, backend, impatient_backend, is_busy, lease, release, try_acquire};

const TIMEOUT: Duration = Duration::from_secs(1);

/// The server refuses the attempt after its deadline, so its release cannot come too early.
#[tokio::test]
async fn late_attempt_grants_nothing() {
    let server = PostgresServer::start(&[]).await;
    let backend = impatient_backend(&server).await;
    let (key, holder) = (LockKey::new("late"), lease());
    acquire(&backend, &key, holder, LONG).await;
    release(&backend, &key, holder).await;
    let sessions = server.sessions("tower_lock.acquire").await;
    let [session] = sessions[..] else {
        panic!("{sessions:?}");
    };
    signal("-STOP", session);
    let begun = Instant::now();
    let attempt = try_acquire(&backend, &key, holder, LONG).await;
    let error = attempt.unwrap_err();
    assert!(error.may_have_taken_effect());
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(release(&backend, &key, holder).await, Released::NotHeld);
    signal("-CONT", session);
    let client = server.client().await;
    let ended = async || {
        let state = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state = 'active'";
        client
            .query_one(state, &[&session])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
    };
    let begun = Instant::now();
    while !ended().await {
        assert!(begun.elapsed() < LONG);
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(backend.inspect(&key).await.unwrap(), None);
    // The next attempt has a new connection.
    acquire(&backend, &key, holder, LONG).await;
}

/// All sessions end with a crash. A durable grant stays, and the counter increases.
#[tokio::test]
async fn durable_grant_survives_crash() {
    let mut server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let (key, holder) = (LockKey::new("crash"), lease());
    let before = acquire(&backend, &key, holder, LONG).await;
    let mut recoveries = backend.recoveries();
    let mut hints = backend.watch(&key, Uuid::new_v4());
    timeout(LONG, hints.next()).await.unwrap();
    server.crash().await;
    timeout(LONG, recoveries.next()).await.unwrap();
    let renewal = [Renewal::new(key.clone(), holder, LONG)];
    let begun = Instant::now();
    let renewed = loop {
        match backend.renew(&renewal).await.remove(0) {
            Ok(renewed) => break renewed,
            Err(error) => assert!(begun.elapsed() < LONG, "{error:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(renewed, Renewed::Renewed);
    assert!(is_busy(&backend, &key).await);
    release(&backend, &key, holder).await;
    let after = acquire(&backend, &key, holder, LONG).await;
    assert!(after > before, "{after} follows {before}");
}

#[tokio::test]
async fn ended_listener_listens_again() {
    let server = PostgresServer::start(&[]).await;
    let [one, other] = [backend(&server).await, backend(&server).await];
    let (key, holder) = (LockKey::new("listener"), lease());
    let mut hints = other.watch(&key, Uuid::new_v4());
    timeout(LONG, hints.next()).await.unwrap();
    for _ in 0..3 {
        let sessions = server.sessions("LISTEN|pg_advisory_lock_shared").await;
        assert_eq!(sessions.len(), 1);
        server
            .run(&format!("SELECT pg_terminate_backend({})", sessions[0]))
            .await;
        timeout(LONG, hints.next())
            .await
            .expect("a hint of the next subscription");
        acquire(&one, &key, holder, LONG).await;
        while let Ok(_early) = timeout(Duration::from_millis(1500), hints.next()).await {}
        release(&one, &key, holder).await;
        timeout(Duration::from_secs(5), hints.next())
            .await
            .expect("a hint of the release");
    }
}

#[tokio::test]
async fn ended_session_is_replaced() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let (key, holder) = (LockKey::new("session"), lease());
    for text in ["tower_lock.acquire", "tower_lock.release"] {
        acquire(&backend, &key, holder, LONG).await;
        for session in server.sessions(text).await {
            server
                .run(&format!("SELECT pg_terminate_backend({session})"))
                .await;
        }
        // The client learns the end when the server has closed the session.
        let begun = Instant::now();
        let released = loop {
            assert!(begun.elapsed() < LONG);
            let leases = [Release::new(key.clone(), holder)];
            if try_acquire(&backend, &key, holder, LONG).await.is_ok()
                && let Ok(released) = backend.release(&leases).await.remove(0)
            {
                break released;
            }
        };
        assert_eq!(released, Released::Released);
    }
}

#[tokio::test]
async fn errors_of_server_are_definite() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let key = LockKey::new("errors");
    for (breaks, repairs, kind) in [
        (
            "ALTER TABLE tower_lock.lease RENAME TO gone",
            "ALTER TABLE tower_lock.gone RENAME TO lease",
            BackendErrorKind::Misconfigured,
        ),
        (
            "BEGIN; LOCK TABLE tower_lock.lease IN ACCESS EXCLUSIVE MODE",
            "COMMIT",
            BackendErrorKind::Unavailable,
        ),
    ] {
        let client = server.client().await;
        client.batch_execute(breaks).await.unwrap();
        let error = try_acquire(&backend, &key, lease(), LONG)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        client.batch_execute(repairs).await.unwrap();
    }
    acquire(&backend, &key, lease(), LONG).await;
}

#[tokio::test]
async fn read_only_server_is_unavailable() {
    let server = PostgresServer::start(&[]).await;
    drop(backend(&server).await);
    server
        .run("ALTER DATABASE postgres SET default_transaction_read_only = on")
        .await;
    let error = PostgresBackend::builder(server.url())
        .connect()
        .await
        .unwrap_err();
    let is_unreachable = matches!(error, tower_lock::ConnectError::Unreachable { .. });
    assert!(is_unreachable, "{error:?}");
}

/// The session may still grant the lease after its connection ended, so the release has to wait.
#[tokio::test]
async fn ended_attempt_returns_after_its_deadline() {
    let server = PostgresServer::start(&[]).await;
    let backend = impatient_backend(&server).await;
    let key = LockKey::new("ended");
    let client = server.client().await;
    let lock = "BEGIN; LOCK TABLE tower_lock.lease IN ACCESS EXCLUSIVE MODE";
    client.batch_execute(lock).await.unwrap();
    let begun = Instant::now();
    let end = async {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE query ~ 'tower_lock.acquire' AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()";
        let other = server.client().await;
        while other.query(end, &[]).await.unwrap().is_empty() {
            assert!(begun.elapsed() < LONG);
            sleep(Duration::from_millis(10)).await;
        }
        begun.elapsed()
    };
    let (attempt, ended) = tokio::join!(try_acquire(&backend, &key, lease(), LONG), end);
    assert!(attempt.unwrap_err().may_have_taken_effect());
    assert!(ended < Duration::from_secs(1), "{ended:?}");
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

/// Renewals do not wait for the standby, and no session may do so for longer than its command.
#[tokio::test(flavor = "multi_thread")]
async fn absent_standby_costs_no_session_and_no_lock() {
    let server = PostgresServer::start(&[]).await;
    let locks = LockManager::builder(impatient_backend(&server).await)
        .watchdog_timeout(3 * TIMEOUT)
        .build()
        .unwrap();
    let held = locks.acquire("held").await.unwrap();
    let client = server.client().await;
    let absent = "ALTER SYSTEM SET synchronous_standby_names = 'absent'";
    for statement in [absent, "SELECT pg_reload_conf()"] {
        client.batch_execute(statement).await.unwrap();
    }
    let begun = Instant::now();
    while begun.elapsed() < 12 * TIMEOUT {
        let acquire = locks.acquire(Uuid::new_v4().to_string()).wait(2 * TIMEOUT);
        drop(acquire.await);
        let sessions = server.sessions("tower_lock").await;
        assert!(sessions.len() <= 4, "{sessions:?}");
        assert!(held.is_held());
    }
    held.release().await.unwrap();
}
