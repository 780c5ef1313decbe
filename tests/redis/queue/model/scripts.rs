//! The scripts of the reference, one method each.

use super::places::Served;
use super::shared::Ended;
use super::{Body, LISTENS, Model, Reply, TURN, id_of, limit_of, mode_of};

impl Model {
    pub(crate) fn contend(&mut self, lease: &str, ttl: i64, listens: bool) -> Reply {
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        let again = self.holds(lease);
        self.passed_over = 0;
        if !again {
            let mut left = self.left();
            let (mut queued, mut entered, mut freed) = (None, false, 1);
            if left == -2 && self.queue_exists() && !self.foreign_queue {
                (queued, entered) = (self.wait(lease, listens), true);
                match self.queue.turn.filter(|turn| self.is_ahead(*turn, TURN)) {
                    Some(turn) => left = turn - self.now,
                    None => match self.transfer(Some(lease)) {
                        Served::To(first) if first != lease => (left, freed) = (self.left(), 2),
                        Served::Others => {
                            self.published += 1;
                            (left, freed) = (TURN, 3);
                        }
                        _ => {}
                    },
                }
            }
            let mode = mode_of(lease);
            if left != -2 && mode.is_some() && self.body.mode() == mode {
                self.announce_others();
                let is_wanted = self.is_one_ahead(lease);
                match limit_of(lease).and_then(|limit| self.full(limit)) {
                    Some(wait) => left = wait,
                    None if !is_wanted => left = -2,
                    None => {}
                }
            }
            if left != -2 {
                if !entered {
                    queued = self.wait(lease, listens);
                    if self.queue.turn.take().is_some() {
                        self.settle();
                    }
                }
                return match queued {
                    Some(poll) => {
                        let freed = freed + 10 * self.passed_over;
                        Reply::Waiting(left, self.live(), poll, freed)
                    }
                    None => Reply::Outside(left),
                };
            }
        }
        if !self.may_grow() {
            return Reply::Error;
        }
        if !again && !self.foreign_queue {
            self.forget(lease);
        }
        let idle = self.confirmed_within(self.is_heard(lease, listens)) - self.left();
        self.hold(lease, ttl);
        if mode_of(lease).is_some() {
            self.admit(None);
            if again {
                return Reply::Again(None);
            }
        }
        if again {
            Reply::Again((idle >= 0).then_some(idle))
        } else {
            Reply::Granted(self.passed_over)
        }
    }

    /// An acquire without the queue, as by an older version.
    pub(crate) fn acquire(&mut self, lease: &str, ttl: i64) -> Reply {
        let again = self.holds(lease);
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        if !again && self.body != Body::Free {
            return Reply::Outside(self.left());
        }
        if !self.may_grow() {
            return Reply::Error;
        }
        let (holder, until) = (lease.to_owned(), self.now + ttl);
        self.body = Body::Held { holder, until };
        if again {
            Reply::Again(None)
        } else {
            Reply::Granted(0)
        }
    }

    pub(crate) fn inspect(&self) -> Reply {
        match self.body {
            Body::Free => Reply::Number(-2),
            Body::Foreign => Reply::Error,
            Body::Held { .. } | Body::Shared(_) | Body::Permits(_) => {
                let queued = if self.foreign_queue { 0 } else { self.live() };
                self.inspect_held(queued)
            }
        }
    }

    fn inspect_held(&self, queued: i64) -> Reply {
        let live = |it: &(&String, &i64)| *it.1 > self.now;
        let held = Reply::Held(self.left(), queued);
        let Some(leases) = self.body.leases() else {
            return held;
        };
        let latest = leases.iter().filter(live).max_by_key(|(_, until)| **until);
        latest.map_or(held, |(name, _)| {
            let count = i64::try_from(leases.iter().filter(live).count()).unwrap();
            Reply::Shared(self.left(), queued, count, name.clone())
        })
    }

    pub(crate) fn release(&mut self, lease: &str) -> Reply {
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        match self.ended(lease) {
            Ended::Not => return Reply::Number(0),
            Ended::Kept => {
                // A permit is free for the next waiter.
                self.admit(None);
                return Reply::Number(1);
            }
            Ended::Freed => {}
        }
        let published = !self.queue_exists();
        let is_unheard = published && self.others == 0 && self.listening.is_empty();
        if is_unheard {
            self.published += 1;
            return Reply::Number(1);
        }
        Reply::Number(self.free(published))
    }

    /// The place of a lease may have been before others that fit.
    pub(crate) fn leave(&mut self, lease: &str) -> Reply {
        if !self.foreign_queue {
            self.forget(lease);
            self.forget(&format!("s{lease}"));
            self.forget(&format!("p{lease}"));
        }
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        let reply = match self.ended(lease) {
            Ended::Not => 0,
            Ended::Kept => 1,
            Ended::Freed => self.free(false),
        };
        self.admit(None);
        Reply::Number(reply)
    }

    /// `spares`: only the lease with this name ends, and not those that share the lock with it.
    pub(crate) fn force_release(&mut self, name: &str, spares: bool) -> Reply {
        let names = [name.to_owned(), format!("s{name}"), format!("p{name}")];
        let is_known = |name: &&String| match self.body.leases() {
            Some(leases) => leases.contains_key(*name),
            None => self.holds(name),
        };
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        let Some(name) = names.iter().find(is_known) else {
            return Reply::Number(0);
        };
        if spares && mode_of(name).is_some() {
            let reply = match self.ended(id_of(name)) {
                Ended::Not => Some(0),
                Ended::Kept => Some(1),
                Ended::Freed => None,
            };
            if let Some(reply) = reply {
                self.admit(None);
                return Reply::Number(reply);
            }
        }
        self.body = Body::Free;
        Reply::Number(self.free(false))
    }

    /// Returns the number of subscribers at this server.
    pub(super) fn listeners(&self) -> i64 {
        i64::try_from(self.listening.len()).unwrap() * self.kinds + self.others
    }

    /// `own`: the caller's own subscribers, or -1.
    pub(crate) fn pass(
        &mut self,
        lease: &str,
        ttl: i64,
        own: i64,
        next: Option<(&str, bool)>,
    ) -> Reply {
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        if !self.holds(lease) {
            return Reply::Number(0);
        }
        let others = match self.others.max(self.listeners() - own) {
            others if others > 0 => others,
            _ if self.foreign_queue => 0,
            _ => self.live(),
        };
        if others > 0 {
            self.body = Body::Free;
            let to = self.free(false);
            let queued = next.and_then(|(next, listens)| self.wait(next, listens));
            let entered = match queued {
                None => 0,
                Some(0) => LISTENS,
                Some(_) => 1,
            };
            return Reply::Passed(others, to, entered);
        }
        let counts = self.may_grow();
        if let Body::Held { until, .. } = &mut self.body {
            self.dirty |= *until < self.now + ttl;
            *until = (*until).max(self.now + ttl);
        }
        if counts { Reply::Kept } else { Reply::KeptBare }
    }
}
