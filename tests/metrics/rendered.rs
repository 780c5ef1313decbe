//! What Prometheus scrapes.

use std::path::Path;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use metrics_util::MetricKindMask;
use tower_lock::LockManager;
use tower_lock::metrics::BUCKETS;

use crate::backend::Faulty;
use crate::{MS, run};

#[test]
fn rendered_buckets_are_exact() {
    let matcher = Matcher::Prefix("tower_lock_".into());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(matcher, &BUCKETS);
    let recorder = builder.unwrap().build_recorder();
    let rendering = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        run(async {
            // It sends commands, so their metrics are rendered as well.
            let locks = LockManager::builder(Faulty::default()).build().unwrap();
            for millis in [8, 9, 65, 66] {
                let guard = locks.acquire("k").name("orders").await.unwrap();
                let other = locks.acquire("other").name(format!("{millis} ms"));
                let other = other.await.unwrap();
                tokio::time::sleep(millis * MS).await;
                drop((guard, other));
            }
            locks.flush_metrics();
        });
    });
    let text = rendering.render();
    // The bounds are 8.192 ms, 16.384 ms, 65.536 ms and 131.072 ms.
    for (bound, count) in [
        ("0.004096", 0),
        ("0.008192", 1),
        ("0.016384", 2),
        ("0.065536", 3),
        ("0.131072", 4),
    ] {
        let line =
            format!("tower_lock_hold_seconds_bucket{{layer=\"orders\",le=\"{bound}\"}} {count}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    // Each sum has one sample. With several, the errors of the buckets partly cancel out.
    for (layer, expected) in [
        ("8 ms", 8.0),
        ("9 ms", 9.0),
        ("65 ms", 65.0),
        ("66 ms", 66.0),
    ] {
        let series = format!("tower_lock_hold_seconds_sum{{layer=\"{layer}\"}} ");
        let sum = text.lines().find_map(|line| line.strip_prefix(&series));
        let millis = 1000.0 * sum.unwrap().parse::<f64>().unwrap();
        assert!((millis / expected - 1.0).abs() <= 0.06, "{layer}: {millis}");
    }
    for metric in ["wait", "hold", "backend_command", "transfer"] {
        let line = format!("# TYPE tower_lock_{metric}_seconds histogram\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for metric in types.map(|line| line.split(' ').next().unwrap()) {
        let help = format!("# HELP {metric} ");
        assert!(text.contains(&help), "{help}{text}");
    }
    assert!(
        text.contains("tower_lock_lost_total{reason=\"expired\",layer=\"orders\"} 0\n"),
        "{text}"
    );
    // `make ops` checks it.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scrape.prom");
    std::fs::write(path, text).unwrap();
}

/// A timeout of zero removes each series that nothing has written since the last scrape.
#[test]
fn idle_timeout_keeps_counters_and_gauges() {
    let builder = PrometheusBuilder::new();
    let builder = builder.idle_timeout(MetricKindMask::ALL, Some(Duration::ZERO));
    let recorder = builder.build_recorder();
    let rendering = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        run(async {
            let locks = LockManager::in_memory();
            let guard = locks.acquire("k").await.unwrap();
            let scrape = || {
                locks.flush_metrics();
                rendering.render()
            };
            scrape();
            let idle = scrape();
            for line in [
                "tower_lock_held{mode=\"exclusive\"} 1\n",
                "tower_lock_waiting 0\n",
                "tower_lock_waiting_limit 65536\n",
                "tower_lock_lost_total{reason=\"expired\"} 0\n",
                "tower_lock_grants_total{via=\"backend\"} 1\n",
            ] {
                assert!(idle.contains(line), "{line}{idle}");
            }
            assert!(!idle.contains("tower_lock_hold_seconds"), "{idle}");
            drop(guard);
            drop(locks.acquire("k").await.unwrap());
            let later = scrape();
            for line in [
                "tower_lock_held{mode=\"exclusive\"} 0\n",
                "tower_lock_grants_total{via=\"backend\"} 2\n",
                // A removed histogram begins again.
                "tower_lock_hold_seconds_count 2\n",
            ] {
                assert!(later.contains(line), "{line}{later}");
            }
        });
    });
}
