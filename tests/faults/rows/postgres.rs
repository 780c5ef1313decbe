//! Faults of PostgreSQL and of the connections to it. The committed rows of fenced transactions judge them.

use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use deadpool_postgres::{Manager, Pool};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::NoTls;
use tower_lock::PostgresBackend;

use super::Row;
use crate::fenced::Fenced;
use crate::load::{millis, random};
use crate::run::Run;
use crate::store::Topology::Own;
use crate::support::engine::{MS, SECOND};
use crate::support::postgres_server::PostgresServer;
use crate::support::proxy::Swallow;

/// A third version, as a later release of the crate would bring it.
const NEXT: &str = "BEGIN;
    SELECT pg_advisory_xact_lock(1953459813, 1);
    CREATE OR REPLACE FUNCTION tower_lock.release_3(k text, l text) RETURNS text LANGUAGE sql AS
        'SELECT tower_lock.release_one_2(k, l, false)';
    INSERT INTO tower_lock.version VALUES (3) ON CONFLICT DO NOTHING;
    COMMIT";

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Own, name, fault);
    vec![
        row("postgres: a session killed", |run| {
            Box::pin(under(run, true, session_killed))
        }),
        row("postgres: killed, durable grants", |run| {
            Box::pin(under(run, true, killed))
        }),
        row("postgres: killed, relaxed grants", |run| {
            Box::pin(under(run, false, killed))
        }),
        row("postgres: restarted, durable grants", |run| {
            Box::pin(under(run, true, restarted))
        }),
        row("postgres: restarted, relaxed grants", |run| {
            Box::pin(under(run, false, restarted))
        }),
        row("postgres: stopped for two leases", |run| {
            Box::pin(under(run, true, stopped))
        }),
        row("postgres: cut before and after commits", |run| {
            Box::pin(under(run, true, cut))
        }),
        row("postgres: pool exhausted", |run| Box::pin(exhausted(run))),
        row("postgres: read-only", |run| {
            Box::pin(under(run, true, read_only))
        }),
        row("postgres: LISTEN half-open, then cut", |run| {
            Box::pin(under(run, true, listen_dead))
        }),
        row("postgres: clock steps ahead and back", |run| {
            Box::pin(clock(run))
        }),
        row("postgres: notifications lost and doubled", |run| {
            Box::pin(under(run, true, notifications))
        }),
        row("postgres: old and new migrations", |run| {
            Box::pin(under(run, true, migrations))
        }),
    ]
}

/// Runs a fault under load. It returns what shows that it happened.
async fn under(run: &mut Run, durable: bool, fault: impl AsyncFn(&Run, &mut Fenced) -> String) {
    let server = PostgresServer::start(&[]).await;
    let mut fenced = Fenced::start(run, server, durable).await;
    let seen = fault(run, &mut fenced).await;
    run.evidence(seen);
    fenced.finish(run).await;
}

/// Ends one session by a signal. The server then ends all others and recovers.
async fn session_killed(_: &Run, fenced: &mut Fenced) -> String {
    let sessions = fenced.server.sessions("tower_lock").await;
    let session = sessions[usize::try_from(random(sessions.len() as u64)).unwrap()];
    let status = Command::new("kill")
        .args(["-KILL", &session.to_string()])
        .status();
    assert!(status.unwrap().success());
    sleep(500 * MS).await;
    format!("one of {} sessions killed", sessions.len())
}

async fn killed(_: &Run, fenced: &mut Fenced) -> String {
    for _ in 0..2 {
        fenced.server.crash().await;
        sleep(millis(100..700)).await;
    }
    "killed twice".to_owned()
}

async fn restarted(_: &Run, fenced: &mut Fenced) -> String {
    for _ in 0..2 {
        fenced.server.restart().await;
        sleep(millis(100..700)).await;
    }
    "restarted twice".to_owned()
}

async fn stopped(run: &Run, fenced: &mut Fenced) -> String {
    fenced.server.signal_all("-STOP");
    sleep(2 * run.row.lease).await;
    fenced.server.signal_all("-CONT");
    "stopped for two leases".to_owned()
}

/// Cuts connections before bytes of a command, or before bytes of its reply.
async fn cut(_: &Run, fenced: &mut Fenced) -> String {
    let count = 24;
    for number in 0..count {
        let gate = &fenced.gates[number % fenced.gates.len()];
        let proxy = match random(2) {
            0 => &gate.locks,
            _ => &gate.data,
        };
        match random(2) {
            0 => proxy.truncate_commands(usize::try_from(random(400)).unwrap()),
            _ => proxy.truncate_answers(usize::try_from(random(200)).unwrap()),
        }
        sleep(millis(50..150)).await;
    }
    format!("{count} cuts")
}

