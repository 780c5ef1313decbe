//! Faults of readers and writers. The rows of other faults read and write a key as well.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::backend::Mode;
use tower_lock::{ErrorKind, LockManager};

use super::queue::{holding_child, waiting_child};
use super::{LEASE, OTHER, PLACE, Row};
use crate::line::{BODY, Holder, Line, PRIZE, TURN, taken};
use crate::referee::{BACKSTOP, made_up};
use crate::run::{PROCESSES, Run};
use crate::store::Topology::{Own, Single};
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::proxy::Swallow;

const CROWD: usize = 10_000;

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Single(&[]), name, fault).lease(LEASE);
    vec![
        Row::new(Own, "shared: the referee judges by mode", |run| {
            Box::pin(async { made_up::detects_overlaps_by_mode(run) })
        }),
        Row::new(Own, "shared: the referee judges renewals", |run| {
            Box::pin(async { made_up::detects_renewals(run) })
        }),
        row("shared: reader killed while others renew", |run| {
            Box::pin(reader_killed(run))
        }),
        row("shared: writer killed while it waits", |run| {
            Box::pin(waiting_writer_killed(run))
        }),
        row("shared: writer killed", |run| Box::pin(writer_killed(run))),
        row("shared: body evicted", |run| {
            Box::pin(body_deleted(run, false))
        })
        .loses_data(),
        row("shared: forceUnlock of Redisson", |run| {
            Box::pin(body_deleted(run, true))
        })
        .loses_data(),
        row("shared: release lost", |run| Box::pin(release_lost(run))),
        row("shared: replies lost", |run| Box::pin(replies_lost(run))),
        row("shared: 10 000 readers and one writer", |run| {
            Box::pin(crowd(run))
        }),
        row("shared: 10 000 leases and one writer", |run| {
            Box::pin(many_leases(run))
        })
        .once(),
    ]
}

/// Acquires the prize within a time since a moment, and releases it.
pub(super) async fn expect_granted(
    run: &mut Run,
    process: usize,
    mode: Mode,
    since: Instant,
    by: Duration,
) {
    let asked = run.referee.asks();
    let acquire = run.managers[process].acquire(PRIZE).wait(20 * SECOND);
    let acquire = match mode {
        Mode::Shared => acquire.shared(),
        _ => acquire,
    };
    let Ok(guard) = acquire.await else {
        return run.referee.violation("shared", "never granted");
    };
    let (took, net) = taken(&run.referee, since, Instant::now());
    run.referee.expect(net <= by, "shared", || {
        format!("{mode:?} after {took:?}, allowed {by:?}")
    });
    let terms = (run.row.lease, true);
    let checked = run.referee.granted(guard, process, asked, terms);
    checked.keep(10 * MS).await;
    drop(checked.release().await);
    run.evidence(format!("{mode:?} after {took:.1?}"));
}

/// Other readers renew for longer than the lease of the dead one, and do not extend it.
async fn reader_killed(run: &mut Run) {
    let (mut child, holds) = holding_child(run, Mode::Shared);
    let readers = [Holder::share(run, 0).await, Holder::share(run, 1).await];
    sleep(LEASE).await;
    child.kill();
    run.referee.gone(OTHER);
    let field = format!("s{}", holds.manager);
    let fields = run.ask(&["HGETALL", BODY]);
    let mut fields = fields.lines().skip_while(|it| !it.starts_with(&field));
    let deadline = fields.nth(1).map(ToOwned::to_owned);
    run.proof(deadline.is_some(), "the dead reader holds it");
    sleep(2 * LEASE).await;
    let fields = run.ask(&["HGETALL", BODY]);
    let mut fields = fields.lines().skip_while(|it| !it.starts_with(&field));
    let later = fields.nth(1).map(ToOwned::to_owned);
    run.referee
        .expect(later.is_none() || later == deadline, "shared", || {
            format!("its lease went from {deadline:?} to {later:?}")
        });
    run.proof(!readers.iter().any(Holder::is_over), "others hold it");
    let line = Line::form(run, 1, 1).await;
    let released = readers.map(Holder::release)[1];
    line.expect_served(run, released, 2 * TURN, true).await;
    run.expect_cleared(0).await;
}

