//! The effects of a lane event: one value, carried out by [`super::dispatch`] after the mutex of the
//! lane is free.

use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use super::claim::HoldId;
use super::clock::{Moment, Span};
use super::few::Few;
use super::first_attempt::in_place::TakenAttempt;
use super::grant::Grant;
use super::lease::LeaseNumber;
use super::place::PLACE;
use super::yielded::Yielded;
use crate::Error;

/// Resolves a waiter.
pub(super) type Reply = oneshot::Sender<Result<Given, Error>>;

/// Resolves the future of a waiter.
pub(super) type Answer = oneshot::Receiver<Result<Given, Error>>;

/// A hold for a waiter.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) grant: Arc<Grant>,
    /// Whether the waiter waited for its turn, and not only for the reply to its own first attempt.
    pub(super) queued: bool,
}

/// Resolves a call of [`LockGuard::release`](crate::LockGuard::release). Lanes store it boxed, because most
/// releases are not awaited.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) reply: oneshot::Sender<Result<(), Error>>,
}

/// Wakes and identifies the task of one acquire loop.
pub(super) type Wakeup = Arc<Notify>;

/// The effects of one event. Most events have at most one of each.
#[must_use]
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) grants: Few<Granted>,
    pub(super) rejections: Few<(Reply, Error)>,
    /// Grants that were lost or withdrawn, or may end earlier: their loss futures must be woken.
    pub(super) losses: Few<Loss>,
    pub(super) reports: Few<(Box<Report>, Result<(), Error>)>,
    /// The next deadline of the lane, of which the watchdog must be notified.
    pub(super) deadlines: Few<Moment>,
    pub(super) work: Few<Work>,
    /// The lane is idle or only yields, so the table counts its work until it was started.
    pub(super) outlive_lane: bool,
}

/// A grant that has ended, or whose end has moved: its loss futures check it again.
#[derive(Debug)]
pub(super) struct Loss {
    pub(super) grant: Arc<Grant>,
    /// It was lost while it was held, which is reported.
    pub(super) while_held: bool,
}

/// The hold of one waiter, and the channel that resolves the waiter.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) reply: Reply,
    pub(super) hold: HoldId,
    pub(super) grant: Arc<Grant>,
    pub(super) queued: bool,
}

/// Background work to start.
#[derive(Debug)]
pub(super) enum Work {
    /// Start an acquire loop that `wakeup` wakes. The processes in `yielded` may acquire the key first.
    Contend { wakeup: Wakeup, yielded: Yielded },
    /// Finish the first attempt of an acquire that is not polled, from home.
    FinishAttempt(TakenAttempt),
    /// Return the lease of this lane to the backend.
    Return,
    /// Send the release of this lease from home as well: the task that sent it may not run.
    ReturnAgain(Outgoing),
    /// Release a lease that was granted before, and that the backend may still hold, until the backend confirms it or it
    /// must have expired.
    ResolveGranted(Outgoing),
    /// Release the lease or the place of an attempt that may yet take effect, until the backend confirms it or it must
    /// have expired.
    Resolve { lease: LeaseNumber, ttl: Span },
}

/// A lease whose release is in flight. The lane may drop it before the reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing {
    pub(super) lease: LeaseNumber,
    /// The longest time for which the backend may hold the lease if the release has no effect.
    pub(super) ttl: Span,
}

impl Effects {
    pub(super) fn is_empty(&self) -> bool {
        self.grants.is_empty()
            && self.rejections.is_empty()
            && self.losses.is_empty()
            && self.reports.is_empty()
            && self.deadlines.is_empty()
            && self.work.is_empty()
    }

    /// The end of the grant has moved, or it was never picked up.
    pub(super) fn recheck(&mut self, grant: &Arc<Grant>) {
        self.losses.push(Loss {
            grant: Arc::clone(grant),
            while_held: false,
        });
    }

    /// Leaves the queue of the backend.
    pub(super) fn leave(&mut self, place: LeaseNumber) {
        self.work.push(Work::Resolve {
            lease: place,
            ttl: PLACE,
        });
    }

    pub(super) fn reject(&mut self, reply: Reply, error: Error) {
        self.rejections.push((reply, error));
    }

    /// Most releases are not awaited, so only that comparison is inline.
    #[inline(always)]
    pub(super) fn report(&mut self, report: Option<Box<Report>>, outcome: Result<(), Error>) {
        if let Some(report) = report {
            self.reports.push((report, outcome));
        }
    }
}
