//! A primary that is replaced.

use std::time::Duration;

use tokio::time::sleep;

use super::Row;
use crate::referee::BACKSTOP;
use crate::store::{Store, Topology};
use crate::support::engine::{MS, SECOND};
use crate::support::sentinel::SentinelSet;
use crate::world::World;

const NODES: usize = 3;
/// Longer than a failover takes.
const LONG: Duration = Duration::from_secs(6);

pub(super) fn rows() -> Vec<Row> {
    // A failover takes two to four seconds, and loses what the replicas have not got by then.
    let row = |name, fault| Row::new(Topology::Sentinel, name, fault).loses_data();
    vec![
        row("primary killed", |world| Box::pin(killed(world))),
        row("primary stopped, and back as a replica", |world| {
            Box::pin(stopped(world))
        }),
        row("commanded failover", |world| Box::pin(commanded(world))).lease(3 * SECOND),
        row("failover that loses the last writes", |world| {
            Box::pin(last_writes_lost(world))
        })
        .lease(LONG)
        // A release may be among the lost: then the lease has to run out.
        .recovers_within(LONG + BACKSTOP),
    ]
}

fn set(world: &mut World) -> &mut SentinelSet {
    match &mut world.store {
        Store::Sentinel(set) => set,
        _ => panic!("not a row with Sentinels"),
    }
}

async fn replaced(world: &mut World, before: usize) {
    let took = set(world).failover().await;
    let now = set(world).primary();
    world.proof(now != before, format!("another primary after {took:.1?}"));
}

async fn killed(world: &mut World) {
    let begun = world.begin(None);
    let before = set(world).kill_primary();
    replaced(world, before).await;
    world.end(&begun, 1);
}

async fn stopped(world: &mut World) {
    let begun = world.begin(None);
    let before = set(world).stop_primary();
    replaced(world, before).await;
    world.end(&begun, 1);
    sleep(SECOND).await;
    // It takes itself for the primary until it is told otherwise.
    set(world).continue_node(before);
    set(world).in_order_again().await;
    sleep(500 * MS).await;
}

async fn commanded(world: &mut World) {
    let before = set(world).primary();
    let begun = world.begin(None);
    let service = set(world).service();
    let answer = set(world)
        .sentinel(0)
        .cli(&["SENTINEL", "FAILOVER", service]);
    world.proof(answer == "OK", answer);
    replaced(world, before).await;
    world.end(&begun, 1);
    set(world).in_order_again().await;
}

/// A lock that is granted while no replica listens is granted once more after the failover, to
/// somebody else: for no longer than its first holder could hold it without a renewal.
async fn last_writes_lost(world: &mut World) {
    let primary = set(world).primary();
    let replicas: Vec<_> = (0..NODES).filter(|node| *node != primary).collect();
    for replica in &replicas {
        let set = set(world);
        // From now on it is not let in again.
        set.cli(*replica, &["CONFIG", "SET", "masteruser", "nobody"]);
        set.cli(*replica, &["CONFIG", "SET", "masterauth", "wrong"]);
    }
    let cut = set(world).cli(primary, &["CLIENT", "KILL", "TYPE", "replica"]);
    world.proof(cut == "2", "replicas cut off");
    let first = world.holder(0, "prize", LONG).await;
    sleep(300 * MS).await;
    let begun = world.begin(None);
    set(world).kill_primary();
    for replica in &replicas {
        let set = set(world);
        set.cli(*replica, &["CONFIG", "SET", "masteruser", ""]);
        set.cli(*replica, &["CONFIG", "SET", "masterauth", ""]);
    }
    let second = tokio::spawn({
        let waits = world.managers[1].acquire("prize").wait_forever();
        waits.into_future()
    });
    replaced(world, primary).await;
    let asked = world.end(&begun, 1).begin;
    let guard = second.await.expect("no panic").expect("it waits for ever");
    let terms = (world.row.lease, true);
    let second = world.referee.granted(guard, 1, asked, terms);
    second.keep(500 * MS).await;
    drop(second);
    let was_lost = !first.await.expect("no panic");
    world.proof(was_lost, "its lock was lost with the writes");
}
