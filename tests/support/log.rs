//! A log in memory.

use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex};

#[cfg(feature = "tracing")]
use tracing::{Dispatch, subscriber::NoSubscriber};
#[cfg(feature = "tracing")]
use tracing_subscriber::filter::LevelFilter;

/// The lines that a subscriber has written. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// With one subscriber in the process, the thread that first reaches an event decides for all threads
/// whether it is enabled, and that thread may have none. With two, all subscribers are asked.
#[cfg(feature = "tracing")]
pub(crate) fn ask_each_subscriber() {
    static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
    LazyLock::force(&ANOTHER);
}

#[cfg(feature = "tracing")]
impl Log {
    /// Runs `work` on this thread with a subscriber that writes the events of `level` and above to this log.
    pub(crate) fn record<T>(&self, level: LevelFilter, work: impl FnOnce() -> T) -> T {
        ask_each_subscriber();
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .without_time()
            .with_target(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, work)
    }
}

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}
