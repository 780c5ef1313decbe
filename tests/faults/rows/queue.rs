//! Faults during a queue of waiting processes.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Row;
use crate::child::Child;
use crate::line::{BODY, CONFIRM, Holder, Line, PRIZE, TURN};
use crate::referee::BACKSTOP;
use crate::store::Store;
use crate::store::Topology::{Cluster, Sentinel, Single};
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::proxy::Swallow;
use crate::world::World;

const LEASE: Duration = Duration::from_millis(1_500);
/// Longer than a failover.
const LONG: Duration = Duration::from_secs(4);
/// The number of processes in a full queue.
const WAITERS: u32 = 8;
/// The time for the turns of a full queue.
const TURNS: Duration = TURN.saturating_mul(WAITERS);
/// The bound for all hung processes together.
const HUNG: Duration = Duration::from_millis(4_500);
/// The next refresh of a place detects a transfer without a notification.
const UNHEARD: Duration = Duration::from_millis(990);

pub(super) fn rows() -> Vec<Row> {
    let row = |topology, name, fault| Row::new(topology, name, fault).lease(LEASE);
    let single = |name, fault| row(Single(&[]), name, fault);
    vec![
        single("queue: holder killed", |world| {
            Box::pin(holder_killed(world))
        }),
        single("queue: head killed before its transfer", |world| {
            Box::pin(head_killed(world))
        }),
        single("queue: head killed after its transfer", |world| {
            Box::pin(granted_head_killed(world))
        }),
        single("queue: four processes hang", |world| Box::pin(hung(world))),
        single("queue: wake messages lost", |world| {
            Box::pin(messages_lost(world))
        }),
        single("queue: subscriptions cut", |world| {
            Box::pin(subscriptions_cut(world))
        }),
        single("queue: one subscription stays cut", |world| {
            Box::pin(subscription_stays_cut(world))
        }),
        single("queue: memory full", |world| Box::pin(memory_full(world))),
        single("queue: SCRIPT FLUSH", |world| Box::pin(flushed(world))),
        row(Sentinel, "queue: primary killed", |world| {
            Box::pin(failed_over(world))
        })
        .lease(LONG)
        .recovers_within(LONG + BACKSTOP)
        .loses_data(),
        row(Cluster, "queue: slot moved", |world| Box::pin(moved(world))),
    ]
}

/// The number of the row's first own process.
const OTHER: usize = 100;

/// Starts a process that waits for the prize.
async fn waiting_child(world: &mut World) -> (Child, String) {
    let before = world.places().len();
    let url = world.server().url();
    let child = Child::start(&url, LEASE, &[PRIZE.to_owned()], None);
    world.queued(before + 1).await;
    let lease = world.places().pop().expect("its place");
    (child, lease)
}

async fn full_line(world: &mut World) -> Line {
    Line::form(world, WAITERS as usize, 1).await
}

async fn holder_killed(world: &mut World) {
    let url = world.server().url();
    let mut child = Child::start(&url, LEASE, &[PRIZE.to_owned()], None);
    let holds = child.holds().expect("it is free");
    world.referee.claimed(PRIZE, OTHER, holds.token, LEASE);
    let line = full_line(world).await;
    let killed = Instant::now();
    child.kill();
    world.referee.gone(OTHER);
    let left = world
        .ask(&["PTTL", BODY])
        .parse()
        .is_ok_and(|left: i64| left > 0);
    world.proof(left, "its lock is left");
    line.expect_served(world, killed, LEASE + TURNS, true).await;
    world.expect_cleared(0).await;
}

/// A transfer passes over a process without a connection.
async fn head_killed(world: &mut World) {
    let holder = Holder::acquire(world, 0).await;
    let (mut child, lease) = waiting_child(world).await;
    let line = full_line(world).await;
    child.kill();
    eventually("its connections end", || world.receivers(&lease) == "0").await;
    let is_first = world.places().first() == Some(&lease);
    world.proof(is_first, "it has the first place");
    let released = holder.release();
    line.expect_served(world, released, TURNS, true).await;
    world.expect_cleared(1).await;
}

/// A process that is stopped receives the transfer, and is killed before it confirms.
async fn granted_head_killed(world: &mut World) {
    let holder = Holder::acquire(world, 0).await;
    let (mut child, lease) = waiting_child(world).await;
    let line = full_line(world).await;
    child.stop();
    let released = holder.release();
    eventually("the transfer", || world.holder_of_prize() == lease).await;
    child.kill();
    let left = world.holder_of_prize() == lease;
    world.proof(left, "transferred to the killed process");
    line.expect_served(world, released, CONFIRM + TURNS, true)
        .await;
    world.expect_cleared(0).await;
}

async fn hung(world: &mut World) {
    const HANG: usize = 4;
    let holder = Holder::acquire(world, 0).await;
    let mut children = Vec::new();
    for _ in 0..HANG {
        children.push(waiting_child(world).await);
    }
    let line = full_line(world).await;
    children.iter_mut().for_each(|(child, _)| child.stop());
    let released = holder.release();
    let first = &children[0].1;
    eventually("the transfer", || world.holder_of_prize() == *first).await;
    line.expect_served(world, released, HUNG + TURNS, true)
        .await;
    let took = released.elapsed();
    world.proof(took > CONFIRM, "they cost time");
    world.expect_cleared(0).await;
    children.iter_mut().for_each(|(child, _)| child.kill());
}

