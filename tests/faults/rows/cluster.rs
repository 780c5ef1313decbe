//! A Cluster whose nodes die or hang, and whose slots move.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tower_lock::ErrorKind;

use super::Row;
use crate::keeper::KEEP;
use crate::load::{PERMITS, PERMITTED, READ, SHARED, hot, kept};
use crate::referee::{BACKSTOP, Outage};
use crate::run::{PROCESSES, Run};
use crate::store::{Store, Topology};
use crate::support::cluster::Cluster;
use crate::support::engine::{MS, SECOND};

const NODES: usize = 6;
/// Longer than a node leaves its slots without a primary.
const LONG: Duration = Duration::from_secs(12);
/// A lease of other processes may be as long.
const LONGEST: Duration = Duration::from_secs(30);

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Topology::Cluster, name, fault);
    vec![
        row("a primary killed", |run| Box::pin(killed(run))).loses_data(),
        row("a primary killed while leases are kept", |run| {
            Box::pin(killed(run))
        })
        .keeps(KEEP)
        .loses_data(),
        row("slots moved while leases are kept", |run| {
            Box::pin(moved(run))
        })
        .keeps(KEEP),
        row("a primary stopped, and back as a replica", |run| {
            Box::pin(stopped(run))
        })
        .loses_data(),
        row("slots moved with locks held", |run| Box::pin(moved(run))),
        row("a slot without a node", |run| Box::pin(orphaned(run))),
        row("all nodes down and up, empty", |run| {
            Box::pin(down_and_up(run))
        })
        .lease(3 * SECOND)
        .loses_data(),
        row("a primary's address in another cluster", |run| {
            Box::pin(taken(run))
        })
        .lease(LONG),
        row("a primary that leaves for another cluster", |run| {
            Box::pin(left(run))
        })
        .lease(LONG),
        // No hold may overlap another one, although the data is lost.
        row("another cluster in place of all nodes", |run| {
            Box::pin(replaced(run))
        })
        .recovers_within(BACKSTOP + SECOND),
    ]
}

fn cluster(run: &mut Run) -> &mut Cluster {
    match &mut run.store {
        Store::Cluster(cluster) => cluster,
        _ => panic!("not a row on a Cluster"),
    }
}

fn name(key: &str) -> String {
    format!("lock:{key}")
}

/// The locks that processes hold throughout at other nodes than this one.
fn elsewhere(run: &mut Run, node: usize) -> Vec<String> {
    let keys = (0..PROCESSES).map(kept);
    keys.filter(|key| cluster(run).node_of(&name(key)) != node)
        .collect()
}

/// The node of a hot key fails, and the other nodes continue.
async fn failed(run: &mut Run, fail: impl AsyncFnOnce(&mut Cluster, usize)) -> (usize, Outage) {
    let slot = cluster(run).slot(&name(&hot()[0]));
    let node = cluster(run).node_of_slot(slot);
    let others = elsewhere(run, node);
    run.proof(
        !others.is_empty(),
        format!("{} locks elsewhere", others.len()),
    );
    // Otherwise all nodes reject all keys while the slots of one node have no primary.
    let partial = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
    for node in 0..NODES {
        cluster(run).cli(node, &partial);
    }
    let begun = run.begin(None);
    fail(cluster(run), node).await;
    let took = cluster(run).failover(slot, node).await;
    let outage = run.end(&begun, 1);
    // The hot keys are at three nodes, the first one at this node.
    let middle = outage.begin + (outage.usable - outage.begin) / 2;
    for key in &hot()[1..] {
        let granted = run.referee.next_grant(key, middle);
        let granted = granted.is_some_and(|at| at < outage.usable);
        run.proof(granted, format!("{key} granted in the outage"));
    }
    let moved = cluster(run).node_of_slot(slot) != node;
    run.proof(moved, format!("another primary after {took:.1?}"));
    run.expect_kept(&others, outage);
    let late = run.renewals_late(&others, outage);
    run.evidence(format!("renewals {late:.0?} late"));
    (node, outage)
}

async fn killed(run: &mut Run) {
    run.keeps_leases().await;
    failed(run, async |cluster, node| cluster.kill(node)).await;
}

async fn stopped(run: &mut Run) {
    let (node, _) = failed(run, async |cluster, node| cluster.stop_process(node)).await;
    sleep(SECOND).await;
    cluster(run).continue_process(node);
    cluster(run).in_order_again().await;
    run.is_whole();
    sleep(500 * MS).await;
}

