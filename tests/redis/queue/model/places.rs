//! The places of the reference queue, and the waiter that is served next.

use super::{
    ALIVE, CONFIRM, Counted, Mode, Model, PAUSE, POLL, POLLED, Place, STEP, TURN, manager_of,
    mode_of,
};

/// Returns the time until the next attempt of a waiter that polls, with so many places before its own.
fn pace(ahead: usize) -> i64 {
    let ahead = i64::try_from(ahead).unwrap();
    POLL.min(STEP * (ahead + 1))
}

pub(super) enum Served {
    To(String),
    Others,
    Nobody,
}

impl Model {
    pub(super) fn begin_turn(&mut self) -> bool {
        if self.foreign_queue {
            self.dirty = true;
            return false;
        }
        if !self.may_grow() {
            return false;
        }
        self.queue.turn = Some(self.now + TURN);
        let blind = self.counted != Counted::All;
        if blind {
            self.queue.due = Some(self.now + PAUSE);
        }
        self.settle();
        true
    }

    /// A queue without places expires with its marks. A key without members is deleted, with its TTL.
    pub(super) fn settle(&mut self) {
        let ttl = match self.counted {
            Counted::All => TURN,
            _ => PAUSE,
        };
        if self.queue.is_gone() {
            self.queue.expires = None;
        } else if self.queue.places.is_empty() {
            self.queue.expires = Some(self.now + ttl);
        }
    }

    /// Returns the number of live processes.
    pub(crate) fn live(&self) -> i64 {
        let is_live =
            |place: &&Place| matches!(place, Place::Lease { until, .. } if *until > self.now);
        i64::try_from(self.queue.places.iter().filter(is_live).count()).unwrap()
    }

    pub(super) fn forget(&mut self, lease: &str) {
        self.dirty = true;
        let is_other =
            |place: &Place| !matches!(place, Place::Lease { lease: it, .. } if it == lease);
        self.queue.places.retain(is_other);
        self.settle();
    }

    pub(super) fn forget_others(&mut self) {
        self.dirty = true;
        self.queue.places.retain(|it| *it != Place::Others);
        self.settle();
    }

    /// Clients that the server does not count may still wait for the free lock.
    pub(super) fn forget_others_if_counted(&mut self) {
        if self.counted == Counted::All {
            self.forget_others();
        }
    }

    pub(super) fn offer(&mut self) {
        if !self.queue.places.contains(&Place::Others) && self.may_grow() {
            self.queue.places.push(Place::Others);
        }
    }

    /// Returns the time until the next poll. `None` if the queue is of another type, or without memory.
    pub(super) fn wait(&mut self, lease: &str, listens: bool) -> Option<i64> {
        if self.foreign_queue {
            return None;
        }
        let listens = self.is_heard(lease, listens);
        let is_it = |place: &Place| matches!(place, Place::Lease { lease: it, .. } if it == lease);
        let places = &self.queue.places;
        let ahead = places.iter().position(is_it).unwrap_or(places.len());
        let poll_after = if listens { 0 } else { pace(ahead) };
        let until = self.now + ALIVE + poll_after;
        let known = self.queue.places.iter_mut().find_map(|place| match place {
            Place::Lease {
                lease: it,
                listens,
                until,
            } if it == lease => Some((listens, until)),
            _ => None,
        });
        if let Some(known) = known {
            (*known.0, *known.1) = (listens, until);
            self.dirty = true;
        } else if self.may_grow() {
            let lease = lease.to_owned();
            self.queue.places.push(Place::Lease {
                lease,
                listens,
                until,
            });
        } else {
            return None;
        }
        self.queue.expires = Some(self.now + 2 * ALIVE);
        Some(poll_after)
    }

    /// Serves the first waiter of the free body, and if others can hold it as well, those before the first that cannot.
    pub(super) fn transfer(&mut self, own: Option<&str>) -> Served {
        let served = self.serve(own, None);
        if let Served::To(name) = &served
            && mode_of(name).is_some()
            && own != Some(name)
        {
            self.admit(own);
        }
        served
    }

    /// Serves the first waiter of the free body. `own` is served without a transfer. `beside`: leases of this mode hold
    /// the body, so a place that does not fit ends the search.
    pub(super) fn serve(&mut self, own: Option<&str>, beside: Option<Mode>) -> Served {
        let others = beside.is_none() && self.is_turn_due();
        let mut asleep = None;
        let places = self.queue.places.clone();
        for (ahead, place) in places.into_iter().take(32).enumerate() {
            let (lease, listens, until) = match place {
                Place::Others if beside.is_some() => {
                    if self.is_heard_outside() {
                        return Served::Nobody;
                    }
                    self.forget_others_if_counted();
                    continue;
                }
                Place::Others => {
                    self.forget_others();
                    if others && self.begin_turn() {
                        return Served::Others;
                    }
                    continue;
                }
                Place::Lease {
                    lease,
                    listens,
                    until,
                } => (lease, listens, until),
            };
            if own == Some(&lease) {
                return Served::To(lease);
            }
            if until <= self.now {
                self.passed_over += 1;
                self.forget(&lease);
                continue;
            }
            if beside.is_some_and(|mode| !self.fits(mode, &lease)) {
                return Served::Nobody;
            }
            if listens {
                if self.listening.contains(manager_of(&lease)) {
                    self.woken.push(lease.clone());
                } else if self.counted != Counted::Nothing {
                    continue;
                }
            } else if until - ALIVE > self.now + pace(ahead) {
                asleep.get_or_insert(lease);
                continue;
            }
            return self.give(lease, listens, others);
        }
        match asleep {
            Some(lease) if beside.is_none() => self.give(lease, false, others),
            _ => Served::Nobody,
        }
    }

    pub(super) fn give(&mut self, lease: String, listens: bool, others: bool) -> Served {
        if others {
            self.offer();
        }
        self.forget(&lease);
        self.hold(&lease, self.confirmed_within(listens));
        Served::To(lease)
    }

    /// Returns `true` if the server notifies a waiter that says whether it listens.
    pub(super) fn is_heard(&self, lease: &str, listens: bool) -> bool {
        let counted = self.counted != Counted::Nothing;
        listens && (!counted || self.listening.contains(manager_of(lease)))
    }

    pub(super) fn confirmed_within(&self, listens: bool) -> i64 {
        let confirm = listens && self.counted != Counted::Nothing;
        if confirm { CONFIRM } else { POLLED }
    }

    pub(super) fn free(&mut self, published: bool) -> i64 {
        self.passed_over = 0;
        let outcome = self.freed(published);
        outcome + 10 * self.passed_over
    }

    /// The body was deleted.
    pub(super) fn freed(&mut self, published: bool) -> i64 {
        self.dirty = true;
        if !published && !self.foreign_queue {
            match self.transfer(None) {
                Served::To(_) => return 2,
                Served::Others => {
                    self.published += 1;
                    return 3;
                }
                Served::Nobody => {}
            }
        }
        self.published += 1;
        if published && self.counted != Counted::All {
            return 1;
        }
        let turn = self.is_turn_due() && self.begin_turn();
        if turn { 3 } else { 1 }
    }
}
