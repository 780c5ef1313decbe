//! One round of the watchdog over the lanes that are due.

use std::time::Duration;

use super::deadlines::Entry;
use super::{Lanes, Shard};
use crate::LockKey;
use crate::backend::Mode;
use crate::lock::clock::Moment;
use crate::lock::lane::{Effects, Few};
use crate::lock::lease::LeaseNumber;

/// A renewal that the watchdog has to send.
#[derive(Debug)]
pub(crate) struct DueRenewal {
    pub(crate) key: LockKey,
    pub(crate) lease: LeaseNumber,
    pub(crate) ttl: Duration,
    pub(crate) mode: Mode,
}

/// The due work of one round.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// One list per shard, which is freed before the next list is read. A round may renew all leases.
    pub(crate) renewals: Vec<Vec<DueRenewal>>,
    pub(crate) effects: Vec<(LockKey, Effects)>,
    /// The time of the next round.
    pub(crate) next: Option<Moment>,
}

impl Lanes {
    /// Checks every lane that is due in the index.
    pub(crate) fn check(&self, now: Moment) -> Round {
        let mut round = Round::default();
        for shard in &self.shards {
            // Entries that a check adds belong to the next round.
            let due = shard.lock().take_due(now, !round.renewals.is_empty());
            let mut renewals = Vec::new();
            for key in due {
                let mut effects = Effects::at(now);
                self.with(&key, &mut effects, |lane, effects| {
                    if let Some((lease, ttl)) = lane.check(effects) {
                        renewals.push(DueRenewal {
                            key: key.clone(),
                            lease,
                            ttl,
                            mode: lane.mode(),
                        });
                    }
                    lane.admit(&key, effects);
                });
                // The watchdog reads its next deadline from the index.
                effects.deadlines = Few::Empty;
                if !effects.is_empty() {
                    round.effects.push((key, effects));
                }
            }
            if !renewals.is_empty() {
                round.renewals.push(renewals);
            }
            let first = shard.lock().deadlines.first();
            round.next = round.next.into_iter().chain(first.map(|it| it.at)).min();
        }
        round
    }
}

impl Shard {
    /// Removes the entries that are due, and returns the keys of their lanes. A renewal that is due soon joins those of
    /// this round, if it has some: `renews`, or one that is due here.
    fn take_due(&mut self, now: Moment, mut renews: bool) -> Vec<LockKey> {
        let mut due = Vec::new();
        while let Some(Entry { at, hash }) = self.deadlines.first() {
            let slots = self.lanes.iter_hash_mut(hash);
            let mut slots = slots.filter(|slot| slot.scheduled == Some(at));
            // Otherwise the entry is stale.
            if let Some(first) = slots.next() {
                let renews_early = first.lane.renews_early(now);
                if at > now && !(renews && renews_early) {
                    break;
                }
                renews |= renews_early;
                for slot in std::iter::once(first).chain(slots) {
                    slot.scheduled = None;
                    due.push(slot.key.clone());
                }
            }
            self.deadlines.pop();
        }
        due
    }
}
