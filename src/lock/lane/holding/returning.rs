//! The events of a lease that is returned to the backend by the releaser.

use std::time::Duration;

use crate::backend::{BackendError, Mode};
use crate::lock::clock::{Moment, Span};
use crate::lock::lane::{Effects, Lane, LastReply, Outgoing, Phase, Returning, Sent, Waiter, Work};
use crate::lock::lease::{Kept, LeaseNumber, ReleasedTo};
use crate::observe::Via;
use crate::{Error, ErrorKind, LockKey};

/// A command that the releaser sends for a lane.
#[derive(Debug)]
pub(crate) enum Order {
    Release(Outgoing),
    ReleaseOrKeep(ReleaseOrKeep),
}

/// The release of a lease only if other processes wait: the budget has ended, but the lane has waiters, or its key comes
/// back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReleaseOrKeep {
    pub(crate) outgoing: Outgoing,
    pub(crate) ttl: Span,
    /// How many counters the lease takes if it is kept.
    pub(crate) counters: u32,
    /// The lease has no token left for the next holder.
    pub(crate) needs_counter: bool,
    /// The lane has waiters, which enter the queue of the backend after a release.
    pub(crate) has_waiters: bool,
}

/// Lets the error of the backend itself come before a command counts as unanswered.
pub(crate) const OWN_TIMEOUT: Duration = Duration::from_millis(10);

impl Lane {
    /// Begins the command that returns the lease, which ends by `due`. Returns `None` if the lease was taken
    /// back, or if a renewal of it is in flight.
    pub(crate) fn take_return(&mut self, now: Moment, due: Moment) -> Option<Order> {
        let Phase::Returning(returning) = &mut self.phase else {
            return None;
        };
        if returning.sent != Sent::Never || returning.lease.is_in_flight() {
            return None;
        }
        returning.sent = Sent::Once {
            due: due + OWN_TIMEOUT,
            may_be_lost: false,
        };
        returning.trouble.get_or_insert((due, LastReply::Nothing));
        let lease = &returning.lease;
        let outgoing = returning.outgoing(now);
        let keep = match self.queue.first() {
            Some(Waiter { claim, .. }) => {
                lease.mode() == Mode::Exclusive
                    && claim.terms.mode == Mode::Exclusive
                    && lease.is_renewed_for(claim.terms, now)
                    && !claim.deadline.has_passed(now)
            }
            None => lease.stays_until().is_some_and(|until| now < until),
        };
        Some(match keep {
            true => Order::ReleaseOrKeep(ReleaseOrKeep {
                outgoing,
                ttl: lease.ttl(),
                counters: lease.next_counters(),
                needs_counter: !lease.has_tokens(),
                has_waiters: !self.queue.is_empty(),
            }),
            false => Order::Release(outgoing),
        })
    }

    fn returns(&mut self, number: LeaseNumber) -> Option<&mut Returning> {
        match &mut self.phase {
            Phase::Returning(returning) if returning.lease.number() == number => {
                let is_sent = matches!(returning.sent, Sent::Once { .. } | Sent::Twice);
                is_sent.then_some(returning)
            }
            _ => None,
        }
    }

    /// Records that a second release follows a command without a reply.
    pub(crate) fn return_is_resent(&mut self, number: LeaseNumber) {
        if let Some(returning) = self.returns(number) {
            returning.sent = Sent::Twice;
        }
    }

    /// Returns the outcome of a return that did not find the lease.
    ///
    /// If it was sent twice, the other command may have released the lease, which is a success. The reply to the
    /// second command may arrive first.
    ///
    /// # Errors
    ///
    /// Returns [`Lost`](ErrorKind::Lost) if it was sent once, or if the lease has expired.
    pub(crate) fn returned_absent(
        &mut self,
        number: LeaseNumber,
        now: Moment,
    ) -> Result<(), Error> {
        match self.returns(number) {
            Some(it) if it.sent == Sent::Twice && now < it.lease.valid_until() => Ok(()),
            _ => Err(Error::new(ErrorKind::Lost)),
        }
    }

