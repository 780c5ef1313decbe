//! Processes that are killed, stopped or shut down, and cancelled tasks.

use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use futures_util::future::poll_fn;
use tokio::time::{Instant, sleep};
use tower_lock::ErrorKind;

use super::{LEASE, Row};
use crate::child::Child;
use crate::load::{Load, PERMITS, SHARED, hot, millis, random};
use crate::referee::{BACKSTOP, wire};
use crate::run::{PROCESSES, Run};
use crate::store::Topology::Single;
use crate::support::engine::{MS, SECOND, eventually, manager};
use crate::support::suspended_clock::SuspendedClock;

/// A process outside the run.
const OTHER: usize = PROCESSES;
/// The keys of that process. No error contains such a name by chance.
const THEIRS: [&str; 2] = ["theirs:1", "theirs:2"];
/// I7.
const LEASE_AND_BACKSTOP: Duration = LEASE.saturating_add(BACKSTOP);

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Single(&[]), name, fault).lease(LEASE);
    vec![
        row("process killed", |run| Box::pin(killed(run))).recovers_within(LEASE_AND_BACKSTOP),
        row("process stopped for longer than the lease", |run| {
            Box::pin(stopped(run, None))
        })
        .recovers_within(BACKSTOP),
        row("machine suspended for longer than the lease", |run| {
            Box::pin(stopped(run, Some(SuspendedClock::new())))
        })
        .recovers_within(BACKSTOP),
        row("tasks cancelled anywhere", |run| Box::pin(cancelled(run))),
        // No process is left to leave the queues, which therefore expire.
        row("runtime shut down", |run| Box::pin(runtime_gone(run)))
            .recovers_within(LEASE_AND_BACKSTOP)
            .clears_within(7 * SECOND),
        row("graceful shutdown", |run| Box::pin(shut_down(run)))
            .may_fail_with(&[ErrorKind::ShuttingDown]),
        row("forced open by another process", |run| {
            Box::pin(forced(run))
        })
        .loses_data(),
    ]
}

/// A process that holds these keys, and the names of its leases.
async fn another_process(
    run: &mut Run,
    keys: &[String],
    clock: Option<SuspendedClock>,
) -> (Child, String) {
    let url = run.server().url();
    let mut child = Child::start(&url, LEASE, keys, clock);
    let mut name = String::new();
    while let Some(holds) = child.holds() {
        run.referee.claimed(&holds.key, OTHER, holds.token, LEASE);
        name = holds.manager;
    }
    // The process renews the lease while it is alive.
    sleep(LEASE + 200 * MS).await;
    (child, name)
}

async fn killed(run: &mut Run) {
    let others = [SHARED, PERMITS, THEIRS[0]].map(ToOwned::to_owned);
    let keys = [&hot()[..2], &others].concat();
    let (mut child, _) = another_process(run, &keys, None).await;
    let begun = run.begin(Some(OTHER));
    child.kill();
    run.referee.gone(OTHER);
    run.end(&begun, 0);
    let left = run.cli(&format!("PTTL lock:{}", THEIRS[0]));
    run.proof(
        left.parse().is_ok_and(|left: i64| left > 0),
        "its lock is left",
    );
    sleep(LEASE + 100 * MS).await;
    let left = run.cli(&format!("EXISTS lock:{}", THEIRS[0]));
    run.referee
        .expect(left == "0", "I7", || "held by an ended process".to_owned());
}

/// With a clock, the process detects a suspend of the machine. Without one, it detects only that it was
/// stopped.
async fn stopped(run: &mut Run, clock: Option<SuspendedClock>) {
    // The keys are acquired together, and therefore renewed together.
    let keys = THEIRS.map(ToOwned::to_owned);
    let (mut child, name) = another_process(run, &keys, clock).await;
    // Just after a renewal, no further renewal is between its decision and its command.
    let renewals = |run: &Run| wire::renewals_of(&run.wire_with(&name), &name);
    let just_now = |at: SystemTime| at.elapsed().is_ok_and(|ago| ago < 100 * MS);
    eventually("it renews", || {
        renewals(run).last().copied().is_some_and(just_now)
    })
    .await;
    sleep(50 * MS).await;
    let before = renewals(run).len();
    let begun = run.begin(Some(OTHER));
    child.stop();
    run.referee.gone(OTHER);
    let waiting = Instant::now();
    let taken = run.holder(0, THEIRS[0], 2 * SECOND).await;
    let waited = waiting.elapsed();
    let delay = run.referee.stall_detector.delay(waiting, waiting + waited);
    run.referee
        .expect(waited < LEASE_AND_BACKSTOP + delay, "I7", || {
            format!("acquired after {waited:?}")
        });
    sleep(LEASE.saturating_sub(waited) + 200 * MS).await;
    run.end(&begun, 0);
    child.resume();
    let held = child.says("woke").expect("it was stopped");
    run.referee
        .expect(held == "0", "I3", || format!("woke up with {held} locks"));
    for _ in &keys {
        let reported = child.says("reported").expect("its report");
        run.referee.expect(reported == "true true", "I3", || {
            format!("reported, rejected: {reported}")
        });
    }
    let is_held = taken.await.expect("no panic");
    run.referee.expect(is_held, "I1", || {
        "acquired again by the stopped process".to_owned()
    });
    let after = renewals(run).len();
    run.proof(before > 0, format!("{before} renewals before"));
    run.referee.expect(after == before, "I9", || {
        format!("{} renewals after it woke up", after - before)
    });
}

