//! Five servers, of which any three are enough.

use std::time::Duration;

use tokio::time::sleep;

use super::Row;
use crate::load::kept;
use crate::store::{Store, Topology};
use crate::support::engine::{MS, SECOND};
use crate::support::redis_server::RedisServer;
use crate::world::{PROCESSES, World};

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Topology::Quorum, name, fault).lease(3 * SECOND);
    vec![
        row("two of five killed", |world| Box::pin(killed(world))),
        row("two of five stopped, and back", |world| {
            Box::pin(stopped(world, 2))
        }),
        row("three of five stopped, and back", |world| {
            Box::pin(stopped(world, 3))
        }),
        row("one of five restarted empty", |world| {
            Box::pin(restarted_empty(world))
        })
        .loses_data(),
        row("one of five restarted empty, with a quarantine", |world| {
            Box::pin(restarted_empty(world))
        })
        .in_quarantine(),
    ]
}

const A_WHILE: Duration = Duration::from_millis(1_200);

fn servers(world: &mut World) -> &mut Vec<RedisServer> {
    match &mut world.store {
        Store::Quorum(servers) => servers,
        _ => panic!("not a row on a quorum"),
    }
}

async fn killed(world: &mut World) {
    let begun = world.begin(None);
    for server in &mut servers(world)[..2] {
        server.kill();
    }
    let outage = world.end(&begun, 1);
    let dead = servers(world)
        .iter()
        .filter(|server| !server.runs())
        .count();
    world.proof(dead == 2, "two killed");
    world.expect_all_kept(outage).await;
}

async fn stopped(world: &mut World, count: usize) {
    let begun = world.begin(None);
    let port = servers(world)[0].port();
    for server in &servers(world)[..count] {
        server.stop_process();
    }
    sleep(A_WHILE).await;
    let is_silent = !World::answers(port, 100 * MS);
    // The nodes reply as soon as they continue, so this must precede it.
    if count == 3 {
        world.expect_silence(0, begun.at + A_WHILE * 2 / 3);
    }
    for server in &servers(world)[..count] {
        server.continue_process();
    }
    let outage = world.end(&begun, 1);
    world.proof(is_silent, "no answer");
    world.expect_all_kept(outage).await;
}

/// A lease on one of the two remaining nodes is lost with this node: a majority has then lost it.
async fn restarted_empty(world: &mut World) {
    let begun = world.begin(None);
    let [first, others @ ..] = &mut servers(world)[..] else {
        panic!("not five");
    };
    // The query is by lease. If the holder's vote was late, a rival's lease may be at the node for a
    // moment.
    let on_most = |key: &String| {
        let leases: Vec<_> = (others.iter())
            .map(|it| it.cli(&["HKEYS", &format!("lock:{key}")]))
            .collect();
        let as_on = |lease: &String| leases.iter().filter(|it| *it == lease).count();
        leases.iter().any(|it| !it.is_empty() && as_on(it) >= 3)
    };
    let safe: Vec<_> = (0..PROCESSES).map(kept).filter(on_most).collect();
    first.restart_empty();
    let outage = world.end(&begun, 1);
    let safe_locks = format!("{} locks on enough of the others", safe.len());
    world.proof(!safe.is_empty(), safe_locks);
    sleep(world.row.lease).await;
    world.expect_kept(&safe, outage);
}
