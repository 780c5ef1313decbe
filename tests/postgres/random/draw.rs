//! The next step.

use fastrand::Rng;

use super::model::{Attempt, Lock, Place};

pub(super) const LOCKS: usize = 3;
/// The last one polls.
pub(super) const MANAGERS: usize = 5;
pub(super) const COUNTERS: i32 = 8;

#[derive(Debug, Clone)]
pub(super) enum Step {
    /// The attempts of one statement.
    Contend(Vec<Attempt>),
    /// Single attempts of exclusive leases, which depend on no queue.
    Acquire(Vec<Attempt>),
    /// The locks, the leases, and whether they leave the queue.
    Release(Vec<(usize, String, bool)>),
    ReleaseOrKeep {
        key: usize,
        lease: String,
        manager: usize,
        ttl: i64,
        following: Option<Place>,
    },
    /// The locks, the leases, their modes and TTLs.
    Renew(Vec<(usize, String, char, i64)>),
    Downgrade(usize, String, i64),
    /// All leases, or one.
    ForceRelease(usize, Option<String>),
    /// A manager, or the processes of version 1.
    Watch(usize, Option<usize>),
    Unwatch(usize, Option<usize>),
    Inspect(usize),
    Sweep,
    /// A transaction under a lease begins, by its name.
    Fence(usize, String),
    Commit,
    /// A released lease fences no transaction.
    FenceReleased(usize),
    /// The process of a manager listens, or ends to.
    Toggle(usize),
    Advance(i64),
}

/// The lease under which a manager contends.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub(super) lease: String,
    pub(super) mode: char,
}

#[derive(Debug)]
pub(super) struct Draw {
    pub(super) random: Rng,
    next: usize,
    own: Vec<Vec<Own>>,
}

pub(super) fn channel(manager: usize) -> Option<String> {
    (manager + 1 < MANAGERS).then(|| format!("tower_lock_queue_{manager}"))
}