    /// Ends the return, whether it succeeded or failed, and contends for the next waiter.
    pub(crate) fn returned(
        &mut self,
        number: LeaseNumber,
        outcome: Result<(), Error>,
        released_to: ReleasedTo,
        effects: &mut Effects,
    ) {
        if let Some(returning) = self.returns(number) {
            let report = returning.report.take();
            effects.report(report, outcome);
            self.contend_or_idle(released_to, effects);
        } else if let Some(place) = released_to.place() {
            // The lane no longer waits for this reply.
            effects.leave(place.lease);
        }
    }

    /// Records why the backend failed a return that [`returned`](Self::returned) ended: its waiters get this error
    /// until an attempt has a reply.
    pub(crate) fn return_failed(&mut self, error: BackendError) {
        if let Phase::Contending(contending) = &mut self.phase {
            contending.seen = LastReply::Trouble(error);
        }
    }

    /// Continues a kept lease for the next waiter, or for the next acquire if its key comes back, or releases it. The
    /// backend keeps a lease if no other process waits for the key.
    pub(crate) fn kept(
        &mut self,
        key: &LockKey,
        number: LeaseNumber,
        kept: Kept,
        effects: &mut Effects,
    ) {
        let may_be_lost = match self.returns(number).map(|it| it.sent) {
            Some(Sent::Once { may_be_lost, .. }) => may_be_lost,
            // The second release frees the key, and its reply is still to come.
            Some(_) => return,
            // The lane no longer waits for this reply.
            None => {
                let outgoing = Outgoing {
                    lease: number,
                    ttl: kept.ttl,
                };
                effects.work.push(Work::ReleaseGranted(outgoing));
                return;
            }
        };
        let (mut lease, report) = self.take_lease();
        let stays_until = lease.stays_until().filter(|until| effects.now < *until);
        lease.keep(kept, effects.now);
        if may_be_lost {
            lease.end_hand_offs();
            return self.begin_return(lease, report, effects);
        }
        match (self.first(effects), stays_until) {
            (Some(first), _) if lease.is_renewed_for(first.terms, effects.now) => {
                effects.report(report, Ok(()));
                let via = match kept.counter {
                    Some(_) => Via::Backend,
                    None => Via::HandOff,
                };
                self.hand_to_first(key, lease, via, effects);
            }
            (None, Some(until)) => self.keep_on(lease, until, effects),
            _ => self.begin_return(lease, report, effects),
        }
    }

    /// Ends the return of a lease that must have expired, because its task ended with its runtime or does
    /// not run. Its `release` future ends when the lease expires, even if there is time for a late release.
    pub(crate) fn forget_if_expired(&mut self, effects: &mut Effects) {
        let Phase::Returning(returning) = &mut self.phase else {
            return;
        };
        if effects.now < returning.next_end() {
            return;
        }
        let report = returning.report.take();
        effects.report(report, Err(Error::new(ErrorKind::Unavailable)));
        if effects.now < returning.forget_at {
            return;
        }
        // The backend still holds the lease if its clock was set back.
        if !matches!(returning.sent, Sent::Once { .. } | Sent::Twice) {
            let outgoing = returning.outgoing(effects.now);
            effects.work.push(Work::ReleaseGranted(outgoing));
        }
        self.contend_or_idle(ReleasedTo::Nobody, effects);
    }

    /// Continues the return after the reply to a renewal, or hands the lease off to the next waiter.
    pub(crate) fn resume_return(&mut self, key: &LockKey, effects: &mut Effects) {
        let (lease, report) = self.take_lease();
        self.pass_on(key, lease, report, effects);
    }
}

impl Returning {
    /// Returns when the `release` future, or else the return, ends without a reply.
    pub(crate) fn next_end(&self) -> Moment {
        match self.report {
            Some(_) => self.lease.expires_at().min(self.forget_at),
            None => self.forget_at,
        }
    }

    pub(crate) fn outgoing(&self, now: Moment) -> Outgoing {
        Outgoing {
            lease: self.lease.number(),
            ttl: self.lease.longest(now),
        }
    }
}
