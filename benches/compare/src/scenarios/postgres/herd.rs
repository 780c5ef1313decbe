//! One key and many managers, each with one client that acquires again after its release.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_postgres::{AsyncMessage, Client, NoTls};
use tower_lock::{LockGuard, LockManager};

use super::{client, manager};
use crate::bench::Bench;
use crate::postgres_server::PostgresServer;
use crate::table::{Series, ratio};
use crate::target::{self, Target};
use crate::work::Failure;

const MANAGERS: [usize; 3] = [2, 8, 32];
const HOLD: Duration = Duration::from_millis(5);
const POLL: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(60);
/// Nothing counts before it: each manager opens its connections, and one that waits tests its listener.
const START: Duration = Duration::from_secs(1);
const KEY: &str = "herd";

/// Counts the statements of clients.
pub(super) const SETTINGS: [&str; 3] = [
    "shared_preload_libraries=pg_stat_statements",
    "max_connections=300",
    "fsync=on",
];
const CALLS: &str = "SELECT coalesce(sum(calls), 0)::int8 FROM pg_stat_statements WHERE toplevel";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ours,
    /// A session advisory lock, which each waiter tries every 50 ms.
    Polled,
    /// The functions of this crate without a queue: all waiters attempt after each release.
    Hinted,
}

const KINDS: [(Kind, &str); 3] = [
    (Kind::Ours, "tower-lock, relaxed"),
    (Kind::Polled, "session advisory lock, a poll every 50 ms"),
    (Kind::Hinted, "a notification, and all retry"),
];

enum Way {
    Ours(LockManager),
    Polled(Client),
    Hinted {
        client: Client,
        lease: String,
        hint: Arc<Notify>,
    },
}

#[derive(Default)]
struct Figures {
    grants: Series,
    statements: Series,
    /// The share of the manager with the fewest grants, times the number of managers.
    share: Series,
    longest: Series,
}

pub(super) async fn measure(bench: &mut Bench) -> Result<(), Failure> {
    let server = PostgresServer::start(&SETTINGS).await;
    server.run("CREATE EXTENSION pg_stat_statements").await;
    // It creates the schema.
    drop(manager(&server, false).await?);
    let alone = holds_alone(bench.herd_window).await;
    for managers in MANAGERS {
        let mut all = KINDS.map(|_| Figures::default());
        for _ in 0..bench.rounds.min(2) {
            for ((kind, _), figures) in KINDS.into_iter().zip(&mut all) {
                run(&server, kind, managers, bench.herd_window, figures).await?;
            }
        }
        tell(bench, managers, &all, &alone);
    }
    Ok(())
}

/// Returns the rate of a program that only holds, which no lock can exceed.
async fn holds_alone(window: Duration) -> Series {
    let (begun, mut count) = (Instant::now(), 0_u32);
    while begun.elapsed() < window {
        sleep(HOLD).await;
        count += 1;
    }
    let mut rate = Series::default();
    rate.add(f64::from(count) / begun.elapsed().as_secs_f64());
    rate
}

async fn run(
    server: &PostgresServer,
    kind: Kind,
    managers: usize,
    window: Duration,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let mut ways = Vec::new();
    for number in 0..managers {
        ways.push(Way::start(server, kind, number).await?);
    }
    let counter = client(server).await?;
    let calls =
        async || -> Result<i64, Failure> { Ok(counter.query_one(CALLS, &[]).await?.get(0)) };
    let begun = Instant::now() + START;
    let mut tasks = JoinSet::new();
    for way in ways {
        tasks.spawn(async move {
            let (mut count, mut longest) = (0_u32, Duration::ZERO);
            while begun.elapsed() < window {
                let asked = Instant::now();
                let guard = way.acquire().await?;
                longest = longest.max(asked.elapsed());
                count += u32::from(Instant::now() > begun);
                sleep(HOLD).await;
                way.release(guard).await?;
            }
            // The way lives until the others have ended.
            Ok::<_, Failure>((count, longest, way))
        });
    }
    sleep_until(begun).await;
    let before = calls().await?;
    let mut parts = Vec::new();
    while let Some(part) = tasks.join_next().await {
        parts.push(part??);
    }
    let elapsed = begun.elapsed().as_secs_f64();
    let statements = calls().await? - before;
    let counts = || parts.iter().map(|(count, ..)| f64::from(*count));
    let (sum, least) = (counts().sum::<f64>(), counts().fold(f64::MAX, f64::min));
    let longest = parts.iter().map(|(_, longest, _)| *longest).max();
    figures.grants.add(sum / elapsed);
    figures.statements.add(statements as f64 / sum);
    figures.share.add(least * managers as f64 / sum);
    (figures.longest).add(longest.unwrap_or_default().as_secs_f64());
    Ok(())
}