pub(super) fn manager_of(lease: &str) -> usize {
    let number = lease.trim_start_matches(['p', 'm']).split('-').next();
    number.unwrap().parse().unwrap()
}

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        let mut draw = Self {
            random: Rng::with_seed(seed),
            next: 0,
            own: Vec::new(),
        };
        for _ in 0..LOCKS {
            let own = (0..MANAGERS).map(|manager| draw.fresh(manager)).collect();
            draw.own.push(own);
        }
        draw
    }

    fn fresh(&mut self, manager: usize) -> Own {
        self.next += 1;
        Own {
            lease: format!("m{manager}-{}", self.next),
            mode: self.random.choice(['x', 'x', 'x', 's', 's', 'p']).unwrap(),
        }
    }

    fn ttl(&mut self) -> i64 {
        let ttls = [1_000, 5_000, 30_000, 60_000, 60_000];
        self.random.choice(ttls).unwrap()
    }

    fn place(&mut self) -> (usize, usize) {
        // Few wait for the last one.
        let key = self.random.choice([0, 0, 0, 1, 1, 1, 1, 2]);
        (key.unwrap(), self.random.usize(..MANAGERS))
    }

    fn attempt(&mut self, locks: &[Lock], waits: bool) -> Attempt {
        let (key, manager) = self.place();
        let lock = &locks[key];
        let has_place = lock
            .places
            .iter()
            .any(|it| it.lease == self.own[key][manager].lease);
        let is_fenced = lock
            .leases
            .iter()
            .any(|it| it.is_fenced && it.name.ends_with(&self.own[key][manager].lease));
        // A lease that has a place makes no attempt beside it, and none is used again after its end.
        if is_fenced || has_place && !waits {
            self.own[key][manager] = self.fresh(manager);
        }
        if waits && self.random.u8(..30) == 0 {
            self.own[key][manager].mode = self.random.choice(['x', 's', 'p']).unwrap();
        }
        let Own { lease, mode } = self.own[key][manager].clone();
        Attempt {
            key,
            lease,
            mode,
            most: (mode == 'p').then(|| self.random.i32(1..4)),
            ttl: self.ttl(),
            waits,
            channel: channel(manager).filter(|_| waits),
        }
    }

    /// Returns a lease that holds a lock, or one that may not.
    fn lease(&mut self, locks: &[Lock], now: i64) -> (usize, String, char) {
        let (key, manager) = self.place();
        let holders: Vec<_> = locks[key].holders(now).collect();
        if let Some(holder) = self.random.choice(&holders)
            && self.random.u8(..4) > 0
        {
            let mode = match holder.name.strip_prefix('p') {
                Some(_) => 'p',
                None if holder.is_shared => 's',
                None => 'x',
            };
            let id = holder.name.trim_start_matches('p');
            return (key, id.to_owned(), mode);
        }
        let own = &self.own[key][manager];
        (key, own.lease.clone(), own.mode)
    }

    /// The manager contends under another lease.
    fn end(&mut self, key: usize, lease: &str) {
        let manager = manager_of(lease);
        if self.own[key][manager].lease == lease {
            self.own[key][manager] = self.fresh(manager);
        }
    }

    fn several<T>(
        &mut self,
        mut draw: impl FnMut(&mut Self) -> T,
        key: impl Fn(&T) -> usize,
    ) -> Vec<T> {
        let count = self.random.choice([1, 1, 2, 3]).unwrap();
        let mut all: Vec<T> = Vec::new();
        for _ in 0..count {
            let item = draw(self);
            if all.iter().all(|it| key(it) != key(&item)) {
                all.push(item);
            }
        }
        all
    }

    pub(super) fn step(&mut self, locks: &[Lock], now: i64, has_fence: bool) -> Step {
        match self.random.u16(..1000) {
            0..300 => {
                let mut attempts = self.several(
                    |draw| {
                        let waits = draw.random.u8(..5) > 0;
                        draw.attempt(locks, waits)
                    },
                    |it| it.key,
                );
                // A single attempt of an exclusive lease has another function, except beside others.
                if attempts.len() == 1 && attempts[0].mode == 'x' {
                    let manager = manager_of(&attempts[0].lease);
                    (attempts[0].waits, attempts[0].channel) = (true, channel(manager));
                }
                Step::Contend(attempts)
            }
            300..360 => {
                let attempts = self.several(|draw| draw.attempt(locks, false), |it| it.key);
                let plain = attempts.into_iter().filter(|it| it.mode == 'x');
                Step::Acquire(plain.collect())
            }
            360..580 => {
                let releases = self.several(
                    |draw| {
                        let (key, lease, _) = draw.lease(locks, now);
                        (key, lease, draw.random.bool())
                    },
                    |it| it.0,
                );
                for (key, lease, leaves) in &releases {
                    let holds = locks[*key]
                        .holders(now)
                        .any(|it| it.name.ends_with(&**lease));
                    if holds || *leaves {
                        self.end(*key, lease);
                    }
                }
                Step::Release(releases)
            }
            580..660 => {
                let (key, lease, mode) = self.lease(locks, now);
                let (manager, ttl) = (manager_of(&lease), self.ttl());
                if mode != 'x' {
                    return Step::Inspect(key);
                }
                self.end(key, &lease);
                let following = self.random.bool().then(|| {
                    let next = Own {
                        mode: 'x',
                        ..self.fresh(manager)
                    };
                    self.own[key][manager] = next.clone();
                    Place {
                        lease: next.lease,
                        mode: 'x',
                        most: None,
                        channel: channel(manager),
                        seen: now,
                    }
                });
                Step::ReleaseOrKeep {
                    key,
                    lease,
                    manager,
                    ttl,
                    following,
                }
            }
            660..720 => Step::Renew(self.several(
                |draw| {
                    let (key, lease, mode) = draw.lease(locks, now);
                    (key, lease, mode, draw.ttl())
                },
                |it| it.0,
            )),
            720..760 => {
                let (key, lease, _) = self.lease(locks, now);
                Step::Downgrade(key, lease, self.ttl())
            }
            760..780 => {
                let (key, lease, _) = self.lease(locks, now);
                let all = self.random.bool();
                Step::ForceRelease(key, (!all).then_some(lease))
            }
            780..830 => {
                let (key, manager) = self.place();
                Step::Watch(key, (self.random.u8(..3) > 0).then_some(manager))
            }
            830..860 => {
                let (key, manager) = self.place();
                Step::Unwatch(key, self.random.bool().then_some(manager))
            }
            860..880 => Step::Inspect(self.random.usize(..LOCKS)),
            880..885 => Step::Sweep,
            885..910 if !has_fence => {
                let key = self.random.usize(..LOCKS);
                let holders: Vec<_> = locks[key].holders(now).collect();
                match self.random.choice(holders) {
                    Some(holder) => Step::Fence(key, holder.name.clone()),
                    None => Step::Inspect(key),
                }
            }
            885..910 => Step::Commit,
            910..920 => Step::FenceReleased(self.random.usize(..LOCKS)),
            920..945 => Step::Toggle(self.random.usize(..MANAGERS - 1)),
            _ => {
                let short = [1, 10, 49, 50, 51, 300, 999, 1_499, 1_500, 1_501];
                let long = [2_999, 3_000, 3_001, 5_000, 29_999, 30_000, 60_000];
                let pause = match self.random.u8(..10) {
                    0..8 => self.random.choice(short),
                    _ => self.random.choice(long),
                };
                Step::Advance(pause.unwrap())
            }
        }
    }
}
