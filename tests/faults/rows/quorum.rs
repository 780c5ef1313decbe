//! Five servers, of which any three are enough.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::ErrorKind;
use tower_lock::backend::Mode;

use super::shared::expect_granted;
use super::{OTHER, Row};
use crate::child::{Child, READING};
use crate::line::{BODY, Holder, PRIZE, QUEUE};
use crate::load::kept;
use crate::referee::BACKSTOP;
use crate::run::{PROCESSES, Run};
use crate::store::{Store, Topology};
use crate::support::engine::{MS, SECOND, eventually};
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
        row(
            "shared on a quorum: reader killed while others renew",
            |run| Box::pin(reader_killed(run)),
        )
        .lease(READERS),
        row("shared on a quorum: writer killed while it waits", |run| {
            Box::pin(waiting_writer_killed(run))
        })
        .lease(READERS),
    ]
}

/// The lease in the rows about readers, which wait until it expires.
const READERS: Duration = Duration::from_secs(3);
/// The time for which a writer that waits keeps further readers out.
const INTENT: Duration = Duration::from_millis(1_300);

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

/// Starts a process that acquires the prize.
fn child(run: &mut Run, prefix: &str) -> Child {
    let urls: Vec<_> = servers(run).iter().map(RedisServer::url).collect();
    let key = format!("{prefix}{PRIZE}");
    Child::start(&urls.join(","), READERS, &[key], None)
}

/// Returns the deadlines of the leases of a manager in the prize, by node.
fn deadlines(run: &mut Run, manager: &str) -> Vec<Option<String>> {
    let field = format!("s{manager}");
    let of_node = |server: &RedisServer| {
        let fields = server.cli(&["HGETALL", BODY]);
        let mut fields = fields.lines().skip_while(|it| !it.starts_with(&field));
        fields.nth(1).map(ToOwned::to_owned)
    };
    servers(run).iter().map(of_node).collect()
}

/// Other readers renew for longer than the lease of the dead one, and do not extend it.
async fn reader_killed(run: &mut Run) {
    let mut child = child(run, READING);
    let holds = child.holds().expect("it is free");
    let (token, lease) = (holds.token, run.row.lease);
    run.referee
        .claimed_as(Mode::Shared, PRIZE, OTHER, token, lease);
    let readers = [Holder::share(run, 0).await, Holder::share(run, 1).await];
    sleep(READERS).await;
    child.kill();
    run.referee.gone(OTHER);
    let before = deadlines(run, &holds.manager);
    let count = before.iter().flatten().count();
    run.proof(count >= 3, format!("the dead reader is on {count} nodes"));
    sleep(2 * READERS).await;
    for (before, later) in before.iter().zip(deadlines(run, &holds.manager)) {
        run.referee
            .expect(later.is_none() || later == *before, "shared", || {
                format!("its lease went from {before:?} to {later:?}")
            });
    }
    run.proof(!readers.iter().any(Holder::is_over), "others hold it");
    let busy = run.managers[2].acquire(PRIZE).no_wait().await;
    run.proof(busy.is_err(), "a writer is refused");
    let released = readers.map(Holder::release)[1];
    expect_granted(run, 2, Mode::Exclusive, released, BACKSTOP).await;
}

/// Further readers are kept out until the intent of the writer expires.
async fn waiting_writer_killed(run: &mut Run) {
    let reader = Holder::share(run, 0).await;
    let mut child = child(run, "");
    let intends = |server: &RedisServer| server.cli(&["ZRANGE", QUEUE, "0", "-1"]).contains("~^");
    eventually("it waits", || {
        servers(run).iter().filter(|it| intends(it)).count() >= 3
    })
    .await;
    let busy = run.managers[1].acquire(PRIZE).shared().no_wait().await;
    let busy = busy.is_err_and(|error| error.kind() == ErrorKind::Busy);
    run.proof(busy, "a reader is refused");
    child.kill();
    let killed = Instant::now();
    expect_granted(run, 1, Mode::Shared, killed, INTENT + BACKSTOP).await;
    run.proof(!reader.is_over(), "the other one still reads");
    let released = reader.release();
    expect_granted(run, 2, Mode::Exclusive, released, BACKSTOP).await;
}
