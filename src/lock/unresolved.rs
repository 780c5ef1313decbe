//! The leases of unknown fate: the backend may or may not hold them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::clock::Moment;
use super::lease::LeaseNumber;
use crate::LockKey;
use crate::jitter::jittered;

/// The most leases of one command.
pub(super) const BATCH: usize = 100;

/// The time from a failure to the next commands, for all leases whose release failed until then.
const RETRY: Duration = Duration::from_millis(250);

/// The unresolved leases of one runtime. Each lease has at most one release in flight.
#[derive(Debug, Default)]
pub(super) struct Unresolved {
    state: Mutex<State>,
    /// Notified when the task has something to do.
    pub(super) changed: Notify,
    /// Notified when nothing is left.
    finished: Notify,
}

type Id = (LockKey, LeaseNumber);

#[derive(Debug, Default)]
struct State {
    leases: BTreeMap<Id, Unknown>,
    /// The leases to release now, in this order. Some may have left since.
    due: VecDeque<Id>,
    /// When the leases whose release failed are due again.
    retry_at: Option<Moment>,
    /// The attempts in flight whose leases are unresolved once they have replies.
    attempts: usize,
    running: bool,
}

#[derive(Debug)]
struct Unknown {
    lease: UnknownLease,
    progress: Progress,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct UnknownLease {
    number: LeaseNumber,
    /// When it must have expired.
    until: Moment,
    /// When an attempt was added that the backend may grant after a release that was sent before.
    attempted: Option<Moment>,
}

impl UnknownLease {
    /// Returns the lease of an attempt, or of a place in the queue of the backend, that may yet take effect.
    pub(super) fn attempted(number: LeaseNumber, until: Moment) -> Self {
        Self {
            attempted: Some(Moment::now()),
            ..Self::granted(number, until)
        }
    }

