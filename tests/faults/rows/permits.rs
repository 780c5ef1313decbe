//! Faults of the holders of permits. The rows of other faults acquire permits of a key as well.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::ErrorKind;
use tower_lock::backend::Mode;

use super::queue::{holding_child, waiting_child};
use super::{LEASE, OTHER, PLACE, Row};
use crate::line::{BODY, Holder, Line, PRIZE, TURN, taken};
use crate::referee::{BACKSTOP, made_up};
use crate::run::{PROCESSES, Run};
use crate::store::Topology::{Own, Single};
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::proxy::Swallow;

const CROWD: u32 = 1_000;
/// The holders that acquire their permits at a time.
const TOGETHER: u32 = 50;

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Single(&[]), name, fault).lease(LEASE);
    vec![
        Row::new(Own, "permits: the referee counts them", |run| {
            Box::pin(async { made_up::detects_permits_above_limit(run) })
        }),
        row("permits: holder killed while others renew", |run| {
            Box::pin(holder_killed(run))
        }),
        row("permits: first waiter killed", |run| {
            Box::pin(waiter_killed(run))
        }),
        row("permits: exclusive waiter killed", |run| {
            Box::pin(exclusive_waiter_killed(run))
        }),
        row("permits: body evicted", |run| {
            Box::pin(body_deleted(run, false))
        })
        .loses_data(),
        row("permits: forceUnlock of Redisson", |run| {
            Box::pin(body_deleted(run, true))
        })
        .loses_data(),
        row("permits: release lost", |run| Box::pin(release_lost(run))),
        row("permits: replies lost", |run| Box::pin(replies_lost(run))),
        row("permits: limits of two versions", |run| {
            Box::pin(two_limits(run))
        }),
        row("permits: 1 000 holders and one writer", |run| {
            Box::pin(crowd(run))
        }),
    ]
}

/// Acquires a permit of the prize within a time since a moment.
async fn expect_permit(
    run: &mut Run,
    process: usize,
    limit: u32,
    since: Instant,
    by: Duration,
) -> Holder {
    let holder = Holder::permit(run, process, limit).await;
    let (took, net) = taken(&run.referee, since, Instant::now());
    run.referee.expect(net <= by, "permits", || {
        format!("after {took:?}, allowed {by:?}")
    });
    run.evidence(format!("granted after {took:.1?}"));
    holder
}

/// Expects that no permit is free below this limit.
async fn expect_full(run: &mut Run, process: usize, limit: u32) {
    let acquire = run.managers[process].acquire(PRIZE).permits(limit);
    let full = acquire.no_wait().await.map_err(|error| error.kind());
    let full = full.err() == Some(ErrorKind::PermitsExhausted);
    run.proof(full, format!("no {limit} are free"));
}

/// The other holders renew for longer than the lease of the dead one, and do not extend it.
async fn holder_killed(run: &mut Run) {
    let (mut child, _) = holding_child(run, Mode::Permit);
    let holder = Holder::permit(run, 0, 2).await;
    sleep(LEASE).await;
    expect_full(run, 1, 2).await;
    child.kill();
    run.referee.gone(OTHER);
    let killed = Instant::now();
    let next = expect_permit(run, 1, 2, killed, LEASE + BACKSTOP).await;
    run.proof(!holder.is_over(), "the other one is held");
    expect_full(run, 2, 2).await;
    for holder in [holder, next] {
        holder.release();
    }
    run.expect_cleared(0).await;
}

/// The waiters behind the dead one wait until its place expires, or until the message of a release does not reach it.
async fn waiter_killed(run: &mut Run) {
    let holders = [
        Holder::permit(run, 0, 2).await,
        Holder::permit(run, 1, 2).await,
    ];
    let (mut child, _) = waiting_child(run, Mode::Permit).await;
    expect_full(run, 2, 2).await;
    child.kill();
    let killed = Instant::now();
    let [holder, other] = holders;
    holder.release();
    let next = expect_permit(run, 2, 2, killed, PLACE + BACKSTOP).await;
    run.proof(!other.is_over(), "the other one is held");
    for holder in [other, next] {
        holder.release();
    }
    run.expect_cleared(1).await;
}

/// Permits wait behind the place of the exclusive waiter, until it expires, although one is free.
async fn exclusive_waiter_killed(run: &mut Run) {
    let holder = Holder::permit(run, 0, 2).await;
    let (mut child, _) = waiting_child(run, Mode::Exclusive).await;
    expect_full(run, 1, 2).await;
    child.kill();
    let killed = Instant::now();
    let next = expect_permit(run, 1, 2, killed, PLACE + BACKSTOP).await;
    // The process refreshed its place in the last second of its life.
    run.proof(killed.elapsed() > SECOND, "it waited");
    run.proof(!holder.is_over(), "the other one is held");
    expect_full(run, 2, 2).await;
    let line = Line::form(run, 1, 1).await;
    let released = [holder, next].map(Holder::release)[1];
    line.expect_served(run, released, 2 * TURN, true).await;
    run.expect_cleared(0).await;
}

