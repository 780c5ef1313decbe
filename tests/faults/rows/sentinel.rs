//! A primary that is replaced.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::ErrorKind;

use super::Row;
use crate::load::hot;
use crate::referee::BACKSTOP;
use crate::store::{Store, Topology};
use crate::support::engine::{MS, SECOND};
use crate::support::proxy::Proxy;
use crate::support::sentinel::SentinelSet;
use crate::world::{PROCESSES, World};

const NODES: usize = 3;
const LEASE: Duration = Duration::from_millis(1_500);
/// Longer than a failover.
const LONG: Duration = Duration::from_secs(6);

/// The time after which a silent connection to a sentinel is replaced.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) fn rows() -> Vec<Row> {
    // A failover takes two to four seconds, and loses the writes that the replicas have not received.
    let row = |name, fault| {
        Row::new(Topology::Sentinel, name, fault)
            .lease(LEASE)
            .loses_data()
    };
    vec![
        row("primary killed", |world| Box::pin(killed(world))),
        row("sentinel connections hang, primary killed", |world| {
            Box::pin(hung_sentinels(world))
        })
        .recovers_within(BACKSTOP + RESPONSE_TIMEOUT),
        row("primary stopped, and back as a replica", |world| {
            Box::pin(stopped(world))
        }),
        // The old primary still accepts releases, which the new one does not receive.
        row("commanded failover", |world| Box::pin(commanded(world)))
            .recovers_within(LEASE + BACKSTOP),
        row("failover that loses the last writes", |world| {
            Box::pin(last_writes_lost(world))
        })
        .lease(LONG)
        // A release may be among the lost writes. The lease then expires.
        .recovers_within(LONG + BACKSTOP)
        .clears_within(LONG),
        row("the same, with grants acknowledged by replicas", |world| {
            Box::pin(nothing_granted_alone(world))
        })
        .lease(LONG)
        .acknowledged_by(2)
        // Grants are acknowledged, and releases are not.
        .recovers_within(LONG + BACKSTOP)
        .clears_within(LONG),
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

/// The sentinels are healthy, and new connections to them pass.
async fn hung_sentinels(world: &mut World) {
    let accepted = |world: &World| world.sentinels.iter().map(Proxy::accepted).sum::<u64>();
    let made = accepted(world);
    let begun = world.begin(None);
    world.sentinels.iter().for_each(Proxy::freeze);
    let before = set(world).kill_primary();
    replaced(world, before).await;
    world.end(&begun, 1);
    sleep(BACKSTOP).await;
    let made = accepted(world) - made;
    // There is one replacement per process and sentinel, which then stays.
    let each = (PROCESSES * world.sentinels.len()) as u64;
    world.proof(made >= each, format!("{made} connections to sentinels"));
    world.referee.expect(made <= 2 * each, "I15", || {
        format!("{made} connections to sentinels")
    });
}

async fn stopped(world: &mut World) {
    let begun = world.begin(None);
    let before = set(world).stop_primary();
    replaced(world, before).await;
    world.end(&begun, 1);
    sleep(SECOND).await;
    // The stopped primary considers itself the primary until a sentinel reconfigures it.
    set(world).continue_node(before);
    set(world).in_order_again().await;
    world.is_whole();
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
    world.is_whole();
}

/// Rejects the replicas from now on. Returns the primary.
fn cut_replicas_off(world: &mut World) -> usize {
    let primary = set(world).primary();
    log_replicas_in_as(world, primary, "nobody", "wrong");
    let cut = set(world).cli(primary, &["CLIENT", "KILL", "TYPE", "replica"]);
    world.proof(cut == "2", "replicas cut off");
    primary
}

fn log_replicas_in_as(world: &mut World, primary: usize, user: &str, password: &str) {
    let set = set(world);
    for replica in (0..NODES).filter(|node| *node != primary) {
        set.cli(replica, &["CONFIG", "SET", "masteruser", user]);
        set.cli(replica, &["CONFIG", "SET", "masterauth", password]);
    }
}

/// A lock that is granted while the replicas are cut off is granted again after the failover, to another
/// process. Both hold it at most until the expiry of the first lease without a renewal.
async fn last_writes_lost(world: &mut World) {
    let primary = cut_replicas_off(world);
    let first = world.holder(0, "prize", LONG).await;
    sleep(300 * MS).await;
    let begun = world.begin(None);
    set(world).kill_primary();
    log_replicas_in_as(world, primary, "", "");
    let waits = world.managers[1].acquire("prize").wait_forever();
    let second = tokio::spawn(waits.into_future());
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

/// A grant that no replica has is rejected, so it cannot be lost.
async fn nothing_granted_alone(world: &mut World) {
    let begun = world.begin(None);
    let primary = cut_replicas_off(world);
    sleep(300 * MS).await;
    let since = Instant::now();
    let prize = world.managers[0].acquire("prize").wait(500 * MS).await;
    let kind = prize.expect_err("not acknowledged").kind();
    let refused = kind == ErrorKind::Unavailable;
    world
        .referee
        .expect(refused, "replicas", || format!("refused as {kind:?}"));
    for key in hot() {
        let granted = world.referee.next_grant(&key, since).is_some();
        world.proof(!granted, format!("{key} not granted"));
    }
    set(world).kill_primary();
    log_replicas_in_as(world, primary, "", "");
    replaced(world, primary).await;
    // Two replicas are in sync again.
    set(world).restart(primary).await;
    world.end(&begun, 1);
}
