//! Logs of outages: one line when an outage begins and one when it ends.

mod outages;
mod rejections;

use std::collections::BTreeMap;
use std::time::Duration;

use tower_lock::{ErrorKind, LockManager};
use tracing_subscriber::filter::LevelFilter;

use crate::support::log::Log;

pub(super) const LEASE: Duration = Duration::from_secs(12);

const UNREACHED: &str = "WARN lock backend unreachable";

const REACHED: &str = "INFO lock backend reachable again";

pub(super) const REFUSED: &str = "WARN locks cannot be acquired";

pub(super) const GRANTED: &str = "INFO locks can be acquired again";

pub(super) const UNHEARD: &str = "WARN release notifications unavailable";

const HEARD: &str = "INFO release notifications available again";

impl Log {
    /// Returns the level and message of each line about a server, with the server's address.
    fn reported(&self) -> Vec<(String, String)> {
        let text = self.text();
        let lines = text.lines().filter_map(|line| {
            let (message, fields) = line.trim_start().split_once(" address=\"")?;
            let (address, _) = fields.split_once('"')?;
            Some((message.to_owned(), address.to_owned()))
        });
        lines.collect()
    }

    pub(super) fn messages(&self) -> Vec<String> {
        let reported = self.reported().into_iter();
        reported.map(|(message, _)| message).collect()
    }

    fn count(&self, message: &str) -> usize {
        self.messages().iter().filter(|it| *it == message).count()
    }

    /// Returns the addresses with an unfinished outage.
    fn troubled(&self) -> Vec<String> {
        let mut open = BTreeMap::<_, i32>::new();
        for (message, address) in self.reported() {
            let change = if message.starts_with("WARN") { 1 } else { -1 };
            *open.entry(address).or_default() += change;
        }
        open.retain(|_, open| *open != 0);
        open.into_keys().collect()
    }
}

/// Runs `work` and its tasks on this thread and passes it their log.
pub(super) fn logged<F: Future>(work: impl FnOnce(Log) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let log = Log::default();
    let recorder = log.clone();
    recorder.record(LevelFilter::INFO, || runtime.block_on(work(log)));
}

async fn is_unavailable(locks: &LockManager) {
    let error = locks.acquire("k").no_wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
