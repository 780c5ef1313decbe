//! The events of a downgrade: an exclusive lease becomes shared.
//!
//! The lane reserves the lease, sends the command once no renewal is in flight, and applies the reply:
//!
//! | reply | next phase | effect |
//! |---|---|---|
//! | shared | held, shared, open | the grant has the fresh token; the first waiters that are shared join |
//! | not held | contending, or idle | mark the guard lost; contend |
//! | refused | | the lock is exclusive as before |
//! | unknown, or none because the runtime has ended | surrendered | mark the guard lost; release the lease in either mode |
//! | any, and the guard was released or lost before | surrendered | release the lease in either mode |
//!
//! From the command until its reply, the mode of the lease is not known. Until then it is not renewed, kept or handed
//! off. Until its end, the owner gets further shared holds, but no exclusive one.

use std::sync::Arc;
use std::time::Duration;

use super::held_lease::{Downgrading, HeldLease, lose};
use crate::backend::{BackendError, Downgraded, Mode, Renewal};
use crate::lock::clock::Moment;
use crate::lock::lane::{Effects, Lane, Phase, Wakeup};
use crate::lock::lease::{Grant, HoldId, LeaseNumber};
use crate::observe::LostReason;
use crate::{ConfigError, Error, ErrorKind};

impl Lane {
    /// Reserves the lease for a downgrade by the task that `wakeup` notifies, unless it is shared already.
    ///
    /// # Errors
    ///
    /// Returns [`Lost`](ErrorKind::Lost), or [`InvalidOption`](ErrorKind::InvalidOption) for a permit, if the owner has
    /// other holds, and during another downgrade.
    pub(crate) fn reserve_downgrade(
        &mut self,
        grant: &Arc<Grant>,
        hold: HoldId,
        wakeup: Wakeup,
        now: Moment,
    ) -> Result<(), Error> {
        let lost = || Error::new(ErrorKind::Lost);
        let held_lease = self.held_under(grant).ok_or_else(lost)?;
        let has_ended = (held_lease.find(grant)).is_none_or(|holding| holding.has_ended(hold));
        if has_ended || !grant.is_held(now) {
            return Err(lost());
        }
        let holds = grant.holds();
        let problem = match grant.mode() {
            // The guard of that one was dropped, and this one is nested.
            _ if held_lease.downgrading.is_some() => {
                "another downgrade of the lock is in flight: try again after it".to_owned()
            }
            Mode::Shared => return Ok(()),
            Mode::Permit => "a permit cannot become a shared lock: release it first".to_owned(),
            Mode::Exclusive if holds > 1 => {
                format!("the owner holds the lock {holds} times: release the other guards")
            }
            Mode::Exclusive => {
                held_lease.downgrading = Some(Downgrading(wakeup));
                return Ok(());
            }
        };
        let problem = ConfigError::new("downgrade", problem);
        Err(Error::new(ErrorKind::InvalidOption).with_source(problem))
    }

    /// Ends a reservation whose command was not sent.
    pub(crate) fn cancel_downgrade(&mut self, grant: &Arc<Grant>) {
        if let Some(held_lease) = self.held_under(grant) {
            held_lease.downgrading = None;
        }
    }

    /// Begins the command, and returns its lease and TTL, or `None` while a renewal is in flight: the task is notified after
    /// that.
    ///
    /// # Errors
    ///
    /// Returns [`Lost`](ErrorKind::Lost).
    pub(crate) fn send_downgrade(
        &mut self,
        grant: &Arc<Grant>,
        now: Moment,
    ) -> Result<Option<(LeaseNumber, Duration)>, Error> {
        match self.held_under(grant) {
            Some(HeldLease { lease, .. }) if lease.is_in_flight() => Ok(None),
            Some(held_lease) if held_lease.is_held(now) => {
                grant.set_downgraded(true);
                let lease = &mut held_lease.lease;
                Ok(Some((lease.number(), lease.start_downgrade(now))))
            }
            _ => Err(Error::new(ErrorKind::Lost)),
        }
    }

    /// Applies the reply to a downgrade that was sent at `sent_at`, or its end without one.
    ///
    /// # Errors
    ///
    /// Returns [`Lost`](ErrorKind::Lost) if the lock is lost, and the backend's error if the lock is exclusive as before.
    pub(crate) fn downgraded(
        &mut self,
        grant: &Arc<Grant>,
        downgrade: &Renewal,
        sent_at: Moment,
        outcome: Result<Downgraded, BackendError>,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let lost = Error::new(ErrorKind::Lost);
        match &mut self.phase {
            Phase::Held(held_lease) if held_lease.lease.is(downgrade.lease) => {
                // A caller may have observed the loss, so this reply must not undo it.
                if !held_lease.is_held(effects.now) {
                    held_lease.lease.give_up_renewal(effects.now);
                    self.end_overdue(effects);
                    return Err(lost);
                }
                let counter = match outcome {
                    Ok(Downgraded::Shared { counter }) => counter,
                    Ok(Downgraded::NotHeld) => {
                        self.lose(LostReason::NotHeld, effects);
                        return Err(lost);
                    }
                    Err(error) if error.may_have_taken_effect() => {
                        held_lease.lease.give_up_renewal(effects.now);
                        (held_lease.grants())
                            .for_each(|it| lose(it, LostReason::Downgrade, effects));
                        let (lease, _) = self.take_lease();
                        self.begin_return(lease, None, effects);
                        return Err(lost.with_source(error));
                    }
                    Err(error) => {
                        held_lease.lease.downgrade_refused(effects.now);
                        grant.set_downgraded(false);
                        held_lease.downgrading = None;
                        return Err(Error::of_backend(error));
                    }
                };
                held_lease
                    .lease
                    .downgraded(counter, downgrade.ttl, sent_at, effects.now);
                held_lease.downgrading = None;
                grant.set_token(held_lease.lease.token());
                held_lease.extend_grants();
                held_lease.set_wanted(false, sent_at);
                self.admit(&downgrade.key, effects);
                Ok(())
            }
            // The release waits for this reply.
            Phase::Returning(returning) if returning.lease.is(downgrade.lease) => {
                returning.lease.give_up_renewal(effects.now);
                self.resume_return(&downgrade.key, effects);
                Err(lost)
            }
            // The lane no longer waits for this reply, but the downgrade may have extended the lease.
            _ => {
                let may_hold = match &outcome {
                    Ok(downgraded) => *downgraded != Downgraded::NotHeld,
                    Err(error) => error.may_have_taken_effect(),
                };
                if may_hold {
                    effects.release_granted(downgrade);
                }
                Err(lost)
            }
        }
    }
}
