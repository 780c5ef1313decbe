//! What a fenced transaction does at each event of its lock, and what a later transaction does.

use std::time::Duration;

use tokio::time::sleep;
use tokio_postgres::{Client, Error};
use tower_lock::backend::{Backend, LeaseId, Renewal, Renewed};
use tower_lock::{LockKey, PostgresBackend};

use super::support::postgres_server::PostgresServer;
use super::{LONG, acquire, backend, is_busy, lease, release};

const SHORT: Duration = Duration::from_millis(300);
const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

/// "after" is the fence of a transaction that begins after the event.
const EXPECTED: &str = "
renew     | read committed  | busy, commits    | after: passes
renew     | repeatable read | busy, commits    | after: passes
renew     | serializable    | busy, commits    | after: passes
release   | read committed  | busy, commits    | after: TL001
release   | repeatable read | busy, commits    | after: TL001
release   | serializable    | busy, commits    | after: TL001
takeover  | read committed  | busy, commits    | after: TL001
takeover  | repeatable read | busy, commits    | after: TL001
takeover  | serializable    | busy, commits    | after: TL001
expiry    | read committed  | busy, commits    | after: passes
expiry    | repeatable read | busy, commits    | after: passes
expiry    | serializable    | busy, commits    | after: passes
force     | read committed  | busy, commits    | after: TL001
force     | repeatable read | busy, commits    | after: TL001
force     | serializable    | busy, commits    | after: TL001
hand-off  | read committed  | waits            | after: passes
hand-off  | repeatable read | 40001            | after: passes
hand-off  | serializable    | 40001            | after: passes
savepoint | read committed  | granted, commits | after: TL001
savepoint | repeatable read | granted, commits | after: TL001
savepoint | serializable    | granted, commits | after: TL001
read-only | read committed  | 25006            | after: 25006
read-only | repeatable read | 25006            | after: 25006
read-only | serializable    | 25006            | after: 25006
";

fn code(result: Result<(), Error>, passes: &str) -> String {
    match result {
        Ok(()) => passes.to_owned(),
        Err(error) => error.code().unwrap().code().to_owned(),
    }
}

/// A holder of a lease of its own.
struct Holder<'a> {
    server: &'a PostgresServer,
    backend: &'a PostgresBackend,
    key: LockKey,
    lease: LeaseId,
    token: i64,
}

impl<'a> Holder<'a> {
    async fn new(server: &'a PostgresServer, backend: &'a PostgresBackend, ttl: Duration) -> Self {
        let (key, lease) = (LockKey::new(uuid::Uuid::new_v4().to_string()), lease());
        let counter = acquire(backend, &key, lease, ttl).await;
        Self {
            server,
            backend,
            key,
            lease,
            token: i64::try_from(counter * 256).unwrap(),
        }
    }

    async fn begin(&self, level: &str) -> Client {
        let client = self.server.client().await;
        client
            .batch_execute(&format!("BEGIN ISOLATION LEVEL {level}"))
            .await
            .unwrap();
        client
    }

    async fn fence(&self, client: &Client, handoff: i64) -> Result<(), Error> {
        let token = self.token + handoff;
        let fence = format!("SELECT tower_lock.fence('{}', {token})", self.key.as_str());
        client.batch_execute(&fence).await
    }

    async fn event(&self, event: &str) {
        let Self {
            backend,
            key,
            lease,
            ..
        } = self;
        match event {
            "renew" => {
                let renewal = [Renewal::new(key.clone(), *lease, LONG)];
                let renewed = backend.renew(&renewal).await.remove(0).unwrap();
                assert_eq!(renewed, Renewed::Renewed);
            }
            "release" | "savepoint" => drop(release(backend, key, *lease).await),
            "takeover" | "expiry" => sleep(SHORT + SHORT / 2).await,
            "force" => drop(backend.force_release(key, None).await.unwrap()),
            _ => {}
        }
    }
}