impl Way {
    async fn start(server: &PostgresServer, kind: Kind, number: usize) -> Result<Self, Failure> {
        Ok(match kind {
            Kind::Ours => Self::Ours(manager(server, false).await?),
            Kind::Polled => Self::Polled(client(server).await?),
            Kind::Hinted => {
                let hint = Arc::new(Notify::new());
                let heard = Arc::clone(&hint);
                let (listener, mut connection) =
                    tokio_postgres::connect(&server.url(), NoTls).await?;
                tokio::spawn(async move {
                    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                        if let AsyncMessage::Notification(_) = message {
                            heard.notify_one();
                        }
                    }
                });
                listener.batch_execute("LISTEN hint").await?;
                let (client, lease) = (client(server).await?, format!("lease {number}"));
                // Only the listener's task keeps the session.
                std::mem::forget(listener);
                Self::Hinted {
                    client,
                    lease,
                    hint,
                }
            }
        })
    }

    async fn acquire(&self) -> Result<Option<LockGuard>, Failure> {
        match self {
            Self::Ours(locks) => return Ok(Some(locks.acquire(KEY).wait(PATIENCE).await?)),
            Self::Polled(client) => {
                while !client
                    .query_one("SELECT pg_try_advisory_lock(1)", &[])
                    .await?
                    .get::<_, bool>(0)
                {
                    sleep(POLL).await;
                }
            }
            Self::Hinted {
                client,
                lease,
                hint,
            } => loop {
                let attempt = "SELECT counter
                    FROM tower_lock.acquire_one($1, $2, 'x', 30000, 1e11, false, true)";
                let row = client.query_one(attempt, &[&KEY, lease]).await?;
                if row.get::<_, Option<i64>>(0).is_some() {
                    break;
                }
                drop(timeout(Duration::from_secs(1), hint.notified()).await);
            },
        }
        Ok(None)
    }

    async fn release(&self, guard: Option<LockGuard>) -> Result<(), Failure> {
        drop(guard);
        match self {
            Self::Ours(_) => {}
            Self::Polled(client) => {
                client
                    .query_one("SELECT pg_advisory_unlock(1)", &[])
                    .await?;
            }
            Self::Hinted { client, lease, .. } => {
                let release = "SELECT tower_lock.release_one($1, $2), pg_notify('hint', '')";
                client.query_one(release, &[&KEY, lease]).await?;
            }
        }
        Ok(())
    }
}

fn tell(bench: &mut Bench, managers: usize, all: &[Figures; 3], alone: &Series) {
    let [ours, polled, hinted] = all;
    let scenario = format!("postgres, one key, {managers} managers, holds of 5 ms: grants");
    for ((kind, name), figures) in KINDS.into_iter().zip(all) {
        let times = |other: &Figures| ours.grants.median() / other.grants.median();
        let mut targets = Vec::new();
        if kind == Kind::Ours {
            let statements = figures.statements.median();
            targets.push(Target::at_most("statements per grant", statements, 2.2, 1));
        }
        if kind == Kind::Ours && managers == 32 {
            let (longest, share) = (figures.longest.median(), figures.share.median());
            targets.push(Target::at_most("longest wait in s", longest, 0.6, 1));
            targets.push(Target::at_least("share of the last", share, 0.8, 1));
            targets.push(Target::at_least("× polls", times(polled), 1.2, 1));
            targets.push(Target::at_least("× retries", times(hinted), 1.5, 1));
        }
        let note = format!(
            "{} statements per grant; longest wait {}; share of the last {}",
            figures.statements.text(2, ""),
            figures.longest.text(2, " s"),
            figures.share.text(2, "")
        );
        let (grants, note) = (&figures.grants, target::note(&targets, note));
        let to_ours = ratio(grants, &ours.grants, "tower-lock");
        (bench.table).row(&scenario, name, grants.text(0, "/s"), to_ours, note);
    }
    let (rate, to_ours) = (
        alone.text(0, "/s"),
        ratio(alone, &ours.grants, "tower-lock"),
    );
    (bench.table).row(&scenario, "the holds alone", rate, to_ours, "");
}
