//! A server that replies with errors.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::ErrorKind;

use super::Row;
use crate::store::Topology::Single;
use crate::support::engine::{MS, SECOND, eventually};
use crate::world::{PROCESSES, World};

/// Shorter than a lease.
const A_WHILE: Duration = Duration::from_secs(1);
/// A client that the server rejected attempts again after a second, with a jitter of a tenth.
const MENDED: Duration = Duration::from_millis(1_100 + 300);
const MISCONFIGURED: &[ErrorKind] = &[ErrorKind::Misconfigured];
const SOMEBODY: &str = "ACL SETUSER somebody reset on >secret ~* &* +@all";

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Single(&[]), name, fault).lease(3 * SECOND);
    vec![
        row("SCRIPT FLUSH, again and again", |world| {
            Box::pin(flushed(world))
        }),
        row("memory full", |world| {
            Box::pin(configured(world, "maxmemory 1", "maxmemory 0", "OOM"))
        }),
        row("NOREPLICAS", |world| {
            let (bad, good) = ("min-replicas-to-write 1", "min-replicas-to-write 0");
            Box::pin(configured(world, bad, good, "NOREPLICAS"))
        }),
        row("MISCONF", |world| Box::pin(cannot_save(world))),
        row("READONLY", |world| Box::pin(read_only(world))),
        row("BUSY script", |world| Box::pin(busy(world))),
        row("CLIENT PAUSE", |world| Box::pin(paused(world))),
        row("password changed and changed back", |world| {
            Box::pin(wrong_password(world))
        })
        .logs_in_as(SOMEBODY, "somebody:secret")
        .may_fail_with(MISCONFIGURED)
        .recovers_within(MENDED),
        row("permission withdrawn and given back", |world| {
            Box::pin(no_permission(world))
        })
        .logs_in_as(SOMEBODY, "somebody:secret")
        .may_fail_with(MISCONFIGURED)
        .recovers_within(MENDED),
        row("CLIENT PAUSE WRITE", |world| Box::pin(paused_writes(world))).lease(6 * SECOND),
        row("one key forbidden", |world| Box::pin(forbidden(world)))
            .logs_in_as(SOMEBODY, "somebody:secret"),
        row("WRONGTYPE", |world| Box::pin(wrong_type(world)))
            .may_fail_with(&[ErrorKind::KeyConflict]),
    ]
}

async fn flushed(world: &mut World) {
    let loads = world.server().calls("eval");
    let end = Instant::now() + 1_500 * MS;
    while Instant::now() < end {
        world.cli("SCRIPT FLUSH");
        sleep(2 * MS).await;
    }
    let loads = world.server().calls("eval") - loads;
    world.proof(loads > 20, format!("{loads} reloads"));
}

/// The error of the server to a client that writes.
fn refusal(world: &mut World) -> String {
    match world.server().command(&["SET", "probe", "1"]) {
        Ok(_) => {
            world.cli("DEL probe");
            "nothing".to_owned()
        }
        Err(error) => error.to_string().chars().take(60).collect(),
    }
}

async fn configured(world: &mut World, bad: &str, good: &str, code: &str) {
    let begun = world.begin(None);
    world.cli(&format!("CONFIG SET {bad}"));
    sleep(A_WHILE).await;
    let refusal = refusal(world);
    world.proof(refusal.contains(code), refusal);
    world.cli(&format!("CONFIG SET {good}"));
    let outage = world.end(&begun, 0);
    // The held leases were renewed, or have time for it.
    world.expect_all_kept(outage).await;
}

async fn cannot_save(world: &mut World) {
    let dir = world.cli("CONFIG GET dir");
    let dir = dir.lines().last().expect("a path").to_owned();
    // A directory with the name of the file makes saving fail.
    std::fs::create_dir(format!("{dir}/dump.rdb")).expect("a directory");
    std::fs::write(format!("{dir}/dump.rdb/file"), "").expect("a file");
    let begun = world.begin(None);
    world
        .server()
        .cli(&["CONFIG", "SET", "save", "3600 1000000"]);
    world.cli("BGSAVE");
    let failed = |info: String| info.contains("rdb_last_bgsave_status:err");
    eventually("a failed save", || failed(world.cli("INFO persistence"))).await;
    sleep(A_WHILE).await;
    let refusal = refusal(world);
    world.proof(refusal.contains("MISCONF"), refusal);
    world.server().cli(&["CONFIG", "SET", "save", ""]);
    let outage = world.end(&begun, 0);
    world.expect_all_kept(outage).await;
}

async fn read_only(world: &mut World) {
    let begun = world.begin(None);
    // No server has the address of the primary, so the data stays.
    world.cli("REPLICAOF 127.0.0.1 1");
    sleep(A_WHILE).await;
    let refusal = refusal(world);
    world.proof(refusal.contains("read only"), refusal);
    world.cli("REPLICAOF NO ONE");
    let outage = world.end(&begun, 5);
    world.expect_all_kept(outage).await;
}

