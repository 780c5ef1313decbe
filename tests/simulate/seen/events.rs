//! The events of the actors.

use tower_lock::backend::Mode;
use tower_lock::{ErrorKind, FencingToken, LockGuard, Owner};

use super::{EndedPermits, Guard, Releasing, Waiter};
use crate::environment::Environment;
use crate::plan::{self, Acquire, Wait};
use crate::time::{MS, RESPONSE_TIMEOUT, time};
use crate::violation::Invariant;
use crate::wire::index;

impl Environment {
    pub fn acquire_starts(
        &self,
        manager: usize,
        runtime: usize,
        acquire: &Acquire,
        owner: Option<Owner>,
    ) -> u64 {
        let now = self.now();
        let mut seen = self.seen.lock().unwrap();
        let id = seen.id();
        for key in &acquire.keys {
            seen.hinted(manager, *key, now);
        }
        let together = |key: &&usize| acquire.permits.is_some() || acquire.shared.contains(key);
        let readers = acquire.keys.iter().filter(together);
        let readers = readers.filter_map(|key| Some((owner?, *key)));
        seen.readers.extend(readers);
        let wait = match acquire.wait {
            Wait::Never => Some(RESPONSE_TIMEOUT),
            Wait::For(wait) => Some(MS * i64::try_from(wait).unwrap()),
            Wait::Forever => None,
        };
        seen.waiters.push(Waiter {
            id,
            manager,
            runtime,
            keys: acquire.keys.clone(),
            shared: acquire.shared.clone(),
            permits: acquire.permits.map(usize::from),
            owner,
            renewed: acquire.lease.is_none(),
            single_try: acquire.wait == Wait::Never,
            started: now,
            deadline: wait.map(|wait| self.awake() + wait),
            attentive: Some(now),
        });
        self.trace(|| format!("m{manager}r{runtime} w{id} starts {acquire:?}"));
        id
    }

    pub fn acquire_stalls(&self, id: u64) {
        let mut seen = self.seen.lock().unwrap();
        if let Some(waiter) = seen.waiters.iter_mut().find(|waiter| waiter.id == id) {
            waiter.attentive = None;
        }
        self.trace(|| format!("w{id} is not polled any more"));
    }

    pub fn acquire_goes_on(&self, id: u64) {
        let now = self.now();
        let mut seen = self.seen.lock().unwrap();
        if let Some(waiter) = seen.waiters.iter_mut().find(|waiter| waiter.id == id) {
            waiter.attentive = Some(now);
        }
        self.trace(|| format!("w{id} is polled again"));
    }

    /// It was granted, refused or dropped.
    pub fn acquire_ends(&self, id: u64, how: impl FnOnce() -> String) -> Option<Waiter> {
        let now = self.now();
        let mut seen = self.seen.lock().unwrap();
        let at = seen.waiters.iter().position(|waiter| waiter.id == id)?;
        let waiter = seen.waiters.remove(at);
        for key in &waiter.keys {
            seen.hinted(waiter.manager, *key, now);
            seen.gone
                .entry((waiter.manager, *key))
                .or_default()
                .push(now);
        }
        seen.ends_for_owner(&waiter, now);
        if let (Some(owner), Some(limit)) = (waiter.owner, waiter.permits) {
            seen.ended_permits.push(EndedPermits {
                owner,
                keys: waiter.keys.clone(),
                limit,
                at: now,
            });
        }
        self.trace(|| format!("w{id} {}", how()));
        Some(waiter)
    }

