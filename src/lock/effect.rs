//! What an event of a lane asks for: one value, carried out by [`super::dispatch`] once the mutex
//! of the lane is free.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use super::attempt::InlineAttempt;
use super::claim::HoldId;
use super::clock::{Moment, Span};
use super::grant::Grant;
use super::lease::LeaseNumber;
use crate::Error;
use crate::task::RuntimeId;

/// Resolves a waiter.
pub(super) type Reply = oneshot::Sender<Result<Given, Error>>;

/// A hold that a waiter gets.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) grant: Arc<Grant>,
    pub(super) pick_up: PickUp,
}

/// How the waiter reports that it has its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PickUp {
    /// By the flag of the grant, which is the waiter's alone.
    Flag,
    /// By an event of the lane: the grant has other holds, or another runtime looks after it until then.
    Event,
}

/// Resolves a call of [`LockGuard::release`](crate::LockGuard::release).
pub(super) type Report = oneshot::Sender<Result<(), Error>>;

/// Wakes the task of one acquire loop. Each task has its own, which also identifies it.
pub(super) type Wakeup = Arc<Notify>;

/// Nearly every event has at most one of each effect.
type Few<T> = SmallVec<[T; 1]>;

/// The effects of one event.
#[must_use]
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) grants: Few<Granted>,
    pub(super) rejections: Few<(Reply, Error)>,
    /// Grants that were marked lost or withdrawn, or may end earlier: their listeners are to be woken.
    pub(super) losses: Few<Arc<Grant>>,
    pub(super) reports: Few<(Report, Result<(), Error>)>,
    /// The next deadlines of the lane, each in the index of a watchdog that has to know of it.
    pub(super) deadlines: Few<(RuntimeId, Moment)>,
    pub(super) work: Few<Work>,
}

/// A hold for a waiter.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) reply: Reply,
    pub(super) hold: HoldId,
    pub(super) given: Given,
}

/// Background work to start, in the runtime that is named.
#[derive(Debug)]
pub(super) enum Work {
    /// Start an acquire loop that listens to `wakeup`. `yields_to`: how many other processes are
    /// served first.
    Contend {
        home: RuntimeId,
        wakeup: Wakeup,
        yields_to: u32,
    },
    /// Finish the attempt of an acquire that is not polled.
    TakeOver {
        attempt: Arc<InlineAttempt>,
        home: RuntimeId,
    },
    /// Return the lease of this lane to the backend.
    Return(RuntimeId),
    /// Send the release of this lease again: the task that sent it does not run.
    ReturnAgain(Outgoing, RuntimeId),
    /// Ask the backend for more hand-offs of this lease, ahead of need.
    ExtendAhead(LeaseNumber, RuntimeId),
    /// Release a lease of unknown fate until the backend confirms it or it must have expired.
    Resolve {
        lease: LeaseNumber,
        ttl: Span,
        home: RuntimeId,
    },
}

/// A lease whose release is sent. The lane may have forgotten it when the reply comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing {
    pub(super) lease: LeaseNumber,
    /// How long the backend may hold it still if the release has no effect.
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

    pub(super) fn reject(&mut self, reply: Reply, error: Error) {
        self.rejections.push((reply, error));
    }

    pub(super) fn report(&mut self, report: Option<Report>, outcome: Result<(), Error>) {
        if let Some(report) = report {
            self.reports.push((report, outcome));
        }
    }
}