async fn busy(world: &mut World) {
    world.cli("CONFIG SET lua-time-limit 100");
    let begun = world.begin(None);
    let mut other = TcpStream::connect(("127.0.0.1", world.port())).expect("the server");
    let script: &[u8] = b"EVAL \"while true do end\" 0\r\n";
    other.write_all(script).expect("it listens");
    sleep(A_WHILE).await;
    let refusal = refusal(world);
    world.proof(refusal.contains("BUSY"), refusal);
    world.cli("SCRIPT KILL");
    let outage = world.end(&begun, 0);
    world.expect_all_kept(outage).await;
}

async fn paused(world: &mut World) {
    let begun = world.begin(None);
    world.cli("CLIENT PAUSE 1200 ALL");
    let start = Instant::now();
    sleep(A_WHILE).await;
    let is_silent = world.is_silent();
    world.proof(is_silent, "no answer");
    // A server that holds back all commands accepts no command from the test either.
    tokio::time::sleep_until(start + 1_200 * MS).await;
    let outage = world.end(&begun, 1);
    world.expect_all_kept(outage).await;
}

async fn paused_writes(world: &mut World) {
    let begun = world.begin(None);
    world.cli("CLIENT PAUSE 3000 WRITE");
    let start = Instant::now();
    sleep(2_500 * MS).await;
    let clients = world.cli("INFO clients");
    let blocked = clients
        .lines()
        .any(|line| line.starts_with("blocked_clients:") && !line.ends_with(":0"));
    world.proof(blocked, "writes are blocked");
    let made = world.connections_since(&begun);
    tokio::time::sleep_until(start + 3 * SECOND).await;
    let outage = world.end(&begun, 1);
    // One replacement per process.
    let allowed = PROCESSES as u64;
    world.referee.expect(made <= allowed, "I15", || {
        format!("{made} connections, {allowed} allowed")
    });
    world.expect_all_kept(outage).await;
}

/// Every acquire of the forbidden key shares calls with the load, which must not fail.
async fn forbidden(world: &mut World) {
    world.cli("ACL SETUSER somebody resetkeys ~lock:[^f]*");
    let begun = world.begin(Some(0));
    let start = Instant::now();
    let mut rejected = 0;
    while start.elapsed() < A_WHILE {
        let key = |n: usize| format!("forbidden:{n}");
        let attempts = (0..9).map(|n| world.managers[n % 3].acquire(&*key(n)).no_wait());
        for outcome in join_all(attempts.map(IntoFuture::into_future)).await {
            let error = outcome.expect_err("forbidden");
            world.referee.expect(
                error.kind() == ErrorKind::Misconfigured,
                "forbidden",
                || error.to_string(),
            );
            rejected += 1;
        }
        sleep(50 * MS).await;
    }
    world.proof(rejected > 20, format!("{rejected} acquires forbidden"));
    world.end(&begun, 0);
    world.cli("ACL SETUSER somebody allkeys");
}

async fn wrong_password(world: &mut World) {
    let begun = world.begin(None);
    world.cli("ACL SETUSER somebody resetpass >changed");
    world.cli("CLIENT KILL USER somebody");
    let log_ins = |world: &mut World| world.server().calls("hello") + world.server().calls("auth");
    let before = log_ins(world);
    sleep(A_WHILE).await;
    let attempts = log_ins(world) - before;
    world.cli("ACL SETUSER somebody >secret");
    world.end(&begun, 1);
    world.proof(attempts > 0, format!("{attempts} log-ins refused"));
    world.referee.expect(attempts <= 30, "I15", || {
        format!("{attempts} log-ins in {A_WHILE:?}")
    });
}

async fn no_permission(world: &mut World) {
    let begun = world.begin(None);
    world.cli("ACL SETUSER somebody -evalsha");
    sleep(A_WHILE).await;
    let log = world.cli("ACL LOG 1");
    world.proof(log.contains("evalsha"), "evalsha denied");
    world.cli("ACL SETUSER somebody +@all");
    world.end(&begun, 0);
}

/// A key that is not a lock, and a held one that another client overwrites.
async fn wrong_type(world: &mut World) {
    world.cli("SET lock:foreign precious");
    let locks = world.managers[0].clone();
    let overwritten = locks.acquire("overwritten").await.expect("free");
    let begun = world.begin(Some(0));
    world.cli("SET lock:overwritten precious");
    for n in 0..20 {
        let acquire = world.managers[n % 3].acquire("foreign");
        let start = Instant::now();
        let error = acquire.wait(SECOND).await.expect_err("not a lock");
        world.referee.shows_error(&error);
        world
            .referee
            .expect(error.kind() == ErrorKind::KeyConflict, "conflict", || {
                format!("{error} after {:?}", start.elapsed())
            });
        sleep(20 * MS).await;
    }
    world.end(&begun, 0);
    overwritten.lost().await;
    let referee = world.referee.clone();
    let lost = overwritten
        .release()
        .await
        .is_err_and(|error| error.is_lost());
    referee.expect(lost, "I3", || "an overwritten lock is not lost".to_owned());
    for key in ["lock:foreign", "lock:overwritten"] {
        let value = world.cli(&format!("GET {key}"));
        world.proof(value == "precious", format!("{key} untouched"));
        world.cli(&format!("DEL {key}"));
    }
}
