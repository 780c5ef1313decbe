//! What the functions of the schema must do: the reference, in which a queue is a list. Times are milliseconds.

use std::collections::{BTreeMap, BTreeSet};

pub(super) const TRANSFER: i64 = 1_500;
pub(super) const ALIVE: i64 = 3_000;
pub(super) const WATCHED: i64 = 30_000;
pub(super) const SWEPT: i64 = 60_000;
const TURN: i64 = 50;
/// The least time until an attempt can succeed.
const LEAST: i64 = 20;
/// The channel of the processes of version 1.
pub(super) const OUTSIDE: &str = "tower_lock_outside";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    /// Its id, after a `p` if it is a permit.
    pub(super) name: String,
    pub(super) is_shared: bool,
    /// 0 if it ended while a transaction was open.
    pub(super) until: i64,
    /// The first and the last counter, once the comparison has read them.
    pub(super) first: i64,
    pub(super) last: i64,
    /// A fenced transaction is open, so no other lease replaces it.
    pub(super) is_fenced: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The id of a lease, or `~` for the processes of version 1.
    pub(super) lease: String,
    pub(super) mode: char,
    pub(super) most: Option<i32>,
    pub(super) channel: Option<String>,
    pub(super) seen: i64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Lock {
    pub(super) name: String,
    /// In the order of their grants. Some have expired.
    pub(super) leases: Vec<Lease>,
    pub(super) places: Vec<Place>,
    /// The channels of managers, and the times of their last calls.
    pub(super) watchers: BTreeMap<String, (String, i64)>,
}