/// The futures are dropped after a number of polls, and the tasks are aborted after a time.
async fn cancelled(run: &mut Run) {
    let end = Instant::now() + 2 * SECOND;
    let mut dropped = 0;
    while Instant::now() < end {
        let locks = &run.managers[usize::try_from(random(3)).unwrap_or(0)];
        let keys = hot();
        let acquire = match random(3) {
            0 => locks.acquire(keys),
            n => locks.acquire(keys[usize::try_from(n).unwrap_or(0)].clone()),
        };
        let acquire = match random(4) {
            0 => acquire.shared(),
            1 => acquire.permits(2),
            _ => acquire,
        };
        let task = tokio::spawn(async move {
            let mut polls = random(6);
            let work = async {
                let guard = acquire.await;
                sleep(millis(0..5)).await;
                if let Ok(guard) = guard {
                    drop(guard.release().await);
                }
            };
            let mut work = pin!(work);
            poll_fn(|context| {
                polls = polls.saturating_sub(1);
                match work.as_mut().poll(context) {
                    Poll::Pending if polls > 0 => Poll::Pending,
                    _ => Poll::Ready(()),
                }
            })
            .await;
        });
        sleep(millis(0..6)).await;
        if !task.is_finished() {
            dropped += 1;
            task.abort();
        }
    }
    run.proof(dropped > 20, format!("{dropped} tasks aborted"));
}

async fn runtime_gone(run: &mut Run) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let url = run.server().url();
    let referee = std::sync::Arc::clone(&run.referee);
    let (load, locks) = runtime
        .spawn(async move {
            let locks = manager(url, LEASE).await;
            let mut load = Load::new(true, false);
            load.add(&referee, &locks, OTHER, LEASE);
            (load, locks)
        })
        .await
        .expect("a load");
    let kept = crate::load::kept(OTHER);
    let start = run.referee.start.0;
    let granted = || run.referee.next_grant(&kept, start).is_some();
    eventually("it holds", granted).await;
    sleep(LEASE / 2).await;
    let begun = run.begin(Some(OTHER));
    let begin = Instant::now();
    // A runtime must not be dropped inside another one.
    let (gone, is_gone) = std::sync::mpsc::channel();
    drop(std::thread::spawn(move || {
        drop(runtime);
        gone.send(()).expect("the test waits");
    }));
    let ended = is_gone.recv_timeout(5 * SECOND).is_ok();
    run.referee
        .expect(ended, "drop", || "the runtime hangs".to_owned());
    run.end(&begun, 0);
    let held = locks.snapshot();
    run.proof(
        !held.is_idle(),
        format!("{:?} to end, {held:?}", begin.elapsed()),
    );
    drop((load, locks));
}

async fn shut_down(run: &mut Run) {
    let locks = run.managers[0].clone();
    let begun = run.begin(Some(0));
    let start = Instant::now();
    let left = locks.shutdown(2 * LEASE).await;
    let took = start.elapsed();
    // Three workers never release, of which one is a reader and one has a permit. Their leases are renewed to the end, and
    // their guards report the loss.
    let late = took.saturating_sub(2 * LEASE);
    let net = late.saturating_sub(run.referee.stall_detector.delay(start, start + took));
    run.referee
        .expect(net < 50 * MS, "shutdown", || format!("{late:?} late"));
    let others = (left.held, left.waiting);
    run.referee
        .expect(others == (3, 0), "shutdown", || format!("left: {left:?}"));
    // The waiters of that time are served, until 300 ms before the end.
    let after = start + 2 * LEASE - 200 * MS;
    let granted = run.grants(0, after);
    run.referee.expect(granted == 0, "shutdown", || {
        format!("{granted} grants after it")
    });
    let outage = run.end(&begun, 0);
    let refused = run.refusals(ErrorKind::ShuttingDown);
    run.proof(refused > 10, format!("{refused} rejected"));
    let kept = run.held_from(&crate::load::kept(0), outage.begin);
    run.referee
        .expect(kept, "shutdown", || "its holder was lost".to_owned());
}

/// The old holder detects the loss at its next renewal.
async fn forced(run: &mut Run) {
    let begun = run.begin(None);
    let mut forced = 0;
    for _ in 0..4 {
        let first = run.holder(0, "prize", 3 * LEASE).await;
        let waits = run.managers[1].acquire("prize").wait_forever();
        let asked = run.referee.asks();
        let second = tokio::spawn(waits.into_future());
        sleep(millis(20..400)).await;
        let outcome = run.managers[2].force_release("prize").await;
        forced += usize::from(outcome.is_ok_and(|released| released));
        let guard = second.await.expect("no panic").expect("it waits for ever");
        let second = run.referee.granted(guard, 1, asked, (LEASE, true));
        let was_lost = !first.await.expect("no panic");
        run.referee
            .expect(was_lost, "I9", || "forced open, and renewed".to_owned());
        drop(second.release().await);
    }
    run.end(&begun, 0);
    run.proof(forced > 1, format!("{forced} times"));
}
