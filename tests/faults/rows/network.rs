//! A network that loses, delays or cuts data.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_lock::{LockManager, RedisBackend};

use super::Row;
use crate::store::Topology::Single;
use crate::support::engine::{MS, SECOND};
use crate::support::proxy::{Proxy, Swallow};
use crate::world::World;

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Single(&[]), name, fault);
    vec![
        row("one process cut off, commands swallowed", |world| {
            Box::pin(swallowed(world, Swallow::Commands, Some(0)))
        })
        .clears_within(SILENT_ATTEMPT),
        row("one process cut off, answers swallowed", |world| {
            Box::pin(swallowed(world, Swallow::Answers, Some(0)))
        })
        .clears_within(SILENT_ATTEMPT),
        row("one process cut off, half-open", |world| {
            Box::pin(swallowed(world, Swallow::Both, Some(0)))
        })
        .clears_within(SILENT_ATTEMPT),
        row("all cut off, half-open", |world| {
            Box::pin(swallowed(world, Swallow::Both, None))
        })
        .recovers_within(SILENT_ATTEMPT)
        // One process may recover at once and end the load while the others are still silent.
        .clears_within(SILENT_ATTEMPT),
        row("all connections refused", |world| Box::pin(refused(world))),
        row("connections reset, again and again", |world| {
            Box::pin(cut(world, Proxy::cut))
        }),
        row(
            "answers lost, then a short outage, again and again",
            |world| Box::pin(lost_in_between(world)),
        )
        .lease(3 * SECOND),
        row("commands truncated", |world| {
            Box::pin(cut(world, |proxy| proxy.truncate_commands(random_length())))
        }),
        row("answers truncated", |world| {
            Box::pin(cut(world, |proxy| proxy.truncate_answers(random_length())))
        }),
        // A late attempt can restore the place of a process that waits no more. The lock is then transferred to
        // it, and expires after 1.5 s.
        row("connections held up, new ones pass", |world| {
            Box::pin(held_up(world))
        })
        .clears_within(2 * SECOND),
        row("answers late, but in time", |world| Box::pin(slow(world))).hears_nothing(),
        row("answers later than the timeout", |world| {
            Box::pin(delayed(world))
        }),
        row("subscriptions cut", |world| {
            Box::pin(subscriptions_cut(world))
        })
        .hears_nothing(),
        row("subscriptions half-open", |world| {
            Box::pin(subscriptions_swallowed(world))
        })
        .hears_nothing(),
        row("an idle connection ends", |world| Box::pin(idle_cut(world))),
        row("clients killed by the server", |world| {
            Box::pin(clients_killed(world))
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

impl World {
    fn proxies(&self, process: Option<usize>) -> Vec<&Proxy> {
        let gates = self.gates.iter().enumerate();
        let gates = gates.filter(|(of, _)| process.is_none_or(|process| process == *of));
        gates
            .flat_map(|(_, gate)| [&gate.commands, &gate.messages])
            .collect()
    }
}

async fn swallowed(world: &mut World, what: Swallow, process: Option<usize>) {
    world.has_silent_connections = true;
    let begun = world.begin(process);
    world
        .proxies(process)
        .iter()
        .for_each(|proxy| proxy.swallow(what));
    sleep(LONG).await;
    let port = world.gates[0].commands.port();
    world.proof(!World::answers(port, 100 * MS), "no answer");
    world.expect_silence(0, begun.at + LONG - 500 * MS);
    world.proxies(process).iter().for_each(|proxy| proxy.heal());
    world.end(&begun, 1);
}

async fn refused(world: &mut World) {
    let begun = world.begin(None);
    for proxy in world.proxies(None) {
        proxy.refuse();
        proxy.cut();
    }
    sleep(LONG).await;
    world.expect_silence(0, begun.at + LONG - 500 * MS);
    world.proxies(None).iter().for_each(|proxy| proxy.heal());
    world.end(&begun, 1);
}

async fn cut(world: &mut World, how: fn(&Proxy)) {
    const TIMES: u64 = 12;
    let begun = world.begin(None);
    let made = |world: &World| {
        world
            .proxies(None)
            .iter()
            .map(|it| it.accepted())
            .sum::<u64>()
    };
    let before = made(world);
    for _ in 0..TIMES {
        world.proxies(None).into_iter().for_each(how);
        sleep(100 * MS).await;
    }
    let connections = made(world) - before;
    let outage = world.end(&begun, TIMES);
    world.proof(connections >= TIMES, "connected anew");
    world.expect_all_kept(outage).await;
}

/// Acquires take effect without a reply and cannot be resent at once. Each is released long before its
/// lease expires.
async fn lost_in_between(world: &mut World) {
    const TIMES: u64 = 4;
    let begun = world.begin(None);
    for _ in 0..TIMES {
        for proxy in world.proxies(None) {
            proxy.swallow(Swallow::Answers);
        }
        sleep(100 * MS).await;
        for proxy in world.proxies(None) {
            proxy.refuse();
            proxy.cut();
        }
        sleep(200 * MS).await;
        world.proxies(None).iter().for_each(|proxy| proxy.heal());
        sleep(100 * MS).await;
    }
    world.end(&begun, 3 * TIMES);
    let made = world.connections_since(&begun);
    world.proof(made > 2 * TIMES, "connected anew");
}

/// The data of the old connections arrives in the end, reordered with the data of the new ones.
async fn held_up(world: &mut World) {
    let begun = world.begin(None);
    world.proxies(None).iter().for_each(|proxy| proxy.freeze());
    sleep(LONG).await;
    world.proxies(None).iter().for_each(|proxy| proxy.thaw());
    let outage = world.end(&begun, 1);
    let made = world.connections_since(&begun);
    world.proof(made >= 3, "connected anew");
    world.expect_all_kept(outage).await;
}

/// A deadline that counts from the reply instead of the command is late by half of this.
async fn slow(world: &mut World) {
    let begun = world.begin(None);
    for proxy in world.proxies(None) {
        proxy.delay(100 * MS);
    }
    sleep(LONG).await;
    let port = world.gates[0].commands.port();
    world.proof(!World::answers(port, 150 * MS), "slow");
    world.proxies(None).iter().for_each(|proxy| proxy.heal());
    let outage = world.end(&begun, 0);
    world.expect_all_kept(outage).await;
}

async fn delayed(world: &mut World) {
    let begun = world.begin(None);
    // The round trip exceeds the timeout of half a second.
    world
        .proxies(None)
        .iter()
        .for_each(|proxy| proxy.delay(300 * MS));
    sleep(LONG).await;
    let port = world.gates[0].commands.port();
    world.proof(!World::answers(port, 500 * MS), "no answer in time");
    world.proxies(None).iter().for_each(|proxy| proxy.heal());
    world.end(&begun, 1);
}

async fn subscriptions_cut(world: &mut World) {
    let made = |world: &World| {
        world
            .gates
            .iter()
            .map(|it| it.messages.accepted())
            .sum::<u64>()
    };
    let before = made(world);
    for _ in 0..20 {
        world.gates.iter().for_each(|gate| gate.messages.cut());
        sleep(100 * MS).await;
    }
    let made = made(world) - before;
    world.proof(made >= 3, format!("{made} connections"));
    let allowed = 3 * (20 + 6);
    world.referee.expect(made <= allowed, "I15", || {
        format!("{made} connections for messages")
    });
}

async fn subscriptions_swallowed(world: &mut World) {
    world.has_silent_connections = true;
    for gate in &world.gates {
        gate.messages.swallow(Swallow::Both);
    }
    sleep(3 * SECOND).await;
    let port = world.gates[0].messages.port();
    world.proof(!World::answers(port, 100 * MS), "no messages");
    world.gates.iter().for_each(|gate| gate.messages.heal());
}

/// A process without load holds a lock that the server lost. Its next renewal is 10 s away.
async fn idle_cut(world: &mut World) {
    const TIMES: u32 = 5;
    const CHECKED: Duration = Duration::from_millis(100);
    let gate = Proxy::start(world.port()).await;
    let backend = RedisBackend::builder(gate.url()).connect().await;
    let locks = LockManager::builder(backend.expect("the server is there"));
    let locks = locks.watchdog_timeout(30 * SECOND).build();
    let locks = locks.expect("valid settings");
    let mut longest = Duration::ZERO;
    for _ in 0..TIMES {
        let guard = locks.acquire("idle").await.expect("it is free");
        // Longer than the time in which a second end meets a backoff.
        sleep(2_200 * MS).await;
        world.cli("DEL lock:idle");
        let cut = Instant::now();
        gate.cut();
        let lost = timeout(5 * SECOND, guard.lost()).await;
        let (took, now) = (cut.elapsed(), Instant::now());
        let stalled = world.referee.canary.delay(cut, now);
        world.referee.expect(lost.is_ok(), "loss", || {
            "the holder was never checked".to_owned()
        });
        // One round trip, and one to connect.
        let limit = CHECKED + stalled + 20 * MS;
        world.referee.expect(took <= limit, "loss", || {
            format!("reported after {took:?}, stalled for {stalled:?}")
        });
        longest = longest.max(took);
    }
    let made = gate.accepted();
    let replaced = made > u64::from(TIMES);
    world.proof(
        replaced,
        format!("lost within {longest:.1?}, {made} connections"),
    );
}

async fn clients_killed(world: &mut World) {
    const TIMES: u64 = 10;
    let begun = world.begin(None);
    let mut killed = 0;
    for _ in 0..TIMES {
        for kind in ["normal", "pubsub"] {
            let answer = world.cli(&format!("CLIENT KILL TYPE {kind}"));
            killed += answer.parse().unwrap_or(0);
        }
        sleep(100 * MS).await;
    }
    let outage = world.end(&begun, TIMES);
    world.proof(killed >= TIMES, format!("{killed} killed"));
    world.expect_all_kept(outage).await;
}