/// The server counts each process as a receiver, but no message arrives.
async fn messages_lost(world: &mut World) {
    let holder = Holder::acquire(world, 0).await;
    let line = Line::form(world, 4, 1).await;
    let processes = line.processes.clone();
    for process in &processes {
        world.gates[*process].messages.swallow(Swallow::Answers);
    }
    let released = holder.release();
    line.expect_served(world, released, 4 * (UNHEARD + TURN), false)
        .await;
    let took = released.elapsed();
    world.proof(took > 300 * MS, "they were not notified");
    for process in processes {
        let messages = &world.gates[process].messages;
        messages.heal();
        messages.cut();
    }
    world.expect_cleared(0).await;
}

async fn subscriptions_cut(world: &mut World) {
    let holder = Holder::acquire(world, 0).await;
    let line = full_line(world).await;
    let gates = |world: &World| -> u64 {
        let gates = line.processes.iter().map(|process| &world.gates[*process]);
        gates.map(|gate| gate.messages.accepted()).sum()
    };
    let before = gates(world);
    for process in &line.processes {
        world.gates[*process].messages.cut();
    }
    let released = holder.release();
    sleep(500 * MS).await;
    let made = gates(world) - before;
    world.proof(made >= u64::from(WAITERS), format!("{made} connections"));
    line.expect_served(world, released, BACKSTOP + TURNS, false)
        .await;
    world.expect_cleared(0).await;
}

/// The others keep the queue full throughout.
async fn subscription_stays_cut(world: &mut World) {
    let holder = Holder::acquire(world, 0).await;
    let line = Line::form(world, 1, 3).await;
    let others = Line::form(world, 4, 100).await;
    let messages = &world.gates[line.processes[0]].messages;
    messages.refuse();
    messages.cut();
    let first = world.places().first().cloned().expect("the first place");
    eventually("its connection ends", || world.receivers(&first) == "0").await;
    let released = holder.release();
    let process = line.processes[0];
    line.expect_served(world, released, 3 * (BACKSTOP + 5 * TURN), false)
        .await;
    world.proof(!others.is_served(), "others waited all the time");
    world.gates[process].messages.heal();
    others
        .expect_served(world, released, 400 * TURN, false)
        .await;
    world.expect_cleared(0).await;
}

/// The message of a transfer is a grant, but a process that refreshed its place has to confirm, and cannot.
async fn memory_full(world: &mut World) {
    let holder = Holder::acquire(world, 0).await;
    let line = full_line(world).await;
    let begun = world.begin(None);
    world.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    holder.release();
    sleep(SECOND).await;
    world.evidence(format!("all served: {}", line.is_served()));
    world.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    let usable = world.end(&begun, 0).usable;
    line.expect_served(world, usable, BACKSTOP + TURNS, false)
        .await;
    world.expect_cleared(0).await;
}

async fn flushed(world: &mut World) {
    const ROUNDS: u32 = 10;
    let holder = Holder::acquire(world, 0).await;
    let line = Line::form(world, WAITERS as usize, ROUNDS as usize).await;
    let loads = world.server().calls("eval");
    let released = holder.release();
    let end = Instant::now() + TURNS * ROUNDS;
    while !line.is_served() && Instant::now() < end {
        world.ask(&["SCRIPT", "FLUSH"]);
        sleep(2 * MS).await;
    }
    let loads = world.server().calls("eval") - loads;
    world.proof(loads > 20, format!("{loads} reloads"));
    line.expect_served(world, released, TURNS * ROUNDS, true)
        .await;
    world.expect_cleared(0).await;
}

/// The new primary has the queue, except for the last writes of the old one.
async fn failed_over(world: &mut World) {
    let holder = Holder::acquire(world, 0).await;
    let line = full_line(world).await;
    let begun = world.begin(None);
    let Store::Sentinel(set) = &mut world.store else {
        unreachable!("BUG: a row with Sentinels");
    };
    let before = set.kill_primary();
    let took = set.failover().await;
    let now = set.primary();
    world.proof(now != before, format!("another primary after {took:.1?}"));
    let usable = world.end(&begun, 1).usable;
    let is_lost = holder.is_over();
    let released = holder.release();
    world.evidence(format!("the holder was lost: {is_lost}"));
    let since = usable.max(released);
    line.expect_served(world, since, BACKSTOP + TURNS, false)
        .await;
    world.expect_cleared(0).await;
}

/// While the slot moves, the body and the queue are at different nodes. The key is released at each step.
async fn moved(world: &mut World) {
    let holder = Holder::acquire(world, 0).await;
    let line = Line::form(world, WAITERS as usize, 10).await;
    let Store::Cluster(cluster) = &mut world.store else {
        unreachable!("BUG: a row on a Cluster");
    };
    let slot = cluster.slot(BODY);
    let from = cluster.node_of_slot(slot);
    let primaries = cluster.primaries();
    let to = primaries.into_iter().find(|node| *node != from);
    let to = to.expect("another primary");
    let begun = world.begin(None);
    let Store::Cluster(cluster) = &mut world.store else {
        unreachable!("BUG: a row on a Cluster");
    };
    cluster.begin_migration(slot, from, to);
    sleep(100 * MS).await;
    let released = holder.release();
    sleep(200 * MS).await;
    cluster.move_keys(slot, from, to);
    cluster.end_migration(slot, from, to).await;
    let has_moved = cluster.node_of_slot(slot) == to;
    let usable = world.end(&begun, 1).usable;
    world.proof(has_moved, "the slot moved");
    world.proof(!line.is_served(), "they wait");
    let allowed = BACKSTOP + 10 * TURNS;
    line.expect_served(world, usable.max(released), allowed, false)
        .await;
    world.expect_cleared(0).await;
}
