//! What comes to a lane, and what it orders: the events and effects of the table in [`super`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

use super::grant::Grant;
use super::guard::Hold;
use super::lease::{Lease, LeaseNumber, Terms};
use super::moment::Moment;
use crate::backend::BackendError;
use crate::{Error, ErrorKind, Owner};

/// How long one holder takes, as far as anybody can guess: what a queue is worth to those who are
/// told when to come back.
pub(super) const A_TURN: Duration = Duration::from_secs(1);

/// The place of one acquire in any queue: smaller is earlier. Never used twice, so that an acquire
/// that leaves late cannot take the place of another.
pub(super) type Ticket = u64;

pub(super) type Reply = oneshot::Sender<Result<Hold, Error>>;

/// Who asks for the lock, and under which terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) ticket: Ticket,
    pub(super) owner: Owner,
    pub(super) terms: Terms,
    pub(super) patience: Patience,
}

/// How long an acquire waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Patience(Moment);

impl Patience {
    /// Exactly one try, no waiting behind others.
    pub(super) const ONE_TRY: Self = Self(Moment::FIRST);
    pub(super) const ENDLESS: Self = Self(Moment::LAST);

    pub(super) fn until(deadline: Moment) -> Self {
        Self(deadline)
    }

    pub(super) fn deadline(self) -> Option<Moment> {
        match self {
            Self::ONE_TRY | Self::ENDLESS => None,
            Self(deadline) => Some(deadline),
        }
    }
}

impl Claim {
    pub(super) fn is_one_try(&self) -> bool {
        self.patience == Patience::ONE_TRY
    }
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) claim: Claim,
    pub(super) reply: Reply,
    /// Its place among all waiters of the manager, given back when the waiter leaves the queue.
    pub(super) _seat: OwnedSemaphorePermit,
}

/// Rung when the contending task has to look at the queue again. Each task has its own, so that one
/// that ends late cannot be taken for its successor.
pub(super) type Bell = Arc<Notify>;

/// What the backend said last.
#[derive(Debug)]
pub(super) enum Seen {
    Nothing,
    /// Another process holds the key until about then.
    Busy(Moment),
    Trouble(BackendError),
}

pub(super) type Report = oneshot::Sender<Result<(), Error>>;

/// A lease that nobody here holds any more, and who wants to hear that it is gone.
#[derive(Debug)]
pub(super) struct Surrender {
    pub(super) lease: Lease,
    pub(super) report: Option<Report>,
}

/// How an acquire enters the lane.
#[derive(Debug)]
pub(super) enum Entered {
    /// It holds the key again.
    Granted(Granted),
    /// It took back a lease that was about to be returned. Whoever waits for the return is to hear
    /// that the lock is given up, which is what it asked for.
    TookBack(Granted, Option<Report>),
    /// The lane was idle: the caller makes the first try.
    Drive,
    /// Others are before it. Nothing has changed.
    Occupied,
    Refused(Error),
}

/// A grant, and when the watchdog has to look at it.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) grant: Arc<Grant>,
    pub(super) next_look: Moment,
}

/// What an event asks for, once the mutex of the lane is free.
#[must_use]
#[derive(Debug)]
pub(super) enum Next {
    Nothing,
    /// Hand the grant to the waiter.
    /// Those who asked for a single try, and are now behind a holder, are refused.
    /// Where a lease is named, the backend is to be asked for more hand-offs of it, ahead of need.
    Grant(Reply, Granted, Vec<(Waiter, Error)>, Option<LeaseNumber>),
    /// The releaser has work.
    Return,
    /// The watchdog has to look at the lane then.
    Look(Moment),
    /// Start a task that contends and listens to this bell. `behind`: so many other processes get
    /// their turn first.
    Contend {
        bell: Bell,
        behind: u32,
    },
}

/// What the releaser sends for a lane.
#[derive(Debug)]
pub(super) enum Return {
    Release(Surrender),
    /// End of a hand-off budget with waiters here: keep it if nobody else wants it.
    Pass(Surrender),
}

/// What the watchdog does for a lane.
#[derive(Debug)]
pub(super) enum Due {
    /// Nothing before then.
    Later(Moment),
    /// Renew this lease, for so long, and look again at the latest then.
    Renew(LeaseNumber, Duration, Moment),
    Lost(Arc<Grant>, Next),
    /// The task that was to return the lease died with its runtime. Whoever waits for it will hear of
    /// that when the report is dropped.
    Forsaken(Option<Report>, Next),
    Never,
}

/// What the answer to a renewal means for the lane.
#[derive(Debug)]
pub(super) enum Answered {
    /// Still held; the watchdog looks again then.
    Held(Moment),
    Lost(Arc<Grant>, Next),
    /// The lease is to be released now.
    Returning,
    /// It was to be, and goes on with the next in the queue. Whoever waits for the release is to hear that
    /// the lock is given up.
    HandedOn(Option<Report>, Next),
    /// The lease is gone already.
    Stale,
}

/// What became of a hold that was given up.
#[derive(Debug)]
pub(super) enum Left {
    /// The owner holds the key still, or it went to the next in the queue.
    Done(Next),
    /// The lease goes back, and the releaser will report.
    Returning(Next),
    /// The lock had been lost before.
    Lost,
}

impl Seen {
    /// What it means for somebody who waits no longer.
    pub(super) fn error(&self) -> Error {
        match self {
            Self::Nothing => Error::new(ErrorKind::Unavailable),
            Self::Trouble(error) => Error::new(ErrorKind::Unavailable).with_source(error.clone()),
            Self::Busy(until) => {
                let lease = until.since(Moment::now());
                Error::new(ErrorKind::Busy).with_retry_after(lease.min(A_TURN))
            }
        }
    }
}
