//! Faults during a queue of waiting processes.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::backend::Mode;

use super::{LEASE, OTHER, Row};
use crate::child::{Child, Holds, PERMIT, READING};
use crate::line::{BODY, CONFIRM, Holder, Line, PRIZE, TURN, taken};
use crate::referee::BACKSTOP;
use crate::run::Run;
use crate::store::Store;
use crate::store::Topology::{Cluster, Sentinel, Single};
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::proxy::Swallow;

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
        single("queue: holder killed", |run| Box::pin(holder_killed(run))),
        single("queue: head killed before its transfer", |run| {
            Box::pin(head_killed(run))
        }),
        single("queue: head killed after its transfer", |run| {
            Box::pin(granted_head_killed(run))
        }),
        single("queue: four processes hang", |run| Box::pin(hung(run))),
        single("queue: wake messages lost", |run| {
            Box::pin(messages_lost(run))
        }),
        single("queue: subscriptions cut", |run| {
            Box::pin(subscriptions_cut(run))
        }),
        single("queue: one subscription stays cut", |run| {
            Box::pin(subscription_stays_cut(run))
        }),
        single("queue: memory full", |run| Box::pin(memory_full(run))),
        single("queue: SCRIPT FLUSH", |run| Box::pin(flushed(run))),
        row(Sentinel, "queue: primary killed", |run| {
            Box::pin(failed_over(run))
        })
        .lease(LONG)
        .recovers_within(LONG + BACKSTOP)
        .loses_data(),
        row(Cluster, "queue: slot moved", |run| Box::pin(moved(run))),
    ]
}

/// Starts a process that acquires the prize.
fn child(run: &mut Run, mode: Mode) -> Child {
    let prefix = match mode {
        Mode::Shared => READING,
        Mode::Permit => PERMIT,
        _ => "",
    };
    let url = run.server().url();
    Child::start(&url, LEASE, &[format!("{prefix}{PRIZE}")], None)
}

/// Starts a process that holds the prize, and records its hold.
pub(super) fn holding_child(run: &mut Run, mode: Mode) -> (Child, Holds) {
    let mut child = child(run, mode);
    let holds = child.holds().expect("it is free");
    run.referee
        .claimed_as(mode, PRIZE, OTHER, holds.token, LEASE);
    (child, holds)
}

/// Starts a process that waits for the prize.
pub(super) async fn waiting_child(run: &mut Run, mode: Mode) -> (Child, String) {
    let before = run.places().len();
    let child = child(run, mode);
    run.queued(before + 1).await;
    let lease = run.places().pop().expect("its place");
    (child, lease)
}

async fn full_line(run: &mut Run) -> Line {
    Line::form(run, WAITERS as usize, 1).await
}

async fn holder_killed(run: &mut Run) {
    let (mut child, _) = holding_child(run, Mode::Exclusive);
    let line = full_line(run).await;
    let killed = Instant::now();
    child.kill();
    run.referee.gone(OTHER);
    let left = run
        .ask(&["PTTL", BODY])
        .parse()
        .is_ok_and(|left: i64| left > 0);
    run.proof(left, "its lock is left");
    line.expect_served(run, killed, LEASE + TURNS, true).await;
    run.expect_cleared(0).await;
}

/// A transfer passes over a process without a connection.
async fn head_killed(run: &mut Run) {
    let holder = Holder::acquire(run, 0).await;
    let (mut child, lease) = waiting_child(run, Mode::Exclusive).await;
    let line = full_line(run).await;
    child.kill();
    eventually("its connections end", || run.receivers(&lease) == "0").await;
    let is_first = run.places().first() == Some(&lease);
    run.proof(is_first, "it has the first place");
    let released = holder.release();
    line.expect_served(run, released, TURNS, true).await;
    run.expect_cleared(1).await;
}