    pub fn granted(&self, waiter: &Waiter, acquire: &Acquire, guard: &LockGuard) -> u64 {
        let now = self.now();
        let held = guard.held();
        let keys: Vec<usize> = held.keys().map(index).collect();
        let token = |key| held.fencing_token_for(key).map_or(0, FencingToken::get);
        let tokens: Vec<i64> = held.keys().map(token).collect();
        let mut seen = self.seen.lock().unwrap();
        let id = seen.id();
        self.trace(|| {
            let left = held.remaining();
            format!(
                "w{} granted as g{id}: keys {keys:?}, tokens {tokens:?}, {left:?} left",
                waiter.id
            )
        });
        self.check_order(&mut seen, waiter, now);
        for key in &waiter.keys {
            // It did not end without a guard.
            seen.gone.get_mut(&(waiter.manager, *key)).map(Vec::pop);
        }
        let is_held = held.is_held();
        let owner = held.owner();
        let (mut leases, mut modes, mut all_earlier) = (Vec::new(), Vec::new(), Vec::new());
        // An acquire of several keys that still waits for one of them may hold this key already.
        let mut reentrant =
            (seen.waiters.iter()).any(|it| it.owner == Some(owner) && it.keys.len() > 1);
        for (key, token) in keys.iter().zip(&tokens) {
            let Some(lease) = self.store.lock().unwrap().lease_of(*key, *token) else {
                self.violate(Invariant::Fencing, || {
                    format!("g{id} has token {token} of k{key}, which the store never granted")
                });
                continue;
            };
            leases.push(lease);
            let (mode, broken) = match self.store.lock().unwrap().records.get_mut(&lease) {
                Some(record) => {
                    record.granted = true;
                    (record.mode, record.broken)
                }
                None => (waiter.mode(*key), false),
            };
            modes.push(mode);
            for release in &mut seen.releases {
                release.handed_off |= release.leases.contains(&lease);
            }
            // A grant that was overtaken outside of A0 can be entered again until it is lost.
            let known = seen.granted.get(&(*key, *token, owner)).copied();
            // All guards of a grant end together. One that lost another key may hold this one.
            let group = known.map(|known| (*key, *token, owner, known));
            let is_of_group = |it: &&Guard| it.keys.len() == 1 && it.group_keys().next() == group;
            let guards = seen.guards.iter().filter(is_of_group);
            let (held, lost): (Vec<_>, Vec<_>) = guards.partition(|it| it.held.is_held());
            let ended = !lost.is_empty();
            if let ([held, ..], [lost, ..]) = (&held[..], &lost[..]) {
                let (held, lost) = (held.id, lost.id);
                self.violate(Invariant::Loss, || {
                    format!("g{held} is held, and g{lost} of the same grant is not")
                });
            }
            let again = known.is_some() && !ended;
            let earlier = known.map_or(0, |known| known + u32::from(ended));
            seen.granted.insert((*key, *token, owner), earlier);
            all_earlier.push(earlier);
            reentrant |= again;
            let last = seen.tokens.entry(*key).or_default().before(mode);
            let group = seen.group_tokens.entry(*key).or_default().before(mode);
            let last = last.max(group);
            // A lease that was broken is handed off before that is known.
            if is_held && !again && !broken && *token <= last {
                self.violate(Invariant::Fencing, || {
                    format!("g{id} has token {token} of k{key} after {last}")
                });
            }
            seen.tokens.entry(*key).or_default().raise(mode, *token);
            if mode == Mode::Permit {
                seen.readers.insert((owner, *key));
                if !again && !broken {
                    self.check_limit(&seen, waiter, (*key, *token), lease, now);
                }
            }
            if mode == Mode::Shared {
                seen.readers.insert((owner, *key));
                self.check_join(&mut seen, waiter, (*key, *token), lease, now);
            }
        }
        self.check_modes(waiter, &held, &modes);
        let is_broken = |lease| self.store.lock().unwrap().records[lease].broken;
        if let Some(largest) = tokens.iter().max()
            && !reentrant
            && !leases.iter().any(is_broken)
        {
            for (key, mode) in keys.iter().zip(&modes) {
                let group = seen.group_tokens.entry(*key).or_default();
                group.raise(*mode, *largest);
            }
        }
        self.check_grant(&seen, waiter, &held, &leases, reentrant);
        for (key, token) in keys.iter().zip(&tokens) {
            let token = self.store.lock().unwrap().token(*key, *token);
            match token {
                Some(token)
                    if keys.len() == 1
                        && !reentrant
                        && waiter.owner.is_none()
                        && modes[0] == Mode::Exclusive =>
                {
                    self.check_hand_off(&mut seen, waiter, token, now);
                }
                Some((lease, before)) => seen.handed_off(lease, before),
                None => {}
            }
        }
        let ms = |time: Option<u64>| time.map(|time| MS * i64::try_from(time).unwrap());
        let guard = Guard {
            id,
            manager: waiter.manager,
            runtime: waiter.runtime,
            owner,
            leases,
            modes,
            is_downgrading: false,
            lease: ms(acquire.lease),
            max_hold: ms(acquire.max_hold),
            reentrant,
            shares_owner: !matches!(acquire.owner, plan::Owner::Fresh),
            started: waiter.started,
            granted: now,
            granted_for: time(held.remaining()),
            valid_until: now,
            lost: None,
            reported: None,
            keys,
            tokens,
            earlier: all_earlier,
            held,
        };
        seen.join_groups(&guard, now);
        seen.guards.push(guard);
        id
    }