/// The world beside the locks.
#[derive(Debug, Clone, Default)]
pub(super) struct World {
    pub(super) now: i64,
    /// The channels of the processes that listen.
    pub(super) listening: BTreeSet<String>,
    /// The notifications of the present command.
    pub(super) notified: BTreeSet<(String, String)>,
    /// The last counters of leases that were released.
    pub(super) released: Vec<i64>,
    pub(super) transfers: usize,
    pub(super) turns: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub(super) key: usize,
    pub(super) lease: String,
    pub(super) mode: char,
    pub(super) most: Option<i32>,
    pub(super) ttl: i64,
    pub(super) waits: bool,
    pub(super) channel: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Contended {
    Granted,
    /// The time until an attempt can succeed, and the number of places.
    Waiting(i64, Option<i32>),
    /// The command has to be sent alone.
    Blocked,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kept {
    Extended,
    /// The number of waiting managers, and the outcome of the release.
    Passed(i32, String),
    NotHeld,
}

#[derive(Default)]
struct Served {
    served: usize,
    is_own: bool,
    turn: Option<i64>,
    is_blocked: bool,
}

fn permit(lease: &str) -> String {
    format!("p{lease}")
}

impl Lock {
    /// Returns the leases that hold the lock.
    pub(super) fn holders(&self, now: i64) -> impl Iterator<Item = &Lease> {
        self.leases.iter().filter(move |it| it.until > now)
    }

    /// Returns when the lock may have room beside the leases that end after `since`.
    fn full_until(&self, mode: char, most: Option<i32>, since: i64) -> Option<i64> {
        let others: Vec<_> = self.holders(since).collect();
        let ends = || others.iter().map(|it| it.until);
        let is_alike = others.iter().all(|it| match mode {
            's' => it.is_shared,
            'p' => it.name.starts_with('p'),
            _ => false,
        });
        let is_full = most.is_some_and(|most| others.len() >= usize::try_from(most).unwrap());
        match mode {
            _ if !is_alike => ends().max(),
            'p' if is_full => ends().min(),
            _ => None,
        }
    }

    fn settle(&mut self, now: i64) {
        self.leases.retain(|it| it.until > now || it.is_fenced);
    }

    /// Returns the channels of the processes of version 1 that wait.
    fn outside(&self, now: i64) -> bool {
        let mut all = self.watchers.values();
        all.any(|(channel, seen)| channel == OUTSIDE && *seen > now - WATCHED)
    }

    fn grant(&mut self, lease: &str, mode: char, until: i64) {
        self.leases.push(Lease {
            name: match mode {
                'p' => permit(lease),
                _ => lease.to_owned(),
            },
            is_shared: mode == 's',
            until,
            first: 0,
            last: 0,
            is_fenced: false,
        });
    }

    fn remove(&mut self, lease: &str) -> bool {
        let before = self.places.len();
        self.places.retain(|it| it.lease != lease);
        self.places.len() < before
    }

    fn serve(
        &mut self,
        world: &mut World,
        own: Option<&str>,
        ttl: i64,
        may_notify: bool,
    ) -> Served {
        let now = world.now;
        let mut outcome = Served::default();
        self.places.retain(|it| it.seen >= now - ALIVE);
        for place in self.places.clone() {
            if place.lease == "~" {
                if place.mode == 'o' && self.outside(now) {
                    if !self.leases.is_empty() {
                        break;
                    }
                    outcome.is_blocked = !may_notify;
                    if !may_notify {
                        break;
                    }
                    outcome.turn = Some(now + TURN);
                    let entry = self.places.iter_mut().find(|it| it.lease == "~");
                    let entry = entry.unwrap();
                    (entry.mode, entry.seen) = ('t', now + TURN);
                    let note = (OUTSIDE.to_owned(), format!("r {}", self.name));
                    world.notified.insert(note);
                    world.turns += 1;
                    break;
                }
                let is_ahead = (now..=now + TURN).contains(&place.seen);
                if place.mode == 't' && is_ahead && self.leases.is_empty() {
                    outcome.turn = Some(place.seen);
                    break;
                }
                self.remove("~");
                continue;
            }
            if self.full_until(place.mode, place.most, i64::MIN).is_some() {
                break;
            }
            let is_own = own == Some(&*place.lease);
            if !is_own {
                let channel = place.channel.as_ref();
                if channel.is_some_and(|it| !world.listening.contains(it)) {
                    continue;
                }
                outcome.is_blocked = !may_notify;
                if !may_notify {
                    break;
                }
            }
            self.remove(&place.lease);
            let span = if is_own { ttl } else { TRANSFER };
            self.grant(&place.lease, place.mode, now + span);
            if is_own {
                outcome.is_own = true;
            } else {
                outcome.served += 1;
                world.transfers += 1;
                let text = format!("t {} {}", place.lease, self.name);
                world.notified.extend(place.channel.map(|it| (it, text)));
            }
            if place.mode == 'x' {
                break;
            }
        }
        let has_turn = self.places.iter().any(|it| it.lease == "~");
        if (outcome.served > 0 || outcome.is_own) && self.outside(now) && !has_turn {
            self.places.push(Place {
                lease: "~".to_owned(),
                mode: 'o',
                most: None,
                channel: None,
                seen: now + 60_000,
            });
        }
        outcome
    }

    fn pass(&mut self, world: &mut World, ended: bool) -> String {
        let now = world.now;
        if !self.places.is_empty() {
            self.settle(now);
            let was_free = self.leases.is_empty();
            let outcome = self.serve(world, None, 0, true);
            if outcome.turn.is_some() {
                return "o".to_owned();
            }
            if outcome.served > 0 {
                return if was_free { "t" } else { "r" }.to_owned();
            }
            if !was_free && !self.places.is_empty() {
                let is_draining = self.leases.iter().any(|it| it.until <= now);
                let first = self.places[0].channel.clone().filter(|_| is_draining);
                let text = format!("r {}", self.name);
                world.notified.extend(first.map(|it| (it, text)));
                return "r".to_owned();
            }
        }
        if ended {
            let seen = self.watchers.values();
            let seen = seen.filter(|(_, seen)| *seen > now - WATCHED);
            let notes = seen.map(|(channel, _)| (channel.clone(), format!("r {}", self.name)));
            world.notified.extend(notes);
        }
        "r".to_owned()
    }

    /// A single attempt of an exclusive lease, which depends on no queue.
    pub(super) fn acquire(&mut self, now: i64, attempt: &Attempt) -> Contended {
        // Not its own lease in another mode.
        let others = self.holders(now).filter(|it| it.name != attempt.lease);
        if let Some(at) = others.map(|it| it.until).max() {
            return Contended::Waiting((at - now).max(LEAST), None);
        }
        self.settle(now);
        let mut own = self.leases.iter_mut();
        let own = own.find(|it| it.name == attempt.lease && !it.is_shared && it.until > now);
        if let Some(own) = own {
            own.until = own.until.max(now + attempt.ttl);
            return Contended::Granted;
        }
        if let Some(at) = self.full_until('x', None, i64::MIN) {
            return Contended::Waiting((at - now).max(LEAST), None);
        }
        self.grant(&attempt.lease, 'x', now + attempt.ttl);
        Contended::Granted
    }

    pub(super) fn contend(
        &mut self,
        world: &mut World,
        attempt: &Attempt,
        may_notify: bool,
    ) -> Contended {
        let now = world.now;
        let Attempt {
            lease,
            mode,
            most,
            ttl,
            waits,
            ..
        } = attempt;
        let waiting = |at: i64, queued| Contended::Waiting((at - now).max(LEAST), queued);
        let name = match mode {
            'p' => permit(lease),
            _ => lease.clone(),
        };
        if !waits {
            let is_held = self.holders(now).any(|it| it.name == name);
            if let Some(at) = self.full_until(*mode, *most, now).filter(|_| !is_held) {
                return waiting(at, None);
            }
        }
        self.settle(now);
        let own = self
            .leases
            .iter_mut()
            .find(|it| it.name == name && it.is_shared == (*mode == 's') && it.until > now);
        if let Some(own) = own {
            let extended = now + ttl;
            own.until = match mode {
                'x' => extended,
                _ => own.until.max(extended),
            };
            return Contended::Granted;
        }
        if *waits {
            let other = permit(lease);
            self.leases
                .retain(|it| it.name != *lease && it.name != other);
        }
        let mut at = self.full_until(*mode, *most, i64::MIN);
        let mut queued = None;
        if *waits && (at.is_some() || !self.places.is_empty()) {
            let place = Place {
                lease: lease.clone(),
                mode: *mode,
                most: *most,
                channel: attempt.channel.clone(),
                seen: now,
            };
            match self.places.iter_mut().find(|it| it.lease == *lease) {
                Some(known) => *known = place,
                None => self.places.push(place),
            }
            let outcome = self.serve(world, Some(lease), *ttl, may_notify);
            if outcome.is_own {
                return Contended::Granted;
            }
            if outcome.is_blocked {
                return Contended::Blocked;
            }
            let places = self.places.iter().filter(|it| it.lease != "~").count();
            queued = Some(i32::try_from(places).unwrap());
            at = outcome
                .turn
                .or_else(|| self.full_until(*mode, *most, i64::MIN));
        }
        let mut alive = self.places.iter().filter(|it| it.seen > now - ALIVE);
        let is_behind = *mode != 'x' && alive.any(|it| *mode == 'p' || it.mode != 's');
        if at.is_some() || queued.is_some() || is_behind {
            let soonest = self.leases.iter().map(|it| it.until).min();
            return waiting(at.or(soonest).unwrap_or(now), queued);
        }
        self.grant(lease, *mode, now + ttl);
        Contended::Granted
    }

    /// Ends a lease, or all of them. Returns whether one held the lock.
    fn finish(&mut self, world: &mut World, lease: Option<&str>) -> bool {
        let now = world.now;
        let is_ended = |it: &Lease| {
            let id = it.name.strip_prefix('p').unwrap_or(&it.name);
            it.until > now && lease.is_none_or(|lease| lease == id)
        };
        let mut held = false;
        for ended in self.leases.iter_mut().filter(|it| is_ended(it)) {
            ended.until = 0;
            world.released.push(ended.last);
            held = true;
        }
        if lease.is_none() {
            self.settle(now);
        } else {
            // Expired leases stay.
            self.leases.retain(|it| it.until > 0 || it.is_fenced);
        }
        held
    }

    pub(super) fn release(
        &mut self,
        world: &mut World,
        lease: Option<&str>,
        leaves: bool,
    ) -> String {
        if self.finish(world, lease) {
            return self.pass(world, true);
        }
        if let Some(lease) = lease.filter(|_| leaves)
            && self.remove(lease)
        {
            self.pass(world, false);
        }
        "n".to_owned()
    }

    pub(super) fn release_or_keep(
        &mut self,
        world: &mut World,
        lease: &str,
        manager: &str,
        ttl: i64,
        following: Option<Place>,
    ) -> Kept {
        let now = world.now;
        let watchers = self.watchers.iter();
        let watchers =
            watchers.filter(|(name, (_, seen))| *name != manager && *seen > now - WATCHED);
        let places = self.places.iter().filter(|it| it.seen > now - ALIVE);
        let others = watchers.count().max(places.count());
        if others == 0 {
            let own = self.leases.iter_mut();
            let mut own = own.filter(|it| it.name == lease && it.until > now);
            let Some(own) = own.next() else {
                return Kept::NotHeld;
            };
            own.until = own.until.max(now + ttl);
            return Kept::Extended;
        }
        if !self.finish(world, Some(lease)) {
            return Kept::NotHeld;
        }
        let outcome = self.pass(world, true);
        self.places.extend(following);
        Kept::Passed(i32::try_from(others).unwrap(), outcome)
    }

    /// Returns whether the lease holds the lock.
    pub(super) fn downgrade(&mut self, world: &mut World, lease: &str, ttl: i64) -> bool {
        let now = world.now;
        let mut own = self.leases.iter_mut();
        let Some(own) = own.find(|it| it.name == lease && it.until > now) else {
            return false;
        };
        own.is_shared = true;
        own.until = own.until.max(now + ttl);
        self.pass(world, true);
        true
    }

    /// Returns whether the lease is wanted, or `None` if it does not hold the lock.
    pub(super) fn renew(&mut self, now: i64, lease: &str, mode: char, ttl: i64) -> Option<bool> {
        let name = match mode {
            'p' => permit(lease),
            _ => lease.to_owned(),
        };
        let mut own = self.leases.iter_mut();
        let own =
            own.find(|it| it.name == name && it.is_shared == (mode == 's') && it.until > now)?;
        own.until = own.until.max(now + ttl);
        let mut alive = self.places.iter().filter(|it| it.seen > now - ALIVE);
        Some(mode == 's' && alive.any(|it| it.mode != 's'))
    }

    /// Removes what ended processes left.
    pub(super) fn sweep(&mut self, now: i64) {
        self.leases
            .retain(|it| it.until >= now - SWEPT || it.is_fenced);
        self.places.retain(|it| it.seen >= now - SWEPT);
        self.watchers.retain(|_, (_, seen)| *seen >= now - SWEPT);
    }
}
