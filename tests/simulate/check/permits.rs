//! S2, and what permits promise beside any lease: the order of the queue, and the room that they leave.

use tower_lock::ErrorKind;
use tower_lock::backend::{LeaseId, Mode};

use super::SLACK;
use super::keys::BACKSTOP;
use crate::environment::{Environment, number};
use crate::seen::{Seen, Waiter};
use crate::store::{Begun, How};
use crate::time::{MS, SECOND, Time};
use crate::violation::Invariant;

/// How long a place lasts that its process cannot leave.
const ALIVE: Time = 3 * SECOND;

impl Environment {
    /// I6: while there is room for all that ask for permits of a key, they are granted.
    pub(super) fn check_permits(&self, seen: &mut Seen, now: Time) {
        for key in 0..self.plan.keys {
            let asking = |waiter: &&Waiter| waiter.keys.contains(&key);
            let waiters = seen.waiters.iter().filter(asking);
            let Some(limits) = waiters.map(|it| it.permits).collect::<Option<Vec<_>>>() else {
                seen.has_room
                    .retain(|id, _| !is_waiting_for(&seen.waiters, *id, key));
                continue;
            };
            let store = self.store.lock().unwrap();
            let held = store.holders(key, now).len();
            let of_permits = (store.mode(key, now)).is_none_or(|mode| mode == Mode::Permit);
            let places = store.queued(key, now);
            let is_left = store.outside(key).is_empty();
            drop(store);
            let limits = limits
                .into_iter()
                .chain(places.iter().map(|place| place.limit));
            let fits = limits.min().is_none_or(|limit| held < limit);
            let at_work = places.iter().all(|place| !seen.killed[place.manager]);
            let running: Option<Vec<Time>> = (0..self.plan.managers.len())
                .filter(|manager| !seen.killed[*manager])
                .map(|manager| self.all_running_since(seen, manager))
                .collect();
            let running = running.and_then(|since| since.into_iter().max());
            let calm = self.shortest_lease() >= 6 * self.round_trip();
            let (true, Some(running)) = (of_permits && is_left && fits && at_work && calm, running)
            else {
                seen.has_room
                    .retain(|id, _| !is_waiting_for(&seen.waiters, *id, key));
                continue;
            };
            let troubled = seen.troubled.iter().max().filter(|at| **at > 0);
            let troubled = troubled.map_or(0, |at| at + ALIVE);
            let limit = BACKSTOP + 2 * self.round_trip() + 150 * MS;
            for waiter in seen.waiters.iter().filter(asking) {
                let (Some(attentive), true) = (
                    waiter.attentive,
                    waiter.keys.len() == 1
                        && waiter.owner.is_none()
                        && !waiter.single_try
                        && !seen.closing[waiter.manager],
                ) else {
                    continue;
                };
                let since = *seen.has_room.entry(waiter.id).or_insert(now);
                let since = since.max(running).max(attentive);
                if now > (since + limit).max(troubled + limit) {
                    let (id, since) = (waiter.id, since / MS);
                    self.violate(Invariant::Progress, || {
                        format!(
                            "w{id} waits for a permit of k{key}, and there is room since {since} ms"
                        )
                    });
                }
            }
        }
        let waiters = &seen.waiters;
        seen.has_room
            .retain(|id, _| waiters.iter().any(|it| it.id == *id));
    }

    /// S2: when a permit begins to hold a key at the store. It passes no place before its own, except those that are not
    /// served at a free key: no message reaches them, or they sleep.
    pub fn check_begun_permit(&self, begun: Begun, now: Time) {
        if begun.mode != Mode::Permit {
            return;
        }
        let Begun {
            key, held, limit, ..
        } = begun;
        if held > limit {
            self.violate(Invariant::Permits, || {
                format!("{held} permits of k{key} are held after a grant whose limit is {limit}")
            });
        }
        let store = self.store.lock().unwrap();
        let places = store.places(key, now).into_iter();
        drop(store);
        let all = matches!(begun.how, How::Outside | How::Beside);
        let places = places.filter(|(_, is_served)| all || *is_served);
        let is_before = |at: Time| begun.entered.is_none_or(|entered| at < entered);
        let mut passed = places.filter(|(place, _)| is_before(place.entered));
        if let Some((place, _)) = passed.next() {
            self.violate(Invariant::Permits, || {
                let (lease, manager) = (number(place.lease), begun.manager);
                format!("m{manager:?} has a permit of k{key}, and lease {lease} waits")
            });
        }
    }

    /// S2: an owner receives a permit that was granted under its own limit, or a smaller one, or that of another of its
    /// acquires.
    pub fn check_limit(
        &self,
        seen: &Seen,
        waiter: &Waiter,
        (key, token): (usize, i64),
        lease: LeaseId,
        now: Time,
    ) {
        let store = self.store.lock().unwrap();
        let (under, decided) = (store.records[&lease].limit, store.records[&lease].decided);
        let is_first = store
            .token(key, token)
            .is_some_and(|(_, before)| before == 0);
        let held = store.holders(key, now).len();
        drop(store);
        let Some(limit) = waiter.permits else { return };
        // The other acquire may have ended during the wait of this one.
        let since = waiter.started.max(decided);
        let ended = (seen.ended_permits.iter())
            .filter(|it| it.at >= since && it.keys.contains(&key))
            .map(|it| (Some(it.owner), it.limit));
        let waiting = (seen.waiters.iter().filter(|it| it.keys.contains(&key)))
            .filter_map(|it| Some((it.owner, it.permits?)));
        let nests = waiter.owner.is_some()
            && (waiting.chain(ended)).any(|(owner, limit)| owner == waiter.owner && limit >= under);
        if (under > limit || !is_first) && held > limit && !nests {
            let id = waiter.id;
            self.violate(Invariant::Permits, || {
                format!("w{id} has a permit of k{key} below {limit}, granted below {under}, and {held} are held")
            });
        }
    }

    /// S8: an owner that holds a key shared and asks for a permit, or the reverse, is rejected at once. Only an acquire
    /// of a permit finds a key full.
    pub(super) fn check_conflict(&self, seen: &Seen, waiter: &Waiter, kind: ErrorKind) {
        let id = waiter.id;
        let full = if waiter.permits.is_some() {
            ErrorKind::Busy
        } else {
            ErrorKind::PermitsExhausted
        };
        if kind == full {
            self.violate(Invariant::Mode, || format!("w{id} fails with {kind:?}"));
        }
        let [key] = waiter.keys[..] else { return };
        let both = |held: Option<Mode>| {
            let modes = [Some(waiter.mode(key)), held];
            modes.contains(&Some(Mode::Shared)) && modes.contains(&Some(Mode::Permit))
        };
        let own = (seen.guards.iter()).find(|guard| {
            waiter.owner == Some(guard.owner)
                && both(guard.mode_of(key))
                && guard.id < waiter.id
                && self.now() <= waiter.started + SLACK
                && guard.held.is_held()
        });
        let has_home = self.worked_since(seen, waiter.manager).is_some();
        if let Some(guard) = own
            && kind != ErrorKind::KeyConflict
            && (has_home || kind != ErrorKind::Unavailable)
        {
            let guard = guard.id;
            self.violate(Invariant::Reentry, || {
                format!("w{id} fails with {kind:?}, and its owner holds the key in another mode as g{guard}")
            });
        }
    }
}

fn is_waiting_for(waiters: &[Waiter], id: u64, key: usize) -> bool {
    waiters
        .iter()
        .any(|it| it.id == id && it.keys.contains(&key))
}