/// Readers of other processes wait behind the place of the writer, until it expires.
async fn waiting_writer_killed(run: &mut Run) {
    let reader = Holder::share(run, 0).await;
    let (mut child, _) = waiting_child(run, Mode::Exclusive).await;
    let busy = run.managers[1].acquire(PRIZE).shared().no_wait().await;
    let busy = busy.is_err_and(|error| error.kind() == ErrorKind::Busy);
    run.proof(busy, "a reader is refused");
    child.kill();
    let killed = Instant::now();
    expect_granted(run, 1, Mode::Shared, killed, PLACE + BACKSTOP).await;
    run.proof(!reader.is_over(), "the other one still reads");
    let released = reader.release();
    expect_granted(run, 2, Mode::Exclusive, released, TURN * 2).await;
    run.expect_cleared(0).await;
}

async fn writer_killed(run: &mut Run) {
    let (mut child, _) = holding_child(run, Mode::Exclusive);
    sleep(LEASE).await;
    child.kill();
    run.referee.gone(OTHER);
    let killed = Instant::now();
    let busy = run.managers[0].acquire(PRIZE).shared().no_wait().await;
    run.proof(busy.is_err(), "its lock is left");
    let others = async |process: usize| {
        let acquire = run.managers[process].acquire(PRIZE).shared();
        let guard = acquire.wait(20 * SECOND).await.expect("in the end");
        (guard, killed.elapsed())
    };
    let ((_one, here), (_two, there)) = tokio::join!(others(0), others(1));
    let late = here.max(there);
    run.referee.expect(late <= LEASE + BACKSTOP, "shared", || {
        format!("readers after {here:?} and {there:?}")
    });
    run.evidence(format!("readers after {here:.1?} and {there:.1?}"));
    drop((_one, _two));
    run.expect_cleared(0).await;
}

/// Redisson deletes the body and publishes. No renewal of the readers writes it again.
async fn body_deleted(run: &mut Run, published: bool) {
    let readers = [Holder::share(run, 0).await, Holder::share(run, 1).await];
    let waiter = match published {
        true => Some(Line::form(run, 1, 1).await),
        false => None,
    };
    let begun = run.begin(None);
    run.ask(&["DEL", BODY]);
    let deleted = Instant::now();
    if published {
        let channel = format!("redisson_lock__channel:{{{BODY}}}");
        run.ask(&["PUBLISH", &channel, "0"]);
    }
    run.end(&begun, 0);
    match waiter {
        Some(line) => {
            line.expect_served(run, deleted, BACKSTOP, true).await;
        }
        None => expect_granted(run, 2, Mode::Exclusive, deleted, TURN * 2).await,
    }
    eventually("the readers are lost", || {
        readers.iter().all(Holder::is_over)
    })
    .await;
    let (took, net) = taken(&run.referee, deleted, Instant::now());
    run.referee.expect(net <= LEASE / 3 + 500 * MS, "I3", || {
        format!("lost after {took:?}")
    });
    run.proof(true, format!("lost after {took:.1?}"));
    sleep(LEASE).await;
    let left = run.ask(&["EXISTS", BODY]);
    run.referee
        .expect(left == "0", "I9", || "a renewal wrote it again".to_owned());
}

/// The lease of the reader expires, and the release that arrives later changes nothing.
async fn release_lost(run: &mut Run) {
    let reader = Holder::share(run, 0).await;
    sleep(LEASE).await;
    let begun = run.begin(Some(0));
    run.gates[0].commands.refuse();
    run.gates[0].commands.cut();
    let released = reader.release();
    let held = run.ask(&["EXISTS", BODY]) == "1";
    run.proof(held, "its lock is left");
    expect_granted(run, 1, Mode::Exclusive, released, LEASE + BACKSTOP).await;
    let reader = Holder::share(run, 1).await;
    run.gates[0].commands.heal();
    run.end(&begun, 1);
    sleep(LEASE).await;
    run.proof(!reader.is_over(), "the next reader keeps it");
    reader.release();
    run.expect_cleared(0).await;
}

