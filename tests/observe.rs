//! What operators see: counters and events, and no secrets in them.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tower_lock::LockManager;

const KEY: &str = "canary-key";

/// Two grants, one refusal, one loss.
async fn work() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire(KEY).await.unwrap();
    locks.acquire(KEY).no_wait().await.unwrap_err();
    drop(guard);
    let guard = locks
        .acquire(KEY)
        .lease(Duration::from_secs(1))
        .await
        .unwrap();
    guard.lost().await;
    tokio::time::sleep(Duration::from_millis(5)).await;
}

fn run() {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(work());
}

#[test]
fn acquires_are_counted_by_outcome_and_losses_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, logged);
    let mut seen = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<_> = key
            .key()
            .labels()
            .map(|label| label.value().to_owned())
            .collect();
        let value = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Histogram(samples) => samples.len() as u64,
            DebugValue::Gauge(_) => panic!("no gauges"),
        };
        seen.push((key.key().name().to_owned(), labels.join(","), value));
    }
    seen.sort();
    let expected = [
        ("tower_lock_acquires_total", "busy", 1),
        ("tower_lock_acquires_total", "granted", 2),
        ("tower_lock_lost_total", "", 1),
        ("tower_lock_wait_seconds", "", 3),
    ];
    let expected = expected.map(|(name, label, n)| (name.to_owned(), label.to_owned(), n));
    assert_eq!(seen, expected);
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs, and returns the log. Every test runs so: an event that is first met where nobody listens
/// may be off for those who listen at the same time.
fn logged() -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, run);
    let log = log.0.lock().unwrap().clone();
    String::from_utf8(log).unwrap()
}

#[test]
fn a_loss_is_logged_once_and_without_the_key() {
    let log = logged();
    assert_eq!(log.matches("lock lost while held").count(), 1, "{log}");
    assert_eq!(log.matches("outcome=\"busy\"").count(), 1, "{log}");
    assert!(!log.contains(KEY), "{log}");
}
