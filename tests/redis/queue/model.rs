//! What the scripts must do: the reference, in which a queue is a list.

mod pairs;
mod permits;
mod places;
mod scripts;
mod shared;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use permits::Permits;

/// What a release replies for the next lease that listens in the queue.
pub(crate) const LISTENS: i64 = 2;
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
    Held {
        holder: String,
        until: i64,
    },
    /// The names of the shared leases, and their deadlines. The body lasts until the latest one.
    Shared(BTreeMap<String, i64>),
    Permits(Permits),
    Foreign,
}

impl Body {
    /// Returns when it expires.
    pub(crate) fn until(&self) -> Option<i64> {
        match self {
            Self::Held { until, .. } => Some(*until),
            Self::Shared(leases) => leases.values().max().copied(),
            Self::Permits(permits) => Some(permits.until),
            Self::Free | Self::Foreign => None,
        }
    }

    /// Returns how several leases hold it.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match self {
            Self::Shared(_) => Some(Mode::Shared),
            Self::Permits(_) => Some(Mode::Permits),
            Self::Held { .. } | Self::Free | Self::Foreign => None,
        }
    }

    /// Returns the names of the leases that hold it together, and their deadlines.
    pub(crate) fn leases(&self) -> Option<&BTreeMap<String, i64>> {
        match self {
            Self::Shared(leases) => Some(leases),
            Self::Permits(permits) => Some(&permits.leases),
            Self::Held { .. } | Self::Free | Self::Foreign => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// How many waiters were passed over.
    Granted(i64),
    /// The time since the transfer, if the body can have the TTL of one.
    Again(Option<i64>),
    /// The time until an attempt can succeed, the length of the queue, the time until the next poll, and what became
    /// of the free body, as the reply to a release.
    Waiting(i64, i64, i64, i64),
    Held(i64, i64),
    /// As `Held` of a lock that several leases can hold, with their number, and the name of one with the latest deadline.
    Shared(i64, i64, i64, String),
    /// The process polls outside the queue.
    Outside(i64),
    /// The reply to a release, a leave or a forced release.
    Number(i64),
    /// The last number is [`LISTENS`] for a next lease that listens in the queue, and 1 for one that polls there.
    Passed(i64, i64, i64),
    Kept,
    /// Kept without a counter.
    KeptBare,
    Downgraded,
    Error,
    /// The replies to a call with two keys.
    Each([Box<Reply>; 2]),
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
    /// The number of subscriptions of each of them to one channel.
    pub(crate) kinds: i64,
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

/// How several leases hold a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Permits,
}

/// Returns the mode of the lease with this name, or `None` if it is exclusive.
pub(crate) fn mode_of(name: &str) -> Option<Mode> {
    match &name[..1] {
        "s" => Some(Mode::Shared),
        "p" => Some(Mode::Permits),
        _ => None,
    }
}

/// Returns `true` for the name of a shared lease.
pub(crate) fn is_shared(name: &str) -> bool {
    mode_of(name) == Some(Mode::Shared)
}

/// Returns the limit under which the lease with this name asks for a permit. Each has one of its own.
pub(crate) fn limit_of(name: &str) -> Option<i64> {
    let number = || name.split(':').nth(1)?.parse::<i64>().ok();
    mode_of(name).filter(|it| *it == Mode::Permits)?;
    Some(1 + number().unwrap() % 4)
}

/// Returns the id of the lease with this name.
pub(crate) fn id_of(name: &str) -> &str {
    name.trim_start_matches(['s', 'p'])
}

pub(crate) fn manager_of(name: &str) -> &str {
    id_of(name).split(':').next().unwrap()
}

pub(crate) fn manager_name(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// Returns the first lease of a manager.
pub(crate) fn lease(number: u64) -> String {
    format!("{}:1", manager_name(number))
}

impl Model {
    pub(crate) fn new(now: i64, counted: Counted, kinds: i64) -> Self {
        Self {
            now,
            body: Body::Free,
            queue: Queue::default(),
            foreign_queue: false,
            listening: BTreeSet::new(),
            kinds,
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
        if self.body.until().is_some_and(|at| now > at) {
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
        match self.body.until() {
            Some(until) => until - self.now,
            None if self.body == Body::Free => -2,
            None => -1,
        }
    }

    /// Returns `true` if the lease with this name holds the lock.
    fn holds(&self, name: &str) -> bool {
        match &self.body {
            Body::Held { holder, .. } => holder == name,
            body => {
                let until = body.leases().and_then(|leases| leases.get(name));
                until.is_some_and(|until| *until > self.now)
            }
        }
    }

    fn is_turn_due(&self) -> bool {
        match self.counted {
            Counted::All => self.others > 0,
            _ if self.foreign_queue => false,
            _ => self.queue.due.is_none_or(|at| !self.is_ahead(at, PAUSE)),
        }
    }

    /// Returns `true` if clients outside the queue listen at this server and are due a turn.
    fn is_heard_outside(&self) -> bool {
        self.others > 0 && self.is_turn_due()
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
}

impl Queue {
    /// Returns `true` if the key does not exist.
    pub(crate) fn is_gone(&self) -> bool {
        self.places.is_empty() && self.turn.is_none() && self.due.is_none()
    }
}
