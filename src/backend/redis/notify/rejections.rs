//! The channels that a server rejected, and the pauses after rejections and failures.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::redis::connection::backoff;
use crate::backend::{BackendError, BackendErrorKind};

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_millis(500);
/// A connection that ends sooner than this counts as a further failure.
pub(super) const STEADY: Duration = Duration::from_secs(2);
/// A rejected client needs a person, not a retry.
const REFUSED_BACKOFF: Duration = Duration::from_secs(5);

/// The rejected channels of a connection, which are subscribed to again after a backoff.
#[derive(Default)]
pub(super) struct Rejections {
    /// The number of consecutive rounds with a rejection.
    rounds: u32,
    retry_at: Option<Instant>,
}

impl Rejections {
    pub(super) fn add(&mut self, error: &BackendError) {
        if self.retry_at.is_none() {
            self.rounds += 1;
            self.retry_at = Some(Instant::now() + pause_after(error, self.rounds));
        }
    }

    /// Returns `true` once when the backoff has passed.
    pub(super) fn are_due(&mut self) -> bool {
        self.retry_at.take_if(|at| *at <= Instant::now()).is_some()
    }

    /// Returns `true` unless there are rejected channels.
    pub(super) fn are_over(&mut self) -> bool {
        let over = self.retry_at.is_none();
        if over {
            self.rounds = 0;
        }
        over
    }
}

/// Returns the pause after so many consecutive failures, the last of which is `error`.
pub(super) fn pause_after(error: &BackendError, failures: u32) -> Duration {
    match error.kind() {
        BackendErrorKind::Unavailable => backoff(failures, FIRST_BACKOFF, LONGEST_BACKOFF),
        _ => backoff(failures, STEADY, REFUSED_BACKOFF),
    }
}
