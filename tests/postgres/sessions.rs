//! What other roles, their settings and their transactions must not change.

use std::time::Duration;

use deadpool_postgres::{ClientWrapper, Hook, HookError, Manager, Pool};
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};
use tower_lock::backend::{AcquireRequest, Backend as _, Contended, Released, conformance};
use tower_lock::{LockKey, LockManager, PostgresBackend};

use super::support::postgres_server::PostgresServer;
use super::{LONG, acquire, backend, is_busy, lease};

/// In the default path, an exact match in `public` precedes a conversion to one of the system's, and so does a better one.
#[tokio::test]
async fn function_of_another_role_changes_no_lease() {
    let server = PostgresServer::start(&[]).await;
    server
        .run(
            "CREATE FUNCTION public.past(bigint, interval) RETURNS interval LANGUAGE sql AS
               $$ SELECT interval '-1 s' $$;
             CREATE OPERATOR public.* (leftarg = bigint, rightarg = interval, function = public.past);
             CREATE FUNCTION public.convert_from(bytea, text) RETURNS text LANGUAGE sql AS
               $$ SELECT gen_random_uuid()::text $$",
        )
        .await;
    let backend = backend(&server).await;
    let key = LockKey::new("k");
    acquire(&backend, &key, lease(), LONG).await;
    assert!(is_busy(&backend, &key).await);
    let holder = backend.inspect(&key).await.unwrap().unwrap();
    assert!(holder.ttl > LONG / 2, "{holder:?}");
}

/// Removes what the migration left in the catalogs. Otherwise, any reader may write that.
async fn vacuum(server: &PostgresServer) {
    server.run("VACUUM").await;
}

/// At the end of a page, the position of the next record is after the header of the next page, of 24 or 40 bytes. A grant
/// has more.
async fn assert_all_on_disk(client: &Client, number: u32) {
    let unwritten = "SELECT (pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn())::int8";
    let row = client.query_one(unwritten, &[]).await.unwrap();
    let unwritten: i64 = row.get(0);
    assert!(unwritten <= 40, "{unwritten} bytes after grant {number}");
}

#[tokio::test]
async fn grant_is_on_disk_in_relaxed_session() {
    let settings = ["synchronous_commit=off", "wal_writer_delay=10s"];
    let server = PostgresServer::start(&settings).await;
    let backend = backend(&server).await;
    vacuum(&server).await;
    let client = server.client().await;
    for number in 0..20 {
        acquire(&backend, &LockKey::new(format!("k{number}")), lease(), LONG).await;
        assert_all_on_disk(&client, number).await;
    }
}

/// The release before it is not on disk, nor is the transfer.
#[tokio::test]
async fn confirmed_transfer_is_on_disk() {
    let settings = ["synchronous_commit=off", "wal_writer_delay=10s"];
    let server = PostgresServer::start(&settings).await;
    let backend = backend(&server).await;
    vacuum(&server).await;
    let client = server.client().await;
    let contend = async |key: &LockKey, lease| {
        let request = AcquireRequest::new(key.clone(), lease, LONG);
        backend.contend(&request).await.unwrap()
    };
    for number in 0..20 {
        let (key, holder, waiter) = (LockKey::new(format!("k{number}")), lease(), lease());
        acquire(&backend, &key, holder, LONG).await;
        contend(&key, waiter).await;
        assert_eq!(
            super::release(&backend, &key, holder).await,
            Released::Transferred
        );
        let granted = contend(&key, waiter).await;
        assert!(matches!(granted, Contended::Granted { .. }));
        assert_all_on_disk(&client, number).await;
    }
}

/// A renewal that locks one row of a batch of releases waits for another one later.
#[tokio::test]
async fn releases_do_not_wait_for_renewal() {
    let server = PostgresServer::start(&[]).await;
    let _schema = backend(&server).await;
    let (releases, mut renewal) = (server.client().await, server.client().await);
    releases
        .batch_execute(
            "SELECT tower_lock.acquire('{a,b}', '{l,l}', '{x,x}', '{60000,60000}', 1e12, true)",
        )
        .await
        .unwrap();
    let renewal = renewal.transaction().await.unwrap();
    let locks = "SELECT FROM tower_lock.lease WHERE key = $1 FOR NO KEY UPDATE";
    renewal.query(locks, &[&"a"]).await.unwrap();
    let release =
        "SELECT n, outcome FROM tower_lock.release_2('{a,b}', '{l,l}', '{f,f}') ORDER BY n";
    let rows = timeout(LONG, releases.query(release, &[])).await.unwrap();
    let held: Vec<Option<String>> = rows.unwrap().iter().map(|row| row.get(1)).collect();
    assert_eq!(
        held,
        [None, Some("r".to_owned())],
        "the first one is sent again, alone"
    );
    renewal.commit().await.unwrap();
}

