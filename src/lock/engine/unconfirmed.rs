//! The leases of unknown fate, by key: the backend may or may not hold them.
//!
//! A lease is released at once, and after a failure with the next tick. All keys of a home share one tick, whose
//! interval doubles until nothing is left: a backend that is down for long leaves many of them. A group of keys that
//! hangs uses up its own commands and delays no other group. Releases that wait for a command share the next one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::Engine;
use crate::LockKey;
use crate::jitter::jittered;
use crate::lock::clock::Moment;
use crate::lock::clock::timeout::until;
use crate::lock::lease::LeaseNumber;
use crate::mutex::Mutex;

/// The most commands of one group of keys in flight. A thousand at once would queue in the backend beyond their response
/// timeout, and would all be resent.
pub(crate) const IN_FLIGHT: usize = 16;

/// The most leases of one command.
pub(crate) const BATCH: usize = 100;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
pub(crate) const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// The leases of one manager whose releases are unconfirmed. Each key has at most one release command in flight, and one
/// per tick after a failure. The watchdog sends them.
#[derive(Default)]
pub(crate) struct UnconfirmedReleases {
    state: Mutex<State>,
    /// Notified when nothing is left.
    finished: Notify,
}

#[derive(Default)]
struct State {
    keys: BTreeMap<LockKey, Unknown>,
    /// The groups of keys of the backend.
    groups: BTreeMap<u64, Group>,
    /// The keys whose last command failed, which the tick makes due.
    failed: Vec<LockKey>,
    tick: Option<Moment>,
    /// The interval of the last tick. Zero before the first one.
    backoff: Duration,
    /// The manager, which is kept while leases are left and its watchdog runs.
    keeps: Option<Arc<Engine>>,
}

#[derive(Debug, Default)]
struct Group {
    /// The keys to send now. Some may be gone or in flight by then.
    due: VecDeque<LockKey>,
    commands: usize,
}

#[derive(Debug, Default)]
struct Unknown {
    group: u64,
    leases: Vec<UnknownLease>,
    in_flight: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct UnknownLease {
    number: LeaseNumber,
    /// When it must have expired.
    until: Moment,
    /// The backend may yet grant it, after a release that was sent before.
    is_attempt: bool,
    /// It was attempted again after its last release was sent.
    again: bool,
}

impl UnknownLease {
    /// Returns the lease of an attempt, or of a place in the queue of the backend, that may yet take effect.
    pub(crate) fn attempted(number: LeaseNumber, until: Moment) -> Self {
        Self {
            is_attempt: true,
            ..Self::granted(number, until)
        }
    }

