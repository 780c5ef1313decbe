//! A network that loses, delays or cuts data.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_lock::{LockManager, RedisBackend};

use super::Row;
use crate::run::Run;
use crate::store::Topology::Single;
use crate::support::engine::{MS, SECOND};
use crate::support::proxy::{Proxy, Swallow};

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Single(&[]), name, fault);
    vec![
        row("one process cut off, commands swallowed", |run| {
            Box::pin(swallowed(run, Swallow::Commands, Some(0)))
        })
        .clears_within(SILENT_ATTEMPT),
        row("one process cut off, replies swallowed", |run| {
            Box::pin(swallowed(run, Swallow::Answers, Some(0)))
        })
        .clears_within(SILENT_ATTEMPT),
        row("one process cut off, half-open", |run| {
            Box::pin(swallowed(run, Swallow::Both, Some(0)))
        })
        .clears_within(SILENT_ATTEMPT),
        row("all cut off, half-open", |run| {
            Box::pin(swallowed(run, Swallow::Both, None))
        })
        .recovers_within(SILENT_ATTEMPT)
        // One process may recover at once and end the load while the others are still silent.
        .clears_within(SILENT_ATTEMPT),
        row("all connections rejected", |run| Box::pin(refused(run))),
        row("connections reset, again and again", |run| {
            Box::pin(cut(run, Proxy::cut))
        }),
        row(
            "replies lost, then a short outage, again and again",
            |run| Box::pin(lost_in_between(run)),
        )
        .lease(3 * SECOND),
        row("commands truncated", |run| {
            Box::pin(cut(run, |proxy| proxy.truncate_commands(random_length())))
        }),
        row("replies truncated", |run| {
            Box::pin(cut(run, |proxy| proxy.truncate_answers(random_length())))
        }),
        // A late attempt can restore the place of a process that waits no more. The lock is then transferred to
        // it, and expires after 1.5 s.
        row("connections held up, new ones pass", |run| {
            Box::pin(held_up(run))
        })
        .clears_within(2 * SECOND),
        row("replies late, but in time", |run| Box::pin(slow(run))).hears_nothing(),
        row("replies later than the timeout", |run| {
            Box::pin(delayed(run))
        }),
        row("subscriptions cut", |run| Box::pin(subscriptions_cut(run))).hears_nothing(),
        row("subscriptions half-open", |run| {
            Box::pin(subscriptions_swallowed(run))
        })
        .hears_nothing(),
        row("an idle connection ends", |run| Box::pin(idle_cut(run))),
        row("clients killed by the server", |run| {
            Box::pin(clients_killed(run))
        }),
    ]
}

/// A connection that was opened while all bytes were lost stays silent. The client abandons it after the
/// connect timeout.
const SILENT_ATTEMPT: Duration = Duration::from_millis(2_000 + 300);
/// Longer than the lease.
const LONG: Duration = Duration::from_millis(2_500);

fn random_length() -> usize {
    // Less than a command, and less than the replies to a few commands.
    usize::try_from(1 + crate::load::random(150)).unwrap_or(1)
}

impl Run {
    fn proxies(&self, process: Option<usize>) -> Vec<&Proxy> {
        let gates = self.gates.iter().enumerate();
        let gates = gates.filter(|(of, _)| process.is_none_or(|process| process == *of));
        gates
            .flat_map(|(_, gate)| [&gate.commands, &gate.messages])
            .collect()
    }
}

async fn swallowed(run: &mut Run, what: Swallow, process: Option<usize>) {
    run.has_silent_connections = true;
    let begun = run.begin(process);
    run.proxies(process)
        .iter()
        .for_each(|proxy| proxy.swallow(what));
    sleep(LONG).await;
    let port = run.gates[0].commands.port();
    run.proof(!Run::answers(port, 100 * MS), "no reply");
    run.expect_silence(0, begun.at + LONG - 500 * MS);
    run.proxies(process).iter().for_each(|proxy| proxy.heal());
    run.end(&begun, 1);
}

async fn refused(run: &mut Run) {
    let begun = run.begin(None);
    for proxy in run.proxies(None) {
        proxy.refuse();
        proxy.cut();
    }
    sleep(LONG).await;
    run.expect_silence(0, begun.at + LONG - 500 * MS);
    run.proxies(None).iter().for_each(|proxy| proxy.heal());
    run.end(&begun, 1);
}

async fn cut(run: &mut Run, how: fn(&Proxy)) {
    const TIMES: u64 = 12;
    let begun = run.begin(None);
    let made = |run: &Run| {
        run.proxies(None)
            .iter()
            .map(|it| it.accepted())
            .sum::<u64>()
    };
    let before = made(run);
    for _ in 0..TIMES {
        run.proxies(None).into_iter().for_each(how);
        sleep(100 * MS).await;
    }
    let connections = made(run) - before;
    let outage = run.end(&begun, TIMES);
    run.proof(connections >= TIMES, "connected again");
    run.expect_all_kept(outage).await;
}

