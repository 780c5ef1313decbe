//! Five servers, of which any three are enough.

use std::time::Duration;

use tokio::time::sleep;

use super::Row;
use crate::load::kept;
use crate::run::{PROCESSES, Run};
use crate::store::{Store, Topology};
use crate::support::engine::{MS, SECOND};
use crate::support::redis_server::RedisServer;

pub(super) fn rows() -> Vec<Row> {
    // Five servers and the load share the cores, so a node that continues is slow to reply.
    // The announcement of a writer that waited expires after 1.3 s.
    let row = |name, fault| {
        Row::new(Topology::Quorum, name, fault)
            .lease(5 * SECOND)
            .clears_within(1_300 * MS + SECOND)
    };
    vec![
        row("two of five killed", |run| Box::pin(killed(run))),
        row("two of five stopped, and back", |run| {
            Box::pin(stopped(run, 2))
        }),
        row("three of five stopped, and back", |run| {
            Box::pin(stopped(run, 3))
        }),
        row("one of five restarted empty", |run| {
            Box::pin(restarted_empty(run))
        })
        .loses_data(),
        row("one of five restarted empty, with a quarantine", |run| {
            Box::pin(restarted_empty(run))
        })
        .in_quarantine(),
    ]
}

const A_WHILE: Duration = Duration::from_millis(1_200);

fn servers(run: &mut Run) -> &mut Vec<RedisServer> {
    match &mut run.store {
        Store::Quorum(servers) => servers,
        _ => panic!("not a row on a quorum"),
    }
}

async fn killed(run: &mut Run) {
    let begun = run.begin(None);
    for server in &mut servers(run)[..2] {
        server.kill();
    }
    let outage = run.end(&begun, 1);
    let dead = servers(run).iter().filter(|server| !server.runs()).count();
    run.proof(dead == 2, "two killed");
    run.expect_all_kept(outage).await;
}

async fn stopped(run: &mut Run, count: usize) {
    let begun = run.begin(None);
    let port = servers(run)[0].port();
    for server in &servers(run)[..count] {
        server.stop_process();
    }
    sleep(A_WHILE).await;
    let is_silent = !Run::answers(port, 100 * MS);
    // The nodes reply as soon as they continue, so this must precede it.
    if count == 3 {
        run.expect_silence(0, begun.at + A_WHILE * 2 / 3);
    }
    for server in &servers(run)[..count] {
        server.continue_process();
    }
    let outage = run.end(&begun, 1);
    run.proof(is_silent, "no reply");
    run.expect_all_kept(outage).await;
}

/// A lease on one of the two remaining nodes is lost with this node: a majority has then lost it.
async fn restarted_empty(run: &mut Run) {
    let begun = run.begin(None);
    let [first, others @ ..] = &mut servers(run)[..] else {
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
    let outage = run.end(&begun, 1);
    let safe_locks = format!("{} locks on enough of the others", safe.len());
    run.proof(!safe.is_empty(), safe_locks);
    sleep(run.row.lease).await;
    run.expect_kept(&safe, outage);
}
