//! The state of a lane, and what every event reads of it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use crate::backend::BackendError;
use crate::lock::attempt::InlineAttempt;
use crate::lock::claim::{Claim, Ticket};
use crate::lock::clock::{Moment, Span};
use crate::lock::effect::{Reply, Report, Wakeup};
use crate::lock::grant::Grant;
use crate::lock::lease::{Lease, LeaseNumber};
use crate::task::RuntimeId;
use crate::{Error, ErrorKind};

use super::tenure::Tenure;

/// How long a task may take to begin, and an acquire to be polled, before others stop waiting for it.
pub(in crate::lock) const TAKE_OVER: Duration = Duration::from_millis(10);

/// How long a lease that must have expired is tried to be released: the clock of the backend may have been
/// set back.
pub(super) const LATE_RELEASE: Duration = Duration::from_millis(500);

/// How long one holder takes, as far as can be estimated: the basis of `retry_after` for a queue.
pub(super) const A_TURN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(in crate::lock) struct Lane {
    pub(super) phase: Phase,
    /// Boxed: a node of the tree has room for more than it mostly holds.
    pub(super) queue: BTreeMap<Ticket, Box<Waiter>>,
    /// The runtime that does the background work of the present phase.
    pub(super) home: Option<RuntimeId>,
    pub(super) elsewhere: Elsewhere,
}

/// Whether somebody waits in another runtime than the home of the lane.
impl Elsewhere {
    /// Somebody waits there who was not announced yet.
    pub(super) const NEW: Self = Self::Waits {
        announced: None,
        not_before: Moment::FIRST,
    };
}

#[derive(Debug, Default)]
pub(super) enum Elsewhere {
    #[default]
    Nobody,
    /// `announced`: when the watchdogs there are to look at the lane, as they were last told.
    /// `not_before`: a watchdog that has just looked is not told to look again at once.
    Waits {
        announced: Option<Moment>,
        not_before: Moment,
    },
}

#[derive(Debug, Default)]
pub(super) enum Phase {
    /// Nothing here; the lane is about to leave the table.
    #[default]
    Idle,
    Contending(Contending),
    Held(Tenure),
    Returning(Returning),
}

/// Somebody talks to the backend about this key: the acquire that came first, which drives its own
/// first attempt, or a task.
#[derive(Debug)]
pub(super) struct Contending {
    pub(super) driver: Driver,
    pub(super) seen: Seen,
    /// Another process has the key, or waited when it was released here.
    pub(super) others_wait: bool,
    /// What the attempt in flight has got may be lost already.
    pub(super) suspect: bool,
    /// When the driver is taken to be stuck.
    pub(super) due: Moment,
}

#[derive(Debug)]
pub(super) enum Driver {
    Inline {
        attempt: Arc<InlineAttempt>,
        deadline: Option<Moment>,
    },
    Task {
        wakeup: Wakeup,
        /// The lease of the attempt in flight.
        attempt: Option<(LeaseNumber, Span)>,
    },
}

/// A lease that nobody here holds any more. Before its command is sent, it is *surrendered*: it may be
/// taken back.
#[derive(Debug)]
pub(super) struct Returning {
    pub(super) lease: Lease,
    /// Resolves the call that waits for the release.
    pub(super) report: Option<Report>,
    pub(super) sent: bool,
    /// A release was sent beside the first command: the lease cannot be kept any more.
    pub(super) sent_again: bool,
    /// When the task that returns it is taken to be stuck.
    pub(super) due: Moment,
    /// When it is forgotten: it must have expired, and there was time to send its release all the same.
    pub(super) forget_at: Moment,
}

#[derive(Debug)]
pub(in crate::lock) struct Waiter {
    pub(in crate::lock) claim: Claim,
    pub(in crate::lock) reply: Reply,
    /// Its place among all waiters of the manager, returned when the waiter leaves the queue.
    pub(in crate::lock) _seat: OwnedSemaphorePermit,
}

/// What the backend said last.
#[derive(Debug)]
pub(in crate::lock) enum Seen {
    Nothing,
    /// Another process holds the key until about then.
    Busy(Moment),
    Trouble(BackendError),
}

/// For how many other processes a lease was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Yielded {
    ToNobody,
    To(NonZeroU32),
    /// Others may wait, and cannot be counted.
    ToUnknown,
}

impl Yielded {
    pub(in crate::lock) fn to(watchers: u32) -> Self {
        NonZeroU32::new(watchers).map_or(Self::ToUnknown, Self::To)
    }
}

impl Lane {
    pub(in crate::lock) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.queue.is_empty()
    }

    pub(in crate::lock) fn waiters(&self) -> usize {
        self.queue.len()
    }

    /// Returns the waiters, and the inline acquire that may become one.
    pub(in crate::lock) fn seats_taken(&self) -> usize {
        let inline = matches!(
            &self.phase,
            Phase::Contending(Contending {
                driver: Driver::Inline { .. },
                ..
            })
        );
        self.queue.len() + usize::from(inline)
    }

    pub(in crate::lock) fn holder(&self) -> Option<&Arc<Grant>> {
        match &self.phase {
            Phase::Held(tenure) => Some(&tenure.grant),
            _ => None,
        }
    }

    pub(in crate::lock) fn is_returning(&self) -> bool {
        matches!(self.phase, Phase::Returning(_))
    }

    /// The lease that is held, or is being returned.
    pub(in crate::lock) fn lease_number(&self) -> Option<LeaseNumber> {
        match &self.phase {
            Phase::Held(tenure) => Some(tenure.lease.number()),
            Phase::Returning(returning) => Some(returning.lease.number()),
            Phase::Idle | Phase::Contending(_) => None,
        }
    }

    pub(in crate::lock) fn home(&self) -> Option<RuntimeId> {
        self.home
    }

    /// Moves the background work of the lane to another runtime.
    pub(super) fn move_to(&mut self, home: RuntimeId) {
        if self.home != Some(home) {
            self.home = Some(home);
            if !self.queue.is_empty() {
                self.elsewhere = Elsewhere::NEW;
            }
        }
    }

    /// Returns the error of an acquire that stops waiting now.
    pub(in crate::lock) fn why_not(&self, now: Moment) -> Error {
        let (until, held_for) = match &self.phase {
            Phase::Contending(Contending {
                seen: Seen::Busy(until),
                ..
            }) => (*until, Duration::ZERO),
            // Another acquire of this process is in the way, whose first reply is still to come.
            Phase::Contending(Contending {
                driver: Driver::Inline { .. },
                seen: Seen::Nothing,
                ..
            }) => (now, Duration::ZERO),
            Phase::Contending(contending) => return contending.seen.error(now),
            Phase::Held(tenure) => (
                tenure.grant.valid_until(),
                now.since(tenure.grant.granted_at()),
            ),
            Phase::Idle | Phase::Returning(_) => (now, Duration::ZERO),
        };
        let ahead = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        let queue = held_for.max(A_TURN).saturating_mul(ahead.saturating_add(1));
        let lease = until.since(now);
        Error::new(ErrorKind::Busy).with_retry_after(lease.min(queue))
    }
}

impl Seen {
    /// Returns the error of an acquire that waits no longer.
    pub(in crate::lock) fn error(&self, now: Moment) -> Error {
        match self {
            Self::Nothing => Error::new(ErrorKind::Unavailable),
            Self::Trouble(error) => Error::new(ErrorKind::Unavailable).with_source(error.clone()),
            Self::Busy(until) => {
                let lease = until.since(now);
                Error::new(ErrorKind::Busy).with_retry_after(lease.min(A_TURN))
            }
        }
    }
}
