//! One run: a server, two managers with load, a fault, and the exporter.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tower_lock::metrics::BUCKETS;
use tower_lock::{LockManager, RedisBackend};

use crate::fault::Fault;
use crate::history::History;
use crate::load::Load;
use crate::recording::Recording;
use crate::stall::Stall;
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

/// The time between two scrapes.
const PERIOD: Duration = Duration::from_millis(250);
/// The load before the fault.
const CALM: Duration = Duration::from_secs(3);
/// The load after it.
const AFTERMATH: Duration = Duration::from_secs(3);

/// Runs the fault, and writes the last scrape into a file as the exporter renders it.
pub(crate) fn run(fault: &Fault, port: u16, scrape: &Path) -> Recording {
    let matcher = Matcher::Prefix("tower_lock_".into());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(matcher, &BUCKETS);
    let recorder = builder.unwrap().build_recorder();
    let rendering = recorder.handle();
    metrics::set_global_recorder(recorder).unwrap();
    // With one thread, no grant can come between the last poll of an acquire and its drop.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let recording = runtime.block_on(with(fault, port, rendering.clone()));
    std::fs::write(scrape, rendering.render()).unwrap();
    recording
}

/// Serves the metrics as a process in production does.
async fn serve(port: u16, rendering: PrometheusHandle) {
    let render = get(move || std::future::ready(rendering.render()));
    let app = Router::new().route("/metrics", render);
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}

async fn with(fault: &Fault, port: u16, rendering: PrometheusHandle) -> Recording {
    tokio::spawn(serve(port, rendering.clone()));
    let stall = Stall::watch();
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let url = fault.url(&server, &proxy);
    let managers = [connect(fault, &url).await, connect(fault, &url).await];
    let history = History::default();
    let mut recording = Recording::default();
    let mut scrape = || {
        managers.iter().for_each(LockManager::flush_metrics);
        rendering.run_upkeep();
        recording.add(&rendering.render()).clone()
    };

    let load = Load::start(&managers, &history);
    let run = async {
        sleep(CALM).await;
        let server = fault.happen(server, &proxy).await;
        sleep(AFTERMATH).await;
        load.stop().await;
        let idle = || managers.iter().all(|locks| locks.snapshot().is_idle());
        eventually("all locks are released", idle).await;
        server
    };
    let mut run = std::pin::pin!(run);
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let _server = loop {
        tokio::select! {
            server = &mut run => break server,
            _ = ticks.tick() => drop(scrape()),
        }
    };
    history.expect_same(&scrape());
    stall.expect_no_later(recording.longest_lag());
    let lost = history.total("tower_lock_lost_total");
    assert_eq!(lost > 0, fault.loses, "{}: {lost} lost", fault.name);
    println!(
        "{}: {} grants, {lost} losses, {} acquires, all counted",
        fault.name,
        history.total("tower_lock_grants_total"),
        history.total("tower_lock_acquires_total"),
    );
    recording
}

/// Returns a manager as in a separate process.
async fn connect(fault: &Fault, url: &str) -> LockManager {
    let backend = RedisBackend::builder(url).response_timeout(1_500 * MS);
    let backend = backend.connect_timeout(SECOND).connect().await;
    let builder = LockManager::builder(backend.expect("the server is there"));
    builder.watchdog_timeout(fault.lease).build().unwrap()
}
