//! Recorders that are installed late, and several of them.

use std::thread;

use tower_lock::LockManager;

use crate::support::recorder::Recorder;
use crate::{MS, run};

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
            locks.shutdown(crate::SECOND).await;
            assert_eq!(recorder.read().count(GRANTED), 1);
        });
    });
}

/// Reports of a recorder of the process, which this test installs.
#[test]
fn thread_reports_without_call() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let done = std::sync::mpsc::channel();
    let worker = thread::spawn(move || {
        run(async {
            let locks = LockManager::in_memory();
            drop(locks.acquire("k").name("of the thread").await.unwrap());
            // The runtime does nothing until the report.
            done.1.recv().unwrap();
        });
    });
    let is_reported = || {
        snapshotter
            .snapshot()
            .into_vec()
            .into_iter()
            .any(|(key, _, _, value)| {
                let mut labels = key.key().labels();
                key.key().name() == "tower_lock_acquires_total"
                    && labels.any(|it| it.value() == "of the thread")
                    && matches!(value, DebugValue::Counter(1))
            })
    };
    // At most 20 s.
    let found = (0..1000).any(|_| {
        thread::sleep(20 * MS);
        is_reported()
    });
    assert!(found, "not reported");
    done.0.send(()).unwrap();
    worker.join().unwrap();
}
