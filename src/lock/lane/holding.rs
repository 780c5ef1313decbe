//! The holds of one owner, each with its terms. The events of the lease are in the files of the folder:
//!
//! | file | responsibility |
//! |---|---|
//! | `held` | the events of the holds: hand-off, release, loss |
//! | `held_lease`, `sharers`, `end` | a held lease with its owners; those that share it; the end of a hold |
//! | `renewing`, `downgrading` | the replies to renewals; a downgrade and its reply |
//! | `returning`, `keeping` | the return of a lease to the backend; a lease that stays here without holds |

pub(super) mod downgrading;
mod end;
pub(super) mod held;
pub(super) mod held_lease;
pub(super) mod keeping;
pub(super) mod renewing;
pub(super) mod returning;
mod sharers;

use std::sync::Arc;

use crate::lock::clock::Moment;
use crate::lock::lease::{Claim, Grant, HoldId};

use end::End;

/// The maximum number of holds of one owner on one lock.
pub(super) const MAX_HOLD_COUNT: u32 = 64;

#[derive(Debug)]
pub(crate) struct OwnerHolds {
    pub(super) grant: Arc<Grant>,
    /// The deadline by which the acquire of the first hold has to pick it up.
    pick_up_by: Option<Moment>,
    /// Boxed because it is rare.
    others: Option<Box<Others>>,
}

/// What only an owner with other holds than the first needs.
#[derive(Debug, Default)]
struct Others {
    /// The holds, oldest first. Empty while there is one, or several with the same limit that require the same
    /// renewals.
    holds: Vec<Hold>,
    /// Each hold with the deadline by which its acquire has to pick it up.
    unclaimed: Vec<(HoldId, Moment)>,
    ended: Vec<HoldId>,
}

/// One of several holds of one owner. The lease lasts as long as the longest of them requires, but at most
/// until the limit of the oldest one.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// `None` for any of the holds that were alike before another kind was added, which are interchangeable.
    id: Option<HoldId>,
    end: End,
    limit: Moment,
}

impl Others {
    fn unnest(&mut self, hold: HoldId) -> bool {
        self.unclaimed.retain(|(id, _)| *id != hold);
        let holds = &mut self.holds;
        if holds.is_empty() {
            return false;
        }
        let find = |id| holds.iter().position(|hold| hold.id == id);
        let Some(at) = find(Some(hold)).or_else(|| find(None)) else {
            unreachable!("BUG: a hold is released once");
        };
        holds.remove(at);
        true
    }
}

impl OwnerHolds {
    pub(super) fn new(grant: Arc<Grant>, claim: &Claim) -> Self {
        Self {
            grant,
            pick_up_by: claim.deadline.moment().filter(|_| claim.of_several),
            others: None,
        }
    }

    /// Sets the deadline by which the acquire has to pick up its hold. It may not be polled any more.
    #[inline]
    pub(super) fn expect_pick_up(&mut self, claim: &Claim) {
        if self.is_first(claim.hold) {
            self.pick_up_by = claim.deadline.moment();
        } else if let Some(by) = claim.deadline.moment() {
            let others = self.others.get_or_insert_default();
            others.unclaimed.push((claim.hold, by));
        }
    }

    /// Picks up a hold. Returns `false` if it has ended because the acquire was too late.
    pub(super) fn pick_up(&mut self, hold: HoldId) -> bool {
        if self.is_first(hold) {
            return self.grant.settle();
        }
        let Some(others) = &mut self.others else {
            return true;
        };
        others.unclaimed.retain(|(id, _)| *id != hold);
        !others.ended.contains(&hold)
    }

    /// Ends the holds that were not picked up by their deadline, and returns them.
    pub(super) fn end_forgotten(&mut self, now: Moment) -> Vec<HoldId> {
        let mut ended = Vec::new();
        if self.pick_up_by.is_some_and(|by| by <= now) {
            self.pick_up_by = None;
            if self.grant.settle() {
                ended.push(self.grant.first_hold);
            }
        }
        if let Some(others) = &mut self.others {
            others.unclaimed.retain(|(hold, by)| {
                let in_time = *by > now;
                if !in_time {
                    ended.push(*hold);
                }
                in_time
            });
        }
        if !ended.is_empty() {
            let others = self.others.get_or_insert_default();
            others.ended.extend_from_slice(&ended);
        }
        ended
    }

    pub(super) fn is_first(&self, hold: HoldId) -> bool {
        hold == self.grant.first_hold
    }

    /// Returns `true` if the hold has ended before its release.
    pub(super) fn has_ended(&self, hold: HoldId) -> bool {
        let others = self.others.as_ref();
        others.is_some_and(|others| others.ended.contains(&hold))
    }

