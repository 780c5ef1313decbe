//! A server that replies with errors.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until};
use tower_lock::ErrorKind;
use tower_lock::backend::Mode;

use super::Row;
use crate::line::{BODY, Holder, Line, TURN};
use crate::run::{PROCESSES, Run};
use crate::store::Topology::Single;
use crate::support::engine::{MS, SECOND, eventually};

/// Shorter than a lease.
const A_WHILE: Duration = Duration::from_secs(1);
/// A client that the server rejected attempts again after a second, with a jitter of a tenth.
const MENDED: Duration = Duration::from_millis(1_100 + 300);
const MISCONFIGURED: &[ErrorKind] = &[ErrorKind::Refused];
const SOMEBODY: &str = "ACL SETUSER somebody reset on >secret ~* &* +@all";

pub(super) fn rows() -> Vec<Row> {
    let row = |name, fault| Row::new(Single(&[]), name, fault).lease(3 * SECOND);
    vec![
        row("SCRIPT FLUSH, again and again", |run| {
            Box::pin(flushed(run))
        }),
        row("memory full", |run| {
            Box::pin(configured(run, "maxmemory 1", "maxmemory 0", "OOM"))
        }),
        row("NOREPLICAS", |run| {
            let (bad, good) = ("min-replicas-to-write 1", "min-replicas-to-write 0");
            Box::pin(configured(run, bad, good, "NOREPLICAS"))
        }),
        row("MISCONF", |run| Box::pin(cannot_save(run))),
        row("READONLY", |run| Box::pin(read_only(run))),
        row("BUSY script", |run| Box::pin(busy(run))),
        row("CLIENT PAUSE", |run| Box::pin(paused(run))),
        row("password changed and changed back", |run| {
            Box::pin(wrong_password(run))
        })
        .logs_in_as(SOMEBODY, "somebody:secret")
        .may_fail_with(MISCONFIGURED)
        .recovers_within(MENDED),
        row("permission withdrawn and restored", |run| {
            Box::pin(no_permission(run))
        })
        .logs_in_as(SOMEBODY, "somebody:secret")
        .may_fail_with(MISCONFIGURED)
        .recovers_within(MENDED),
        row("shared: reads of the lock denied", |run| {
            Box::pin(reads_denied(run, Mode::Shared))
        })
        .logs_in_as(SOMEBODY, "somebody:secret")
        .may_fail_with(MISCONFIGURED)
        .recovers_within(MENDED),
        row("permits: reads of the lock denied", |run| {
            Box::pin(reads_denied(run, Mode::Permit))
        })
        .logs_in_as(SOMEBODY, "somebody:secret")
        .may_fail_with(MISCONFIGURED)
        .recovers_within(MENDED),
        row("CLIENT PAUSE WRITE", |run| Box::pin(paused_writes(run))).lease(6 * SECOND),
        row("one key forbidden", |run| Box::pin(forbidden(run)))
            .logs_in_as(SOMEBODY, "somebody:secret"),
        row("WRONGTYPE", |run| Box::pin(wrong_type(run))).may_fail_with(&[ErrorKind::KeyConflict]),
    ]
}

async fn flushed(run: &mut Run) {
    let loads = run.server().calls("eval");
    let end = Instant::now() + 1_500 * MS;
    while Instant::now() < end {
        run.cli("SCRIPT FLUSH");
        sleep(2 * MS).await;
    }
    let loads = run.server().calls("eval") - loads;
    run.proof(loads > 20, format!("{loads} reloads"));
}

/// The error of the server to a client that writes.
fn refusal(run: &mut Run) -> String {
    match run.server().command(&["SET", "probe", "1"]) {
        Ok(_) => {
            run.cli("DEL probe");
            "nothing".to_owned()
        }
        Err(error) => error.to_string().chars().take(60).collect(),
    }
}

async fn configured(run: &mut Run, bad: &str, good: &str, code: &str) {
    let begun = run.begin(None);
    run.cli(&format!("CONFIG SET {bad}"));
    sleep(A_WHILE).await;
    let refusal = refusal(run);
    run.proof(refusal.contains(code), refusal);
    run.cli(&format!("CONFIG SET {good}"));
    let outage = run.end(&begun, 0);
    // The held leases were renewed, or have time for it.
    run.expect_all_kept(outage).await;
}

