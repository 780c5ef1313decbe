//! The observable effects of some work: its log with all spans, and the labels of its metrics.

use metrics_util::debugging::DebuggingRecorder;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::support::log::{Log, ask_each_subscriber};

/// Runs `work` and all its tasks on this thread. Also returns their log.
pub(crate) fn observed<T>(work: impl Future<Output = T>) -> (T, String) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    ask_each_subscriber();
    let log = Log::default();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let output = metrics::with_local_recorder(&recorder, || {
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_span_events(FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || runtime.block_on(work))
    });
    let mut seen = log.text();
    for (key, ..) in snapshotter.snapshot().into_vec() {
        seen.push_str(&format!("{}\n", key.key()));
    }
    (output, seen)
}
