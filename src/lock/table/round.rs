//! One round of the watchdog over the lanes that are due.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::deadlines::Entry;
use super::{Lanes, Shard};
use crate::LockKey;
use crate::backend::Mode;
use crate::lock::clock::Moment;
use crate::lock::lane::effect::Effects;
use crate::lock::lane::few::Few;
use crate::lock::lease::LeaseNumber;

/// A renewal that the watchdog has to send.
#[derive(Debug)]
pub(in crate::lock) struct DueRenewal {
    pub(in crate::lock) key: LockKey,
    pub(in crate::lock) lease: LeaseNumber,
    pub(in crate::lock) ttl: Duration,
    pub(in crate::lock) mode: Mode,
}

/// The due work of one round.
#[derive(Debug, Default)]
pub(in crate::lock) struct Round {
    /// One list per shard, which is freed before the next list is read. A round may renew all leases.
    pub(in crate::lock) renewals: Vec<Vec<DueRenewal>>,
    pub(in crate::lock) effects: Vec<(LockKey, Effects)>,
    /// The time of the next round.
    pub(in crate::lock) next: Option<Moment>,
}

impl Lanes {
    /// Checks every lane that is due in the index.
    pub(in crate::lock) fn check(&self, now: Moment) -> Round {
        let mut round = Round::default();
        for shard in &self.shards {
            let mut guard = shard.lock();
            let before = guard.lanes.len();
            let renewals = self.look_at_shard(&mut guard, now, &mut round);
            if !renewals.is_empty() {
                round.renewals.push(renewals);
            }
            if let Some(first) = guard.deadlines.first() {
                round.next = Some(round.next.map_or(first.at, |next| next.min(first.at)));
            }
            if guard.lanes.len() < before {
                self.have_left(guard);
            }
        }
        round
    }

    fn look_at_shard(&self, shard: &mut Shard, now: Moment, round: &mut Round) -> Vec<DueRenewal> {
        let mut renewals = Vec::new();
        // Entries that a check adds belong to the next round.
        for _ in 0..shard.deadlines.len() {
            let Some(entry) = shard.deadlines.first() else {
                break;
            };
            let Entry { at, hash } = entry;
            if at > now {
                // A renewal that is due soon joins the renewals of this round.
                let mut lanes = shard.lanes.iter_hash(hash);
                let joins = !(round.renewals.is_empty() && renewals.is_empty())
                    && lanes.any(|slot| slot.scheduled == Some(at) && slot.lane.renews_early(now));
                if !joins {
                    break;
                }
            }
            shard.deadlines.pop();
            let mut idle = false;
            for slot in shard.lanes.iter_hash_mut(hash) {
                if slot.key.hash_code() != hash {
                    continue;
                }
                slot.scheduled.take_if(|scheduled| *scheduled == at);
                let mut effects = Effects::default();
                if let Some((lease, ttl)) = slot.lane.check(now, &mut effects) {
                    renewals.push(DueRenewal {
                        key: slot.key.clone(),
                        lease,
                        ttl,
                        mode: slot.lane.mode(),
                    });
                }
                slot.lane.admit(&slot.key, now, &mut effects);
                self.count_work(&slot.lane, &mut effects);
                if effects.left_attempt {
                    self.unstarted.fetch_add(1, Ordering::Relaxed);
                }
                if slot.lane.is_idle() {
                    idle = true;
                } else {
                    Self::schedule(slot, hash, &mut shard.deadlines, &mut effects);
                }
                // The watchdog reads its next deadline from the index.
                effects.deadlines = Few::Empty;
                if !effects.is_empty() {
                    round.effects.push((slot.key.clone(), effects));
                }
            }
            if idle && let Ok(lane) = (shard.lanes).find_entry(hash, |slot| slot.lane.is_idle()) {
                lane.remove();
            }
        }
        renewals
    }
}