    /// Returns a lease that was granted before, so that the reply to any release of it is the last word.
    pub(crate) fn granted(number: LeaseNumber, until: Moment) -> Self {
        Self {
            number,
            until,
            is_attempt: false,
            again: false,
        }
    }
}

impl UnconfirmedReleases {
    pub(crate) fn len(&self) -> usize {
        let state = self.state.lock();
        state.keys.values().map(|key| key.leases.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().keys.is_empty()
    }

    /// Completes when nothing is left.
    pub(crate) async fn finished(&self) {
        until(&self.finished, || self.is_empty()).await;
    }

    /// Adds a lease of a key in this group.
    pub(crate) fn add(&self, key: LockKey, group: u64, lease: UnknownLease) {
        let mut state = self.state.lock();
        let State { keys, groups, .. } = &mut *state;
        let unknown = keys.entry(key).or_insert_with_key(|key| {
            groups.entry(group).or_default().due.push_back(key.clone());
            Unknown {
                group,
                ..Unknown::default()
            }
        });
        let mut leases = unknown.leases.iter_mut();
        match leases.find(|known| known.number == lease.number) {
            Some(known) => {
                known.until = known.until.max(lease.until);
                known.again |= lease.is_attempt;
            }
            None => unknown.leases.push(lease),
        }
    }

    /// Keeps the manager while leases are left. Its watchdog, which sends their releases, is about to start, or runs.
    pub(crate) fn keep(&self, engine: &Arc<Engine>) {
        let mut state = self.state.lock();
        if !state.keys.is_empty() {
            state.keeps.get_or_insert_with(|| Arc::clone(engine));
        }
    }

    /// Returns the next command to send, for a group of keys. [`ended`](Self::ended) reports its end. The leases of one key
    /// are adjacent.
    pub(crate) fn next_command(&self, now: Moment) -> Option<(u64, Vec<(LockKey, LeaseNumber)>)> {
        let mut state = self.state.lock();
        if state.tick.is_some_and(|tick| tick <= now) {
            state.retry_failed();
        }
        let State { keys, groups, .. } = &mut *state;
        for (id, group) in groups {
            let mut leases = Vec::new();
            while group.commands < IN_FLIGHT
                && leases.len() < BATCH
                && let Some(key) = group.due.pop_front()
            {
                let Some(unknown) = keys.get_mut(&key).filter(|unknown| !unknown.in_flight) else {
                    continue;
                };
                unknown.in_flight = true;
                for lease in unknown.leases.iter_mut().take(BATCH - leases.len()) {
                    lease.again = false;
                    leases.push((key.clone(), lease.number));
                }
            }
            if !leases.is_empty() {
                group.commands += 1;
                return Some((*id, leases));
            }
        }
        None
    }

    /// The command for a group has ended, and its replies were applied.
    pub(crate) fn ended(&self, group: u64) {
        if let Some(group) = self.state.lock().groups.get_mut(&group) {
            group.commands = group.commands.saturating_sub(1);
        }
    }

    /// Applies the reply for a key, whose leases `resolved` are released.
    pub(crate) fn replied(
        &self,
        key: &LockKey,
        resolved: &[LeaseNumber],
        failed: bool,
        now: Moment,
    ) {
        let mut state = self.state.lock();
        let Some(unknown) = state.keys.get_mut(key) else {
            return;
        };
        unknown.in_flight = false;
        unknown.leases.retain(|lease| {
            lease.until > now && (lease.again || !resolved.contains(&lease.number))
        });
        if unknown.leases.is_empty() {
            self.resolved(state, key);
        } else if failed {
            state.failed.push(key.clone());
            state.set_tick(now);
        } else {
            state.make_due(key.clone());
        }
    }

    /// Drops a granted lease that a command of the releaser has released, whose reply was late. While a command for its key
    /// is in flight, the reply to that settles it.
    pub(crate) fn released_elsewhere(&self, key: &LockKey, lease: LeaseNumber) {
        let mut state = self.state.lock();
        let Some(unknown) = state.keys.get_mut(key).filter(|it| !it.in_flight) else {
            return;
        };
        (unknown.leases).retain(|it| it.number != lease || it.is_attempt);
        if unknown.leases.is_empty() {
            self.resolved(state, key);
        }
    }

    /// Forgets a key without leases.
    fn resolved(&self, mut state: MutexGuard<'_, State>, key: &LockKey) {
        state.keys.remove(key);
        if state.keys.is_empty() {
            let _dropped_without_mutex = std::mem::take(&mut *state);
            drop(state);
            self.finished.notify_waiters();
        }
    }

    /// Makes all leases due, because the backend is available again. Those in flight that fail follow soon.
    pub(crate) fn retry_now(&self) {
        let mut state = self.state.lock();
        state.retry_failed();
        state.backoff = Duration::ZERO;
    }

    /// Leaves the leases to the next watchdog, after this one was dropped. So were the commands in flight.
    pub(crate) fn stopped(&self) {
        let mut state = self.state.lock();
        let _dropped_without_mutex = state.keeps.take();
        state.groups.clear();
        (state.keys.values_mut()).for_each(|unknown| unknown.in_flight = false);
        state.failed = state.keys.keys().cloned().collect();
        state.retry_failed();
        drop(state);
    }

    /// Drops all leases: no home is left to release them.
    pub(crate) fn abandon(&self) {
        let _dropped_without_mutex = std::mem::take(&mut *self.state.lock());
        self.finished.notify_waiters();
    }
}

impl State {
    fn set_tick(&mut self, now: Moment) {
        if self.tick.is_none() {
            self.backoff = (2 * self.backoff).clamp(FIRST_BACKOFF, LAST_BACKOFF);
            self.tick = Some(now + jittered(self.backoff));
        }
    }

    fn retry_failed(&mut self) {
        self.tick = None;
        std::mem::take(&mut self.failed)
            .into_iter()
            .for_each(|key| self.make_due(key));
    }

    fn make_due(&mut self, key: LockKey) {
        if let Some(unknown) = self.keys.get(&key) {
            let group = self.groups.entry(unknown.group).or_default();
            group.due.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests;
