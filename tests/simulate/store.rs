//! The simulated store: what it holds, by its own clock, and what became of each lease.

mod body;
mod hints;
mod leases;
mod outside;
mod queueing;

use std::collections::{BTreeMap, BTreeSet};

use tower_lock::backend::{Hint, HintSender, LeaseId, Mode};

use crate::plan::Command;
use crate::queue::Queue;
use crate::time::{MS, Time};
use body::{Body, Ended};

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
    },
    /// Released, and the first waiter of the queue holds the key.
    Transferred,
    /// As `Transferred`, and the next lease of the process listens in the queue.
    Entered,
    Renewed,
    /// As `Renewed` for a shared lease or a permit, while a lease waits that does not fit.
    RenewedWanted,
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
    NotHeld,
    Holder(Option<(LeaseId, Time)>),
}

/// One key of a command.
#[derive(Debug, Clone)]
pub struct Item {
    pub key: usize,
    /// Absent where a command is about the key alone.
    pub lease: Option<LeaseId>,
    pub mode: Mode,
    /// The limit of a permit, or 0.
    pub limit: usize,
    pub ttl: Time,
    /// Whether the lease that enters the queue has a subscription.
    pub listens: bool,
    /// The lease that enters the queue when this one is released.
    pub next: Option<LeaseId>,
    /// The counters of a lease that is kept.
    pub counters: u32,
}

/// What is known of a lease from outside of the engine.
#[derive(Debug, Clone)]
pub struct Record {
    pub manager: usize,
    pub mode: Mode,
    /// The limit under which a permit was granted.
    pub limit: usize,
    /// Until when a guard of it may say that it is held, by the commands that took effect.
    pub valid_until: Time,
    /// Until when the store may hold it, by the commands that were sent.
    pub longest: Time,
    pub release_sent: bool,
    /// When the last command was sent that ends the lease.
    pub end_sent: Option<Time>,
    /// The releases without a reply so far.
    pub unanswered: u32,
    /// Whether a guard had it. Others, of unknown fate, are released more than once.
    pub granted: bool,
    /// Whether its process knows that a release has ended it.
    pub ended: Option<Time>,
    /// Whether a renewal did not find it.
    pub gone: bool,
    /// When a command for it failed last.
    pub failed: Option<Time>,
    /// When a command of its process released it.
    pub released: Option<Time>,
    /// Whether a release did not find it.
    pub found_absent: bool,
    /// It ended, or may end, earlier than promised: outside of A0.
    pub broken: bool,
    /// The clock went back after the first command for it, so that it can last longer than its process knows.
    pub stepped_back: bool,
    /// When the store last granted or kept it, or the message of its transfer arrived.
    pub decided: Time,
    /// Whether its process knows that it is in the queue.
    pub waited: bool,
}

/// The message of a transfer.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    pub key: usize,
    pub lease: LeaseId,
    pub manager: usize,
}

/// The beginning of a turn, or of one of several leases that hold a key.
#[derive(Debug, Clone, Copy)]
pub struct Begun {
    pub key: usize,
    /// The process, or `None` for the clients outside the queue.
    pub manager: Option<usize>,
    /// The lease to which the key was transferred. If its process never has a guard of it, there was no turn.
    pub transferred: Option<LeaseId>,
    pub how: How,
    pub mode: Mode,
    /// The limit of a permit, or 0.
    pub limit: usize,
    /// How many leases hold the key, this one included.
    pub held: usize,
    /// When the place of its lease entered the queue.
    pub entered: Option<Time>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The key was free, and an `acquire` takes no notice of the queue.
    Outside,
    /// The key was free, and the first of the queue contended.
    Contended,
    /// A release served the queue.
    Transferred,
    /// Beside others that hold the key.
    Beside,
}

