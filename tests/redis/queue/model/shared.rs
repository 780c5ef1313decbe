//! Shared leases and permits in the reference. They hold a lock together, and each of them has its own deadline.

use std::collections::BTreeMap;

use super::places::Served;
use super::{ALIVE, Body, Mode, Model, Permits, Place, Reply, limit_of, mode_of};

/// The end of a lease.
pub(super) enum Ended {
    Not,
    /// Other leases still share the lock.
    Kept,
    Freed,
}

impl Model {
    /// The lease holds the lock from now on: alone, or with the others that share it.
    pub(super) fn hold(&mut self, name: &str, ttl: i64) {
        let (name, until) = (name.to_owned(), self.now + ttl);
        match &mut self.body {
            Body::Shared(leases) => {
                // A repeat does not shorten the lease.
                let own = leases.entry(name).or_insert(until);
                *own = until.max(*own);
            }
            Body::Permits(permits) => permits.hold(name, until),
            body => {
                *body = match mode_of(&name) {
                    Some(Mode::Shared) => Body::Shared(BTreeMap::from([(name, until)])),
                    Some(Mode::Permits) => Body::Permits(Permits::new(name, until)),
                    None => Body::Held {
                        holder: name,
                        until,
                    },
                }
            }
        }
    }

    /// Returns `true` if a lease that `own` has to wait for waits before the place of `own`, or before the end of the
    /// queue, or if the clients outside the queue have a place there and are due a turn. Shared leases do not wait for
    /// each other.
    pub(super) fn is_one_ahead(&mut self, own: &str) -> bool {
        if self.foreign_queue {
            return false;
        }
        for place in self.queue.places.clone().into_iter().take(32) {
            match place {
                Place::Others if self.is_heard_outside() => return true,
                Place::Others => self.forget_others_if_counted(),
                Place::Lease { lease, .. } if own == lease => return false,
                Place::Lease { lease, until, .. } => {
                    let both = [own, &lease].map(mode_of);
                    if both != [Some(Mode::Shared); 2] && until > self.now {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// The waiters before the first one that does not fit join the leases that hold the lock.
    pub(super) fn admit(&mut self, own: Option<&str>) {
        let mode = self.body.mode();
        if self.foreign_queue || mode.is_none() {
            return;
        }
        for _ in 0..32 {
            match self.serve(own, mode) {
                Served::To(name) if own != Some(&name) => {}
                _ => return,
            }
        }
    }

    /// A single attempt of a shared lease or a permit.
    pub(crate) fn share(&mut self, name: &str, ttl: i64) -> Reply {
        let again = self.holds(name);
        match self.body {
            Body::Foreign => return Reply::Error,
            Body::Free => {}
            _ if self.body.mode() != mode_of(name) => return Reply::Outside(self.left()),
            _ => {}
        }
        if !again && self.body != Body::Free {
            match limit_of(name).and_then(|limit| self.full(limit)) {
                Some(wait) => return Reply::Outside(wait),
                None => self.announce_others(),
            }
        }
        if !again && self.is_one_ahead(name) {
            return Reply::Outside(self.left().max(0));
        }
        if !self.may_grow() {
            return Reply::Error;
        }
        self.hold(name, ttl);
        if again {
            Reply::Again(None)
        } else {
            Reply::Granted(0)
        }
    }

    /// The clients outside the queue receive a place in it, if one of them listens at this server.
    pub(super) fn announce_others(&mut self) {
        let waits = !self.foreign_queue && self.is_heard_outside();
        if waits && !self.queue.places.contains(&Place::Others) {
            self.offer();
            if self.queue.places.contains(&Place::Others) {
                self.queue.expires = Some(self.now + 2 * ALIVE);
            }
        }
    }

    /// `alone`: the queue is at another node.
    pub(crate) fn renew_shared(&mut self, name: &str, ttl: i64, alone: bool) -> Reply {
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        if !self.holds(name) {
            return Reply::Number(0);
        }
        self.dirty = true;
        self.hold(name, ttl);
        if alone || self.foreign_queue {
            return Reply::Number(1);
        }
        self.announce_others();
        Reply::Number(1 + i64::from(self.is_one_ahead(name)))
    }

    /// Makes the exclusive lease with this id shared. `alone`: the queue is at another node.
    pub(crate) fn downgrade(&mut self, lease: &str, ttl: i64, alone: bool) -> Reply {
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        let name = format!("s{lease}");
        let is_exclusive = self.holds(lease);
        if !is_exclusive && !self.holds(&name) {
            return Reply::Number(0);
        }
        if !self.may_grow() {
            return Reply::Error;
        }
        if is_exclusive {
            let until = self.now + ttl.max(self.left());
            self.body = Body::Shared(BTreeMap::from([(name, until)]));
        }
        if alone || self.foreign_queue || !self.queue_exists() {
            self.published += 1;
        } else {
            self.admit(None);
        }
        Reply::Downgraded
    }

    /// Ends the lease with this id, which is exclusive, shared or a permit.
    pub(super) fn ended(&mut self, lease: &str) -> Ended {
        let now = self.now;
        self.dirty = true;
        if let Body::Permits(permits) = &mut self.body {
            let ended = permits.end(&format!("p{lease}"), now);
            if matches!(ended, Ended::Freed) {
                self.body = Body::Free;
            }
            return ended;
        }
        let shared = format!("s{lease}");
        let was_held = self.holds(lease) || self.holds(&shared);
        let known = match &mut self.body {
            Body::Shared(leases) => {
                let known = leases.remove(&shared).is_some();
                if known {
                    leases.retain(|_, until| *until > now);
                }
                known
            }
            _ => was_held,
        };
        let is_last = match &self.body {
            Body::Shared(leases) => leases.values().all(|until| *until <= now),
            _ => true,
        };
        if known && is_last {
            // In its last millisecond, the body is there although the lease has expired.
            self.body = Body::Free;
            Ended::Freed
        } else if was_held {
            Ended::Kept
        } else {
            Ended::Not
        }
    }
}