/// The acquire of a reader takes effect, and its reply is lost. The next attempt counts once.
async fn replies_lost(run: &mut Run) {
    // With other calls in flight, the acquire would wait for a reply that is lost as well.
    let idle = run.add_idle_process().await;
    let begun = run.begin(Some(idle));
    run.gates[idle].commands.swallow(Swallow::Answers);
    let locks = run.managers[idle].clone();
    let asked = run.referee.asks();
    let acquire = locks.acquire(PRIZE).shared().wait(20 * SECOND);
    let reader = tokio::spawn(acquire.into_future());
    eventually("it takes effect", || run.ask(&["EXISTS", BODY]) == "1").await;
    run.gates[idle].commands.heal();
    run.gates[idle].commands.cut();
    run.end(&begun, 1);
    let guard = reader.await.expect("no panic").expect("in the end");
    let terms = (run.row.lease, true);
    let checked = run.referee.granted(guard, idle, asked, terms);
    checked.keep(2 * LEASE).await;
    let fields = run.ask(&["HLEN", BODY]);
    run.proof(fields == "2", format!("{fields} fields: mode and lease"));
    drop(checked.release().await);
    run.expect_cleared(0).await;
}

/// All readers of three processes hold the key, and others arrive without end.
async fn crowd(run: &mut Run) {
    let start = Instant::now();
    let mut readers = Vec::new();
    for reader in 0..CROWD {
        let locks = &run.managers[reader % PROCESSES];
        let guard = locks.acquire(PRIZE).shared().wait(20 * SECOND).await;
        readers.push(guard.expect("readers share it"));
    }
    run.evidence(format!("{CROWD} readers in {:.0?}", start.elapsed()));
    let read = async |locks: LockManager| {
        loop {
            let acquire = locks.acquire(PRIZE).shared().wait(20 * SECOND);
            let guard = acquire.await.expect("in its turn");
            sleep(25 * MS).await;
            drop(guard);
        }
    };
    let more = run.managers.iter().take(PROCESSES);
    let more: Vec<_> = more.map(|it| tokio::spawn(read(it.clone()))).collect();
    sleep(200 * MS).await;
    let line = Line::form(run, 1, 1).await;
    sleep(200 * MS).await;
    run.proof(!line.is_served(), "the writer waits");
    let held = readers.iter().filter(|it| it.is_held()).count();
    run.proof(held == CROWD, format!("{held} held"));
    let released = Instant::now();
    drop(readers);
    line.expect_served(run, released, 150 * MS, true).await;
    // Readers continue after the writer.
    expect_granted(run, 0, Mode::Shared, Instant::now(), 150 * MS).await;
    for task in more {
        task.abort();
        drop(task.await);
    }
    run.expect_cleared(0).await;
}

/// As many processes hold the key as one body can have fields of dead readers and live ones.
async fn many_leases(run: &mut Run) {
    const FILL: &str = "local t = redis.call('time')
        local now = t[1] * 1000 + math.floor(t[2] / 1000)
        redis.call('hset', KEYS[1], 'mode', 'shared')
        for i = 1, ARGV[1] do
            local name = string.format('s%08d-0000-4000-8000-000000000000:1', i)
            redis.call('hset', KEYS[1], name, string.format('%.0f', now + 3000))
        end
        redis.call('pexpire', KEYS[1], 3000)
        return now";
    run.ask(&["EVAL", FILL, "1", BODY, &CROWD.to_string()]);
    let filled = Instant::now();
    let reader = Holder::share(run, 0).await;
    let joined = filled.elapsed();
    let line = Line::form(run, 1, 1).await;
    let begun = Instant::now();
    reader.release();
    // On a busy machine, all of them may have expired by then.
    eventually("a reader is released", || {
        let fields = run.ask(&["HLEN", BODY]).parse();
        fields.is_ok_and(|fields: usize| fields <= CROWD + 1)
    })
    .await;
    let released = begun.elapsed();
    run.evidence(format!(
        "joined after {joined:.0?}, released after {released:.0?}"
    ));
    line.expect_served(run, filled, 3 * SECOND + BACKSTOP, true)
        .await;
    run.expect_cleared(0).await;
}
