//! How fast the queue of a lane moves.

use std::time::Duration;

use crate::lock::clock::{Moment, Span};

/// The number of grants and the time after which the older ones count half. Holds of one process alternate with the
/// turns of others, so a few grants do not show the mean.
const RECENT_GRANTS: u32 = 16;
const RECENT: Span = Span::new(Duration::from_secs(1));

/// The recent grants to waiters, and the time that they took together.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The last grant, or the start of the hold for whose end the queue waits.
    pub(super) last: Option<Moment>,
    time: Span,
    grants: u32,
    pub(super) estimate: Option<Estimate>,
}

/// When the lock is free for a further acquire, as estimated some time ago.
#[derive(Debug, Clone, Copy)]
pub(super) struct Estimate {
    pub(super) free_at: Moment,
    /// The number of waiters at that time.
    pub(super) waiters: usize,
    pub(super) until: Moment,
}

impl Pace {
    /// Records a grant to a waiter.
    pub(crate) fn advance(&mut self, now: Moment) {
        let since = self.last.replace(now).unwrap_or(now);
        self.time = self.time + now.span_since(since);
        self.grants += 1;
        if self.grants >= RECENT_GRANTS && self.time >= RECENT {
            self.time = self.time / 2;
            self.grants /= 2;
        }
    }

    /// Returns the mean time of one grant, or `None` before the first one.
    pub(super) fn mean(&self) -> Option<Duration> {
        (self.grants > 0).then(|| (self.time / self.grants).get())
    }
}
