//! The effects of a lane event: one value, carried out by [`crate::lock::tasks::dispatch`] after the mutex of the
//! lane is free. Work that is no effect is described in [`crate::lock`].

use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use super::contending::attempt::Attempt;
use super::few::Few;
use super::queue::waiter::{Given, Waiter};
use crate::Error;
use crate::backend::Renewal;
use crate::lock::clock::{Moment, Span};
use crate::lock::lease::{Grant, LeaseNumber, PLACE, ReleasedTo};

/// Resolves a call that awaits the end of a lock or its downgrade, such as
/// [`LockGuard::release`](crate::LockGuard::release). The reports to logs and metrics are in `tasks/report.rs`.
pub(crate) type Report = oneshot::Sender<Result<(), Error>>;

/// Wakes and identifies the task of one acquire loop.
pub(crate) type Wakeup = Arc<Notify>;

/// The moment of one event, and its effects. Most events have at most one effect of each kind.
#[must_use]
#[derive(Debug)]
pub(crate) struct Effects {
    /// The moment of the event, which all of its steps use.
    pub(crate) now: Moment,
    pub(crate) grants: Few<(Arc<Waiter>, Given)>,
    pub(crate) rejections: Few<(Arc<Waiter>, Error)>,
    /// Grants that were lost, or whose end has moved: their loss futures must be woken.
    pub(crate) losses: Few<Loss>,
    pub(crate) reports: Few<(Report, Result<(), Error>)>,
    /// The next deadline of the lane, of which the watchdog must be notified.
    pub(crate) deadlines: Few<Moment>,
    pub(crate) work: Few<Work>,
    /// The lane is idle or only yields, so the table counts its work until it was started.
    pub(crate) outlive_lane: bool,
    /// A first attempt was replaced, so the table counts it until it ends.
    pub(crate) left_attempt: bool,
}

/// A grant that has ended, or whose end has moved: its loss futures check it again.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) grant: Arc<Grant>,
    /// It was lost while it was held, which is reported.
    pub(crate) while_held: bool,
}

/// Background work to start.
#[derive(Debug)]
pub(crate) enum Work {
    /// Start an acquire loop that this wakes. The processes for which the key was released may acquire it first.
    Contend(Wakeup, ReleasedTo),
    /// Finish the first attempt of an acquire that is not polled, from home.
    FinishAttempt(Arc<Waiter>, Attempt),
    /// Return the lease of this lane to the backend.
    Return,
    /// Send the release of this lease from home as well: the task that sent it may not run.
    ReturnAgain(Outgoing),
    /// Release a lease that was granted before, and that the backend may still hold, until the backend confirms it or it
    /// must have expired.
    ReleaseGranted(Outgoing),
    /// Release the lease or the place of an attempt that may yet take effect, until the backend confirms it or it must
    /// have expired.
    ReleaseUnknown { lease: LeaseNumber, ttl: Span },
}

/// A lease whose release is in flight. The lane may drop it before the reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outgoing {
    pub(crate) lease: LeaseNumber,
    /// The longest time for which the backend may hold the lease if the release has no effect.
    pub(crate) ttl: Span,
}

impl Effects {
    #[inline]
    pub(crate) fn at(now: Moment) -> Self {
        Self {
            now,
            grants: Few::Empty,
            rejections: Few::Empty,
            losses: Few::Empty,
            reports: Few::Empty,
            deadlines: Few::Empty,
            work: Few::Empty,
            outlive_lane: false,
            left_attempt: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.grants.is_empty()
            && self.rejections.is_empty()
            && self.losses.is_empty()
            && self.reports.is_empty()
            && self.deadlines.is_empty()
            && self.work.is_empty()
    }

    /// Wakes the loss futures of a grant whose end has moved.
    pub(crate) fn recheck(&mut self, grant: &Arc<Grant>) {
        self.losses.push(Loss {
            grant: Arc::clone(grant),
            while_held: false,
        });
    }

    /// Leaves the queue of the backend.
    pub(crate) fn leave(&mut self, place: LeaseNumber) {
        self.work.push(Work::ReleaseUnknown {
            lease: place,
            ttl: PLACE,
        });
    }

    /// Releases the lease of a renewal that may have extended it.
    pub(crate) fn release_granted(&mut self, renewal: &Renewal) {
        self.work.push(Work::ReleaseGranted(Outgoing {
            lease: LeaseNumber::of(renewal.lease),
            ttl: Span::new(renewal.ttl),
        }));
    }

    pub(crate) fn grant(&mut self, waiter: Arc<Waiter>, grant: &Arc<Grant>, queued: bool) {
        let grant = Arc::clone(grant);
        self.grants.push((waiter, Given { grant, queued }));
    }

    pub(crate) fn reject(&mut self, waiter: Arc<Waiter>, error: Error) {
        self.rejections.push((waiter, error));
    }

    /// Most releases are not awaited, so only that comparison is inline.
    #[inline(always)]
    pub(crate) fn report(&mut self, report: Option<Report>, outcome: Result<(), Error>) {
        if let Some(report) = report {
            self.reports.push((report, outcome));
        }
    }
}