async fn cannot_save(run: &mut Run) {
    let dir = run.cli("CONFIG GET dir");
    let dir = dir.lines().last().expect("a path").to_owned();
    // A directory with the name of the file makes saving fail.
    std::fs::create_dir(format!("{dir}/dump.rdb")).expect("a directory");
    std::fs::write(format!("{dir}/dump.rdb/file"), "").expect("a file");
    let begun = run.begin(None);
    run.server().cli(&["CONFIG", "SET", "save", "3600 1000000"]);
    run.cli("BGSAVE");
    let failed = |info: String| info.contains("rdb_last_bgsave_status:err");
    eventually("a failed save", || failed(run.cli("INFO persistence"))).await;
    sleep(A_WHILE).await;
    let refusal = refusal(run);
    run.proof(refusal.contains("MISCONF"), refusal);
    run.server().cli(&["CONFIG", "SET", "save", ""]);
    let outage = run.end(&begun, 0);
    run.expect_all_kept(outage).await;
}

async fn read_only(run: &mut Run) {
    let begun = run.begin(None);
    // No server has the address of the primary, so the data stays.
    run.cli("REPLICAOF 127.0.0.1 1");
    sleep(A_WHILE).await;
    let refusal = refusal(run);
    run.proof(refusal.contains("read only"), refusal);
    run.cli("REPLICAOF NO ONE");
    let outage = run.end(&begun, 5);
    run.expect_all_kept(outage).await;
}

async fn busy(run: &mut Run) {
    run.cli("CONFIG SET lua-time-limit 100");
    let begun = run.begin(None);
    let mut other = TcpStream::connect(("127.0.0.1", run.port())).expect("the server");
    let script: &[u8] = b"EVAL \"while true do end\" 0\r\n";
    other.write_all(script).expect("it listens");
    sleep(A_WHILE).await;
    let refusal = refusal(run);
    run.proof(refusal.contains("BUSY"), refusal);
    run.cli("SCRIPT KILL");
    let outage = run.end(&begun, 0);
    run.expect_all_kept(outage).await;
}

async fn paused(run: &mut Run) {
    let begun = run.begin(None);
    run.cli("CLIENT PAUSE 1200 ALL");
    let start = Instant::now();
    sleep(A_WHILE).await;
    let is_silent = run.is_silent();
    run.proof(is_silent, "no reply");
    // A server that holds back all commands accepts no command from the test either.
    sleep_until(start + 1_200 * MS).await;
    let outage = run.end(&begun, 1);
    run.expect_all_kept(outage).await;
}

async fn paused_writes(run: &mut Run) {
    let begun = run.begin(None);
    run.cli("CLIENT PAUSE 3000 WRITE");
    let start = Instant::now();
    sleep(2_500 * MS).await;
    let clients = run.cli("INFO clients");
    let blocked = clients
        .lines()
        .any(|line| line.starts_with("blocked_clients:") && !line.ends_with(":0"));
    run.proof(blocked, "writes are blocked");
    let made = run.connections_since(&begun);
    sleep_until(start + 3 * SECOND).await;
    let outage = run.end(&begun, 1);
    // One replacement per process.
    let allowed = PROCESSES as u64;
    run.referee.expect(made <= allowed, "I15", || {
        format!("{made} connections, {allowed} allowed")
    });
    run.expect_all_kept(outage).await;
}

/// Every acquire of the forbidden key shares calls with the load, which must not fail.
async fn forbidden(run: &mut Run) {
    run.cli("ACL SETUSER somebody resetkeys ~lock:[^f]*");
    let begun = run.begin(Some(0));
    let start = Instant::now();
    let mut rejected = 0;
    while start.elapsed() < A_WHILE {
        let key = |n: usize| format!("forbidden:{n}");
        let attempts = (0..9).map(|n| run.managers[n % 3].acquire(&*key(n)).no_wait());
        for outcome in join_all(attempts.map(IntoFuture::into_future)).await {
            let error = outcome.expect_err("forbidden");
            run.referee
                .expect(error.kind() == ErrorKind::Refused, "forbidden", || {
                    error.to_string()
                });
            rejected += 1;
        }
        sleep(50 * MS).await;
    }
    run.proof(rejected > 20, format!("{rejected} acquires forbidden"));
    run.end(&begun, 0);
    run.cli("ACL SETUSER somebody allkeys");
}

