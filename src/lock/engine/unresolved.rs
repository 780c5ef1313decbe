//! The leases of unknown fate, by key: the backend may or may not hold them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::LockKey;
use crate::jitter::jittered;
use crate::lock::clock::Moment;
use crate::lock::lease::LeaseNumber;

/// The most leases of one command.
pub(in crate::lock) const BATCH: usize = 100;

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
pub(in crate::lock) const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// The unresolved leases of one manager. Each key has at most one release command in flight, and one
/// per backoff step.
#[derive(Debug, Default)]
pub(in crate::lock) struct Unresolved {
    state: Mutex<State>,
    /// Notified when the task has something to do.
    pub(in crate::lock) changed: Notify,
    /// Notified when nothing is left.
    finished: Notify,
}

#[derive(Debug, Default)]
struct State {
    keys: BTreeMap<LockKey, Unknown>,
    /// The keys without a command in flight, in the order of their next commands. A backend that is down for long
    /// leaves many of them.
    waiting: BTreeSet<(DueTime, LockKey)>,
    /// The attempts in flight whose leases are unresolved once they have replies.
    attempts: usize,
    running: bool,
}

#[derive(Debug)]
struct Unknown {
    leases: Vec<UnknownLease>,
    backoff: Duration,
    next: Progress,
}

#[derive(Debug, Clone, Copy)]
pub(in crate::lock) struct UnknownLease {
    number: LeaseNumber,
    /// When it must have expired.
    until: Moment,
    /// When an attempt was added that the backend may grant after a release that was sent before.
    attempted: Option<Moment>,
    /// It was attempted again after its last release was sent.
    again: bool,
}

impl UnknownLease {
    /// Returns the lease of an attempt, or of a place in the queue of the backend, that may yet take effect.
    pub(in crate::lock) fn attempted(number: LeaseNumber, until: Moment, now: Moment) -> Self {
        Self {
            attempted: Some(now),
            ..Self::granted(number, until)
        }
    }

    /// Returns a lease that was granted before, so that the reply to any release of it is the last word.
    pub(in crate::lock) fn granted(number: LeaseNumber, until: Moment) -> Self {
        Self {
            number,
            until,
            attempted: None,
            again: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting(DueTime),
    /// `again`: the backend has recovered since the command was sent.
    InFlight {
        again: bool,
    },
}

/// When the next command of a key is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DueTime {
    AtOnce,
    At(Moment),
}

/// What the task has to do.
#[derive(Debug)]
pub(in crate::lock) enum Step {
    Release(Vec<(LockKey, LeaseNumber)>),
    WaitUntil(Moment),
    /// Wait for the commands in flight.
    Wait,
    End,
}

impl Unknown {
    fn find(&mut self, number: LeaseNumber) -> Option<&mut UnknownLease> {
        self.leases.iter_mut().find(|known| known.number == number)
    }
}

impl Unresolved {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::lock) fn len(&self) -> usize {
        let state = self.state();
        let leases = state.keys.values().map(|key| key.leases.len());
        state.attempts + leases.sum::<usize>()
    }

    /// Completes when nothing is left.
    pub(in crate::lock) async fn finished(&self) {
        loop {
            let finished = self.finished.notified();
            tokio::pin!(finished);
            // Registers before it checks, so a change in between is not missed.
            finished.as_mut().enable();
            if self.len() == 0 {
                return;
            }
            finished.await;
        }
    }

    /// Adds a lease. Returns `true` if the task does not run, so the caller has to start it.
    pub(in crate::lock) fn add(&self, key: LockKey, lease: UnknownLease) -> bool {
        let start = {
            let mut state = self.state();
            let State { keys, waiting, .. } = &mut *state;
            let unknown = keys.entry(key).or_insert_with_key(|key| {
                waiting.insert((DueTime::AtOnce, key.clone()));
                Unknown {
                    leases: Vec::new(),
                    backoff: FIRST_BACKOFF,
                    next: Progress::Waiting(DueTime::AtOnce),
                }
            });
            match unknown.find(lease.number) {
                Some(known) => {
                    known.until = known.until.max(lease.until);
                    if lease.attempted.is_some() {
                        known.attempted = lease.attempted;
                        known.again = true;
                    }
                }
                None => unknown.leases.push(lease),
            }
            !std::mem::replace(&mut state.running, true)
        };
        self.changed.notify_one();
        start
    }

