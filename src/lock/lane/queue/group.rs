//! The other owners that share a lease.

use std::time::Duration;

use crate::lock::clock::Moment;
use crate::lock::lane::holding::readers::Readers;

/// The age of the last reply at which an owner that joins a shared lease makes a renewal due. The reply shows whether
/// an exclusive acquire of another process waits.
const ASK_AFTER: Duration = Duration::from_millis(50);

/// The time between two renewals while an exclusive acquire of another process keeps owners of this one from joining.
pub(in crate::lock::lane) const ASK_AGAIN: Duration = Duration::from_millis(250);

/// The time after which owners no longer join a lease without a reply.
const JOIN_WITHOUT_REPLY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(in crate::lock::lane) struct Group {
    /// The owners besides the first one, which share the lease.
    pub(in crate::lock::lane) readers: Readers,
    /// A time at or before which the first of these ends, without its release or the end of the lease.
    pub(in crate::lock::lane) readers_end: Option<Moment>,
    /// Whether the owners may have asked for different terms.
    pub(in crate::lock::lane) is_mixed: bool,
    joining: Joining,
}

/// Whether further owners may join a shared lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joining {
    /// No process waited, according to the grant, or to a reply to a command that was sent then.
    Open(Moment),
    /// The same, and a renewal has been due since then.
    Asking(Moment),
    /// An exclusive acquire of another process waits.
    Closed,
}

impl Group {
    /// Creates the group of a lease that was granted then.
    pub(in crate::lock::lane) fn new(granted_at: Moment) -> Self {
        Self {
            readers: Readers::default(),
            readers_end: None,
            is_mixed: false,
            joining: Joining::Open(granted_at),
        }
    }

    /// Returns `true` if an owner may join at `now`.
    pub(in crate::lock::lane) fn is_open(&self, now: Moment) -> bool {
        match self.joining {
            Joining::Open(_) => true,
            Joining::Asking(since) => now < since + JOIN_WITHOUT_REPLY,
            Joining::Closed => false,
        }
    }

    /// Returns `true` if the reply to a renewal decides whether owners may join.
    pub(in crate::lock::lane) fn awaits_reply(&self) -> bool {
        matches!(self.joining, Joining::Asking(_) | Joining::Closed)
    }

    /// Records that an owner joins the lease. Returns `true` if a renewal is due.
    pub(in crate::lock::lane) fn asks(&mut self, now: Moment) -> bool {
        let asks = matches!(self.joining, Joining::Open(replied) if now >= replied + ASK_AFTER);
        if asks {
            self.joining = Joining::Asking(now);
        }
        asks
    }

    /// Applies the reply to a renewal that was sent at `sent_at`.
    pub(in crate::lock::lane) fn replied(&mut self, sent_at: Moment, wanted: bool) {
        self.joining = if wanted {
            Joining::Closed
        } else {
            Joining::Open(sent_at)
        };
    }

    /// Records when a reader ends, without its release or the end of the lease.
    pub(in crate::lock::lane) fn expect_end(&mut self, at: Moment) {
        self.readers_end = Some(self.readers_end.map_or(at, |end| end.min(at)));
    }
}
