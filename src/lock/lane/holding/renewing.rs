//! The replies to renewals.

use super::held_lease::Downgrading;
use crate::backend::{BackendError, Renewal, Renewed};
use crate::lock::clock::Moment;
use crate::lock::lane::{Effects, Lane, LastReply, Phase};
use crate::lock::lease::Lease;
use crate::observe::LostReason;

impl Lane {
    /// Returns `true` if a renewal that waited for a slot is still needed, and ends it otherwise. An acquire reports no
    /// failure then, because no command failed.
    pub(crate) fn still_wants(&mut self, renewal: &Renewal, effects: &mut Effects) -> bool {
        let wants = self.held_lease().is_some_and(|held_lease| {
            held_lease.lease.is(renewal.lease) && effects.now < held_lease.valid_until()
        });
        if !wants {
            self.replied(renewal, Effective::No, effects, Lease::retry_renewal);
        }
        wants
    }

    /// Applies the reply to a renewal.
    pub(crate) fn renewed(
        &mut self,
        renewal: &Renewal,
        sent_at: Moment,
        outcome: &Result<Renewed, BackendError>,
        effects: &mut Effects,
    ) {
        let effective = match outcome {
            Ok(Renewed::Renewed | Renewed::Wanted) => Effective::Yes,
            Ok(Renewed::NotHeld) => Effective::LeaseGone,
            Err(error) if error.may_have_taken_effect() => Effective::Yes,
            Err(_) => Effective::No,
        };
        self.replied(renewal, effective, effects, |lease, now| {
            lease.renewal_answered(renewal.ttl, sent_at, outcome, now);
        });
        match (&mut self.phase, outcome) {
            (Phase::Held(held_lease), _) if held_lease.lease.is(renewal.lease) => {
                if let Ok(renewed) = outcome {
                    held_lease.set_wanted(*renewed == Renewed::Wanted, sent_at);
                }
                held_lease.ask_again(effects.now);
                self.admit(&renewal.key, effects);
            }
            // The release waited for this reply.
            (Phase::Returning(returning), Err(error)) if returning.lease.is(renewal.lease) => {
                let trouble = || (effects.now, LastReply::Trouble(error.clone()));
                returning.trouble.get_or_insert_with(trouble);
            }
            _ => {}
        }
    }

    /// Applies a reply by `update`.
    fn replied(
        &mut self,
        renewal: &Renewal,
        effective: Effective,
        effects: &mut Effects,
        update: impl FnOnce(&mut Lease, Moment),
    ) {
        // A caller may have observed the loss, so this reply must not undo it.
        let is_lost =
            matches!(&self.phase, Phase::Held(held_lease) if !held_lease.is_held(effects.now));
        let lease = match &mut self.phase {
            Phase::Held(held_lease) => Some(&mut held_lease.lease),
            Phase::Returning(returning) => Some(&mut returning.lease),
            Phase::Idle | Phase::Yielding { .. } | Phase::Contending(_) => None,
        };
        // While the lane has the lease, one renewal of it is in flight: this one. A release waits for this reply.
        let Some(lease) = lease.filter(|lease| lease.is(renewal.lease)) else {
            // The lane no longer waits for this reply, but the renewal may have extended the lease.
            if effective == Effective::Yes {
                effects.release_granted(renewal);
            }
            return;
        };
        update(lease, effects.now);
        match &mut self.phase {
            Phase::Held(_) if effective == Effective::LeaseGone => {
                self.lose(LostReason::NotHeld, effects);
            }
            Phase::Held(_) if is_lost => self.end_overdue(effects),
            Phase::Held(held_lease) => {
                held_lease.extend_grants();
                if let Some(Downgrading(wakeup)) = &held_lease.downgrading {
                    wakeup.notify_one();
                }
            }
            // The release waits for this reply.
            _ => self.resume_return(&renewal.key, effects),
        }
    }
}

/// Whether a command may have extended the lease in the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effective {
    Yes,
    No,
    LeaseGone,
}