/// A node loses a slot without a lock in it, and waiters subscribe to that slot.
async fn orphaned(run: &mut Run) {
    let slot = cluster(run).slot(&name(&hot()[0]));
    let node = cluster(run).node_of_slot(slot);
    let partial = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
    for node in 0..NODES {
        cluster(run).cli(node, &partial);
    }
    let keys = (0..).map(|number| format!("orphan-{number}"));
    let mut keys = keys.filter(|key| cluster(run).node_of(&name(key)) == node);
    let orphan = keys.next().expect("one of many");
    drop(keys);
    let slot = cluster(run).slot(&name(&orphan)).to_string();
    let begun = run.begin(Some(0));
    cluster(run).cli(node, &["CLUSTER", "DELSLOTS", &slot]);
    let acquire = run.managers[0].acquire(&*orphan).wait(2 * SECOND);
    let unavailable = acquire
        .await
        .is_err_and(|error| error.kind() == ErrorKind::Unavailable);
    let errors = cluster(run).cli(node, &["INFO", "errorstats"]);
    run.proof(errors.contains("CLUSTERDOWN"), "the slot has no node");
    run.referee.expect(unavailable, "unavailable", || {
        "acquired in a slot without a node".to_owned()
    });
    let made = run.connections_since(&begun);
    cluster(run).cli(node, &["CLUSTER", "ADDSLOTS", &slot]);
    run.end(&begun, 0);
    run.referee.expect(made <= 1, "I15", || {
        format!("{made} connections for one rejected channel")
    });
}

async fn moved(run: &mut Run) {
    run.keeps_leases().await;
    let begun = run.begin(None);
    let mut slots = 0;
    let shared = [READ, SHARED, PERMITS, PERMITTED].map(ToOwned::to_owned);
    let keys = hot().into_iter().chain((0..PROCESSES).map(kept));
    for key in keys.chain(shared) {
        let slot = cluster(run).slot(&name(&key));
        let from = cluster(run).node_of_slot(slot);
        let primaries = cluster(run).primaries();
        let to = primaries.into_iter().find(|node| *node != from);
        let to = to.expect("another primary");
        // In the middle of the migration, the keys of a slot are at both nodes.
        cluster(run).begin_migration(slot, from, to);
        sleep(150 * MS).await;
        cluster(run).move_keys(slot, from, to);
        cluster(run).end_migration(slot, from, to).await;
        slots += usize::from(cluster(run).node_of_slot(slot) == to);
    }
    run.proof(slots == 10, format!("{slots} slots moved"));
    let outage = run.end(&begun, 1);
    run.expect_all_kept(outage).await;
}

async fn down_and_up(run: &mut Run) {
    let begun = run.begin(None);
    (0..NODES).for_each(|node| cluster(run).kill(node));
    let are_dead = (0..NODES).all(|node| !cluster(run).node(node).runs());
    run.proof(are_dead, "six nodes killed");
    sleep(SECOND).await;
    cluster(run).restart_all().await;
    let outage = run.end(&begun, 1);
    run.expect_all_lost(outage);
}

/// The locks are kept, and the other cluster grants nothing.
async fn given_away(run: &mut Run, fail: impl AsyncFnOnce(&mut Cluster, usize)) {
    let (node, outage) = failed(run, fail).await;
    run.expect_all_kept(outage).await;
    grants_nothing(run, node);
}

async fn taken(run: &mut Run) {
    given_away(run, Cluster::give_away).await;
    let refused = run.refused_with("node belongs to another cluster");
    run.proof(refused > 0, format!("{refused} rejections by clients"));
}

async fn left(run: &mut Run) {
    given_away(run, Cluster::leave).await;
}

/// All leases are lost, and expire before the other cluster grants a lock.
async fn replaced(run: &mut Run) {
    let begun = run.begin(None);
    (0..NODES).for_each(|node| cluster(run).kill(node));
    let expired = Instant::now() + run.row.lease;
    // The time begins with the first reply of the other cluster, which may not serve slots yet.
    let since = Instant::now();
    cluster(run).reuse(0).await;
    // The look at the keys takes time.
    sleep_until(since + LONGEST - SECOND / 2).await;
    for process in 0..PROCESSES {
        run.expect_silence(process, expired);
    }
    grants_nothing(run, 0);
    let outage = run.end(&begun, 1);
    run.expect_all_lost(outage);
}

/// A grant leaves a counter.
fn grants_nothing(run: &mut Run, node: usize) {
    let keys = cluster(run).cli(node, &["KEYS", "*"]);
    run.referee
        .expect(keys.is_empty(), "other cluster", || format!("{keys:?}"));
}
