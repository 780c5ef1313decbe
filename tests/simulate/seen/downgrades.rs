//! Downgrades, from their start to their results.

use tower_lock::backend::Mode;
use tower_lock::{ErrorKind, FencingToken, Owner};

use super::Seen;
use crate::environment::Environment;
use crate::violation::Invariant;
use crate::wire::key;

impl Environment {
    pub fn downgrade_starts(&self, id: u64) {
        let mut seen = self.seen.lock().unwrap();
        let seen = &mut *seen;
        // A permit is refused.
        let mut guards = seen.guards.iter_mut();
        let guard = guards.find(|guard| guard.id == id && guard.held.mode() != Mode::Permit);
        if let Some(guard) = guard {
            guard.is_downgrading = guard.held.is_held();
            // Its owner gets no exclusive hold any more.
            let owned = guard.keys.iter().map(|key| (guard.owner, *key));
            seen.readers.extend(owned);
        }
        self.trace(|| format!("g{id} is downgraded"));
    }

    /// A downgrade reports a loss, and leaves no guard whose mode is not known.
    pub fn downgrade_ends(&self, id: u64, outcome: Result<(), ErrorKind>) {
        let mut seen = self.seen.lock().unwrap();
        let seen = &mut *seen;
        self.trace(|| format!("the downgrade of g{id} ends: {outcome:?}"));
        self.settle_downgrades(seen);
        let Some(guard) = seen.guards.iter_mut().find(|guard| guard.id == id) else {
            return;
        };
        let was_held = std::mem::take(&mut guard.is_downgrading);
        let is_held = guard.held.is_held();
        let mode = guard.held.mode();
        let (holds, keys) = (guard.held.hold_count(), guard.keys.len());
        let fits = match outcome {
            Ok(()) => was_held && mode == Mode::Shared,
            Err(ErrorKind::Lost) => !is_held,
            // The count is the smallest of all keys.
            Err(ErrorKind::InvalidOption) => holds > 1 || keys > 1 || mode == Mode::Permit,
            Err(ErrorKind::Unavailable) => true,
            Err(_) => false,
        };
        if !fits {
            self.violate(Invariant::Mode, || {
                format!("the downgrade of g{id} ends: {outcome:?}, and its mode is {mode:?}")
            });
        }
    }

    /// S6: takes note of the keys that are shared by now, each under a fresh token.
    pub fn settle_downgrades(&self, seen: &mut Seen) {
        let downgrading = seen.guards.iter().filter(|guard| guard.is_downgrading);
        let mut settled = Vec::new();
        for guard in downgrading {
            for (of, before) in guard.keys.iter().zip(&guard.tokens) {
                let token = guard.held.fencing_token_for(&key(*of));
                let token = token.map_or(0, FencingToken::get);
                if token != *before {
                    settled.push((guard.owner, *of, *before, token));
                }
            }
        }
        for (owner, key, before, token) in settled {
            let last = seen.tokens.entry(key).or_default();
            let is_fresh = token > last.before(Mode::Shared);
            last.raise(Mode::Shared, token);
            let store = self.store.lock().unwrap();
            let lease = store.lease_of(key, token);
            let is_broken = lease.is_some_and(|lease| store.records[&lease].broken);
            drop(store);
            let mut owned = seen.guards.iter().filter(|it| it.owner == owner);
            let is_of_lease = owned.any(|it| it.lease_of(key) == lease);
            if !is_fresh && !is_broken || !is_of_lease {
                self.violate(Invariant::Fencing, || {
                    format!("k{key} is shared under token {token}, which is not a fresh one of its lease")
                });
            }
            seen.is_shared(owner, key, before, token);
        }
    }
}

impl Seen {
    /// The guards of this owner have another token of the key, and are shared.
    fn is_shared(&mut self, owner: Owner, key: usize, before: i64, token: i64) {
        for guard in self.guards.iter_mut().filter(|it| it.owner == owner) {
            for at in 0..guard.keys.len() {
                if guard.keys[at] == key && guard.tokens[at] == before {
                    guard.tokens[at] = token;
                    guard.modes[at] = Mode::Shared;
                    let old = (key, before, owner, guard.earlier[at]);
                    guard.earlier[at] = 0;
                    if let Some(old) = self.groups.remove(&old) {
                        let group = self.groups.entry((key, token, owner, 0)).or_default();
                        group.live += old.live;
                        group.renewed += old.renewed;
                        group.until = group.until.max(old.until);
                    }
                }
            }
        }
        self.granted.entry((key, token, owner)).or_insert(0);
    }
}
