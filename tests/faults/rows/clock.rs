//! The wall clock of the server steps. Shared leases, permits and places have their deadlines by that clock.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, sleep};
use tower_lock::ErrorKind;
use tower_lock::backend::Mode;

use super::{LEASE, Row};
use crate::line::{BODY, Holder, Line, TURN, taken};
use crate::run::{Begun, Run};
use crate::store::Topology::Clock;
use crate::support::engine::{MS, SECOND, eventually};

/// Shorter than what is left of a renewed lease.
const BRIEFLY: Duration = Duration::from_millis(500);
const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: u32 = 2;

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Clock, name, fault);
    vec![
        row("shared: clock steps ahead and back", |run| {
            Box::pin(ahead_and_back(run, Mode::Shared))
        })
        .lease(3 * SECOND)
        .loses_data(),
        row("permits: clock steps ahead and back", |run| {
            Box::pin(ahead_and_back(run, Mode::Permit))
        })
        .lease(3 * SECOND)
        .loses_data(),
        row("shared: clock steps back by an hour", |run| {
            Box::pin(hour_back(run, Mode::Shared))
        }),
        row("permits: clock steps back by an hour", |run| {
            Box::pin(hour_back(run, Mode::Permit))
        }),
        row("shared: clock steps ahead by an hour", |run| {
            Box::pin(hour_ahead(run, Mode::Shared))
        })
        .loses_data(),
        row("permits: clock steps ahead by an hour", |run| {
            Box::pin(hour_ahead(run, Mode::Permit))
        })
        .loses_data(),
    ]
}

async fn hold(run: &Run, process: usize, mode: Mode) -> Holder {
    match mode {
        Mode::Permit => Holder::permit(run, process, LIMIT).await,
        _ => Holder::share(run, process).await,
    }
}

/// Sets the clock of the server ahead of the machine's by so many milliseconds.
fn step(run: &mut Run, ahead: i64) {
    let before = offset(run);
    let last = run.referee.log().clock_steps.last().copied().unwrap_or(0);
    run.referee.log().clock_steps.push(ahead);
    run.server().step_clock(ahead);
    let after = offset(run);
    // Each reading is between two of the machine's clock.
    let (least, most) = (after.start() - before.end(), after.end() - before.start());
    let wanted = ahead - last;
    let moved = least.signum() == wanted.signum() && most.signum() == wanted.signum();
    let is_so = moved && (least - 1..=most + 1).contains(&wanted);
    run.proof(is_so, format!("a step of {least} to {most} ms"));
}

/// Returns by how many milliseconds the clock of the server is ahead of the machine's: at least, and at most.
fn offset(run: &mut Run) -> RangeInclusive<i64> {
    let own = || {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        millis(since_epoch.expect("after 1970"))
    };
    let before = own();
    let time = run.cli("TIME");
    let after = own();
    let parts: Vec<i64> = time
        .lines()
        .map(|it| it.parse().expect("a number"))
        .collect();
    let time = parts[0] * 1_000 + parts[1] / 1_000;
    time - after..=time - before
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).expect("it fits")
}

/// Ends an outage in which the server replied. After a step ahead, it lasts until the messages of earlier grants have
/// arrived.
fn end(run: &mut Run, begun: &Begun) {
    run.end(begun, 0);
    let count = run.refusals(ErrorKind::Unavailable);
    run.referee
        .expect(count == 0, "I15", || format!("{count} times unavailable"));
}

/// No renewed lease ends, since each has more time left than the clock steps. The load also has shorter ones.
async fn ahead_and_back(run: &mut Run, mode: Mode) {
    let holders = [hold(run, 0, mode).await, hold(run, 1, mode).await];
    let begun = run.begin(None);
    step(run, millis(BRIEFLY));
    sleep(run.row.lease).await;
    end(run, &begun);
    run.proof(!holders.iter().any(Holder::is_over), "both hold");
    // A step back ends no lease.
    step(run, 0);
    sleep(run.row.lease).await;
    run.proof(!holders.iter().any(Holder::is_over), "both hold");
    expect_writer_after(run, holders).await;
}

/// The leases last longer. Each of them still ends at its release.
async fn hour_back(run: &mut Run, mode: Mode) {
    let holders = [hold(run, 0, mode).await, hold(run, 1, mode).await];
    let begun = run.begin(None);
    step(run, -millis(HOUR));
    end(run, &begun);
    sleep(2 * LEASE).await;
    run.proof(!holders.iter().any(Holder::is_over), "both hold");
    expect_writer_after(run, holders).await;
    let holders = [hold(run, 0, mode).await, hold(run, 1, mode).await];
    expect_writer_after(run, holders).await;
}

/// All leases end at once. Their holders notice it, and revive none of them.
async fn hour_ahead(run: &mut Run, mode: Mode) {
    let holders = [hold(run, 0, mode).await, hold(run, 1, mode).await];
    let begun = run.begin(None);
    step(run, millis(HOUR));
    let stepped = Instant::now();
    let next = hold(run, 2, mode).await;
    eventually("the earlier ones are lost", || {
        holders.iter().all(Holder::is_over)
    })
    .await;
    end(run, &begun);
    let (took, net) = taken(&run.referee, stepped, Instant::now());
    run.referee.expect(net <= LEASE / 3 + 500 * MS, "I3", || {
        format!("lost after {took:?}")
    });
    sleep(LEASE).await;
    let leases = run.ask(&["HKEYS", BODY]);
    let leases = leases.lines().filter(|it| it.contains(':')).count();
    run.referee.expect(leases == 1, "I9", || {
        format!("{leases} leases hold the key")
    });
    run.proof(!next.is_over(), "the next one holds");
    next.release();
    run.expect_cleared(0).await;
}

async fn expect_writer_after(run: &mut Run, holders: [Holder; 2]) {
    let line = Line::form(run, 1, 1).await;
    let released = holders.map(Holder::release)[1];
    line.expect_served(run, released, 2 * TURN, true).await;
    run.expect_cleared(0).await;
}
