//! The metrics of a process without requests.
//!
//! It is a program of its own: it installs the recorder of the process, and no other manager may report.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use metrics_util::MetricKindMask;
use tokio::time::sleep;

use support::engine::{SECOND, prompt_manager};
use support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);

/// The exporter removes a series that nothing has written between two scrapes with this time between them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longer than the timeout, and than the 5 s between two reports of the gauges. A busy machine may delay them.
const IDLE: Duration = Duration::from_secs(8);

/// The server ends before the first acquire.
#[tokio::test]
async fn process_without_acquires_reports() {
    let builder = PrometheusBuilder::new();
    let builder = builder.idle_timeout(MetricKindMask::ALL, Some(IDLE_TIMEOUT));
    let rendering = builder.install_recorder().unwrap();
    let mut server = RedisServer::start();
    let locks = prompt_manager(server.url(), LEASE).await;
    // It registers the series of the layer.
    drop(locks.acquire("k").name("orders"));
    let address = server.address();
    let up = format!("tower_lock_backend_up{{server=\"{address}\",part=\"commands\"}} ");
    let expect = |lines: &[&str]| {
        let text = rendering.render();
        for line in lines {
            assert!(text.contains(&format!("{line}\n")), "{line} in {text}");
        }
    };
    expect(&[&format!("{up}1")]);
    server.kill();
    locks.inspect("k").await.unwrap_err();
    sleep(IDLE).await;
    expect(&[
        &format!("{up}0"),
        "tower_lock_waiting_limit 65536",
        "tower_lock_grants_total{via=\"backend\"} 0",
        "tower_lock_lost_total{reason=\"expired\"} 0",
        "tower_lock_held{mode=\"exclusive\"} 0",
        "tower_lock_grants_total{via=\"backend\",layer=\"orders\"} 0",
        "tower_lock_lost_total{reason=\"expired\",layer=\"orders\"} 0",
        "tower_lock_held{mode=\"exclusive\",layer=\"orders\"} 0",
    ]);
    server.launch_again();
    let guard = locks.acquire("k").name("orders").wait(20 * SECOND);
    let guard = guard.await.unwrap();
    locks.flush_metrics();
    expect(&[
        &format!("{up}1"),
        "tower_lock_grants_total{via=\"backend\",layer=\"orders\"} 1",
        "tower_lock_held{mode=\"exclusive\",layer=\"orders\"} 1",
    ]);
    guard.release().await.unwrap();
}
