//! What metrics and the dashboard show of a server.

#[allow(dead_code)]
#[path = "../http/dashboard/support.rs"]
mod dashboard;

use std::cell::Cell;
use std::future::IntoFuture as _;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tower_lock::{LockManager, PostgresBackend};

use super::support::engine::{MS, eventually};
use super::support::other_runtime::current_thread;
use super::support::postgres_server::PostgresServer;
use super::support::recorder::Recorder;
use super::{LONG, backend};
use dashboard::{Stream, ask, open, post};

const PARTS: [&str; 3] = ["commands", "releases", "notifications"];

fn series(name: &str, address: &str, part: &str) -> String {
    format!("tower_lock_{name}{{server=\"{address}\",part=\"{part}\"}}")
}

fn address(server: &PostgresServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

async fn manager(server: &PostgresServer) -> LockManager {
    LockManager::builder(backend(server).await).build().unwrap()
}

/// The process holds nothing, and waits for nothing.
#[test]
fn outage_is_shown_and_ends_without_requests() {
    let recorder = Recorder::new();
    recorder.run(|| {
        current_thread().block_on(async {
            let mut server = PostgresServer::start(&[]).await;
            let (locks, address) = (manager(&server).await, address(&server));
            let incidents = Cell::new(0);
            let up = || {
                locks.flush_metrics();
                let seen = recorder.read();
                let begun = series("backend_incidents_total", &address, "commands");
                incidents.set(incidents.get() + seen.count(&begun));
                PARTS.map(|part| seen.gauge(&series("backend_up", &address, part)))
            };
            assert_eq!(up(), [1.0; 3]);
            server.kill();
            let acquire = locks.acquire("k").wait(300 * MS);
            acquire.await.unwrap_err();
            eventually("the outage is shown", || up() == [0.0, 1.0, 0.0]).await;
            assert_eq!(incidents.get(), 1);
            server.crash().await;
            eventually("the end is shown", || up() == [1.0; 3]).await;
        });
    });
}

/// A commit waits for it, and each attempt opens another connection.
#[test]
fn absent_standby_is_one_incident() {
    let recorder = Recorder::new();
    recorder.run(|| {
        current_thread().block_on(async {
            let server = PostgresServer::start(&[]).await;
            let locks = LockManager::connect(&server.url()).await.unwrap();
            let incidents = Cell::new(0);
            let up = || {
                locks.flush_metrics();
                let seen = recorder.read();
                let begun = series("backend_incidents_total", &address(&server), "commands");
                incidents.set(incidents.get() + seen.count(&begun));
                seen.gauge(&series("backend_up", &address(&server), "commands"))
            };
            let set_standby = async |name: &str| {
                let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
                server.run(&set).await;
                server.run("SELECT pg_reload_conf()").await;
            };
            let is_granted = async || locks.acquire("k").wait(1500 * MS).await.is_ok();
            let begun = Instant::now();
            set_standby("absent").await;
            // The server reads the setting shortly after.
            while is_granted().await {
                assert!(begun.elapsed() < LONG);
            }
            for _ in 0..3 {
                assert!(!is_granted().await);
                assert_eq!(up(), 0.0);
            }
            set_standby("").await;
            while up() == 0.0 {
                assert!(begun.elapsed() < LONG);
                is_granted().await;
                sleep(100 * MS).await;
            }
            assert_eq!(incidents.get(), 1);
        });
    });
}

#[test]
fn rejected_commands_are_shown_by_part() {
    let recorder = Recorder::new();
    recorder.run(|| {
        current_thread().block_on(async {
            let server = PostgresServer::start(&[]).await;
            server.run(PostgresBackend::MIGRATION).await;
            let rights =
                "CREATE ROLE app LOGIN PASSWORD 'none' IN ROLE pg_write_all_data, pg_read_all_data;
                GRANT USAGE ON SCHEMA tower_lock TO app;
                GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tower_lock TO app;
                GRANT USAGE, UPDATE ON tower_lock.counter TO app";
            server.run(rights).await;
            let url = server.url_of("app", "none", "postgres");
            let builder = PostgresBackend::builder(url).response_timeout(LONG / 10);
            let backend = builder.connect().await.unwrap();
            let locks = LockManager::builder(backend).build().unwrap();
            let address = address(&server);
            let up = || {
                locks.flush_metrics();
                let seen = recorder.read();
                PARTS[..2]
                    .iter()
                    .map(|part| seen.gauge(&series("backend_up", &address, part)))
                    .collect::<Vec<_>>()
            };
            let may = async |may: bool, function: &str| {
                let verb = if may { "GRANT" } else { "REVOKE" };
                let to = if may { "TO" } else { "FROM" };
                let right = format!("{verb} EXECUTE ON FUNCTION tower_lock.{function} {to} app");
                server.run(&right).await;
            };
            let guard = locks.acquire("k").await.unwrap();
            may(false, "release_one_2").await;
            guard.release().await.unwrap_err();
            assert_eq!(up(), [1.0, 0.0]);
            may(true, "release_one_2").await;
            eventually("releases succeed", || up() == [1.0, 1.0]).await;
            may(false, "enter").await;
            locks.acquire("k").no_wait().await.unwrap_err();
            assert_eq!(up(), [0.0, 1.0]);
            may(true, "enter").await;
            locks.acquire("k").await.unwrap().release().await.unwrap();
            assert_eq!(up(), [1.0, 1.0]);
        });
    });
}

/// Returns the first frame for which `is_expected` returns `true`.
async fn frame(stream: &mut Stream, is_expected: impl Fn(&Value) -> bool) -> Value {
    let expected = async {
        loop {
            let frame = stream.next().await.unwrap();
            if is_expected(&frame) {
                return frame;
            }
        }
    };
    timeout(LONG, expected).await.unwrap()
}

fn part<'a>(frame: &'a Value, server: &str, part: &str) -> &'a Value {
    let mut servers = frame["servers"].as_array().unwrap().iter();
    let found = servers.find(|it| it["server"] == server && it["part"] == part);
    found.unwrap_or_else(|| panic!("no {part} of {server} in {frame:#}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dashboard_shows_server_and_holders() {
    let mut server = PostgresServer::start(&[]).await;
    let [here, there] = [manager(&server).await, manager(&server).await];
    let (app, address) = (open(&here), address(&server));
    let mut stream = Stream::open(&app).await;
    let guard = there.acquire("other").await.unwrap();
    let waiter = tokio::spawn(here.acquire("other").wait(LONG).into_future());
    let is_queued = async || {
        let (status, found) = ask(&app, post("/api/v1/inspect", &json!({ "key": "other" }))).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(
            (&found["held"], &found["held_by"]),
            (&json!(true), &json!("elsewhere"))
        );
        found["queued"] == 1
    };
    while !is_queued().await {
        sleep(Duration::from_millis(10)).await;
    }
    for name in PARTS {
        let frame = frame(&mut stream, |_| true).await;
        assert_eq!(part(&frame, &address, name)["up"], true);
    }
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    server.kill();
    here.acquire("k").wait(300 * MS).await.unwrap_err();
    let down = frame(&mut stream, |it| {
        part(it, &address, "commands")["up"] == false
    })
    .await;
    let cause = &part(&down, &address, "commands")["cause"];
    assert!(
        cause
            .as_str()
            .unwrap()
            .contains("connection to the server failed"),
        "{cause}"
    );
    server.crash().await;
    frame(&mut stream, |it| {
        PARTS
            .iter()
            .all(|name| part(it, &address, name)["up"] == true)
    })
    .await;
}

/// The counts are those of all managers of the process.
#[test]
fn transfer_is_counted() {
    let recorder = Recorder::new();
    recorder.run(|| {
        current_thread().block_on(async {
            let server = PostgresServer::start(&[]).await;
            let [holder, other] = [manager(&server).await, manager(&server).await];
            let guard = holder.acquire("k").await.unwrap();
            let waiting = tokio::spawn(other.acquire("k").wait(LONG).into_future());
            while holder.inspect("k").await.unwrap().unwrap().queued == 0 {
                sleep(Duration::from_millis(10)).await;
            }
            guard.release().await.unwrap();
            drop(waiting.await.unwrap().unwrap());
            for locks in [holder, other] {
                locks.flush_metrics();
            }
        });
    });
    let seen = recorder.read();
    assert!(seen.count("tower_lock_transfers_total") > 0);
    assert_eq!(
        seen.counts("tower_lock_grants_total"),
        [("{via=\"backend\"}", 2)]
    );
}
