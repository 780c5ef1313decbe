//! Recorders that are installed late, and several of them.

use std::thread;

use tokio::time::Instant;
use tower_lock::LockManager;

use crate::support::recorder::Recorder;
use crate::{MS, SECOND, run};

const GRANTED: &str = "tower_lock_acquires_total{outcome=\"granted\"}";
const WAIT: &str = "tower_lock_wait_seconds{outcome=\"granted\"}";

#[test]
fn recorder_installed_later_receives_earlier_counts() {
    let (early, late) = (Recorder::new(), Recorder::new());
    run(async {
        // No recorder is installed.
        let locks = LockManager::in_memory();
        drop(locks.acquire("k").await.unwrap());
        locks.flush_metrics();
        early.run(|| locks.flush_metrics());
        drop(locks.acquire("k").await.unwrap());
        // The handles of the first recorder do not belong to the second one.
        late.run(|| locks.flush_metrics());
        let seen = late.read();
        assert_eq!((seen.count(GRANTED), seen.samples(WAIT).len()), (2, 2));
        assert_eq!(seen.gauge("tower_lock_waiting_limit"), 65_536.0);
        assert_eq!(early.read().count(GRANTED), 1);
        late.run(|| locks.flush_metrics());
        assert_eq!(late.read().count(GRANTED), 0);
        early.run(|| locks.flush_metrics());
        assert_eq!(early.read().count(GRANTED), 1);
    });
}

#[test]
fn end_of_manager_reports_its_last_counts() {
    let recorder = Recorder::new();
    run(async {
        let locks = LockManager::in_memory();
        drop(locks.acquire("k").await.unwrap());
        recorder.run(|| drop(locks));
    });
    assert_eq!(recorder.read().count(GRANTED), 1);
}

#[test]
fn shutdown_reports_last_counts() {
    let recorder = Recorder::new();
    recorder.run(|| {
        run(async {
            let locks = LockManager::in_memory();
            drop(locks.acquire("k").await.unwrap());
            locks.shutdown(SECOND).await;
            assert_eq!(recorder.read().count(GRANTED), 1);
        });
    });
}

/// Reports of a recorder of the process, which this test installs.
#[test]
fn thread_reports_without_call() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    const NAME: &str = "of the thread";
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let done = std::sync::mpsc::channel();
    let worker = thread::spawn(move || {
        run(async {
            let locks = LockManager::in_memory();
            let _guard = locks.acquire("k").name(NAME).await.unwrap();
            // The runtime does nothing until the reports.
            done.1.recv().unwrap();
        });
    });
    let start = Instant::now();
    let (mut counted, mut held) = (None, None);
    while (counted.is_none() || held.is_none()) && start.elapsed() < 20 * SECOND {
        thread::sleep(20 * MS);
        let series = snapshotter.snapshot().into_vec();
        for (key, _, _, value) in series {
            if !key.key().labels().any(|label| label.value() == NAME) {
                continue;
            }
            match (key.key().name(), value) {
                ("tower_lock_acquires_total", DebugValue::Counter(1)) => {
                    counted = counted.or(Some(start.elapsed()));
                }
                ("tower_lock_held", DebugValue::Gauge(keys)) if keys.into_inner() == 1.0 => {
                    held = held.or(Some(start.elapsed()));
                }
                _ => {}
            }
        }
    }
    done.0.send(()).unwrap();
    worker.join().unwrap();
    // Counts are reported every second and gauges every 5 s. A busy machine may delay the threads by 2 s.
    assert!(counted.is_some_and(|it| it <= 3 * SECOND), "{counted:?}");
    assert!(held.is_some_and(|it| it <= 7 * SECOND), "{held:?}");
}
