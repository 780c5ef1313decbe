//! A primary that is replaced.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::ErrorKind;

use super::{LEASE, Row};
use crate::keeper::KEEP;
use crate::load::hot;
use crate::referee::{BACKSTOP, made_up};
use crate::run::{PROCESSES, Run};
use crate::store::{Store, Topology};
use crate::support::engine::{MS, SECOND};
use crate::support::proxy::Proxy;
use crate::support::sentinel::SentinelSet;

const NODES: usize = 3;
/// Longer than a failover.
const LONG: Duration = Duration::from_secs(6);

/// The time after which a silent connection to a sentinel is replaced.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) fn rows() -> Vec<Row> {
    // A failover takes two to four seconds, and loses the writes that the replicas have not received.
    let on = |topology, name, fault| Row::new(topology, name, fault).lease(LEASE).loses_data();
    let row = |name, fault| on(Topology::Sentinel, name, fault);
    let by_name = |name, fault| on(Topology::SentinelByName, name, fault);
    // The old primary still accepts releases, which the new one does not receive.
    // The former primary grants locks until a Sentinel makes it a replica. The new one has neither the releases nor
    // the places that were left in that time.
    let commands = |row: Row| {
        row.recovers_within(LEASE + BACKSTOP)
            .clears_within(LEASE + BACKSTOP)
    };
    vec![
        Row::new(Topology::Own, "the referee judges divided servers", |run| {
            Box::pin(async { made_up::detects_tokens_of_divided_servers(run) })
        }),
        row("primary killed", |run| Box::pin(killed(run))),
        by_name("primary with a host name killed", |run| {
            Box::pin(killed(run))
        }),
        row("primary killed while leases are kept", |run| {
            Box::pin(killed(run))
        })
        .keeps(KEEP),
        row("sentinel connections hang, primary killed", |run| {
            Box::pin(hung_sentinels(run))
        })
        .recovers_within(BACKSTOP + RESPONSE_TIMEOUT),
        row("primary stopped, and back as a replica", |run| {
            Box::pin(stopped(run))
        }),
        by_name("primary with a host name stopped, and back", |run| {
            Box::pin(stopped(run))
        }),
        commands(row("commanded failover", |run| Box::pin(commanded(run)))),
        commands(by_name("commanded failover to a host name", |run| {
            Box::pin(commanded(run))
        })),
        row("failover that loses the last writes", |run| {
            Box::pin(last_writes_lost(run))
        })
        .lease(LONG)
        // A release may be among the lost writes. The lease then expires.
        .recovers_within(LONG + BACKSTOP)
        .clears_within(LONG),
        row("the same, with grants acknowledged by replicas", |run| {
            Box::pin(nothing_granted_alone(run))
        })
        .lease(LONG)
        .acknowledged_by(2)
        // Grants are acknowledged, and releases are not.
        .recovers_within(LONG + BACKSTOP)
        .clears_within(LONG),
    ]
}

fn set(run: &mut Run) -> &mut SentinelSet {
    match &mut run.store {
        Store::Sentinel(set) => set,
        _ => panic!("not a row with Sentinels"),
    }
}

async fn replaced(run: &mut Run, before: usize) {
    let took = set(run).failover().await;
    let now = set(run).primary();
    if run.row.topology == Topology::SentinelByName {
        let named = set(run).named_host();
        run.proof(named == "localhost", format!("named {named}"));
    }
    run.proof(now != before, format!("another primary after {took:.1?}"));
}

async fn killed(run: &mut Run) {
    run.keeps_leases().await;
    let begun = run.begin(None);
    let before = set(run).kill_primary();
    replaced(run, before).await;
    run.end(&begun, 1);
}

