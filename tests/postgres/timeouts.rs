//! Timeouts of a role that are shorter than a hold.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;
use tower_lock::backend::BackendErrorKind;
use tower_lock::{LockKey, LockManager, PostgresBackend};

use super::support::engine::eventually;
use super::support::postgres_server::PostgresServer;
use super::{LONG, lease, try_acquire};

const BRIEF: Duration = Duration::from_secs(1);

/// Returns the names of the timeouts that the version of the server has.
async fn timeouts(client: &Client) -> Vec<&'static str> {
    let mut names = vec![
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
        "transaction_timeout",
    ];
    let known = "SELECT name FROM pg_settings WHERE name = ANY($1)";
    let known = client.query(known, &[&names]).await.unwrap();
    names.retain(|name| known.iter().any(|row| row.get::<_, &str>(0) == *name));
    names
}

/// The server ends idle sessions, such as the one that listens. The backend dials again.
#[tokio::test(flavor = "multi_thread")]
async fn lock_outlives_timeouts_of_role() {
    let server = PostgresServer::start(&[]).await;
    let client = server.client().await;
    let names = timeouts(&client).await;
    let is_old = !names.contains(&"idle_session_timeout");
    for name in names {
        let millis = BRIEF.as_millis();
        let set = format!("ALTER ROLE postgres SET {name} = {millis}");
        client.batch_execute(&set).await.unwrap();
    }
    let managers = [(); 2].map(|()| PostgresBackend::builder(server.url()).connect());
    let [one, other] = managers;
    let [one, other] = [one.await, other.await].map(|backend| {
        let builder = LockManager::builder(backend.unwrap()).watchdog_timeout(6 * BRIEF);
        builder.build().unwrap()
    });
    let key = "brief";
    let guard = one.acquire(key).await.unwrap();
    let sessions = async || {
        let pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tower-lock'";
        let rows = client.query(pids, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>()
    };
    let before = sessions().await;
    let first = guard.fencing_token();
    let waiter = tokio::spawn(async move {
        let guard = other.acquire(key).wait(LONG).await.unwrap();
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        // Its sessions end in between.
        sleep(3 * BRIEF).await;
        let guard = other.acquire(key).await.unwrap();
        guard.release().await.unwrap();
        token
    });
    sleep(8 * BRIEF).await;
    assert!(guard.is_held(), "renewals reach the server");
    assert!(!waiter.is_finished());
    let after = sessions().await;
    assert!(is_old || before.iter().any(|it| !after.contains(it)));
    guard.release().await.unwrap();
    let second = timeout(LONG, waiter).await.unwrap().unwrap();
    assert!(second > first);
}

/// Each of them alone, between two commands and in one that waits.
#[tokio::test]
async fn timeout_of_role_ends_one_command() {
    let server = PostgresServer::start(&[]).await;
    let client = server.client().await;
    for name in timeouts(&client).await {
        let set = format!("ALTER ROLE postgres RESET ALL; ALTER ROLE postgres SET {name} = 300");
        client.batch_execute(&set).await.unwrap();
        let connect = || {
            PostgresBackend::builder(server.url())
                .response_timeout(3 * BRIEF)
                .connect()
        };
        let begun = Instant::now();
        let backend = loop {
            // On a busy machine, a statement of it can take as long.
            match connect().await {
                Ok(backend) => break backend,
                Err(error) => assert!(begun.elapsed() < LONG, "{name}: {error:?}"),
            }
        };
        sleep(BRIEF).await;
        let code = match name {
            "statement_timeout" => Some("57014"),
            "lock_timeout" => Some("55P03"),
            "transaction_timeout" => Some("25P04"),
            _ => None,
        };
        if let Some(code) = code {
            let lock = "BEGIN; LOCK TABLE tower_lock.lease IN ACCESS EXCLUSIVE MODE";
            client.batch_execute(lock).await.unwrap();
            let begun = Instant::now();
            let attempt = try_acquire(&backend, &LockKey::new("k"), lease(), LONG).await;
            let (error, took) = (attempt.unwrap_err(), begun.elapsed());
            client.batch_execute("COMMIT").await.unwrap();
            assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{name}");
            assert!(format!("{error:?}").contains(code), "{name}: {error:?}");
            // The session that it ends may have committed, so its command takes until its deadline.
            let is_unknown = name == "transaction_timeout";
            assert_eq!(error.may_have_taken_effect(), is_unknown, "{error:?}");
            assert!(!is_unknown || took >= 3 * BRIEF, "{took:?}");
        }
        let locks = LockManager::builder(backend).build().unwrap();
        drop(locks.acquire("k").wait(LONG).await.unwrap());
    }
}

/// A process that stops in a transaction under a fence would block the key.
#[tokio::test]
async fn idle_fenced_transaction_ends() {
    let server = PostgresServer::start(&[]).await;
    let locks = LockManager::connect(&server.url()).await.unwrap();
    for (of_session, expected) in [("0", "10s"), ("1s", "1s")] {
        let guard = locks.acquire("k").wait(LONG).await.unwrap();
        let client = server.client().await;
        let begin = format!("SET idle_in_transaction_session_timeout = '{of_session}'; BEGIN");
        client.batch_execute(&begin).await.unwrap();
        let (fence, keys, tokens) = guard.fence();
        client.execute(fence, &[&keys, &tokens]).await.unwrap();
        let show = "SHOW idle_in_transaction_session_timeout";
        let row = client.query_one(show, &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), expected);
        guard.release().await.unwrap();
        // The transaction keeps its row.
        let begun = Instant::now();
        let next = locks.acquire("k").wait(LONG).await.unwrap();
        let took = begun.elapsed();
        assert!(took >= BRIEF / 2, "{took:?}");
        eventually("the end of the session", || client.is_closed()).await;
        next.release().await.unwrap();
    }
}
