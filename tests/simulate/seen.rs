//! The history as the actors and the store see it: guards, waiters, releases.

mod downgrades;
mod events;
mod groups;
mod joins;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tower_lock::backend::{LeaseId, Mode};
use tower_lock::{Held, Owner};

use crate::plan::Plan;
use crate::time::{MS, SECOND, Time};
pub use groups::Group;
pub use joins::Joins;
pub use turns::{HandOffs, Waits};

/// At least as long as every lease that a plan asks for.
pub const LONGEST_LEASE: Time = 5 * SECOND + 100 * MS;

pub struct Seen {
    next: u64,
    pub guards: Vec<Guard>,
    pub waiters: Vec<Waiter>,
    pub releases: Vec<Releasing>,
    /// The guards that hold one grant together.
    pub groups: BTreeMap<GrantKey, Group>,
    /// By key, token and owner: how many grants of a shared lease came before.
    pub granted: BTreeMap<(usize, i64, Owner), u32>,
    /// By shared waiter: when another one was served that came later.
    pub overtaken: BTreeMap<u64, Time>,
    /// By key: the largest token of each mode.
    pub tokens: BTreeMap<usize, Largest>,
    /// By key: the largest token of an acquire that held it in each mode, perhaps with other keys.
    pub group_tokens: BTreeMap<usize, Largest>,
    /// The owners that have asked for a key shared, or for a permit of it.
    pub readers: BTreeSet<(Owner, usize)>,
    /// The acquires of permits for an owner of more than one acquire that have ended.
    pub ended_permits: Vec<EndedPermits>,
    pub joins: BTreeMap<LeaseId, Joins>,
    /// By shared waiter: since when no exclusive lease or waiter is before it.
    pub unblocked: BTreeMap<u64, Time>,
    /// By waiter for a permit: since when all that ask for permits of its key could be granted one.
    pub has_room: BTreeMap<u64, Time>,
    /// By manager: until when a command may be in trouble.
    pub troubled: Vec<Time>,
    /// When the machine was last resumed; 0 if it was never suspended.
    pub resumed: Time,
    pub killed: Vec<bool>,
    pub closing: Vec<bool>,
    /// By key: when a release by force last began or ended.
    pub forced: BTreeMap<usize, Time>,
    pub free_since: BTreeMap<usize, Time>,
    /// Since when a key is held by a lease that no guard has.
    pub unowned: BTreeMap<(usize, LeaseId), Time>,
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

/// A key, a token, an owner, and how many grants it has had with these before. An owner whose lock of a shared lease
/// has ended can join the lease again.
pub type GrantKey = (usize, i64, Owner, u32);

/// An acquire of permits that has ended, with a guard or without one.
pub struct EndedPermits {
    pub owner: Owner,
    pub keys: Vec<usize>,
    pub limit: usize,
    pub at: Time,
}

/// The largest token of each mode, or 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Largest {
    exclusive: i64,
    /// The largest token of shared leases and permits.
    shared: i64,
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
    /// How many grants of its owner with each of these tokens came before.
    pub earlier: Vec<u32>,
    pub leases: Vec<LeaseId>,
    /// How each of the leases holds its key.
    pub modes: Vec<Mode>,
    /// Its owner has asked to make it shared, and has no result yet.
    pub is_downgrading: bool,
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
    /// The keys that it asks for shared.
    pub shared: Vec<usize>,
    /// The limit of permits, if it asks for those.
    pub permits: Option<usize>,
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
    /// Whether another guard has its lease, or an acquire of the same process may have received it.
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
            releases: Vec::new(),
            groups: BTreeMap::new(),
            ended_permits: Vec::new(),
            granted: BTreeMap::new(),
            overtaken: BTreeMap::new(),
            tokens: BTreeMap::new(),
            group_tokens: BTreeMap::new(),
            readers: BTreeSet::new(),
            joins: BTreeMap::new(),
            unblocked: BTreeMap::new(),
            has_room: BTreeMap::new(),
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
    pub fn group_keys(&self) -> impl Iterator<Item = GrantKey> {
        let tokens = self.keys.iter().zip(&self.tokens).zip(&self.earlier);
        tokens.map(|((key, token), earlier)| (*key, *token, self.owner, *earlier))
    }

    pub fn mode_of(&self, key: usize) -> Option<Mode> {
        let at = self.keys.iter().position(|of| *of == key)?;
        self.modes.get(at).copied()
    }
}

impl Waiter {
    pub fn mode(&self, key: usize) -> Mode {
        match self.shared.contains(&key) {
            _ if self.permits.is_some() => Mode::Permit,
            true => Mode::Shared,
            false => Mode::Exclusive,
        }
    }
}

impl Largest {
    /// The token that a fresh one of this mode exceeds.
    pub fn before(self, mode: Mode) -> i64 {
        match mode {
            Mode::Shared | Mode::Permit => self.exclusive,
            _ => self.exclusive.max(self.shared),
        }
    }

    pub fn raise(&mut self, mode: Mode, token: i64) {
        let largest = match mode {
            Mode::Shared | Mode::Permit => &mut self.shared,
            _ => &mut self.exclusive,
        };
        *largest = token.max(*largest);
    }
}