/// The sentinels are healthy, and new connections to them pass.
async fn hung_sentinels(run: &mut Run) {
    let accepted = |run: &Run| run.sentinels.iter().map(Proxy::accepted).sum::<u64>();
    let made = accepted(run);
    let begun = run.begin(None);
    run.sentinels.iter().for_each(Proxy::freeze);
    let before = set(run).kill_primary();
    replaced(run, before).await;
    run.end(&begun, 1);
    sleep(BACKSTOP).await;
    let made = accepted(run) - made;
    // There is one replacement per process and sentinel, which then stays.
    let each = (PROCESSES * run.sentinels.len()) as u64;
    run.proof(made >= each, format!("{made} connections to sentinels"));
    run.referee.expect(made <= 2 * each, "I15", || {
        format!("{made} connections to sentinels")
    });
}

async fn stopped(run: &mut Run) {
    let begun = run.begin(None);
    let before = set(run).stop_primary();
    replaced(run, before).await;
    run.end(&begun, 1);
    sleep(SECOND).await;
    // The stopped primary considers itself the primary until a sentinel reconfigures it.
    set(run).continue_node(before);
    set(run).in_order_again().await;
    run.is_whole();
    sleep(500 * MS).await;
}

async fn commanded(run: &mut Run) {
    let before = set(run).primary();
    let begun = run.begin(None);
    let service = set(run).service();
    let answer = set(run).sentinel(0).cli(&["SENTINEL", "FAILOVER", service]);
    run.proof(answer == "OK", answer);
    replaced(run, before).await;
    run.end(&begun, 1);
    set(run).in_order_again().await;
    run.is_whole();
}

/// Rejects the replicas from now on. Returns the primary.
fn cut_replicas_off(run: &mut Run) -> usize {
    let primary = set(run).primary();
    log_replicas_in_as(run, primary, "nobody", "wrong");
    let cut = set(run).cli(primary, &["CLIENT", "KILL", "TYPE", "replica"]);
    run.proof(cut == "2", "replicas cut off");
    primary
}

fn log_replicas_in_as(run: &mut Run, primary: usize, user: &str, password: &str) {
    let set = set(run);
    for replica in (0..NODES).filter(|node| *node != primary) {
        set.cli(replica, &["CONFIG", "SET", "masteruser", user]);
        set.cli(replica, &["CONFIG", "SET", "masterauth", password]);
    }
}

/// A lock that is granted while the replicas are cut off is granted again after the failover, to another
/// process. Both hold it at most until the expiry of the first lease without a renewal.
async fn last_writes_lost(run: &mut Run) {
    let primary = cut_replicas_off(run);
    let first = run.holder(0, "prize", LONG).await;
    sleep(300 * MS).await;
    let begun = run.begin(None);
    set(run).kill_primary();
    log_replicas_in_as(run, primary, "", "");
    let waits = run.managers[1].acquire("prize").wait_forever();
    let second = tokio::spawn(waits.into_future());
    replaced(run, primary).await;
    let asked = run.end(&begun, 1).begin;
    let guard = second.await.expect("no panic").expect("it waits for ever");
    let terms = (run.row.lease, true);
    let second = run.referee.granted(guard, 1, asked, terms);
    second.keep(500 * MS).await;
    drop(second);
    let was_lost = !first.await.expect("no panic");
    run.proof(was_lost, "its lock was lost with the writes");
}

/// A grant that no replica has is rejected, so it cannot be lost.
async fn nothing_granted_alone(run: &mut Run) {
    let begun = run.begin(None);
    let primary = cut_replicas_off(run);
    sleep(300 * MS).await;
    let since = Instant::now();
    let prize = run.managers[0].acquire("prize").wait(500 * MS).await;
    let kind = prize.expect_err("not acknowledged").kind();
    let refused = kind == ErrorKind::Unavailable;
    run.referee
        .expect(refused, "replicas", || format!("rejected as {kind:?}"));
    for key in hot() {
        let granted = run.referee.next_grant(&key, since).is_some();
        run.proof(!granted, format!("{key} not granted"));
    }
    set(run).kill_primary();
    log_replicas_in_as(run, primary, "", "");
    replaced(run, primary).await;
    // Two replicas are in sync again.
    set(run).restart(primary).await;
    run.end(&begun, 1);
}