async fn wrong_password(run: &mut Run) {
    let begun = run.begin(None);
    run.cli("ACL SETUSER somebody resetpass >changed");
    run.cli("CLIENT KILL USER somebody");
    let log_ins = |run: &mut Run| run.server().calls("hello") + run.server().calls("auth");
    let before = log_ins(run);
    sleep(A_WHILE).await;
    let attempts = log_ins(run) - before;
    run.cli("ACL SETUSER somebody >secret");
    run.end(&begun, 1);
    run.proof(attempts > 0, format!("{attempts} log-ins rejected"));
    run.referee.expect(attempts <= 30, "I15", || {
        format!("{attempts} log-ins in {A_WHILE:?}")
    });
}

async fn no_permission(run: &mut Run) {
    let begun = run.begin(None);
    run.cli("ACL SETUSER somebody -evalsha");
    sleep(A_WHILE).await;
    let log = run.cli("ACL LOG 1");
    run.proof(log.contains("evalsha"), "evalsha denied");
    run.cli("ACL SETUSER somebody +@all");
    run.end(&begun, 0);
}

/// Renewals and releases of shared leases and permits read the lock, which those of exclusive leases do not. A release
/// that is denied is sent again.
async fn reads_denied(run: &mut Run, mode: Mode) {
    let hold = async |process| match mode {
        Mode::Permit => Holder::permit(run, process, 2).await,
        _ => Holder::share(run, process).await,
    };
    let (kept, released) = (hold(0).await, hold(1).await);
    let begun = run.begin(None);
    run.cli("ACL SETUSER somebody -hget -hkeys -hvals");
    sleep(A_WHILE / 2).await;
    let at = released.release();
    sleep(A_WHILE / 2).await;
    let log = run.cli("ACL LOG 1");
    run.proof(log.contains("hget"), "a read denied");
    let leases = |run: &Run| {
        let fields = run.ask(&["HKEYS", BODY]);
        fields.lines().filter(|it| it.contains(':')).count()
    };
    let left = leases(run);
    run.proof(left == 2, format!("{left} leases are left"));
    run.cli("ACL SETUSER somebody +@all");
    run.end(&begun, 0);
    // An expired lease would keep its field.
    eventually("it is released", || leases(run) == 1).await;
    run.evidence(format!("released after {:.1?}", at.elapsed()));
    let line = Line::form(run, 1, 1).await;
    sleep_until(at + run.row.lease).await;
    run.proof(!kept.is_over(), "the other one is held");
    let released = kept.release();
    line.expect_served(run, released, 2 * TURN, true).await;
    run.expect_cleared(0).await;
}

/// A key that is not a lock, and a held one that another client overwrites.
async fn wrong_type(run: &mut Run) {
    run.cli("SET lock:foreign precious");
    let locks = run.managers[0].clone();
    let overwritten = locks.acquire("overwritten").await.expect("free");
    let begun = run.begin(Some(0));
    run.cli("SET lock:overwritten precious");
    for n in 0..20 {
        let acquire = run.managers[n % 3].acquire("foreign");
        let start = Instant::now();
        let error = acquire.wait(SECOND).await.expect_err("not a lock");
        run.referee.shows_error(&error);
        run.referee
            .expect(error.kind() == ErrorKind::KeyConflict, "conflict", || {
                format!("{error} after {:?}", start.elapsed())
            });
        sleep(20 * MS).await;
    }
    run.end(&begun, 0);
    overwritten.lost().await;
    let referee = run.referee.clone();
    let lost = overwritten
        .release()
        .await
        .is_err_and(|error| error.is_lost());
    referee.expect(lost, "I3", || "an overwritten lock is not lost".to_owned());
    for key in ["lock:foreign", "lock:overwritten"] {
        let value = run.cli(&format!("GET {key}"));
        run.proof(value == "precious", format!("{key} untouched"));
        run.cli(&format!("DEL {key}"));
    }
}
