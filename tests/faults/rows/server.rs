//! A single server that dies, hangs or is busy.

use std::time::{Duration, SystemTime};

use tokio::time::sleep;
use tower_lock::ErrorKind;

use super::{ROUNDING, Row};
use crate::referee::BACKSTOP;
use crate::store::Topology::Single;
use crate::support::engine::{FENCE, MS, SECOND};
use crate::world::World;

const LEASE: Duration = Duration::from_millis(1_500);
/// The replies of a server survive its process, but not a crash of its machine. `no` omits the sync, but
/// not the write before each reply.
const KEEPS_ALL: &[&str] = &["--appendonly", "yes", "--appendfsync", "no"];

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(Single(&[]), "killed, restarted empty", |world| {
            Box::pin(restarted_empty(world))
        })
        .lease(3 * SECOND)
        .loses_data(),
        Row::new(
            Single(&[]),
            "killed, restarted empty, with a quarantine",
            |world| Box::pin(quarantined(world)),
        )
        .lease(LEASE)
        .in_quarantine()
        .recovers_within(LEASE + ROUNDING + BACKSTOP),
        Row::new(
            Single(&[]),
            "killed, restarted from an older snapshot, with a quarantine",
            |world| Box::pin(restarted_from_snapshot(world)),
        )
        .lease(LEASE)
        .in_quarantine()
        .recovers_within(LEASE + ROUNDING + BACKSTOP),
        Row::new(
            Single(KEEPS_ALL),
            "killed, restarted with its data",
            |world| Box::pin(restarted_with_data(world)),
        )
        .lease(3 * SECOND),
        Row::new(Single(&[]), "stopped for less than the lease", |world| {
            Box::pin(stopped(world, 1_200 * MS))
        })
        .lease(3 * SECOND),
        Row::new(Single(&[]), "stopped for longer than the lease", |world| {
            Box::pin(stopped(world, 2_500 * MS))
        }),
    ]
}

async fn restarted_empty(world: &mut World) {
    let before = world.cli("INFO server");
    let begun = world.begin(None);
    world.server().kill();
    sleep(300 * MS).await;
    world.server().launch_again();
    let outage = world.end(&begun, 1);
    world.expect_all_lost(outage);
    let run = |info: &str| {
        info.lines()
            .find(|it| it.starts_with("run_id"))
            .map(String::from)
    };
    let after = world.cli("INFO server");
    world.proof(run(&before) != run(&after), "another server");
}

/// The guards from before the fault expire first. No other owner is granted a lock until then.
async fn quarantined(world: &mut World) {
    let begun = world.begin(None);
    world.server().kill();
    let killed = SystemTime::now();
    world.server().launch_again();
    let outage = world.end(&begun, 1);
    world.expect_all_lost(outage);
    expect_no_grant(world, killed, &[]).await;
}

/// The server has its counter, but not the grants since the snapshot.
async fn restarted_from_snapshot(world: &mut World) {
    let counter = |world: &mut World| world.cli(&format!("GET {FENCE}")).parse::<u64>().unwrap();
    world.cli("SAVE");
    let saved = counter(world);
    sleep(LEASE / 2).await;
    let begun = world.begin(None);
    let granted = counter(world);
    world.server().kill();
    let killed = SystemTime::now();
    world.server().launch_again();
    let restored = counter(world);
    let survivors = world.store.locks();
    world.end(&begun, 1);
    let is_older = saved.max(restored) < granted && restored > 0;
    world.proof(is_older, "grants after the snapshot");
    expect_no_grant(world, killed, &survivors).await;
}

/// The holders of `survivors` may hand off their locks, with new tokens.
async fn expect_no_grant(world: &mut World, killed: SystemTime, survivors: &[String]) {
    sleep(LEASE - 300 * MS).await;
    let tried = world.managers[0].acquire("nobody's").no_wait().await;
    let is_refused = tried.is_err_and(|error| error.kind() == ErrorKind::Unavailable);
    let mut granted = world.granted_since(killed);
    granted.retain(|hold| !survivors.contains(&format!("lock:{}", hold.key)));
    world.referee.expect(granted.is_empty(), "I1", || {
        format!("granted in quarantine: {granted:?}")
    });
    world.proof(is_refused, "a key without a holder is rejected");
}

async fn restarted_with_data(world: &mut World) {
    let begun = world.begin(None);
    world.server().kill();
    sleep(300 * MS).await;
    let is_silent = world.is_silent();
    world.proof(is_silent, "no answer");
    world.server().launch_again();
    let outage = world.end(&begun, 1);
    world.expect_all_kept(outage).await;
}

async fn stopped(world: &mut World, time: Duration) {
    let begun = world.begin(None);
    world.server().stop_process();
    sleep(time - 100 * MS).await;
    let is_silent = world.is_silent();
    world.proof(is_silent, "no answer");
    world.server().continue_process();
    let outage = world.end(&begun, 1);
    if time < world.row.lease / 2 {
        world.expect_all_kept(outage).await;
    }
}