/// A process that is stopped receives the transfer, and is killed before it confirms.
async fn granted_head_killed(run: &mut Run) {
    let holder = Holder::acquire(run, 0).await;
    let (mut child, lease) = waiting_child(run, Mode::Exclusive).await;
    let line = full_line(run).await;
    child.stop();
    let released = holder.release();
    eventually("the transfer", || run.holder_of_prize() == lease).await;
    child.kill();
    let left = run.holder_of_prize() == lease;
    run.proof(left, "transferred to the killed process");
    line.expect_served(run, released, CONFIRM + TURNS, true)
        .await;
    run.expect_cleared(0).await;
}

async fn hung(run: &mut Run) {
    const HANG: usize = 4;
    let holder = Holder::acquire(run, 0).await;
    let mut children = Vec::new();
    for _ in 0..HANG {
        children.push(waiting_child(run, Mode::Exclusive).await);
    }
    let line = full_line(run).await;
    children.iter_mut().for_each(|(child, _)| child.stop());
    let released = holder.release();
    let first = &children[0].1;
    eventually("the transfer", || run.holder_of_prize() == *first).await;
    line.expect_served(run, released, HUNG + TURNS, true).await;
    let took = released.elapsed();
    run.proof(took > CONFIRM, "they cost time");
    run.expect_cleared(0).await;
    children.iter_mut().for_each(|(child, _)| child.kill());
}

/// The server counts each process as a receiver, but no message arrives.
async fn messages_lost(run: &mut Run) {
    let holder = Holder::acquire(run, 0).await;
    let line = Line::form(run, 4, 1).await;
    let processes = line.processes.clone();
    for process in &processes {
        run.gates[*process].messages.swallow(Swallow::Answers);
    }
    let released = holder.release();
    line.expect_served(run, released, 4 * (UNHEARD + TURN), false)
        .await;
    let took = released.elapsed();
    run.proof(took > 300 * MS, "they were not notified");
    for process in processes {
        let messages = &run.gates[process].messages;
        messages.heal();
        messages.cut();
    }
    run.expect_cleared(0).await;
}

async fn subscriptions_cut(run: &mut Run) {
    let holder = Holder::acquire(run, 0).await;
    let line = full_line(run).await;
    let gates = |run: &Run| -> u64 {
        let gates = line.processes.iter().map(|process| &run.gates[*process]);
        gates.map(|gate| gate.messages.accepted()).sum()
    };
    let before = gates(run);
    for process in &line.processes {
        run.gates[*process].messages.cut();
    }
    let released = holder.release();
    sleep(500 * MS).await;
    let made = gates(run) - before;
    run.proof(made >= u64::from(WAITERS), format!("{made} connections"));
    line.expect_served(run, released, BACKSTOP + TURNS, false)
        .await;
    run.expect_cleared(0).await;
}

/// The others keep the queue full throughout.
async fn subscription_stays_cut(run: &mut Run) {
    let holder = Holder::acquire(run, 0).await;
    let line = Line::form(run, 1, 3).await;
    let others = Line::form(run, 4, 100).await;
    let messages = &run.gates[line.processes[0]].messages;
    messages.refuse();
    messages.cut();
    let first = run.places().first().cloned().expect("the first place");
    eventually("its connection ends", || run.receivers(&first) == "0").await;
    let released = holder.release();
    let process = line.processes[0];
    // Only the first round can need the backstop. A turn comes at most 110 ms after that of a listener.
    let round = 5 * TURN + 200 * MS;
    let grants = line
        .expect_served(run, released, BACKSTOP + 3 * round, false)
        .await;
    for turns in grants.iter().flat_map(|it| it.windows(2)) {
        let (took, net) = taken(&run.referee, turns[0], turns[1]);
        run.referee.expect(net <= round, "queue", || {
            format!("a round of {took:?}, allowed {round:?}")
        });
    }
    run.proof(!others.is_served(), "others waited all the time");
    run.gates[process].messages.heal();
    others.expect_served(run, released, 400 * TURN, false).await;
    run.expect_cleared(0).await;
}