    /// The guard is about to be released.
    pub fn released(&self, id: u64, how: &str) {
        let now = self.now();
        let mut seen = self.seen.lock().unwrap();
        let Some(at) = seen.guards.iter().position(|guard| guard.id == id) else {
            return;
        };
        let guard = seen.guards.remove(at);
        self.trace(|| format!("g{id} {how}"));
        for key in &guard.keys {
            seen.hinted(guard.manager, *key, now);
            // No check sees a guard that is granted and released in one step.
            seen.unowned.retain(|(of, _), _| of != key);
        }
        let watchdog = MS * i64::try_from(self.plan.managers[guard.manager].watchdog).unwrap();
        seen.leave_groups(&guard, watchdog, now);
    }

    pub fn release_starts(&self, id: u64) -> u64 {
        let mut seen = self.seen.lock().unwrap();
        let release = seen.id();
        if let Some(guard) = seen.guards.iter().find(|guard| guard.id == id) {
            let store = self.store.lock().unwrap();
            let longest = guard.leases.iter().map(|lease| &store.records[lease]);
            let until = longest.map(|record| record.longest).max().unwrap_or(0);
            let (manager, runtime) = (guard.manager, guard.runtime);
            let releasing = Releasing {
                id: release,
                manager,
                runtime,
                started: self.now(),
                until,
                keys: guard.keys.clone(),
                leases: guard.leases.clone(),
                was_held: guard.held.is_held(),
                handed_off: (seen.guards.iter()).any(|it| {
                    it.id != guard.id && it.leases.iter().any(|it| guard.leases.contains(it))
                }) || (seen.waiters.iter()).any(|it| {
                    it.manager == manager && it.keys.iter().any(|key| guard.keys.contains(key))
                }),
                valid_until: self.now() + time(guard.held.remaining()),
            };
            drop(store);
            seen.releases.push(releasing);
        }
        release
    }

    /// The release of a guard that was held, or not, has an outcome.
    pub fn release_replied(&self, id: u64, outcome: &Result<(), ErrorKind>) {
        let seen = self.seen.lock().unwrap();
        if let Some(release) = seen.releases.iter().find(|release| release.id == id) {
            self.check_release(&seen, release, outcome, self.now());
        }
    }

    pub fn release_ends(&self, id: u64, how: &str) {
        let mut seen = self.seen.lock().unwrap();
        seen.releases.retain(|release| release.id != id);
        self.trace(|| format!("release r{id} {how}"));
    }

    pub fn loss_reported(&self, id: u64) {
        let now = self.now();
        self.trace(|| format!("g{id} is reported lost"));
        let mut seen = self.seen.lock().unwrap();
        if let Some(guard) = seen.guards.iter_mut().find(|guard| guard.id == id) {
            guard.reported = Some(now);
            if guard.held.is_held() {
                self.violate(Invariant::Loss, || {
                    format!("g{id} is held after its loss was reported")
                });
            }
        }
    }
}
