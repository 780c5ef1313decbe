//! The current link of a connection, and the failures to replace it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::redis::connection::{Connector, Link, backoff};
use crate::backend::{BackendError, BackendErrorKind};

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_millis(400);
/// A rejected client needs a person, not a retry.
const REFUSED_BACKOFF: Duration = Duration::from_secs(1);
/// A server that ended a link within this time of the last one is the same server.
const STEADY: Duration = Duration::from_secs(2);

/// The current link, and the failures to replace it.
#[derive(Default)]
pub(super) struct LinkState {
    pub(super) link: Option<Arc<Link>>,
    /// The number of the task that opens a link.
    pub(super) connecting: Option<u64>,
    /// The number of tasks so far.
    tasks: u64,
    /// There was a link before.
    pub(super) connected: bool,
    failures: u32,
    /// The number of consecutive links that ended, and the time of the last end.
    ends: u32,
    ended_at: Option<Instant>,
    failed: Option<(Instant, BackendError)>,
}

impl LinkState {
    /// Returns the number of the task to start, unless one opens a link.
    pub(super) fn connect(&mut self) -> Option<u64> {
        self.connecting.is_none().then(|| self.next_task())
    }

    /// Returns the number of the task that replaces this one, unless this one is over.
    pub(super) fn take_over(&mut self, number: u64) -> Option<u64> {
        (self.connecting == Some(number)).then(|| self.next_task())
    }

    fn next_task(&mut self) -> u64 {
        self.tasks += 1;
        self.connecting = Some(self.tasks);
        self.tasks
    }

    /// Returns the last failure before its backoff has passed.
    pub(super) fn failure(&self) -> Option<BackendError> {
        let (until, error) = self.failed.as_ref()?;
        (Instant::now() < *until).then(|| error.clone())
    }

    /// Returns the link if it answers and leads to the server of the locks.
    pub(super) fn sound(&mut self, connector: &Connector) -> Option<Arc<Link>> {
        let is_over = |link: &mut Arc<Link>| link.has_ended() || connector.has_left(link);
        drop(self.link.take_if(is_over));
        let link = self.link.as_ref();
        link.filter(|link| !link.is_suspect()).cloned()
    }

    /// Returns `true` if there was a link before.
    pub(super) fn connected(&mut self, link: Link, connector: &Connector) -> bool {
        self.failures = 0;
        self.failed = None;
        // The old link may have answered in the meantime. Then it stays, which keeps the order of
        // commands.
        if self.sound(connector).is_none() {
            self.link = Some(Arc::new(link));
        }
        std::mem::replace(&mut self.connected, true)
    }

    /// Returns the pause before the next attempt.
    pub(super) fn failed(&mut self, error: BackendError) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let longest = match error.kind() {
            BackendErrorKind::Unavailable => LONGEST_BACKOFF,
            _ => REFUSED_BACKOFF,
        };
        let pause = backoff(self.failures, FIRST_BACKOFF, longest);
        self.failed = Some((Instant::now() + pause, error));
        pause
    }

    /// Returns the pause before a link that ended is replaced in the background: none, unless the server
    /// ends one link after another.
    pub(super) fn ended(&mut self) -> Duration {
        let now = Instant::now();
        let is_first = self.ended_at.is_none_or(|last| now > last + STEADY);
        self.ends = if is_first { 0 } else { self.ends + 1 };
        self.ended_at = Some(now);
        match is_first {
            true => Duration::ZERO,
            false => backoff(self.ends, FIRST_BACKOFF, LONGEST_BACKOFF),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_while_server_ends_links() {
        let mut state = LinkState::default();
        assert_eq!(state.ended(), Duration::ZERO);
        let mut expected = FIRST_BACKOFF;
        for _ in 0..10 {
            advance(STEADY / 2).await;
            let pause = state.ended();
            let about = expected.mul_f64(0.89)..expected.mul_f64(1.11);
            assert!(about.contains(&pause), "{pause:?}");
            expected = (expected * 2).min(LONGEST_BACKOFF);
        }
        advance(STEADY * 2).await;
        assert_eq!(state.ended(), Duration::ZERO);
    }
}