/// The locks lose their connections while the program uses all others of its pool.
async fn exhausted(run: &mut Run) {
    let pools = Mutex::new(Vec::new());
    let server = PostgresServer::start(&[]).await;
    let fenced = Fenced::start_by(run, server, |gate, server| {
        let url = server.url_at(gate.locks.port());
        let manager = Manager::new(url.parse().unwrap(), NoTls);
        let pool = Pool::builder(manager).max_size(4).build().unwrap();
        pools.lock().unwrap().push(pool.clone());
        PostgresBackend::from_pool(pool)
    });
    let fenced = fenced.await;
    let pools = pools.into_inner().unwrap();
    let sessions = fenced.server.sessions("tower_lock.").await;
    let mut used = Vec::new();
    for pool in &pools {
        while let Ok(Ok(object)) = timeout(200 * MS, pool.get()).await {
            used.push(object);
        }
    }
    for session in &sessions {
        let end = format!("SELECT pg_terminate_backend({session})");
        fenced.server.run(&end).await;
    }
    sleep(SECOND).await;
    let full = pools
        .iter()
        .all(|it| it.status().waiting > 0 || it.status().available == 0);
    run.proof(full && !used.is_empty(), format!("{} in use", used.len()));
    drop(used);
    drop(pools);
    fenced.finish(run).await;
}

async fn read_only(_: &Run, fenced: &mut Fenced) -> String {
    let client = fenced.server.client().await;
    for (statement, pause) in [
        (
            "ALTER SYSTEM SET default_transaction_read_only = on",
            Duration::ZERO,
        ),
        ("SELECT pg_reload_conf()", SECOND),
        (
            "ALTER SYSTEM RESET default_transaction_read_only",
            Duration::ZERO,
        ),
        ("SELECT pg_reload_conf()", Duration::ZERO),
    ] {
        client.batch_execute(statement).await.unwrap();
        sleep(pause).await;
    }
    "read-only for 1 s".to_owned()
}

/// No process receives a notification. Then the connections end.
async fn listen_dead(run: &Run, fenced: &mut Fenced) -> String {
    for gate in &fenced.gates {
        gate.notifications.swallow(Swallow::Answers);
    }
    let took = fenced.recovers(run, "half-open").await;
    let again = fenced.recovers(run, "half-open, again").await;
    for gate in &fenced.gates {
        gate.notifications.heal();
        gate.notifications.cut();
    }
    format!("{took:.0?} and {again:.0?} without notifications")
}

async fn clock(run: &mut Run) {
    let server = PostgresServer::start_with_clock().await;
    let fenced = Fenced::start(run, server, true).await;
    for millis in [4_000, 0, 3_600_000] {
        fenced.server.step_clock(millis);
        sleep(700 * MS).await;
    }
    let client = fenced.server.client().await;
    let clock = "SELECT extract(epoch FROM clock_timestamp())::float8";
    let clock: f64 = client.query_one(clock, &[]).await.unwrap().get(0);
    let ahead = clock
        - SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
    run.proof(ahead > 3_000.0, format!("{ahead:.0} s ahead"));
    fenced.finish(run).await;
}

/// Removes registered waiters, and notifies others twice without a release.
async fn notifications(_: &Run, fenced: &mut Fenced) -> String {
    let client = fenced.server.client().await;
    let begun = Instant::now();
    let (mut lost, mut sent) = (0, 0);
    while begun.elapsed() < 2 * SECOND {
        lost += client
            .execute("DELETE FROM tower_lock.watcher WHERE random() < 0.5", &[])
            .await
            .unwrap();
        let notify = "SELECT pg_notify(channel, 'r ' || key) FROM tower_lock.watcher";
        for _ in 0..2 {
            sent += client.query(notify, &[]).await.unwrap().len();
        }
        sleep(10 * MS).await;
    }
    format!("{lost} waiters forgotten, {sent} notifications without a release")
}

/// Processes of this version start while the schema is migrated to it and to the next one.
async fn migrations(_: &Run, fenced: &mut Fenced) -> String {
    let count = 6;
    for number in 0..count {
        // The machine may be busy with other rows.
        let builder = PostgresBackend::builder(fenced.server.url()).response_timeout(10 * SECOND);
        let connect = builder.connect();
        let run = async |script| fenced.server.run(script).await;
        let (backend, (), ()) = tokio::join!(connect, run(PostgresBackend::MIGRATION), run(NEXT));
        let locks = fenced.manage(backend.expect("it serves both versions"));
        let guard = locks
            .acquire(format!("new:{number}"))
            .await
            .expect("it is free");
        guard.release().await.expect("it is held");
    }
    format!("{count} times both migrations and a new process")
}
