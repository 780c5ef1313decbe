//! What the scripts must do: the reference, in which a queue is a list.

use std::collections::BTreeSet;

pub(crate) const CONFIRM: i64 = 1500;
pub(crate) const POLLED: i64 = 300;
pub(crate) const ALIVE: i64 = 3000;
pub(crate) const STEP: i64 = 3;
const POLL: i64 = 100;
const TURN: i64 = 10;
const PAUSE: i64 = 500;

/// What the server can count of the subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    All,
    Ours,
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Lease {
        lease: String,
        listens: bool,
        until: i64,
    },
    /// The clients outside the queue.
    Others,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) places: Vec<Place>,
    /// The end of the last turn of the clients outside the queue.
    pub(crate) turn: Option<i64>,
    /// When their next turn is due, where they cannot be counted.
    pub(crate) due: Option<i64>,
    pub(crate) expires: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    Free,
    Held { holder: String, until: i64 },
    Foreign,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// How many waiters were passed over.
    Granted(i64),
    /// The time since the transfer, if the body can have the TTL of one.
    Again(Option<i64>),
    /// The time until an attempt can succeed, the length of the queue, the time until the next poll, and how many
    /// waiters were passed over.
    Waiting(i64, i64, i64, i64),
    Held(i64, i64),
    /// The process polls outside the queue.
    Outside(i64),
    /// The reply to a release, a leave or a forced release.
    Number(i64),
    Passed(i64, i64, i64),
    Kept,
    /// Kept without a counter.
    KeptBare,
    Error,
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) now: i64,
    pub(crate) body: Body,
    pub(crate) queue: Queue,
    /// The key of the queue has another type.
    pub(crate) foreign_queue: bool,
    /// The managers that listen.
    pub(crate) listening: BTreeSet<String>,
    pub(crate) others: i64,
    pub(crate) counted: Counted,
    pub(crate) full: bool,
    /// The script has written, so the server enforces its memory limit no more.
    dirty: bool,
    /// The transfers that listeners must receive, and the number of published releases.
    pub(crate) woken: Vec<String>,
    pub(crate) published: usize,
    /// The waiters that were forgotten because their deadlines had passed.
    passed_over: i64,
}

pub(crate) fn manager_of(lease: &str) -> &str {
    lease.split(':').next().unwrap()
}

/// Returns the time until the next attempt of a waiter that polls, with so many places before its own.
fn pace(ahead: usize) -> i64 {
    let ahead = i64::try_from(ahead).unwrap();
    POLL.min(STEP * (ahead + 1))
}

enum Served {
    To(String),
    Others,
    Nobody,
}

impl Model {
    pub(crate) fn new(now: i64, counted: Counted) -> Self {
        Self {
            now,
            body: Body::Free,
            queue: Queue::default(),
            foreign_queue: false,
            listening: BTreeSet::new(),
            others: 0,
            counted,
            full: false,
            dirty: false,
            woken: Vec::new(),
            published: 0,
            passed_over: 0,
        }
    }

    /// Begins a script at `now`: what has expired is gone.
    pub(crate) fn begin(&mut self, now: i64) {
        self.now = now;
        self.dirty = false;
        self.woken.clear();
        self.published = 0;
        if matches!(self.body, Body::Held { until, .. } if now > until) {
            self.body = Body::Free;
        }
        if self.queue.expires.is_some_and(|at| now > at) {
            self.queue = Queue::default();
        }
    }

    fn queue_exists(&self) -> bool {
        self.foreign_queue || !self.queue.is_gone()
    }

    fn left(&self) -> i64 {
        match self.body {
            Body::Held { until, .. } => until - self.now,
            Body::Free => -2,
            Body::Foreign => -1,
        }
    }

    fn holds(&self, lease: &str) -> bool {
        matches!(&self.body, Body::Held { holder, .. } if holder == lease)
    }

    fn strangers(&self) -> bool {
        match self.counted {
            Counted::All => self.others > 0,
            _ if self.foreign_queue => false,
            _ => self.queue.due.is_none_or(|at| !self.is_ahead(at, PAUSE)),
        }
    }

    /// Returns `true` if the time of a mark that was set for `span` has not come yet.
    fn is_ahead(&self, mark: i64, span: i64) -> bool {
        mark > self.now && mark <= self.now + span
    }

