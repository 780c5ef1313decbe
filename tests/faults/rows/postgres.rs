//! Faults of PostgreSQL and of the connections to it. The committed rows of fenced transactions judge them.

use std::cell::Cell;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use deadpool_postgres::{Manager, Pool};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::NoTls;
use tower_lock::{LockGuard, PostgresBackend};

use super::Row;
use crate::fenced::Fenced;
use crate::keeper::KEEP;
use crate::load::{millis, random};
use crate::old_process::OLD;
use crate::run::Run;
use crate::store::Topology::Own;
use crate::support::engine::{MS, SECOND};
use crate::support::errors::chain;
use crate::support::postgres_server::{Part, PostgresServer};
use crate::support::process::signal;
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
        row("postgres: standby promoted, durable grants", |run| {
            Box::pin(promoted(run, true, killed_for_good))
        }),
        row("postgres: standby promoted, relaxed grants", |run| {
            Box::pin(promoted(run, false, killed_for_good))
        }),
        row("postgres: standby promoted, primary hangs", |run| {
            Box::pin(promoted(run, true, hangs))
        }),
        row(
            "postgres: synchronous standby promoted, durable grants",
            |run| Box::pin(promoted_synchronous(run, true)),
        ),
        row(
            "postgres: synchronous standby promoted, relaxed grants",
            |run| Box::pin(promoted_synchronous(run, false)),
        ),
        row("postgres: killed while leases are kept", |run| {
            Box::pin(under(run, true, killed))
        })
        .keeps(KEEP),
        row(
            "postgres: stopped for two leases while some are kept",
            |run| Box::pin(under(run, true, stopped)),
        )
        .keeps(KEEP),
        row("postgres: standby promoted while leases are kept", |run| {
            Box::pin(promoted(run, true, killed_for_good))
        })
        .keeps(KEEP),
        row("postgres: processes of versions 1 and 2", |run| {
            Box::pin(two_versions(run))
        }),
        row("postgres: disk full", |run| Box::pin(disk_full(run))),
        row("postgres: disk of the log full", |run| {
            Box::pin(log_disk_full(run))
        }),
        row("postgres: full queue of notifications", |run| {
            Box::pin(notify_queue_full(run))
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
    signal("-KILL", session);
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

/// The standby may lack the last commits of the primary.
async fn promoted(run: &mut Run, durable: bool, fault: impl AsyncFn(&mut PostgresServer)) {
    let (server, standby) = pair(false).await;
    let mut fenced = Fenced::start_with_standby(run, server, standby, durable).await;
    fenced.loses_commits = true;
    // A reply that does not arrive, and a host that hangs: for the lock, and then for the data.
    fenced.dial = 6 * SECOND;
    let held = fail_over(&mut fenced, fault).await;
    let lost = lost(&fenced.server, &held).await;
    run.evidence(format!("{lost} of {} grants lost", held.len()));
    drop(held);
    fenced.recovers(run, "promotion").await;
    sleep(millis(300..900)).await;
    fenced.finish(run).await;
}

async fn promoted_synchronous(run: &mut Run, durable: bool) {
    let (server, standby) = pair(true).await;
    let mut fenced = Fenced::start_with_standby(run, server, standby, durable).await;
    let held = fail_over(&mut fenced, killed_for_good).await;
    let lost = lost(&fenced.server, &held).await;
    run.referee.expect(lost == 0 || !durable, "durability", || {
        format!("{lost} of {} grants lost", held.len())
    });
    let evidence = format!("{lost} of {} grants lost", held.len());
    run.proof(!held.is_empty(), evidence);
    drop(held);
    fenced.recovers(run, "promotion").await;
    sleep(millis(300..900)).await;
    fenced.finish(run).await;
}

async fn pair(synchronous: bool) -> (PostgresServer, PostgresServer) {
    let server = PostgresServer::start(&[]).await;
    let standby = server.start_standby(synchronous).await;
    (server, standby)
}

/// The standby does not receive the last changes.
async fn killed_for_good(server: &mut PostgresServer) {
    sleep(millis(100..400)).await;
    for sender in server.senders().await {
        signal("-STOP", sender);
    }
    sleep(millis(20..300)).await;
    server.kill();
}

/// It does not reply, and keeps the connections to it open. Its operator ends it before the promotion.
async fn hangs(server: &mut PostgresServer) {
    sleep(millis(100..400)).await;
    server.signal_all("-STOP");
}

/// Fails over while processes acquire keys of their own. Returns those of the primary.
async fn fail_over(
    fenced: &mut Fenced,
    fault: impl AsyncFn(&mut PostgresServer),
) -> Vec<LockGuard> {
    let (managers, over) = (fenced.managers.clone(), Cell::new(false));
    let hold = async {
        let mut held = Vec::new();
        for (locks, number) in managers.iter().cycle().zip(0..) {
            let acquire = locks.acquire(format!("kept:{number}")).no_wait();
            match acquire.await {
                Ok(guard) if !over.get() => held.push(guard),
                _ => break,
            }
        }
        held
    };
    let fail_over = fenced.fail_over(async |server| {
        fault(server).await;
        over.set(true);
    });
    tokio::join!(hold, fail_over).0
}

/// Returns the number of granted leases that a server does not have.
async fn lost(server: &PostgresServer, held: &[LockGuard]) -> usize {
    let client = server.client().await;
    let exists = "SELECT EXISTS (SELECT FROM tower_lock.lease
        WHERE key = $1 AND $2 >= counter * 256 AND $2 < (last + 1) * 256)";
    let mut lost = 0;
    for guard in held {
        let (_, keys, tokens) = guard.fence();
        let row = client.query_one(exists, &[&keys[0], &tokens[0]]).await;
        lost += usize::from(!row.expect("a row").get::<_, bool>(0));
    }
    lost
}

/// The locks lose their connections while the program uses all others of its pool.
async fn exhausted(run: &mut Run) {
    let pools = Mutex::new(Vec::new());
    let server = PostgresServer::start(&[]).await;
    let fenced = Fenced::start_by(run, server, None, |url| {
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

/// Processes without a queue contend with those that have one. Their script runs again as well.
async fn two_versions(run: &mut Run) {
    let server = PostgresServer::start(&[]).await;
    server.run(OLD).await;
    let mut fenced = Fenced::start(run, server, true).await;
    for _ in 0..2 {
        fenced.add_old_process();
    }
    sleep(SECOND).await;
    fenced.server.run(OLD).await;
    sleep(2 * SECOND).await;
    let (old, all) = fenced.commits();
    let happened = old > 5 && all - old > 5;
    run.proof(happened, format!("{old} of {all} commits of version 1"));
    fenced.finish(run).await;
}

/// No table can grow, while an old snapshot keeps their pages from being used again.
async fn disk_full(run: &mut Run) {
    let server = PostgresServer::start_on_small_disk(Part::Data).await;
    let fenced = Fenced::start(run, server, true).await;
    let reader = fenced.server.client().await;
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM entry";
    reader.batch_execute(snapshot).await.expect("a snapshot");
    fenced.server.fill_disk();
    let begun = Instant::now();
    let mut held = Vec::new();
    let refused = loop {
        let locks = &fenced.managers[held.len() % fenced.managers.len()];
        let acquire = locks.acquire(format!("kept:{}", held.len())).no_wait();
        match acquire.await {
            Ok(guard) => held.push(guard),
            Err(error) => break error,
        }
    };
    run.referee
        .expect(refused.is_unavailable(), "refusal", || chain(&refused));
    sleep(SECOND).await;
    let full = "disk full";
    run.proof(
        chain(&refused).contains("53100"),
        format!("{full} after {:.0?}", begun.elapsed()),
    );
    fenced.server.free_disk();
    reader.batch_execute("COMMIT").await.expect("its end");
    drop(held);
    fenced.finish(run).await;
}

/// The server ends, and a start fails until there is space again.
async fn log_disk_full(run: &mut Run) {
    let server = PostgresServer::start_on_small_disk(Part::Log).await;
    let mut fenced = Fenced::start(run, server, true).await;
    fenced.server.fill_disk();
    let grow = "CREATE TABLE big AS SELECT repeat('a', 1000) FROM generate_series(1, 100000)";
    let grown = fenced.server.client().await.batch_execute(grow).await;
    run.proof(grown.is_err(), "the log has no space");
    sleep(SECOND).await;
    fenced.server.free_disk();
    fenced.server.crash().await;
    fenced.finish(run).await;
}

/// No notification is sent while a listener stays in a transaction. Releases succeed, and waiters attempt at intervals.
async fn notify_queue_full(run: &mut Run) {
    let Some(server) = PostgresServer::start_with_small_notify_queue().await else {
        return run.evidence("not before version 17".to_owned());
    };
    let fenced = Fenced::start(run, server, true).await;
    let stopped = fenced.server.fill_notify_queue().await;
    // A release that looked at the queue before it was full may fail.
    sleep(200 * MS).await;
    let before = fenced.unreleased();
    let first = fenced.recovers(run, "full").await;
    let second = fenced.recovers(run, "full, again").await;
    let failed = fenced.unreleased() - before;
    run.referee.expect(failed == 0, "release", || {
        format!("{failed} releases failed")
    });
    let client = fenced.server.client().await;
    let usage = "SELECT pg_notification_queue_usage()";
    let usage: f64 = client.query_one(usage, &[]).await.unwrap().get(0);
    let seen = format!("{first:.0?} and {second:.0?} with a full queue");
    run.proof(usage > 0.9, seen);
    stopped.batch_execute("COMMIT").await.expect("its end");
    fenced.finish(run).await;
}