    /// Returns a lease that was granted before, so that the reply to any release of it is the last word.
    pub(super) fn granted(number: LeaseNumber, until: Moment) -> Self {
        Self {
            number,
            until,
            attempted: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Due,
    Failed,
    /// `again`: since the release was sent, the lease was attempted again, or the backend has recovered.
    InFlight {
        again: bool,
    },
}

/// What the task has to do.
#[derive(Debug)]
pub(super) enum Step {
    Release(Vec<Id>),
    WaitUntil(Moment),
    /// Wait for the commands in flight.
    Wait,
    End,
}

impl Unknown {
    /// The reply to a release in flight is not the last word.
    fn release_again(&mut self) {
        if let Progress::InFlight { again } = &mut self.progress {
            *again = true;
        }
    }
}

impl State {
    /// Makes the leases due whose release failed.
    fn retry(&mut self) {
        self.retry_at = None;
        for (id, unknown) in &mut self.leases {
            if unknown.progress == Progress::Failed {
                unknown.progress = Progress::Due;
                self.due.push_back(id.clone());
            }
        }
    }

    /// Returns the leases of one command, or an empty list if none is due.
    fn take_due(&mut self) -> Vec<Id> {
        let mut taken = Vec::new();
        while taken.len() < BATCH
            && let Some(id) = self.due.pop_front()
        {
            if let Some(unknown) = self.leases.get_mut(&id)
                && unknown.progress == Progress::Due
            {
                unknown.progress = Progress::InFlight { again: false };
                taken.push(id);
            }
        }
        taken
    }

    /// Ends the task, and returns its leases. The attempts in flight stay.
    fn stop(&mut self) -> BTreeMap<Id, Unknown> {
        let stopped = Self {
            attempts: self.attempts,
            ..Self::default()
        };
        std::mem::replace(self, stopped).leases
    }
}

impl Unresolved {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        let state = self.state();
        state.attempts + state.leases.len()
    }

    /// Completes when nothing is left.
    pub(super) async fn finished(&self) {
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
    pub(super) fn add(&self, key: LockKey, lease: UnknownLease) -> bool {
        let id = (key, lease.number);
        let start = {
            let mut state = self.state();
            match state.leases.get_mut(&id) {
                Some(known) => {
                    known.lease.until = known.lease.until.max(lease.until);
                    if lease.attempted.is_some() {
                        known.lease.attempted = lease.attempted;
                        known.release_again();
                    }
                }
                None => {
                    let progress = Progress::Due;
                    (state.leases).insert(id.clone(), Unknown { lease, progress });
                    state.due.push_back(id);
                }
            }
            !std::mem::replace(&mut state.running, true)
        };
        self.changed.notify_one();
        start
    }

    pub(super) fn has(&self, key: &LockKey, lease: LeaseNumber) -> bool {
        self.state().leases.contains_key(&(key.clone(), lease))
    }

    pub(super) fn forget_expired(&self, now: Moment) {
        (self.state().leases).retain(|_, unknown| unknown.lease.until > now);
    }

    /// Returns what the task does next.
    pub(super) fn next_step(&self, now: Moment) -> Step {
        let mut state = self.state();
        if state.leases.is_empty() {
            drop(state.stop());
            return Step::End;
        }
        if state.retry_at.is_some_and(|at| at <= now) {
            state.retry();
        }
        let due = state.take_due();
        match state.retry_at {
            _ if !due.is_empty() => Step::Release(due),
            Some(at) => Step::WaitUntil(at),
            None => Step::Wait,
        }
    }

    /// Counts an attempt in flight whose lease is unresolved once it has a reply.
    pub(super) fn attempt_left_behind(&self) {
        self.state().attempts += 1;
    }

    /// Applies the reply to such an attempt, or its end without one. Its lease was added before, if there is one.
    pub(super) fn attempt_ended(&self) {
        self.state().attempts -= 1;
        self.finished.notify_waiters();
    }

    /// Applies the reply to a release. The task has to be notified afterwards.
    pub(super) fn replied(
        &self,
        key: &LockKey,
        lease: LeaseNumber,
        is_released: bool,
        now: Moment,
    ) {
        let id = (key.clone(), lease);
        let mut state = self.state();
        let Some(unknown) = state.leases.get_mut(&id) else {
            return;
        };
        if unknown.progress == (Progress::InFlight { again: true }) && unknown.lease.until > now {
            unknown.progress = Progress::Due;
            state.due.push_back(id);
        } else if is_released || unknown.lease.until <= now {
            self.remove(state, &id);
        } else {
            unknown.progress = Progress::Failed;
            (state.retry_at).get_or_insert_with(|| now + jittered(RETRY));
        }
    }

    fn remove(&self, mut state: MutexGuard<'_, State>, id: &Id) {
        state.leases.remove(id);
        let finished = state.leases.is_empty();
        drop(state);
        if finished {
            self.changed.notify_one();
            self.finished.notify_waiters();
        }
    }

    /// Drops a lease that a command of another task has released, which was sent at `sent_at`. While a release of it is in
    /// flight, the reply to that settles it.
    pub(super) fn released_elsewhere(&self, key: &LockKey, lease: LeaseNumber, sent_at: Moment) {
        let id = (key.clone(), lease);
        let state = self.state();
        let is_settled = state.leases.get(&id).is_some_and(|unknown| {
            // The backend may have granted it after that command.
            !matches!(unknown.progress, Progress::InFlight { .. })
                && unknown.lease.attempted <= Some(sent_at)
        });
        if is_settled {
            self.remove(state, &id);
        }
    }

    /// Makes all leases due, because the backend is available again.
    pub(super) fn retry_now(&self) {
        let mut state = self.state();
        state.retry();
        state.leases.values_mut().for_each(Unknown::release_again);
    }

    /// Removes and returns the leases after the task was dropped with its runtime.
    pub(super) fn abandon(&self) -> Vec<(LockKey, UnknownLease)> {
        let leases = self.state().stop();
        self.finished.notify_waiters();
        let lease = |((key, _), unknown): (Id, Unknown)| (key, unknown.lease);
        leases.into_iter().map(lease).collect()
    }
}

#[cfg(test)]
mod tests;
