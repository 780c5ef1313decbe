//! An endpoint that leads to another server, while open connections stay at the former one.
//!
//! The failover waits for the replicas, so no write is lost.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Row;
use crate::referee::BACKSTOP;
use crate::run::{Begun, PROCESSES, Run};
use crate::store::{Store, Topology};
use crate::support::engine::SECOND;
use crate::support::service::Service;

/// Longer than a failover and the delay of a load balancer.
const LONG: Duration = Duration::from_secs(12);
/// The pauses between connections to an address in doubt, and between the attempts of waiters.
const PAUSES: Duration = SECOND;
/// The response timeout and the connect timeout: an idle connection of a pool hangs as well.
const TIMEOUTS: Duration = Duration::from_millis(2_500);
/// How late a load balancer follows, and the most connections of a process in this time.
const LATE: Duration = Duration::from_secs(3);
const MOST: usize = 10;
/// The acquires of a process that may be in flight when its server is demoted. With acknowledged grants, each of them may
/// open a connection.
const IN_FLIGHT: usize = 16;
/// The most connections of the two other servers of a shard in this time: each looks for its primary every second.
const OF_REPLICAS: usize = 2 * 4;

pub(super) fn rows() -> Vec<Row> {
    let row = |topology, name, fault| {
        let row = Row::new(topology, name, fault).lease(LONG);
        row.recovers_within(BACKSTOP + PAUSES)
            .clears_within(2 * SECOND)
    };
    let (endpoint, shard) = (Topology::Endpoint, Topology::Shard);
    let moves = |topology, name| row(topology, name, |run| Box::pin(moved(run)));
    let follows_late = |topology, name| row(topology, name, |run| Box::pin(late(run)));
    let stops = |topology, name| {
        row(topology, name, |run| Box::pin(stopped(run)))
            .recovers_within(BACKSTOP + PAUSES + TIMEOUTS)
            .clears_within(2 * SECOND + TIMEOUTS)
    };
    vec![
        moves(endpoint, "endpoint moves"),
        moves(endpoint, "endpoint moves, grants acknowledged").acknowledged_by(1),
        moves(endpoint, "endpoint of a pool moves").pooled(),
        moves(endpoint, "endpoint of a pool moves, grants acknowledged")
            .pooled()
            .acknowledged_by(1),
        moves(shard, "endpoint of a shard moves"),
        moves(shard, "endpoint of a shard moves, grants acknowledged").acknowledged_by(1),
        follows_late(endpoint, "load balancer 3 s late"),
        follows_late(endpoint, "load balancer 3 s late, grants acknowledged").acknowledged_by(1),
        follows_late(endpoint, "load balancer of a pool 3 s late").pooled(),
        follows_late(
            endpoint,
            "load balancer of a pool 3 s late, grants acknowledged",
        )
        .pooled()
        .acknowledged_by(1),
        follows_late(shard, "load balancer of a shard 3 s late"),
        follows_late(
            shard,
            "load balancer of a shard 3 s late, grants acknowledged",
        )
        .acknowledged_by(1),
        stops(endpoint, "endpoint moves, former primary stopped"),
        stops(endpoint, "the same, grants acknowledged").acknowledged_by(1),
        stops(endpoint, "the same, with a pool").pooled(),
        stops(endpoint, "the same, with a pool, grants acknowledged")
            .pooled()
            .acknowledged_by(1),
        stops(shard, "endpoint of a shard moves, former primary stopped"),
        stops(shard, "the same shard, grants acknowledged").acknowledged_by(1),
    ]
}

fn service(run: &Run) -> &Service {
    match &run.store {
        Store::Service(service) => service,
        _ => panic!("not a row with an endpoint"),
    }
}

async fn moved(run: &mut Run) {
    let begun = run.begin(None);
    service(run).promote().await;
    service(run).lead_to_new();
    ended(run, &begun).await;
}

async fn late(run: &mut Run) {
    let begun = run.begin(None);
    service(run).promote_unnoticed().await;
    let start = Instant::now();
    sleep(LATE).await;
    let made = service(run).vip.most_accepted(start, LATE);
    service(run).lead_to_new();
    service(run).follow_new().await;
    run.proof(
        made >= 2,
        format!("{made} connections to the former primary"),
    );
    // All processes of the run are in this one, and share the limit. The pools of a program have unknown addresses.
    let processes = if run.row.is_pooled { PROCESSES } else { 1 };
    let replicas = match run.row.topology {
        Topology::Shard => OF_REPLICAS,
        _ => 0,
    };
    let in_flight = match run.row.min_replicas {
        Some(_) => IN_FLIGHT * PROCESSES,
        None => 0,
    };
    let most = MOST * processes + in_flight + replicas;
    run.referee.expect(made <= most, "I15", || {
        format!("{made} connections in {LATE:?}")
    });
    ended(run, &begun).await;
}

async fn stopped(run: &mut Run) {
    let begun = run.begin(None);
    service(run).promote_without_former().await;
    service(run).lead_to_new();
    ended(run, &begun).await;
}

async fn ended(run: &mut Run, begun: &Begun) {
    let outage = run.end(begun, 1);
    let is_new = std::ptr::eq(service(run).primary(), &raw const service(run).servers[1]);
    run.proof(is_new, "another primary");
    run.expect_all_kept(outage).await;
}