    /// Returns what the task does next.
    pub(in crate::lock) fn next_step(&self, now: Moment) -> Step {
        let mut state = self.state();
        if state.keys.is_empty() {
            state.running = false;
            return Step::End;
        }
        let State { keys, waiting, .. } = &mut *state;
        let mut due = Vec::new();
        while due.len() < BATCH
            && waiting
                .first()
                .is_some_and(|(due, _)| *due <= DueTime::At(now))
            && let Some((_, key)) = waiting.pop_first()
        {
            let Some(unknown) = keys.get_mut(&key) else {
                unreachable!("BUG: a key that waits is unresolved");
            };
            unknown.next = Progress::InFlight { again: false };
            for lease in unknown.leases.iter_mut().take(BATCH - due.len()) {
                lease.again = false;
                due.push((key.clone(), lease.number));
            }
        }
        match waiting.first() {
            _ if !due.is_empty() => Step::Release(due),
            Some((DueTime::At(at), _)) => Step::WaitUntil(*at),
            Some((DueTime::AtOnce, _)) => unreachable!("BUG: what is due at once was released"),
            None => Step::Wait,
        }
    }

    /// Counts an attempt in flight whose lease is unresolved once it has a reply.
    pub(in crate::lock) fn attempt_left_behind(&self) {
        self.state().attempts += 1;
    }

    /// Applies the reply to such an attempt, or its end without one. Its lease was added before, if there is one.
    pub(in crate::lock) fn attempt_ended(&self) {
        self.state().attempts -= 1;
        self.finished.notify_waiters();
    }

    /// Applies the reply for a key, whose leases `resolved` are released. The task has to be notified afterwards.
    pub(in crate::lock) fn replied(
        &self,
        key: &LockKey,
        resolved: &[LeaseNumber],
        failed: bool,
        now: Moment,
    ) {
        let mut state = self.state();
        let State { keys, waiting, .. } = &mut *state;
        let Some(unknown) = keys.get_mut(key) else {
            return;
        };
        if let Progress::Waiting(due) = unknown.next {
            waiting.remove(&(due, key.clone()));
        }
        unknown.leases.retain(|lease| {
            lease.until > now && (lease.again || !resolved.contains(&lease.number))
        });
        if unknown.leases.is_empty() {
            keys.remove(key);
        } else {
            let mut at = now;
            if failed && unknown.next != (Progress::InFlight { again: true }) {
                at = now + jittered(unknown.backoff);
                unknown.backoff = (unknown.backoff * 2).min(LAST_BACKOFF);
            }
            unknown.next = Progress::Waiting(DueTime::At(at));
            waiting.insert((DueTime::At(at), key.clone()));
        }
        let finished = state.keys.is_empty();
        drop(state);
        if finished {
            self.finished.notify_waiters();
        }
    }

    /// Drops a lease that a command of the releaser has released, which was sent at `sent_at`. While a command for its key
    /// is in flight, the reply to that settles it.
    pub(in crate::lock) fn released_elsewhere(
        &self,
        key: &LockKey,
        lease: LeaseNumber,
        sent_at: Moment,
    ) {
        let mut state = self.state();
        let State { keys, waiting, .. } = &mut *state;
        let Some(unknown) = keys.get_mut(key) else {
            return;
        };
        let Progress::Waiting(due) = unknown.next else {
            return;
        };
        // The backend may have granted it after that command.
        (unknown.leases).retain(|it| it.number != lease || it.attempted > Some(sent_at));
        if unknown.leases.is_empty() {
            waiting.remove(&(due, key.clone()));
            keys.remove(key);
        }
        let finished = state.keys.is_empty();
        drop(state);
        if finished {
            self.changed.notify_one();
            self.finished.notify_waiters();
        }
    }

    /// Makes all leases due, because the backend is available again.
    pub(in crate::lock) fn retry_now(&self) {
        let mut state = self.state();
        let State { keys, waiting, .. } = &mut *state;
        waiting.clear();
        for (key, unknown) in keys {
            match &mut unknown.next {
                Progress::Waiting(due) => {
                    *due = DueTime::AtOnce;
                    waiting.insert((*due, key.clone()));
                }
                Progress::InFlight { again } => *again = true,
            }
        }
    }

    /// Returns `true` if the task has something to do and does not run, so the caller has to start it.
    pub(in crate::lock) fn start(&self) -> bool {
        let mut state = self.state();
        !state.keys.is_empty() && !std::mem::replace(&mut state.running, true)
    }

    /// Keeps the leases for the next task, after this one was dropped. So were its commands in flight.
    pub(in crate::lock) fn stopped(&self) {
        let mut state = self.state();
        state.running = false;
        let State { keys, waiting, .. } = &mut *state;
        for (key, unknown) in keys {
            if let Progress::InFlight { .. } = unknown.next {
                unknown.next = Progress::Waiting(DueTime::AtOnce);
                waiting.insert((DueTime::AtOnce, key.clone()));
            }
        }
    }

    /// Drops all leases: no home is left to release them.
    pub(in crate::lock) fn abandon(&self) {
        let mut state = self.state();
        *state = State {
            attempts: state.attempts,
            ..State::default()
        };
        drop(state);
        self.finished.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
