//! A single server that dies, hangs or is busy.

use std::time::{Duration, SystemTime};

use tokio::time::sleep;
use tower_lock::ErrorKind;

use super::{LEASE, ROUNDING, Row};
use crate::referee::BACKSTOP;
use crate::run::Run;
use crate::store::Topology::Single;
use crate::support::engine::{FENCE, MS, SECOND};

/// The replies of a server survive its process, but not a crash of its machine. `no` omits the sync, but
/// not the write before each reply.
const KEEPS_ALL: &[&str] = &["--appendonly", "yes", "--appendfsync", "no"];

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(Single(&[]), "killed, restarted empty", |run| {
            Box::pin(restarted_empty(run))
        })
        .lease(3 * SECOND)
        .loses_data(),
        Row::new(
            Single(&[]),
            "killed, restarted empty, with a quarantine",
            |run| Box::pin(quarantined(run)),
        )
        .lease(LEASE)
        .in_quarantine()
        .recovers_within(LEASE + ROUNDING + BACKSTOP),
        Row::new(
            Single(&[]),
            "killed, restarted from an older snapshot, with a quarantine",
            |run| Box::pin(restarted_from_snapshot(run)),
        )
        .lease(LEASE)
        .in_quarantine()
        .recovers_within(LEASE + ROUNDING + BACKSTOP)
        // No process leaves the places that the snapshot restores. Their queues expire.
        .clears_within(7 * SECOND),
        Row::new(
            Single(KEEPS_ALL),
            "killed, restarted with its data",
            |run| Box::pin(restarted_with_data(run)),
        )
        .lease(3 * SECOND),
        Row::new(Single(&[]), "stopped for less than the lease", |run| {
            Box::pin(stopped(run, 1_200 * MS))
        })
        .lease(3 * SECOND),
        Row::new(Single(&[]), "stopped for longer than the lease", |run| {
            Box::pin(stopped(run, 2_500 * MS))
        }),
    ]
}

async fn restarted_empty(run: &mut Run) {
    let before = run.cli("INFO server");
    let begun = run.begin(None);
    run.server().kill();
    sleep(300 * MS).await;
    run.server().launch_again();
    let outage = run.end(&begun, 1);
    run.expect_all_lost(outage);
    let run_id = |info: &str| {
        info.lines()
            .find(|it| it.starts_with("run_id"))
            .map(String::from)
    };
    let after = run.cli("INFO server");
    run.proof(run_id(&before) != run_id(&after), "another server");
}

/// The guards from before the fault expire first. No other owner is granted a lock until then.
async fn quarantined(run: &mut Run) {
    let begun = run.begin(None);
    run.server().kill();
    let killed = SystemTime::now();
    run.server().launch_again();
    let outage = run.end(&begun, 1);
    run.expect_all_lost(outage);
    expect_no_grant(run, killed, &[]).await;
}

/// The server has its counter, but not the grants since the snapshot.
async fn restarted_from_snapshot(run: &mut Run) {
    let counter = |run: &mut Run| run.cli(&format!("GET {FENCE}")).parse::<u64>().unwrap();
    run.cli("SAVE");
    let saved = counter(run);
    sleep(LEASE / 2).await;
    let begun = run.begin(None);
    let granted = counter(run);
    run.server().kill();
    let killed = SystemTime::now();
    run.server().launch_again();
    let restored = counter(run);
    let survivors = run.store.locks();
    run.end(&begun, 1);
    let is_older = saved.max(restored) < granted && restored > 0;
    run.proof(is_older, "grants after the snapshot");
    expect_no_grant(run, killed, &survivors).await;
}

/// The holders of `survivors` may hand off their locks, with new tokens.
async fn expect_no_grant(run: &mut Run, killed: SystemTime, survivors: &[String]) {
    sleep(LEASE - 300 * MS).await;
    let tried = run.managers[0].acquire("free").no_wait().await;
    let is_refused = tried.is_err_and(|error| error.kind() == ErrorKind::Unavailable);
    let mut granted = run.granted_since(killed);
    granted.retain(|hold| !survivors.contains(&format!("lock:{}", hold.key)));
    run.referee.expect(granted.is_empty(), "I1", || {
        format!("granted in quarantine: {granted:?}")
    });
    run.proof(is_refused, "a key without a holder is rejected");
}

async fn restarted_with_data(run: &mut Run) {
    let begun = run.begin(None);
    run.server().kill();
    sleep(300 * MS).await;
    let is_silent = run.is_silent();
    run.proof(is_silent, "no reply");
    run.server().launch_again();
    let outage = run.end(&begun, 1);
    run.expect_all_kept(outage).await;
}

async fn stopped(run: &mut Run, time: Duration) {
    let begun = run.begin(None);
    run.server().stop_process();
    sleep(time - 100 * MS).await;
    let is_silent = run.is_silent();
    run.proof(is_silent, "no reply");
    run.server().continue_process();
    let outage = run.end(&begun, 1);
    if time < run.row.lease / 2 {
        run.expect_all_kept(outage).await;
    }
}