/// Redisson deletes the body and publishes. The next permits are counted from zero, and no renewal of the earlier ones
/// writes the body again.
async fn body_deleted(run: &mut Run, published: bool) {
    let holders = [
        Holder::permit(run, 0, 2).await,
        Holder::permit(run, 1, 2).await,
    ];
    let begun = run.begin(None);
    run.ask(&["DEL", BODY]);
    let deleted = Instant::now();
    if published {
        let channel = format!("redisson_lock__channel:{{{BODY}}}");
        run.ask(&["PUBLISH", &channel, "0"]);
    }
    run.end(&begun, 0);
    let next = expect_permit(run, 2, 1, deleted, TURN * 2).await;
    eventually("the earlier ones are lost", || {
        holders.iter().all(Holder::is_over)
    })
    .await;
    let (took, net) = taken(&run.referee, deleted, Instant::now());
    run.referee.expect(net <= LEASE / 3 + 500 * MS, "I3", || {
        format!("lost after {took:?}")
    });
    run.proof(true, format!("lost after {took:.1?}"));
    sleep(LEASE).await;
    let fields = run.ask(&["HLEN", BODY]);
    run.referee.expect(fields == "3", "I9", || {
        format!("{fields} fields: mode, next and one lease")
    });
    run.proof(!next.is_over(), "the next one is held");
    next.release();
    run.expect_cleared(0).await;
}

/// The lease of the holder expires, and the release that arrives later changes nothing.
async fn release_lost(run: &mut Run) {
    let (holder, other) = (
        Holder::permit(run, 0, 2).await,
        Holder::permit(run, 1, 2).await,
    );
    sleep(LEASE).await;
    let begun = run.begin(Some(0));
    run.gates[0].commands.refuse();
    run.gates[0].commands.cut();
    let released = holder.release();
    expect_full(run, 2, 2).await;
    let next = expect_permit(run, 2, 2, released, LEASE + BACKSTOP).await;
    run.gates[0].commands.heal();
    run.end(&begun, 1);
    sleep(LEASE).await;
    expect_full(run, 1, 2).await;
    run.proof(!next.is_over() && !other.is_over(), "both are held");
    for holder in [other, next] {
        holder.release();
    }
    run.expect_cleared(0).await;
}

/// The acquire takes effect, and its reply is lost. The permit is counted once.
async fn replies_lost(run: &mut Run) {
    // With other calls in flight, the acquire would wait for a reply that is lost as well.
    let idle = run.add_idle_process().await;
    let begun = run.begin(Some(idle));
    run.gates[idle].commands.swallow(Swallow::Answers);
    let locks = run.managers[idle].clone();
    let asked = run.referee.asks();
    let acquire = locks.acquire(PRIZE).permits(2).wait(20 * SECOND);
    let holder = tokio::spawn(acquire.into_future());
    eventually("it takes effect", || run.ask(&["EXISTS", BODY]) == "1").await;
    run.gates[idle].commands.heal();
    run.gates[idle].commands.cut();
    run.end(&begun, 1);
    let guard = holder.await.expect("no panic").expect("in the end");
    let terms = (run.row.lease, true);
    let checked = run.referee.granted(guard, idle, asked, terms).below(2);
    let other = Holder::permit(run, 1, 2).await;
    checked.keep(2 * LEASE).await;
    let fields = run.ask(&["HLEN", BODY]);
    run.proof(
        fields == "4",
        format!("{fields} fields: mode, next and two leases"),
    );
    expect_full(run, 2, 2).await;
    drop(checked.release().await);
    other.release();
    run.expect_cleared(0).await;
}

/// Processes of a newer version have a larger limit. The smaller one waits longer, and no permit behind it is granted.
async fn two_limits(run: &mut Run) {
    let mut holders = Vec::new();
    for process in [0, 1, 0] {
        holders.push(Holder::permit(run, process, 4).await);
    }
    expect_full(run, 2, 2).await;
    let smaller = timeout(200 * MS, Holder::permit(run, 2, 2)).await;
    run.proof(smaller.is_err(), "three are held");
    let mut last = Instant::now();
    for holder in holders.drain(..2) {
        last = holder.release();
    }
    let smaller = expect_permit(run, 2, 2, last, 2 * TURN + BACKSTOP).await;
    expect_full(run, 2, 2).await;
    let larger = expect_permit(run, 1, 4, Instant::now(), 2 * TURN).await;
    for holder in holders.into_iter().chain([smaller, larger]) {
        holder.release();
    }
    run.expect_cleared(0).await;
}

/// The holders of three processes renew while a writer waits for all of them.
async fn crowd(run: &mut Run) {
    let start = Instant::now();
    let mut holders = Vec::new();
    // Each of these acquires has a call of its own. All at once, they would delay the replies to the load beyond its waits.
    for _ in 0..CROWD / TOGETHER {
        let acquires = (0..TOGETHER).map(|holder| {
            let locks = &run.managers[holder as usize % PROCESSES];
            let acquire = locks.acquire(PRIZE).permits(CROWD).wait(20 * SECOND);
            acquire.into_future()
        });
        let granted = join_all(acquires).await.into_iter();
        holders.extend(granted.map(|it| it.expect("below the limit")));
    }
    run.evidence(format!("{CROWD} holders in {:.0?}", start.elapsed()));
    expect_full(run, 0, CROWD).await;
    let line = Line::form(run, 1, 1).await;
    sleep(2 * LEASE).await;
    run.proof(!line.is_served(), "the writer waits");
    let held = holders.iter().filter(|it| it.is_held()).count();
    run.proof(held == CROWD as usize, format!("{held} held"));
    let released = Instant::now();
    drop(holders);
    line.expect_served(run, released, SECOND, true).await;
    run.expect_cleared(0).await;
}
