//! The observable effects of some work: its log, and the labels of its metrics.

use std::io::Write;
use std::sync::{Arc, Mutex};

use metrics_util::debugging::DebuggingRecorder;
use tracing_subscriber::filter::LevelFilter;

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

/// Runs `work` and all its tasks on this thread. Also returns their log.
pub(crate) fn observed<T>(work: impl Future<Output = T>) -> (T, String) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let output = metrics::with_local_recorder(&recorder, || {
        tracing::subscriber::with_default(subscriber, || runtime.block_on(work))
    });
    let mut told = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for (key, ..) in snapshotter.snapshot().into_vec() {
        told.push_str(&format!("{}\n", key.key()));
    }
    (output, told)
}
