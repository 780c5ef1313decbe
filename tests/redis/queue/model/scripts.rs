//! The scripts of the reference, one method each.

use super::places::Served;
use super::{Body, Model, Reply, TURN};

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
                    None => match self.serve(Some(lease)) {
                        Served::To(first) if first != lease => (left, freed) = (self.left(), 2),
                        Served::Others => {
                            self.published += 1;
                            (left, freed) = (TURN, 3);
                        }
                        _ => {}
                    },
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
        let (holder, until) = (lease.to_owned(), self.now + ttl);
        self.body = Body::Held { holder, until };
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
            Body::Held { .. } if self.foreign_queue => Reply::Held(self.left(), 0),
            Body::Held { .. } => Reply::Held(self.left(), self.live()),
        }
    }

    pub(crate) fn release(&mut self, lease: &str) -> Reply {
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        if !self.holds(lease) {
            return Reply::Number(0);
        }
        self.body = Body::Free;
        self.dirty = true;
        let published = !self.queue_exists();
        let is_unheard = published && self.others == 0 && self.listening.is_empty();
        if is_unheard {
            self.published += 1;
            return Reply::Number(1);
        }
        Reply::Number(self.free(published))
    }

    pub(crate) fn leave(&mut self, lease: &str) -> Reply {
        if !self.foreign_queue {
            self.forget(lease);
        }
        self.force_release(lease)
    }

    pub(crate) fn force_release(&mut self, lease: &str) -> Reply {
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        if !self.holds(lease) {
            return Reply::Number(0);
        }
        self.body = Body::Free;
        Reply::Number(self.free(false))
    }

    /// `own`: the caller's own subscribers, or -1. Without `releases`, a lease that others wait for is unchanged.
    pub(crate) fn pass(
        &mut self,
        lease: &str,
        ttl: i64,
        own: i64,
        next: Option<(&str, bool)>,
        releases: bool,
    ) -> Reply {
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        if !self.holds(lease) {
            return Reply::Number(0);
        }
        let ours = i64::try_from(self.listening.len()).unwrap() * self.kinds;
        let listeners = ours + self.others;
        let others = match self.others.max(listeners - own) {
            others if others > 0 => others,
            _ if self.foreign_queue => 0,
            _ => self.live(),
        };
        if others > 0 && !releases {
            return Reply::Number(others);
        }
        if others > 0 {
            self.body = Body::Free;
            let to = self.free(false);
            let queued = next.and_then(|(next, listens)| self.wait(next, listens));
            return Reply::Passed(others, to, i64::from(queued.is_some()));
        }
        let counts = self.may_grow();
        if let Body::Held { until, .. } = &mut self.body {
            *until = (*until).max(self.now + ttl);
        }
        if counts { Reply::Kept } else { Reply::KeptBare }
    }
}