    /// Returns `false` for a write that needs memory while there is none.
    fn may_grow(&mut self) -> bool {
        let may = !self.full || self.dirty;
        self.dirty |= may;
        may
    }

    fn begin_turn(&mut self) -> bool {
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
    fn settle(&mut self) {
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

    fn forget(&mut self, lease: &str) {
        self.dirty = true;
        let is_other =
            |place: &Place| !matches!(place, Place::Lease { lease: it, .. } if it == lease);
        self.queue.places.retain(is_other);
        self.settle();
    }

    fn offer(&mut self) {
        if !self.queue.places.contains(&Place::Others) && self.may_grow() {
            self.queue.places.push(Place::Others);
        }
    }

    /// Returns the time until the next poll. `None` if the queue is of another type, or without memory.
    fn wait(&mut self, lease: &str, listens: bool) -> Option<i64> {
        if self.foreign_queue {
            return None;
        }
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

    /// Serves the first waiter of the free body. `own` is served without a transfer.
    fn serve(&mut self, own: Option<&str>) -> Served {
        let others = self.strangers();
        let mut asleep = None;
        let places = self.queue.places.clone();
        for (ahead, place) in places.into_iter().take(32).enumerate() {
            let (lease, listens, until) = match place {
                Place::Others => {
                    self.dirty = true;
                    self.queue.places.retain(|it| *it != Place::Others);
                    self.settle();
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
        asleep.map_or(Served::Nobody, |lease| self.give(lease, false, others))
    }

    fn give(&mut self, lease: String, listens: bool, others: bool) -> Served {
        if others {
            self.offer();
        }
        self.forget(&lease);
        let until = self.now + self.confirmed_within(listens);
        let holder = lease.clone();
        self.body = Body::Held { holder, until };
        Served::To(lease)
    }

    fn confirmed_within(&self, listens: bool) -> i64 {
        let confirm = listens && self.counted != Counted::Nothing;
        if confirm { CONFIRM } else { POLLED }
    }

    fn free(&mut self, told: bool) -> i64 {
        self.passed_over = 0;
        let outcome = self.freed(told);
        outcome + 10 * self.passed_over
    }

    /// The body was deleted.
    fn freed(&mut self, told: bool) -> i64 {
        self.dirty = true;
        if !told && !self.foreign_queue {
            match self.serve(None) {
                Served::To(_) => return 2,
                Served::Others => {
                    self.published += 1;
                    return 3;
                }
                Served::Nobody => {}
            }
        }
        self.published += 1;
        if told && self.counted != Counted::All {
            return 1;
        }
        let turn = self.strangers() && self.begin_turn();
        if turn { 3 } else { 1 }
    }

    pub(crate) fn contend(&mut self, lease: &str, ttl: i64, listens: bool) -> Reply {
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        let again = self.holds(lease);
        self.passed_over = 0;
        if !again {
            let mut left = self.left();
            let (mut queued, mut entered) = (None, false);
            if left == -2 && self.queue_exists() && !self.foreign_queue {
                (queued, entered) = (self.wait(lease, listens), true);
                match self.queue.turn.filter(|turn| self.is_ahead(*turn, TURN)) {
                    Some(turn) => left = turn - self.now,
                    None => match self.serve(Some(lease)) {
                        Served::To(first) if first != lease => left = self.left(),
                        Served::Others => {
                            self.published += 1;
                            left = TURN;
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
                    Some(poll) => Reply::Waiting(left, self.live(), poll, self.passed_over),
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
        let idle = self.confirmed_within(listens) - self.left();
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
        let told = !self.queue_exists();
        let nobody = told && self.others == 0 && self.listening.is_empty();
        if nobody {
            self.published += 1;
            return Reply::Number(1);
        }
        Reply::Number(self.free(told))
    }

    pub(crate) fn leave(&mut self, lease: &str) -> Reply {
        if !self.foreign_queue {
            self.forget(lease);
        }
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        if !self.holds(lease) {
            return Reply::Number(0);
        }
        self.body = Body::Free;
        Reply::Number(self.free(false))
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
        let listeners = i64::try_from(self.listening.len()).unwrap() + self.others;
        let others = match listeners - own {
            others if others > 0 => others,
            _ if self.foreign_queue => 0,
            _ => self.live(),
        };
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

impl Queue {
    /// Returns `true` if the key does not exist.
    pub(crate) fn is_gone(&self) -> bool {
        self.places.is_empty() && self.turn.is_none() && self.due.is_none()
    }
}
