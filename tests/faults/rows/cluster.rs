//! A Cluster whose nodes die or hang, and whose slots move.

use tokio::time::sleep;
use tower_lock::ErrorKind;

use super::Row;
use crate::load::{hot, kept};
use crate::store::{Store, Topology};
use crate::support::cluster::Cluster;
use crate::support::engine::{MS, SECOND};
use crate::world::{PROCESSES, World};

const NODES: usize = 6;

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Topology::Cluster, name, fault);
    vec![
        row("a primary killed", |world| Box::pin(killed(world))).loses_data(),
        row("a primary stopped, and back as a replica", |world| {
            Box::pin(stopped(world))
        })
        .loses_data(),
        row("slots moved with locks held", |world| {
            Box::pin(moved(world))
        }),
        row("a slot without a node", |world| Box::pin(orphaned(world))),
        row("all nodes down and up, empty", |world| {
            Box::pin(down_and_up(world))
        })
        .lease(3 * SECOND)
        .loses_data(),
    ]
}

fn cluster(world: &mut World) -> &mut Cluster {
    match &mut world.store {
        Store::Cluster(cluster) => cluster,
        _ => panic!("not a row on a Cluster"),
    }
}

fn name(key: &str) -> String {
    format!("lock:{key}")
}

/// The locks that processes hold throughout at other nodes than this one.
fn elsewhere(world: &mut World, node: usize) -> Vec<String> {
    let keys = (0..PROCESSES).map(kept);
    keys.filter(|key| cluster(world).node_of(&name(key)) != node)
        .collect()
}

/// The node of a hot key fails, and the other nodes continue.
async fn failed(world: &mut World, fail: fn(&mut Cluster, usize)) -> usize {
    let slot = cluster(world).slot(&name(&hot()[0]));
    let node = cluster(world).node_of_slot(slot);
    let others = elsewhere(world, node);
    world.proof(
        !others.is_empty(),
        format!("{} locks elsewhere", others.len()),
    );
    // Otherwise all nodes reject all keys while the slots of one node have no primary.
    let partial = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
    for node in 0..NODES {
        cluster(world).cli(node, &partial);
    }
    let begun = world.begin(None);
    fail(cluster(world), node);
    let took = cluster(world).failover(slot, node).await;
    let outage = world.end(&begun, 1);
    let moved = cluster(world).node_of_slot(slot) != node;
    world.proof(moved, format!("another primary after {took:.1?}"));
    world.expect_kept(&others, outage);
    let late = world.renewals_late(&others, outage);
    world.evidence(format!("renewals {late:.0?} late"));
    node
}

async fn killed(world: &mut World) {
    failed(world, Cluster::kill).await;
}

async fn stopped(world: &mut World) {
    let node = failed(world, |cluster, node| cluster.stop_process(node)).await;
    sleep(SECOND).await;
    cluster(world).continue_process(node);
    cluster(world).in_order_again().await;
    world.is_whole();
    sleep(500 * MS).await;
}

/// A node loses a slot without a lock in it, and waiters subscribe to that slot.
async fn orphaned(world: &mut World) {
    let slot = cluster(world).slot(&name(&hot()[0]));
    let node = cluster(world).node_of_slot(slot);
    let partial = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
    for node in 0..NODES {
        cluster(world).cli(node, &partial);
    }
    let keys = (0..).map(|number| format!("orphan-{number}"));
    let mut keys = keys.filter(|key| cluster(world).node_of(&name(key)) == node);
    let orphan = keys.next().expect("one of many");
    drop(keys);
    let slot = cluster(world).slot(&name(&orphan)).to_string();
    let begun = world.begin(Some(0));
    cluster(world).cli(node, &["CLUSTER", "DELSLOTS", &slot]);
    let acquire = world.managers[0].acquire(&*orphan).wait(2 * SECOND);
    let unavailable = acquire
        .await
        .is_err_and(|error| error.kind() == ErrorKind::Unavailable);
    let errors = cluster(world).cli(node, &["INFO", "errorstats"]);
    world.proof(errors.contains("CLUSTERDOWN"), "the slot has no node");
    world.referee.expect(unavailable, "unavailable", || {
        "acquired in a slot without a node".to_owned()
    });
    let made = world.connections_since(&begun);
    cluster(world).cli(node, &["CLUSTER", "ADDSLOTS", &slot]);
    world.end(&begun, 0);
    world.referee.expect(made <= 1, "I15", || {
        format!("{made} connections for one rejected channel")
    });
}

async fn moved(world: &mut World) {
    let begun = world.begin(None);
    let mut slots = 0;
    for key in hot().into_iter().chain((0..PROCESSES).map(kept)) {
        let slot = cluster(world).slot(&name(&key));
        let from = cluster(world).node_of_slot(slot);
        let primaries = cluster(world).primaries();
        let to = primaries.into_iter().find(|node| *node != from);
        let to = to.expect("another primary");
        // In the middle of the migration, the keys of a slot are at both nodes.
        cluster(world).begin_migration(slot, from, to);
        sleep(150 * MS).await;
        cluster(world).move_keys(slot, from, to);
        cluster(world).end_migration(slot, from, to).await;
        slots += usize::from(cluster(world).node_of_slot(slot) == to);
    }
    world.proof(slots == 6, format!("{slots} slots moved"));
    let outage = world.end(&begun, 1);
    world.expect_all_kept(outage).await;
}

async fn down_and_up(world: &mut World) {
    let begun = world.begin(None);
    (0..NODES).for_each(|node| cluster(world).kill(node));
    let are_dead = (0..NODES).all(|node| !cluster(world).node(node).runs());
    world.proof(are_dead, "six nodes killed");
    sleep(SECOND).await;
    cluster(world).restart_all().await;
    let outage = world.end(&begun, 1);
    world.expect_all_lost(outage);
}