/// Acquires take effect without a reply and cannot be resent at once. Each is released long before its
/// lease expires.
async fn lost_in_between(run: &mut Run) {
    const TIMES: u64 = 4;
    let begun = run.begin(None);
    for _ in 0..TIMES {
        for proxy in run.proxies(None) {
            proxy.swallow(Swallow::Answers);
        }
        sleep(100 * MS).await;
        for proxy in run.proxies(None) {
            proxy.refuse();
            proxy.cut();
        }
        sleep(200 * MS).await;
        run.proxies(None).iter().for_each(|proxy| proxy.heal());
        sleep(100 * MS).await;
    }
    run.end(&begun, 3 * TIMES);
    let made = run.connections_since(&begun);
    run.proof(made > 2 * TIMES, "connected again");
}

/// The data of the old connections arrives in the end, reordered with the data of the new ones.
async fn held_up(run: &mut Run) {
    let begun = run.begin(None);
    run.proxies(None).iter().for_each(|proxy| proxy.freeze());
    sleep(LONG).await;
    run.proxies(None).iter().for_each(|proxy| proxy.thaw());
    let outage = run.end(&begun, 1);
    let made = run.connections_since(&begun);
    run.proof(made >= 3, "connected again");
    run.expect_all_kept(outage).await;
}

/// A deadline that counts from the reply instead of the command is late by half of this.
async fn slow(run: &mut Run) {
    let begun = run.begin(None);
    for proxy in run.proxies(None) {
        proxy.delay(100 * MS);
    }
    sleep(LONG).await;
    let port = run.gates[0].commands.port();
    run.proof(!Run::answers(port, 150 * MS), "slow");
    run.proxies(None).iter().for_each(|proxy| proxy.heal());
    let outage = run.end(&begun, 0);
    run.expect_all_kept(outage).await;
}

async fn delayed(run: &mut Run) {
    let begun = run.begin(None);
    // The round trip exceeds the timeout of half a second.
    run.proxies(None)
        .iter()
        .for_each(|proxy| proxy.delay(300 * MS));
    sleep(LONG).await;
    let port = run.gates[0].commands.port();
    run.proof(!Run::answers(port, 500 * MS), "no reply in time");
    run.proxies(None).iter().for_each(|proxy| proxy.heal());
    run.end(&begun, 1);
}

async fn subscriptions_cut(run: &mut Run) {
    let made = |run: &Run| {
        run.gates
            .iter()
            .map(|it| it.messages.accepted())
            .sum::<u64>()
    };
    let before = made(run);
    for _ in 0..20 {
        run.gates.iter().for_each(|gate| gate.messages.cut());
        sleep(100 * MS).await;
    }
    let made = made(run) - before;
    run.proof(made >= 3, format!("{made} connections"));
    let allowed = 3 * (20 + 6);
    run.referee.expect(made <= allowed, "I15", || {
        format!("{made} connections for messages")
    });
}

async fn subscriptions_swallowed(run: &mut Run) {
    run.has_silent_connections = true;
    for gate in &run.gates {
        gate.messages.swallow(Swallow::Both);
    }
    sleep(3 * SECOND).await;
    let port = run.gates[0].messages.port();
    run.proof(!Run::answers(port, 100 * MS), "no messages");
    run.gates.iter().for_each(|gate| gate.messages.heal());
}

/// A process without load holds a lock that the server lost. Its next renewal is 10 s away.
async fn idle_cut(run: &mut Run) {
    const TIMES: u32 = 5;
    const CHECKED: Duration = Duration::from_millis(100);
    let gate = Proxy::start(run.port()).await;
    let backend = RedisBackend::builder(gate.url()).connect().await;
    let locks = LockManager::builder(backend.expect("the server is there"));
    let locks = locks.watchdog_timeout(30 * SECOND).build();
    let locks = locks.expect("valid settings");
    let mut longest = Duration::ZERO;
    for _ in 0..TIMES {
        let guard = locks.acquire("idle").await.expect("it is free");
        // Longer than the time in which a second end meets a backoff.
        sleep(2_200 * MS).await;
        run.cli("DEL lock:idle");
        let cut = Instant::now();
        gate.cut();
        let lost = timeout(5 * SECOND, guard.lost()).await;
        let (took, now) = (cut.elapsed(), Instant::now());
        let stalled = run.referee.stall_detector.delay(cut, now);
        run.referee.expect(lost.is_ok(), "loss", || {
            "the holder was never checked".to_owned()
        });
        // One round trip, and one to connect.
        let limit = CHECKED + stalled + 20 * MS;
        run.referee.expect(took <= limit, "loss", || {
            format!("reported after {took:?}, stalled for {stalled:?}")
        });
        longest = longest.max(took);
    }
    let made = gate.accepted();
    let replaced = made > u64::from(TIMES);
    run.proof(
        replaced,
        format!("lost within {longest:.1?}, {made} connections"),
    );
}

async fn clients_killed(run: &mut Run) {
    const TIMES: u64 = 10;
    let begun = run.begin(None);
    let mut killed = 0;
    for _ in 0..TIMES {
        for kind in ["normal", "pubsub"] {
            let answer = run.cli(&format!("CLIENT KILL TYPE {kind}"));
            killed += answer.parse().unwrap_or(0);
        }
        sleep(100 * MS).await;
    }
    let outage = run.end(&begun, TIMES);
    run.proof(killed >= TIMES, format!("{killed} killed"));
    run.expect_all_kept(outage).await;
}