    /// Adds a hold that is like the others of this owner.
    pub(super) fn nest_uniform(&mut self) {
        self.grant.set_holds(self.grant.holds() + 1);
    }

    /// Adds a hold that is not like the others.
    pub(super) fn nest(&mut self, claim: &Claim, uniform: End, now: Moment) {
        self.list(uniform).push(Hold {
            id: Some(claim.hold),
            end: End::of(claim, now),
            limit: now + claim.terms.max_hold,
        });
        self.nest_uniform();
    }

    /// Returns `true` if a further hold would be like the others, which have the terms of the lease: renewed, and with the
    /// same limit.
    pub(super) fn is_like(&self, claim: &Claim, now: Moment) -> bool {
        claim.terms.renewed
            && self.listed().is_empty()
            && self.grant.limit() == now + claim.terms.max_hold
    }

    /// Returns the holds if they are not alike.
    fn listed(&self) -> &[Hold] {
        self.others.as_ref().map_or(&[], |others| &others.holds)
    }

    /// Converts the holds to a list, and returns it. `uniform` is their end while they are alike.
    fn list(&mut self, uniform: End) -> &mut Vec<Hold> {
        let hold = Hold {
            id: None,
            end: uniform,
            limit: self.grant.limit(),
        };
        let holds = &mut self.others.get_or_insert_default().holds;
        if holds.is_empty() {
            holds.resize(self.grant.holds() as usize, hold);
        }
        holds
    }

    /// Lists the holds, because the lease is about to get other terms than theirs. Renewals for other owners do not
    /// extend them.
    pub(super) fn list_holds(&mut self, uniform: End) {
        self.list(uniform);
        self.follow_holds();
    }

    /// Ends one hold of several, so the terms of the others apply. Returns `true` if they are listed.
    #[inline]
    pub(super) fn unnest(&mut self, hold: HoldId) -> bool {
        // An acquire of several keys that is dropped while it waits for another one has not picked up this hold.
        if self.is_first(hold) {
            self.pick_up_by = None;
        }
        let others = self.others.as_mut();
        others.is_some_and(|others| others.unnest(hold))
    }

    /// Starts `max_hold` of this hold now. `uniform` is the end of the holds while they are alike. Returns `true` if they
    /// are listed.
    pub(super) fn limit_hold(&mut self, claim: &Claim, uniform: End, now: Moment) -> bool {
        let (hold, limit) = (claim.hold, now + claim.terms.max_hold);
        if self.listed().is_empty() {
            if self.grant.holds() == 1 {
                self.grant.set_limit(limit);
                return false;
            }
            if self.grant.limit() == limit {
                return false;
            }
        }
        let is_first = self.is_first(hold);
        let mut holds = self.list(uniform).iter_mut();
        let fits = |it: &&mut Hold| it.id.is_none_or(|id| id == hold);
        // The first hold is the oldest.
        let held = if is_first {
            holds.find(fits)
        } else {
            holds.rfind(fits)
        };
        if let Some(held) = held {
            (held.id, held.limit) = (Some(hold), limit);
        }
        true
    }

    /// Returns the end that the holds require. `uniform` is that of holds that are not listed.
    pub(super) fn end(&self, uniform: End) -> End {
        let ends = self.listed().iter().map(|hold| hold.end);
        ends.max().unwrap_or(uniform)
    }

    /// Applies the terms of the listed holds to the grant.
    pub(super) fn follow_holds(&self) {
        let Some(oldest) = self.listed().first() else {
            return;
        };
        let limit = match self.end(oldest.end) {
            End::At(end) => end.min(oldest.limit),
            End::Renewed(_) => oldest.limit,
        };
        self.grant.renewed_until(limit, limit < oldest.limit);
    }

    /// Returns when the first of its holds ends without further events.
    pub(super) fn ends_by(&self) -> Moment {
        self.or_pick_up(self.grant.valid_until())
    }

    /// Returns when the first of its holds ends however often the lease is renewed.
    pub(super) fn own_end(&self) -> Moment {
        self.or_pick_up(self.grant.limit())
    }

    /// Returns `end`, or the first deadline of an acquire that has to pick up its hold if that is earlier.
    fn or_pick_up(&self, end: Moment) -> Moment {
        let mut next = end;
        if let Some(by) = self.pick_up_by
            && self.grant.is_offered()
        {
            next = next.min(by);
        }
        if let Some(others) = &self.others {
            let unclaimed = others.unclaimed.iter().map(|(_, by)| *by);
            next = unclaimed.fold(next, Moment::min);
        }
        next
    }
}
