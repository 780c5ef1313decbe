//! Locks that are held: what a busy attempt writes, what many cost, and how fast one key passes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower_lock::LockManager;

use super::{client, manager};
use crate::bench::Bench;
use crate::cpu;
use crate::postgres_server::PostgresServer;
use crate::scaling::processor_time;
use crate::table::thousands;
use crate::target::{self, Target};
use crate::work::Failure;

const HELD: usize = 10_000;
const BUSY: u32 = 1_000;
const IDLE: Duration = Duration::from_secs(20);
/// A window of the hot key, the first and the last of a minute.
const PART: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);
const HOLD: Duration = Duration::from_millis(5);

pub(super) async fn busy(bench: &mut Bench, server: &PostgresServer) -> Result<(), Failure> {
    let [holder, other] = [manager(server, true).await?, manager(server, true).await?];
    let _guard = holder.acquire("busy").await?;
    let client = client(server).await?;
    let position = async || {
        let position = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8";
        let row = client.query_one(position, &[]).await?;
        Ok::<_, Failure>(row.get::<_, f64>(0))
    };
    // The first acquire opens the connection that listens, which tests itself by a notification.
    drop(other.acquire("busy").no_wait().await);
    sleep(Duration::from_secs(1)).await;
    let before = position().await?;
    for _ in 0..BUSY {
        drop(other.acquire("busy").no_wait().await);
    }
    let written = position().await? - before;
    let note = target::note(&[Target::at_most("bytes", written, 0.0, 0)], String::new());
    let scenario = format!("postgres: WAL of {} busy attempts", number(BUSY));
    let figure = format!("{} bytes", thousands(written, 0));
    (bench.table).row(&scenario, "tower-lock", figure, "", note);
    Ok(())
}

/// Measures the connections of a process with many locks, and the CPU of both sides while it renews them.
pub(super) async fn idle(bench: &mut Bench, server: &PostgresServer) -> Result<(), Failure> {
    let url = format!("{}?application_name=held", server.url());
    let locks = LockManager::connect(&url).await?;
    let mut tasks = JoinSet::new();
    for number in 0..HELD {
        let acquire = locks.acquire(format!("held:{number}"));
        tasks.spawn(acquire.wait(MINUTE).into_future());
    }
    let mut guards = Vec::new();
    while let Some(guard) = tasks.join_next().await {
        guards.push(guard??);
    }
    let client = client(server).await?;
    let sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'held'";
    let sessions = client.query(sessions, &[]).await?;
    let of_server = || -> Result<f64, Failure> {
        let each = sessions
            .iter()
            .map(|row| cpu::seconds(row.get::<_, i32>(0)));
        each.sum()
    };
    let (here, there) = (processor_time(), of_server()?);
    sleep(IDLE).await;
    let percent = 100.0 / IDLE.as_secs_f64();
    let here = (processor_time() - here).as_secs_f64() * percent;
    let there = (of_server()? - there) * percent;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    let connections = f64::from(u32::try_from(sessions.len())?);
    let targets = [
        Target::at_most("connections", connections, 3.0, 0),
        Target::at_most("of a core, client", here, 1.0, 0),
        Target::at_most("of a core, server", there, 1.0, 0),
    ];
    let seconds = IDLE.as_secs();
    let rest = format!("{here:.1} % and {there:.1} % of a core in {seconds} s; {lost} lost");
    let scenario = format!("postgres: connections, {HELD} locks held");
    let (figure, note) = (format!("{connections}"), target::note(&targets, rest));
    (bench.table).row(&scenario, "tower-lock", figure, "", note);
    Ok(())
}

/// Two processes pass one key on. Old versions of its row could slow them down.
pub(super) async fn hot(bench: &mut Bench, server: &PostgresServer) -> Result<(), Failure> {
    let [mut first, mut last] = [0.0, 0.0];
    let counts = [const { AtomicU32::new(0) }; 2];
    let counts = Arc::new(counts);
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let (locks, counts) = (manager(server, true).await?, Arc::clone(&counts));
        tasks.spawn(async move {
            while begun.elapsed() < MINUTE + PART {
                let guard = locks.acquire("hot").wait(MINUTE).await?;
                sleep(HOLD).await;
                guard.release().await?;
                let elapsed = begun.elapsed();
                if elapsed < PART {
                    counts[0].fetch_add(1, Ordering::Relaxed);
                } else if elapsed > MINUTE {
                    counts[1].fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    for (rate, count) in [&mut first, &mut last].into_iter().zip(counts.iter()) {
        *rate = f64::from(count.load(Ordering::Relaxed)) / PART.as_secs_f64();
    }
    let share = last / first;
    let targets = [Target::at_least("of the first 10 s", share, 0.8, 1)];
    let note = target::note(&targets, format!("{first:.0}/s in the first 10 s"));
    let scenario = "postgres, one key, 2 managers: grants after 60 s";
    let (figure, ratio) = (format!("{last:.0}/s"), format!("{share:.2} × first 10 s"));
    bench.table.row(scenario, "tower-lock", figure, ratio, note);
    Ok(())
}

fn number(number: u32) -> String {
    thousands(f64::from(number), 0)
}