async fn row(
    server: &PostgresServer,
    backend: &PostgresBackend,
    event: &str,
    level: &str,
) -> String {
    let ttl = match event {
        "takeover" | "expiry" => SHORT,
        _ => LONG,
    };
    let mode = match event {
        "read-only" => format!("{level} READ ONLY"),
        _ => level.to_owned(),
    };
    let holder = Holder::new(server, backend, ttl).await;
    let client = holder.begin(&mode).await;
    let during = if event == "read-only" {
        code(holder.fence(&client, 0).await, "passes")
    } else if event == "hand-off" {
        holder.fence(&client, 0).await.unwrap();
        let next = holder.begin(&mode).await;
        next.batch_execute("SET LOCAL lock_timeout = '200ms'")
            .await
            .unwrap();
        let outcome = code(holder.fence(&next, 1).await, "passes");
        outcome.replace("55P03", "waits")
    } else {
        if event == "savepoint" {
            client.batch_execute("SAVEPOINT s").await.unwrap();
            holder.fence(&client, 0).await.unwrap();
            client.batch_execute("ROLLBACK TO s").await.unwrap();
        } else {
            holder.fence(&client, 0).await.unwrap();
        }
        holder.event(event).await;
        let other = match is_busy(backend, &holder.key).await {
            true => "busy",
            false => "granted",
        };
        client
            .batch_execute("INSERT INTO written VALUES (1)")
            .await
            .unwrap();
        format!(
            "{other}, {}",
            code(client.batch_execute("COMMIT").await, "commits")
        )
    };
    drop(client);
    let holder = Holder::new(server, backend, ttl).await;
    if event == "hand-off" {
        let client = holder.begin(&mode).await;
        holder.fence(&client, 0).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
    }
    holder.event(event).await;
    if event == "takeover" {
        assert!(!is_busy(backend, &holder.key).await);
    }
    let client = holder.begin(&mode).await;
    let after = code(holder.fence(&client, 1).await, "passes");
    format!("{event:<9} | {level:<15} | {during:<16} | after: {after}")
}

#[tokio::test]
async fn fence_has_listed_outcome_at_each_event() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    server.run("CREATE TABLE written (it int)").await;
    let mut table = String::from("\n");
    let events = [
        "renew",
        "release",
        "takeover",
        "expiry",
        "force",
        "hand-off",
        "savepoint",
        "read-only",
    ];
    for event in events {
        for level in LEVELS {
            table += &row(&server, &backend, event, level).await;
            table.push('\n');
        }
    }
    eprintln!("{table}");
    assert_eq!(table, EXPECTED);
}

/// The lock may be lost, but no other owner acquires it before the commit.
#[tokio::test]
async fn fenced_transaction_keeps_others_out() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let holder = Holder::new(&server, &backend, SHORT).await;
    let client = holder.begin("read committed").await;
    holder.fence(&client, 0).await.unwrap();
    sleep(2 * SHORT).await;
    for _ in 0..5 {
        assert!(is_busy(&backend, &holder.key).await);
        backend.force_release(&holder.key, None).await.unwrap();
    }
    client.batch_execute("COMMIT").await.unwrap();
    assert!(!is_busy(&backend, &holder.key).await);
}

/// Neither an idle transaction of a stopped process nor one whose process ended blocks the key for long.
#[tokio::test]
async fn idle_fenced_transaction_ends() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let holder = Holder::new(&server, &backend, LONG).await;
    let client = holder.begin("read committed").await;
    holder.fence(&client, 0).await.unwrap();
    release(&backend, &holder.key, holder.lease).await;
    let begun = tokio::time::Instant::now();
    while is_busy(&backend, &holder.key).await {
        assert!(begun.elapsed() < Duration::from_secs(30));
        sleep(Duration::from_millis(100)).await;
    }
    assert!(begun.elapsed() > Duration::from_secs(5));
    let error = client.batch_execute("COMMIT").await.unwrap_err();
    assert!(
        error.is_closed() || error.code().is_some_and(|it| it.code() == "25P03"),
        "{error:?}"
    );
}