/// The message of a transfer is a grant. A process that refreshed its place, or has a fixed lease, has to confirm, and
/// cannot.
async fn memory_full(run: &mut Run) {
    let holder = Holder::acquire(run, 0).await;
    let line = full_line(run).await;
    let fixed = Line::form_under(run, 1, 1, true).await;
    let begun = run.begin(None);
    run.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    holder.release();
    sleep(SECOND).await;
    run.evidence(format!("all served: {}", line.is_served()));
    run.proof(!fixed.is_served(), "one is refused");
    run.proof(refusals(run) > 0, "grants were refused");
    run.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    let usable = run.end(&begun, 0).usable;
    line.expect_served(run, usable, BACKSTOP + TURNS, false)
        .await;
    fixed
        .expect_served(run, usable, BACKSTOP + TURNS, false)
        .await;
    run.expect_cleared(0).await;
}

/// Returns the number of commands that the server has refused without memory.
fn refusals(run: &Run) -> u64 {
    let errors = run.ask(&["INFO", "errorstats"]);
    let mut counts = errors.lines();
    let count = counts.find_map(|line| line.strip_prefix("errorstat_OOM:count="));
    count.map_or(0, |count| count.trim().parse().expect("a number"))
}

async fn flushed(run: &mut Run) {
    const ROUNDS: u32 = 10;
    let holder = Holder::acquire(run, 0).await;
    let line = Line::form(run, WAITERS as usize, ROUNDS as usize).await;
    let loads = run.server().calls("eval");
    let released = holder.release();
    let end = Instant::now() + TURNS * ROUNDS;
    while !line.is_served() && Instant::now() < end {
        run.ask(&["SCRIPT", "FLUSH"]);
        sleep(2 * MS).await;
    }
    let loads = run.server().calls("eval") - loads;
    run.proof(loads > 20, format!("{loads} reloads"));
    line.expect_served(run, released, TURNS * ROUNDS, true)
        .await;
    run.expect_cleared(0).await;
}

/// The new primary has the queue, except for the last writes of the old one.
async fn failed_over(run: &mut Run) {
    let holder = Holder::acquire(run, 0).await;
    let line = full_line(run).await;
    let begun = run.begin(None);
    let Store::Sentinel(set) = &mut run.store else {
        unreachable!("BUG: a row with Sentinels");
    };
    let before = set.kill_primary();
    let took = set.failover().await;
    let now = set.primary();
    run.proof(now != before, format!("another primary after {took:.1?}"));
    let usable = run.end(&begun, 1).usable;
    let is_lost = holder.is_over();
    let released = holder.release();
    run.evidence(format!("the holder was lost: {is_lost}"));
    let since = usable.max(released);
    line.expect_served(run, since, BACKSTOP + TURNS, false)
        .await;
    run.expect_cleared(0).await;
}

/// While the slot moves, the body and the queue are at different nodes. The key is released at each step.
async fn moved(run: &mut Run) {
    let holder = Holder::acquire(run, 0).await;
    let line = Line::form(run, WAITERS as usize, 10).await;
    let Store::Cluster(cluster) = &mut run.store else {
        unreachable!("BUG: a row on a Cluster");
    };
    let slot = cluster.slot(BODY);
    let from = cluster.node_of_slot(slot);
    let primaries = cluster.primaries();
    let to = primaries.into_iter().find(|node| *node != from);
    let to = to.expect("another primary");
    let begun = run.begin(None);
    let Store::Cluster(cluster) = &mut run.store else {
        unreachable!("BUG: a row on a Cluster");
    };
    cluster.begin_migration(slot, from, to);
    sleep(100 * MS).await;
    let released = holder.release();
    sleep(200 * MS).await;
    cluster.move_keys(slot, from, to);
    cluster.end_migration(slot, from, to).await;
    let has_moved = cluster.node_of_slot(slot) == to;
    let usable = run.end(&begun, 1).usable;
    run.proof(has_moved, "the slot moved");
    run.proof(!line.is_served(), "they wait");
    let allowed = BACKSTOP + 10 * TURNS;
    line.expect_served(run, usable.max(released), allowed, false)
        .await;
    run.expect_cleared(0).await;
}
