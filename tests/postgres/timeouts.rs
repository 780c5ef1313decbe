//! Timeouts of a role that are shorter than a hold.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tower_lock::{LockManager, PostgresBackend};

use super::LONG;
use super::support::postgres_server::PostgresServer;

const BRIEF: Duration = Duration::from_secs(1);

/// The server ends idle sessions, such as the one that listens. The backend dials again.
#[tokio::test(flavor = "multi_thread")]
async fn lock_outlives_timeouts_of_role() {
    let server = PostgresServer::start(&[]).await;
    let client = server.client().await;
    let is_old = "SELECT current_setting('server_version_num')::int < 140000";
    let is_old: bool = client.query_one(is_old, &[]).await.unwrap().get(0);
    let mut names = vec![
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
    ];
    if !is_old {
        names.push("idle_session_timeout");
    }
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
