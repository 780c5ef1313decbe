//! The simulated store: what it holds, by its own clock, and what became of each lease.

mod hints;
mod leases;
mod outside;
mod queueing;

use std::collections::{BTreeMap, BTreeSet};

use tower_lock::backend::{HintSender, LeaseId, ReleasedOrKept};

use crate::plan::Command;
use crate::queue::Queue;
use crate::time::{MS, Time};

/// The outcome of a command for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Granted {
        counter: u64,
    },
    Busy {
        ttl: Time,
    },
    /// In the queue.
    Waiting {
        ttl: Time,
        queued: u32,
        poll_after: Option<Time>,
        /// The number that the counters of later transfers exceed.
        transfers: Option<u64>,
    },
    /// Released, and the first waiter of the queue holds the key.
    Transferred,
    Renewed,
    /// Released, or forced open.
    Released {
        watchers: u32,
    },
    /// Released, and the clients outside the queue have a turn.
    LeftToOthers,
    /// Without a counter if the store has no room to count.
    Kept {
        counter: Option<u64>,
    },
    Wanted {
        watchers: u32,
    },
    NotHeld,
    Holder(Option<(LeaseId, Time)>),
}

/// One key of a command.
#[derive(Debug, Clone)]
pub struct Item {
    pub key: usize,
    /// Absent where a command is about the key alone.
    pub lease: Option<LeaseId>,
    pub ttl: Time,
    /// Whether the lease that enters the queue has a subscription.
    pub listens: bool,
    /// The lease that enters the queue when this one is released.
    pub next: Option<LeaseId>,
}

/// What is known of a lease from outside of the engine.
#[derive(Debug, Clone)]
pub struct Record {
    pub manager: usize,
    /// Until when a guard of it may say that it is held, by the commands that took effect.
    pub valid_until: Time,
    /// Until when the store may hold it, by the commands that were sent.
    pub longest: Time,
    pub release_sent: bool,
    /// Whether a guard had it. Others, of unknown fate, are released more than once.
    pub granted: bool,
    /// Whether its process knows that a release has ended it.
    pub ended: bool,
    /// When a command for it failed last.
    pub failed: Option<Time>,
    /// When a command of its process released it.
    pub released: Option<Time>,
    /// Whether a release did not find it.
    pub found_absent: bool,
    /// It ended, or may end, earlier than promised: outside of A0.
    pub broken: bool,
    /// The runtime that is to return it; `None` if that cannot be known.
    pub home: Option<usize>,
    /// When the store last granted or kept it, or the message of its transfer arrived.
    pub decided: Time,
    /// Whether its process knows that it is in the queue.
    pub waited: bool,
    /// The runtime of the last acquire of several keys that ended, and may release this one.
    pub dropped_in: Option<usize>,
}

/// The message of a transfer.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    pub key: usize,
    pub lease: LeaseId,
    pub manager: usize,
    pub counter: Option<u64>,
}

/// The beginning of a turn.
#[derive(Debug, Clone, Copy)]
pub struct Begun {
    pub key: usize,
    /// The process, or `None` for the clients outside the queue.
    pub manager: Option<usize>,
    /// The lease to which the key was transferred. If its process never has a guard of it, there was no turn.
    pub transferred: Option<LeaseId>,
    pub how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The key was free, and an `acquire` takes no notice of the queue.
    Outside,
    /// The key was free, and the first of the queue contended.
    Contended,
    /// A release served the queue.
    Transferred,
}

#[derive(Debug, Clone, Copy)]
struct Live {
    lease: LeaseId,
    expires: Time,
}