#[derive(Default)]
pub struct Store {
    bodies: BTreeMap<usize, Body>,
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
    lingers: bool,
    watchers: BTreeMap<usize, Vec<(usize, HintSender)>>,
    /// By key and process: the last transfers of the subscriptions that outlive their waiters.
    lingering: BTreeMap<(usize, usize), Option<Hint>>,
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
    pub fn new(has_queue: bool, transfer_ttl: Time, lingers: bool) -> Self {
        Self {
            has_queue,
            lingers,
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

    /// Takes note of a command that a process sends.
    pub fn sent(&mut self, command: Command, item: &Item, manager: usize, now: Time) {
        if let Some(next) = item.next {
            self.record(next, item, manager, now);
        }
        let Some(lease) = item.lease else { return };
        let record = self.record(lease, item, manager, now);
        record.longest = record.longest.max(now + item.ttl);
        match command {
            Command::Acquire | Command::Contend => {
                record.ended = None;
            }
            Command::Release | Command::Leave => record.release_sent = true,
            _ => {}
        }
        if matches!(command, Command::Release | Command::Pass) {
            record.end_sent = Some(now);
            record.unanswered += 1;
        }
    }

    fn record(&mut self, lease: LeaseId, item: &Item, manager: usize, now: Time) -> &mut Record {
        self.records.entry(lease).or_insert(Record {
            manager,
            mode: item.mode,
            limit: item.limit,
            valid_until: Time::MIN,
            longest: now,
            release_sent: false,
            end_sent: None,
            unanswered: 0,
            granted: false,
            ended: None,
            gone: false,
            failed: None,
            released: None,
            found_absent: false,
            broken: false,
            stepped_back: false,
            decided: Time::MIN,
            waited: false,
        })
    }

    /// Takes note of the outcome of a command that reached its process, or of its failure.
    pub fn answered(&mut self, command: Command, item: &Item, outcome: Option<Outcome>, now: Time) {
        if let (Some(Outcome::Entered), Some(next)) = (outcome, item.next)
            && let Some(record) = self.records.get_mut(&next)
        {
            record.waited = true;
        }
        let Some(record) = item.lease.and_then(|lease| self.records.get_mut(&lease)) else {
            return;
        };
        if outcome.is_none() {
            record.failed = Some(now);
        }
        if matches!(command, Command::Release | Command::Pass) {
            record.unanswered -= 1;
        }
        let ends = matches!(command, Command::Release | Command::Leave);
        match outcome {
            Some(
                Outcome::Released { .. }
                | Outcome::Transferred
                | Outcome::Entered
                | Outcome::LeftToOthers,
            ) => {
                record.ended = Some(now);
            }
            Some(Outcome::Waiting { .. }) => record.waited = true,
            Some(Outcome::NotHeld) if !matches!(command, Command::Renew | Command::Downgrade) => {
                record.ended = Some(now);
            }
            Some(Outcome::NotHeld) => record.gone = true,
            // It revives no lease.
            None if ends => {}
            // A late reply or none, after which the process cannot know.
            Some(Outcome::Renewed | Outcome::RenewedWanted | Outcome::Kept { .. }) | None => {
                record.ended = None;
            }
            Some(Outcome::Granted { .. }) if command == Command::Downgrade => record.ended = None,
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

    /// `entered`: when the place of the lease entered the queue.
    fn grant(
        &mut self,
        item: &Item,
        lease: LeaseId,
        (how, entered): (How, Option<Time>),
        sent: Time,
        now: Time,
    ) -> Outcome {
        let (key, mode) = (item.key, item.mode);
        let begins = !self.holds(key, lease, now);
        self.hold(key, (lease, mode), item.ttl, now);
        self.promise(lease, item.ttl, sent, now);
        self.decided(lease, now);
        if begins {
            let held = self.holders(key, now).len();
            let record = self.records.get_mut(&lease);
            let manager = record.map(|record| {
                record.limit = item.limit;
                record.manager
            });
            self.begun.push(Begun {
                key,
                manager,
                transferred: None,
                how,
                mode,
                limit: item.limit,
                held,
                entered,
            });
        }
        let counter = self.next_counters(key, lease, 1, now);
        Outcome::Granted { counter }
    }

    /// Carries out a command that was sent at `sent` for one key.
    pub fn execute(&mut self, command: Command, item: &Item, sent: Time, now: Time) -> Outcome {
        let Some(lease) = item.lease else {
            return match command {
                Command::Force if self.left(item.key, now).is_some() => {
                    self.break_lease(item.key, now);
                    self.free(item.key, now)
                }
                Command::Force => Outcome::NotHeld,
                _ => Outcome::Holder(self.latest(item.key, now)),
            };
        };
        if command == Command::Acquire {
            if let Some(ttl) = self.excludes(item, lease, now) {
                return Outcome::Busy { ttl };
            }
            return self.grant(item, lease, (How::Outside, None), sent, now);
        }
        if command == Command::Contend {
            return self.contend(item, lease, sent, now);
        }
        if command == Command::Leave {
            self.queues.entry(item.key).or_default().leave(lease);
        }
        let is_held = self.holds(item.key, lease, now);
        if matches!(command, Command::Release | Command::Pass)
            && let Some(record) = self.records.get_mut(&lease)
        {
            // An earlier release without a reply may have ended it.
            record.found_absent |= !is_held && record.unanswered < 2;
        }
        let only_exclusive = command == Command::Pass;
        let mode = self.mode(item.key, now);
        let other_mode = command == Command::Renew && mode != Some(item.mode);
        if only_exclusive && mode.is_some_and(|it| it != Mode::Exclusive) || other_mode {
            return Outcome::NotHeld;
        }
        if !is_held {
            if command == Command::Leave {
                self.admit(item.key, None, now);
            }
            return Outcome::NotHeld;
        }
        let watchers = self.waiting(item.key, now);
        match command {
            Command::Renew => {
                self.lengthen(item, lease, sent, now);
                if item.mode != Mode::Exclusive && self.renewal_is_wanted(item, now) {
                    return Outcome::RenewedWanted;
                }
                Outcome::Renewed
            }
            Command::Downgrade => self.downgrade(item, lease, sent, now),
            Command::Pass if watchers == 0 => {
                self.lengthen(item, lease, sent, now);
                self.decided(lease, now);
                let counter =
                    has_room(now).then(|| self.next_counters(item.key, lease, item.counters, now));
                Outcome::Kept { counter }
            }
            _ => {
                if let Some(record) = self.records.get_mut(&lease) {
                    record.released.get_or_insert(now);
                }
                let freed = match self.ended(item.key, lease, now) {
                    Ended::Freed => self.free(item.key, now),
                    Ended::Kept => Outcome::Released { watchers: 0 },
                };
                // A permit is free for the next waiter.
                if command == Command::Leave || self.mode(item.key, now) == Some(Mode::Permit) {
                    self.admit(item.key, None, now);
                }
                let entered = item.next.is_some_and(|next| {
                    let listens = self.hears(item.key, self.manager_of(next));
                    self.enter(&Item { listens, ..*item }, next, now);
                    listens
                });
                match freed {
                    Outcome::Released { .. } => Outcome::Released { watchers },
                    Outcome::Transferred if entered => Outcome::Entered,
                    freed => freed,
                }
            }
        }
    }
}
