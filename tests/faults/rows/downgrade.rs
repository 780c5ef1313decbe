//! Faults while a lock becomes shared.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::backend::Mode;
use tower_lock::manager::LostReason;

use super::Row;
use crate::line::{BODY, Line, PRIZE, TURN};
use crate::run::Run;
use crate::store::Topology::Single;
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::proxy::Swallow;

const LEASE: Duration = Duration::from_secs(3);
/// The delay of a command, and of its reply.
const DELAY: Duration = Duration::from_millis(50);

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Single(&[]), name, fault).lease(LEASE);
    vec![
        row("downgrade: during a renewal", |run| {
            Box::pin(downgraded(run, false))
        }),
        row("downgrade: reply lost", |run| {
            Box::pin(downgraded(run, true))
        }),
    ]
}

/// The downgrade waits for the reply to a renewal. It admits the reader at the head of the queue, and not the writer
/// behind it. Without its own reply, the guard is lost, and its lease is released in the mode that it has.
async fn downgraded(run: &mut Run, lost: bool) {
    // A server without the script would not execute the first one.
    let mut guard = run.managers[0].acquire(PRIZE).await.expect("it is free");
    guard.downgrade().await.expect("no fault yet");
    drop(guard.release().await);
    let asked = run.referee.asks();
    let mut guard = run.managers[0].acquire(PRIZE).await.expect("it is free");
    let acquire = run.managers[1].acquire(PRIZE).shared().wait(20 * SECOND);
    let reader = tokio::spawn(acquire.into_future());
    run.queued(1).await;
    let line = Line::form(run, 1, 1).await;
    next_renewal(run).await;
    let begun = run.begin(Some(0));
    let since = if lost {
        // Between two renewals.
        sleep(LEASE / 10).await;
        run.gates[0].commands.swallow(Swallow::Answers);
        Instant::now()
    } else {
        run.gates[0].commands.delay(DELAY);
        next_renewal(run).await
    };
    let downgrade = tokio::spawn(async move {
        let outcome = guard.downgrade().await;
        (guard, outcome)
    });
    eventually("it takes effect", || {
        run.ask(&["HGET", BODY, "mode"]) == "shared"
    })
    .await;
    let took = since.elapsed();
    let in_turn = if lost {
        took < SECOND
    } else {
        took >= 2 * DELAY
    };
    run.proof(in_turn, format!("after {took:.0?}"));
    let terms = (run.row.lease, true);
    let reader = reader.await.expect("no panic").expect("in its turn");
    let reader = run.referee.granted(reader, 1, asked, terms);
    let (guard, outcome) = downgrade.await.expect("no panic");
    if lost {
        let is_lost = outcome.is_err_and(|error| error.is_lost());
        let reason = guard.lost_reason();
        run.referee.expect(
            is_lost && !guard.is_held() && reason == Some(LostReason::Downgrade),
            "downgrade",
            || format!("lost: {is_lost}, {reason:?}"),
        );
        guard.lost().await;
        run.gates[0].commands.heal();
        run.gates[0].commands.cut();
        run.end(&begun, 1);
        // The lease of the reader is left, with the mode.
        eventually("it is released", || run.ask(&["HLEN", BODY]) == "2").await;
    } else {
        run.gates[0].commands.heal();
        run.end(&begun, 0);
        let (is_shared, outcome) = (guard.mode() == Mode::Shared, outcome.is_ok());
        run.referee.expect(is_shared && outcome, "downgrade", || {
            format!("succeeds: {outcome}, shared: {is_shared}")
        });
        let checked = run.referee.granted(guard, 0, asked, terms);
        let kept = checked.keep(2 * LEASE).await;
        run.proof(kept, "it is renewed");
        drop(checked.release().await);
    }
    sleep(100 * MS).await;
    let is_held = reader.look() && !line.is_served();
    run.proof(is_held, "the reader has it, and the writer waits");
    let released = Instant::now();
    drop(reader.release().await);
    line.expect_served(run, released, 2 * TURN, true).await;
    run.expect_cleared(0).await;
}

/// Waits until the lease of the prize ends later than before. Returns a moment before that.
async fn next_renewal(run: &Run) -> Instant {
    let left = || {
        let now = Instant::now();
        let left = run.ask(&["PTTL", BODY]).parse();
        (now, Duration::from_millis(left.expect("it is held")))
    };
    let mut last = left();
    eventually("it is renewed", || {
        let before = std::mem::replace(&mut last, left());
        last.1 > before.1
    })
    .await;
    last.0 - LEASE.saturating_sub(last.1)
}