#[derive(Default)]
pub struct Store {
    live: BTreeMap<usize, Live>,
    queues: BTreeMap<usize, Queue>,
    /// The messages of transfers that have to be sent.
    transfers: Vec<Transfer>,
    /// The keys whose release has to be published.
    published: Vec<usize>,
    begun: Vec<Begun>,
    /// By key: the clients outside the queue that listen.
    outside: BTreeMap<usize, BTreeSet<usize>>,
    /// How long a transferred lease lasts until it is confirmed.
    transfer_ttl: Time,
    /// When the last `contend` of each lease was sent that entered the queue.
    contended: BTreeMap<LeaseId, Time>,
    watchers: BTreeMap<usize, Vec<(usize, HintSender)>>,
    recoveries: Vec<(usize, HintSender)>,
    pub records: BTreeMap<LeaseId, Record>,
    /// The first and the last counter of each grant of a key.
    counters: BTreeMap<(usize, u64), (u64, LeaseId)>,
    counter: u64,
    has_queue: bool,
    /// How far the clock is ahead of the time of the simulation.
    steps: Time,
    stepped_back: bool,
    /// By key: when a lease last ended earlier than promised.
    pub broken_at: BTreeMap<usize, Time>,
}

/// Whether the store has room to count, which it mostly has. Most times are whole milliseconds.
fn has_room(now: Time) -> bool {
    now / MS % 5 != 0
}

impl Store {
    pub fn new(has_queue: bool, transfer_ttl: Time) -> Self {
        Self {
            has_queue,
            transfer_ttl,
            ..Self::default()
        }
    }

    fn clock(&self, now: Time) -> Time {
        now + self.steps
    }

    fn clock_counter(&self, now: Time) -> u64 {
        1_000_000 + self.clock(now).max(0).unsigned_abs()
    }

    fn next_counters(&mut self, key: usize, lease: LeaseId, count: u32, now: Time) -> u64 {
        let first = self.clock_counter(now).max(self.counter + 1);
        self.counter = first + u64::from(count) - 1;
        self.counters.insert((key, first), (self.counter, lease));
        first
    }

    /// The lease whose grants have this fencing token.
    pub fn lease_of(&self, key: usize, token: i64) -> Option<LeaseId> {
        self.token(key, token).map(|(lease, _)| lease)
    }

    /// The lease of a fencing token, and how many of its tokens come before.
    pub fn token(&self, key: usize, token: i64) -> Option<(LeaseId, u64)> {
        let token = token.unsigned_abs();
        let counter = token / 256;
        let ((of, first), (last, lease)) = self.counters.range(..=(key, counter)).next_back()?;
        (*of == key && counter <= *last).then_some((*lease, token - first * 256))
    }

    /// The lease that holds the key, and for how long.
    pub fn holder(&self, key: usize, now: Time) -> Option<(LeaseId, Time)> {
        let live = self.live.get(&key)?;
        let left = live.expires - self.clock(now);
        (left > 0).then_some((live.lease, left))
    }

    /// The keys that are held.
    pub fn held(&self, now: Time) -> Vec<(usize, LeaseId)> {
        let keys = self.live.keys();
        keys.filter_map(|key| Some((*key, self.holder(*key, now)?.0)))
            .collect()
    }

    fn is_held_by(&self, key: usize, lease: LeaseId, now: Time) -> bool {
        (self.holder(key, now)).is_some_and(|(holder, _)| holder == lease)
    }

    /// Takes note of a command that a process sends.
    pub fn sent(
        &mut self,
        command: Command,
        item: &Item,
        manager: usize,
        runtime: Option<usize>,
        now: Time,
    ) {
        let Some(lease) = item.lease else { return };
        let record = self.records.entry(lease).or_insert(Record {
            manager,
            valid_until: Time::MIN,
            longest: now,
            release_sent: false,
            granted: false,
            ended: false,
            failed: None,
            released: None,
            found_absent: false,
            broken: false,
            home: None,
            decided: Time::MIN,
            waited: false,
            dropped_in: None,
        });
        record.longest = record.longest.max(now + item.ttl);
        match command {
            Command::Acquire | Command::Contend => {
                record.home = runtime;
                record.ended = false;
            }
            Command::Release | Command::Leave => record.release_sent = true,
            _ => {}
        }
    }

