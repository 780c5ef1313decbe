//! The sweep of what ended processes left.

use tower_lock::LockKey;
use tower_lock::backend::{AcquireRequest, Backend, Contended};

use super::support::postgres_server::PostgresServer;
use super::{LONG, acquire, backend, lease};

const SWEEP: &str = "SELECT tower_lock.sweep_2()";

#[tokio::test]
async fn sweep_leaves_held_waiting_and_fenced_rows() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let client = server.client().await;
    let mut last = 0;
    let names = ["abandoned", "expired", "fenced", "held"];
    for name in names {
        last = acquire(&backend, &LockKey::new(name), lease(), LONG).await;
        // Two waiters of each key, one of which will have ended.
        for _ in 0..2 {
            let request = AcquireRequest::new(LockKey::new(name), lease(), LONG);
            let waits = backend.contend(&request).await.unwrap();
            assert!(matches!(waits, Contended::Waiting { .. }));
        }
        let watch = "SELECT tower_lock.watch($1, manager, 'c') FROM unnest('{here, ended}'::text[]) manager";
        client.execute(watch, &[&name]).await.unwrap();
    }
    let fenced = server.client().await;
    let fence = "BEGIN; SELECT tower_lock.fence('fenced', counter * 256) FROM tower_lock.lease WHERE key = 'fenced'";
    fenced.batch_execute(fence).await.unwrap();
    let age = "UPDATE tower_lock.lease SET until = clock_timestamp() - interval '61 s' WHERE key IN ('abandoned', 'fenced');
        UPDATE tower_lock.lease SET until = clock_timestamp() - interval '50 s' WHERE key = 'expired';
        UPDATE tower_lock.waiter SET seen = clock_timestamp() - interval '61 s' WHERE place = 2;
        UPDATE tower_lock.watcher SET seen = clock_timestamp() - interval '61 s' WHERE manager = 'ended'";
    client.batch_execute(age).await.unwrap();
    client.batch_execute(SWEEP).await.unwrap();
    let keys = async |table: &str| -> Vec<String> {
        let rows = format!("SELECT key FROM tower_lock.{table} ORDER BY key");
        let rows = client.query(&rows, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(keys("lease").await, names[1..]);
    for table in ["waiter", "watcher"] {
        assert_eq!(keys(table).await, names, "{table}");
    }
    fenced.batch_execute("COMMIT").await.unwrap();
    client.batch_execute(SWEEP).await.unwrap();
    assert_eq!(keys("lease").await, ["expired", "held"]);
    // No row is left that has the last counter.
    client
        .batch_execute("DELETE FROM tower_lock.waiter")
        .await
        .unwrap();
    let counter = acquire(&backend, &LockKey::new("abandoned"), lease(), LONG).await;
    assert!(counter > last, "{counter} after {last}");
}
