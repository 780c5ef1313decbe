//! The history as the actors and the store see it: guards, waiters, releases.

mod events;
mod groups;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tower_lock::backend::LeaseId;
use tower_lock::{Held, Owner};

use crate::plan::Plan;
use crate::time::{MS, SECOND, Time};
pub use groups::Group;
pub use turns::{HandOffs, Waits};

/// At least as long as every lease that a plan asks for.
pub const LONGEST_LEASE: Time = 5 * SECOND + 100 * MS;

pub struct Seen {
    next: u64,
    pub guards: Vec<Guard>,
    pub waiters: Vec<Waiter>,
    /// By manager: those in which an acquire has started.
    pub runtimes: BTreeSet<(usize, usize)>,
    pub releases: Vec<Releasing>,
    /// By key and token: those that hold one grant together.
    pub groups: BTreeMap<(usize, i64), Group>,
    /// By key: the largest token, and its owner.
    pub tokens: BTreeMap<usize, (i64, Owner)>,
    /// By key: the largest token of an acquire that held it, perhaps with other keys.
    pub group_tokens: BTreeMap<usize, i64>,
    /// By manager: until when a command may be in trouble.
    pub troubled: Vec<Time>,
    /// When the machine was last resumed; 0 if it was never suspended.
    pub resumed: Time,
    pub killed: Vec<bool>,
    pub closing: Vec<bool>,
    /// By key: when a release by force last began or ended.
    pub forced: BTreeMap<usize, Time>,
    pub free_since: BTreeMap<usize, Time>,
    /// By key: a lease that no guard has, and since when.
    pub unowned: BTreeMap<usize, (LeaseId, Time)>,
    /// By manager and key: since when it has places in the queue that it does not need.
    pub misplaced: BTreeMap<(usize, usize), Time>,
    pub attempts: BTreeMap<(usize, usize), VecDeque<Time>>,
    /// By manager, runtime and key: when a command was sent for a lease whose last command had failed.
    pub repeats: BTreeMap<(usize, Option<usize>, usize, Repeat), VecDeque<Time>>,
    /// What may bring about an attempt.
    pub causes: BTreeMap<(usize, usize), VecDeque<Time>>,
    pub polled: BTreeMap<(usize, usize), Polled>,
    /// By key: those that a release could serve, with the turns since.
    pub passed_over: BTreeMap<usize, BTreeMap<Waits, Turns>>,
    pub hand_offs: BTreeMap<LeaseId, HandOffs>,
    /// By manager and key: when acquires ended without a guard. They may have had a token.
    pub gone: BTreeMap<(usize, usize), Vec<Time>>,
    /// By manager and key: when its release was transferred, or left to clients outside, and no attempt since.
    pub yielded: BTreeMap<(usize, usize), Time>,
}

/// The processes that have had a turn, and the lease to which the key was transferred for it.
pub type Turns = BTreeMap<Option<usize>, Option<LeaseId>>;

/// What a command repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repeat {
    /// A release, or a leave.
    End,
    Renewal,
}

/// The places from which a waiter without messages attempts.
#[derive(Default)]
pub struct Polled {
    /// The last lease that polled, and the time between its attempts.
    last: Option<(LeaseId, Time)>,
    /// When it came to each place.
    pub since: VecDeque<Time>,
}

pub struct Guard {
    pub id: u64,
    pub manager: usize,
    pub runtime: usize,
    pub keys: Vec<usize>,
    pub owner: Owner,
    pub tokens: Vec<i64>,
    pub leases: Vec<LeaseId>,
    pub held: Held,
    pub lease: Option<Time>,
    pub max_hold: Option<Time>,
    pub reentrant: bool,
    /// Its owner has other acquires, which may have held the key before it.
    pub shares_owner: bool,
    /// When its acquire started.
    pub started: Time,
    pub granted: Time,
    /// What was left at the grant.
    pub granted_for: Time,
    /// As seen last while it was held.
    pub valid_until: Time,
    pub lost: Option<Time>,
    /// When `lost()` resolved.
    pub reported: Option<Time>,
}

pub struct Waiter {
    pub id: u64,
    pub manager: usize,
    pub runtime: usize,
    pub keys: Vec<usize>,
    pub owner: Option<Owner>,
    pub renewed: bool,
    pub single_try: bool,
    pub started: Time,
    /// By the time that the machine is awake.
    pub deadline: Option<Time>,
    /// Since when it is polled whenever it is woken, apart from pauses of its runtime.
    pub attentive: Option<Time>,
}

pub struct Releasing {
    pub id: u64,
    pub manager: usize,
    pub runtime: usize,
    pub started: Time,
    /// When the store must have let go.
    pub until: Time,
    pub keys: Vec<usize>,
    pub leases: Vec<LeaseId>,
    /// Whether its guard was held.
    pub was_held: bool,
    /// Whether an acquire of the same process may have received its lease.
    pub handed_off: bool,
    /// The end of its guard.
    pub valid_until: Time,
}

impl Seen {
    pub fn new(plan: &Plan) -> Self {
        let managers = plan.managers.len();
        Self {
            next: 0,
            guards: Vec::new(),
            waiters: Vec::new(),
            runtimes: BTreeSet::new(),
            releases: Vec::new(),
            groups: BTreeMap::new(),
            tokens: BTreeMap::new(),
            group_tokens: BTreeMap::new(),
            troubled: vec![0; managers],
            resumed: 0,
            killed: vec![false; managers],
            closing: vec![false; managers],
            forced: BTreeMap::new(),
            free_since: BTreeMap::new(),
            unowned: BTreeMap::new(),
            misplaced: BTreeMap::new(),
            attempts: BTreeMap::new(),
            repeats: BTreeMap::new(),
            causes: BTreeMap::new(),
            polled: BTreeMap::new(),
            passed_over: BTreeMap::new(),
            hand_offs: BTreeMap::new(),
            gone: BTreeMap::new(),
            yielded: BTreeMap::new(),
        }
    }

    pub fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A command of `manager` may be in trouble until then.
    pub fn trouble(&mut self, manager: usize, until: Time) {
        self.troubled[manager] = self.troubled[manager].max(until);
    }

    pub fn hinted(&mut self, manager: usize, key: usize, now: Time) {
        self.causes
            .entry((manager, key))
            .or_default()
            .push_back(now);
    }

    pub fn polled(&mut self, lease: LeaseId, manager: usize, key: usize, after: Time, now: Time) {
        let polled = self.polled.entry((manager, key)).or_default();
        if polled.last.replace((lease, after)) != Some((lease, after)) {
            polled.since.push_back(now);
        }
    }

    /// Nothing of this process counts any more.
    pub fn kill(&mut self, manager: usize) {
        self.killed[manager] = true;
        self.guards.retain(|guard| guard.manager != manager);
        self.waiters.retain(|waiter| waiter.manager != manager);
        self.releases.retain(|release| release.manager != manager);
    }
}

impl Guard {
    pub fn group_keys(&self) -> impl Iterator<Item = (usize, i64)> {
        self.keys.iter().copied().zip(self.tokens.iter().copied())
    }
}