/// The plan of a session that began with few leases.
#[tokio::test]
async fn commands_beside_many_leases_read_few_rows() {
    let server = PostgresServer::start(&["autovacuum=off", "track_functions=none"]).await;
    let backend = backend(&server).await;
    let fill =
        "INSERT INTO tower_lock.lease SELECT 'f' || n, n, n, 'l', 'x', now() + interval '1 h'
        FROM generate_series($1::int8, $2::int8) n";
    let client = server.client().await;
    client.execute(fill, &[&1_i64, &20_i64]).await.unwrap();
    client
        .batch_execute("VACUUM ANALYZE tower_lock.lease")
        .await
        .unwrap();
    let pairs = async |range: std::ops::Range<u32>| {
        for number in range {
            let (key, lease) = (LockKey::new(format!("k{number}")), lease());
            acquire(&backend, &key, lease, LONG).await;
            super::release(&backend, &key, lease).await;
        }
    };
    pairs(0..12).await;
    client.execute(fill, &[&21_i64, &20_000_i64]).await.unwrap();
    let read = async || {
        // A session reports its reads at most every second.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        pairs(100..101).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let read = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'lease'";
        client.query_one(read, &[]).await.unwrap().get::<_, i64>(0)
    };
    let before = read().await;
    pairs(200..220).await;
    assert_eq!(read().await, before, "rows of whole tables");
}

#[tokio::test]
async fn fence_without_keys_fails() {
    let server = PostgresServer::start(&[]).await;
    let _schema = backend(&server).await;
    let client = server.client().await;
    for (keys, tokens) in [("'{}'", "'{}'"), ("NULL", "NULL"), ("'{k}'", "'{}'")] {
        let fence = format!("SELECT tower_lock.fence({keys}::text[], {tokens}::bigint[])");
        let error = client.query(&fence, &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "TL001", "{fence}");
    }
}

/// The text of a version of the functions of which one column has another type.
const OTHER_TYPES: &str = "
    ALTER FUNCTION tower_lock.release_one_2(text, text, bool) RENAME TO release_former;
    CREATE FUNCTION tower_lock.release_one_2(text, text, bool) RETURNS varchar LANGUAGE sql AS
        $$ SELECT tower_lock.release_former($1, $2, $3) $$;
    ALTER FUNCTION tower_lock.acquire_one(text, text, text, int8, float8, bool, bool) RENAME TO acquire_former;
    CREATE FUNCTION tower_lock.acquire_one(text, text, text, int8, float8, bool, bool, OUT counter numeric, OUT ttl_ms int8)
        LANGUAGE sql AS $$ SELECT counter, ttl_ms FROM tower_lock.acquire_former($1, $2, $3, $4, $5, $6, $7) $$";

/// The server refuses the prepared statement for as long as the session lasts (0A000). The command is sent unprepared.
#[tokio::test]
async fn session_with_stale_plan_is_replaced() {
    let server = PostgresServer::start(&[]).await;
    let locks = LockManager::builder(backend(&server).await)
        .build()
        .unwrap();
    let client = server.client().await;
    let sessions = async || {
        // The query of the listening session is excluded. It is empty at first.
        let pids = "SELECT pid FROM pg_stat_activity
            WHERE application_name = 'tower-lock' AND query !~ '^$|LISTEN|pg_advisory_lock_shared'";
        let rows = client.query(pids, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>()
    };
    let lock_once = async || {
        let guard = locks.acquire("k").wait(LONG).await.unwrap();
        guard.release().await.unwrap();
    };
    lock_once().await;
    let before = sessions().await;
    assert_eq!(before.len(), 2);
    server.run(OTHER_TYPES).await;
    lock_once().await;
    // The next command opens the connection.
    lock_once().await;
    let after = sessions().await;
    let stays = before.iter().any(|it| after.contains(it));
    assert!(after.len() == 2 && !stays, "{before:?}, {after:?}");
    lock_once().await;
    assert_eq!(sessions().await, after);
}

/// As after a restore, under processes that run.
#[tokio::test]
async fn sessions_outlive_schema() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let key = LockKey::new("k");
    for _ in 0..3 {
        let lease = lease();
        acquire(&backend, &key, lease, LONG).await;
        assert!(is_busy(&backend, &key).await);
        assert_eq!(
            super::release(&backend, &key, lease).await,
            Released::Released
        );
        server.run("DROP SCHEMA tower_lock CASCADE").await;
        server.run(PostgresBackend::MIGRATION).await;
    }
}

/// What the program does first in each session of its pool.
#[tokio::test]
async fn warmed_sessions_of_pool_serve() {
    let server = PostgresServer::start(&[]).await;
    let manager = Manager::new(server.url().parse().unwrap(), NoTls);
    let warms = Hook::async_fn(|client: &mut ClientWrapper, _| {
        Box::pin(async {
            let prepared = client.prepare_cached("SELECT 1").await;
            prepared.map_err(HookError::Backend)?;
            let leaves = "PREPARE one AS SELECT 1; PREPARE two (text) AS SELECT $1;
            CREATE TEMP TABLE lease (key text); CREATE TEMP TABLE waiter (key text);
            SET search_path = pg_temp, public; SET statement_timeout = '5s';
            SET default_transaction_isolation = 'repeatable read'; SET standard_conforming_strings = off;
            LISTEN elsewhere; DECLARE c CURSOR WITH HOLD FOR SELECT 1";
            let left = client.batch_execute(leaves).await;
            left.map_err(HookError::Backend)
        })
    });
    let pool = Pool::builder(manager).max_size(2).post_create(warms);
    let pool = pool.build().unwrap();
    let builder = PostgresBackend::from_pool(pool).response_timeout(LONG / 10);
    let [one, other] = [builder.connect().await.unwrap(), backend(&server).await];
    conformance::all(&one, &other).await;
}