    /// Takes note of the outcome of a command that reached its process, or of its failure.
    pub fn answered(
        &mut self,
        command: Command,
        lease: Option<LeaseId>,
        outcome: Option<Outcome>,
        now: Time,
    ) {
        let Some(record) = lease.and_then(|lease| self.records.get_mut(&lease)) else {
            return;
        };
        if outcome.is_none() {
            record.failed = Some(now);
        }
        match outcome {
            Some(Outcome::Released { .. } | Outcome::Transferred | Outcome::LeftToOthers) => {
                record.ended = true;
            }
            Some(Outcome::Waiting { .. }) => record.waited = true,
            Some(Outcome::NotHeld) if !matches!(command, Command::Renew | Command::Extend) => {
                record.ended = true;
            }
            // A late reply or none, after which the process cannot know.
            Some(Outcome::Renewed | Outcome::Kept { .. }) | None => record.ended = false,
            _ => {}
        }
    }

    /// A release that was sent twice and finds no lease is done: the first one may have ended it.
    pub fn absence_is_release(&mut self, lease: LeaseId) {
        if let Some(record) = self.records.get_mut(&lease) {
            record.found_absent = false;
        }
    }

    /// The hand-offs of a lease count from here.
    pub fn decided(&mut self, lease: LeaseId, now: Time) {
        if let Some(record) = self.records.get_mut(&lease) {
            record.decided = now;
        }
    }

    fn grant(&mut self, item: &Item, lease: LeaseId, how: How, sent: Time, now: Time) -> Outcome {
        let key = item.key;
        let begins = !self.is_held_by(key, lease, now);
        let expires = self.clock(now) + item.ttl;
        self.live.insert(key, Live { lease, expires });
        self.promise(lease, item.ttl, sent, now);
        self.decided(lease, now);
        if begins {
            let manager = self.records.get(&lease).map(|record| record.manager);
            self.begun.push(Begun {
                key,
                manager,
                transferred: None,
                how,
            });
        }
        let counter = self.next_counters(key, lease, 1, now);
        Outcome::Granted { counter }
    }

    /// Carries out a command that was sent at `sent` for one key.
    pub fn execute(&mut self, command: Command, item: &Item, sent: Time, now: Time) -> Outcome {
        let Some(lease) = item.lease else {
            return match command {
                Command::Force if self.holder(item.key, now).is_some() => {
                    self.break_lease(item.key, now);
                    self.free(item.key, now)
                }
                Command::Force => Outcome::NotHeld,
                _ => Outcome::Holder(self.holder(item.key, now)),
            };
        };
        if command == Command::Acquire {
            if let Some((holder, ttl)) = self.holder(item.key, now)
                && holder != lease
            {
                return Outcome::Busy { ttl };
            }
            return self.grant(item, lease, How::Outside, sent, now);
        }
        if command == Command::Contend {
            return self.contend(item, lease, sent, now);
        }
        if command == Command::Leave {
            self.queues.entry(item.key).or_default().leave(lease);
        }
        let is_held = self.is_held_by(item.key, lease, now);
        if matches!(command, Command::Release | Command::Pass)
            && let Some(record) = self.records.get_mut(&lease)
        {
            record.found_absent |= !is_held;
        }
        if !is_held {
            return Outcome::NotHeld;
        }
        let watchers = self.waiting(item.key, now);
        match command {
            Command::Renew => {
                self.lengthen(item, lease, sent, now);
                Outcome::Renewed
            }
            Command::Extend if watchers > 0 => Outcome::Wanted { watchers },
            Command::Extend | Command::Pass if watchers == 0 => {
                self.lengthen(item, lease, sent, now);
                self.decided(lease, now);
                let counter = has_room(now)
                    .then(|| self.next_counters(item.key, lease, ReleasedOrKept::COUNTERS, now));
                Outcome::Kept { counter }
            }
            _ => {
                if let Some(record) = self.records.get_mut(&lease) {
                    record.released.get_or_insert(now);
                }
                let freed = self.free(item.key, now);
                if let Some(next) = item.next {
                    self.enter(item, next, now);
                }
                match freed {
                    Outcome::Released { .. } => Outcome::Released { watchers },
                    freed => freed,
                }
            }
        }
    }
}
