//! Sends concurrent acquires in one call.
//!
//! A script call costs the server more than the commands in it. An acquire is sent at once if none is in
//! flight. Otherwise it shares a call with all others that arrive in the same turn of the runtime. It never
//! waits for acquires that may arrive later. It waits for a reply only if [`SENDERS`] tasks wait for theirs,
//! or if its call would be small. Callers in different runtimes share no call, because one of the runtimes may
//! block.
//!
//! If the server rejects a call, perhaps for one of its keys, each key is acquired by a call of its own.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::call::Calls;
use super::error::Cause;
use super::reply::{Outcomes, spread};
use super::script::MAX_BATCH;
use crate::backend::redis::topology::Route;
use crate::backend::{AcquireRequest, Acquired, BackendError, Release};
use crate::mutex::Mutex;
use crate::task::{Background, RuntimeId};

/// The most sending tasks per connection and runtime.
const SENDERS: usize = 2;

/// The number of waiting acquires that justifies a second sending task.
const WORTH_A_CALL: usize = 16;

/// The acquires of one connection: the exclusive ones, or all others.
pub(crate) struct AcquireBatch {
    calls: Arc<Calls>,
    route: Route,
    is_shared: bool,
    state: Mutex<AcquireGroups>,
}

#[derive(Default)]
struct AcquireGroups {
    /// A single acquire is in flight.
    alone: bool,
    groups: Vec<Group>,
}

/// The acquires whose sending tasks run in one runtime.
struct Group {
    /// As [`near`](crate::task::Background::near).
    home: Option<RuntimeId>,
    senders: usize,
    waiting: Vec<(AcquireRequest, ReplySender)>,
}

impl AcquireGroups {
    fn group(&mut self, home: Option<RuntimeId>) -> &mut Group {
        let at = self.groups.iter().position(|group| group.home == home);
        let at = at.unwrap_or_else(|| {
            self.groups.push(Group {
                home,
                senders: 0,
                waiting: Vec::new(),
            });
            self.groups.len() - 1
        });
        &mut self.groups[at]
    }

    fn end_sender(&mut self, home: Option<RuntimeId>) {
        self.group(home).senders -= 1;
        // A single group keeps its memory. Another one without a sender may belong to an ended runtime.
        if self.groups.len() > 1 {
            self.groups.retain(|group| group.senders > 0);
        }
    }
}

type Outcome = Result<Acquired, BackendError>;
type ReplySender = oneshot::Sender<Outcome>;

impl AcquireBatch {
    /// Creates the batch of the keys that have this route. `is_shared`: for shared leases and permits.
    pub(crate) fn new(calls: Arc<Calls>, route: Route, is_shared: bool) -> Self {
        Self {
            calls,
            route,
            is_shared,
            state: Mutex::default(),
        }
    }

    /// Adds an acquire to the next call, and returns the task to start if no other sends that call. Returns `None` if the
    /// caller sends the acquire alone.
    fn enter(
        self: &Arc<Self>,
        request: &AcquireRequest,
    ) -> Option<(oneshot::Receiver<Outcome>, Option<Sender>)> {
        let mut state = self.state.lock();
        if !state.alone && state.groups.iter().all(|group| group.senders == 0) {
            state.alone = true;
            return None;
        }
        let home = Background.near().map(|near| near.id());
        let group = state.group(home);
        let (reply, outcome) = oneshot::channel();
        group.waiting.push((request.clone(), reply));
        let many = group.waiting.len() >= WORTH_A_CALL && group.senders < SENDERS;
        let starts = group.senders == 0 || many;
        group.senders += usize::from(starts);
        let sender = starts.then(|| Sender {
            batch: Arc::clone(self),
            home,
            over: false,
        });
        Some((outcome, sender))
    }

    /// Sends an acquire, alone or with others. The route of its key must be the one of this batch.
    ///
    /// # Cancel safety
    ///
    /// As [`Backend::try_acquire`](crate::backend::Backend::try_acquire), it must not be dropped.
    pub(crate) async fn acquire(self: &Arc<Self>, request: &AcquireRequest) -> Outcome {
        let Some((outcome, sender)) = self.enter(request) else {
            let _alone = Alone(self);
            return self.acquire_alone(request).await;
        };
        if let Some(sender) = sender {
            Background.spawn_near(sender.run());
        }
        // The runtime of the task may end, before it sends the acquire or in flight.
        let ended = |_| Err(BackendError::unknown(Cause::NoRuntime));
        outcome.await.unwrap_or_else(ended)
    }

    async fn acquire_alone(&self, request: &AcquireRequest) -> Outcome {
        let at = self.calls.at(&self.route, &request.key);
        self.calls.acquire(at, request).await
    }

    async fn acquire_all(&self, acquires: &[AcquireRequest]) -> Outcomes<Acquired> {
        match self.is_shared {
            false => self.calls.acquire_all(&self.route, acquires).await,
            true => self.calls.share_all(&self.route, acquires).await,
        }
    }
}

/// Dropped with its runtime as well, so that the next acquire is sent at once again.
struct Alone<'a>(&'a AcquireBatch);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state.lock().alone = false;
    }
}

/// A task that sends waiting acquires until there are none.
struct Sender {
    batch: Arc<AcquireBatch>,
    home: Option<RuntimeId>,
    over: bool,
}

impl Sender {
    async fn run(mut self) {
        let mut waiting = Vec::new();
        loop {
            // All tasks that are ready run first, and may add acquires.
            yield_now().await;
            {
                let mut state = self.batch.state.lock();
                let group = state.group(self.home);
                if group.waiting.is_empty() {
                    // Under the lock of the check, so that the next acquire starts another task.
                    state.end_sender(self.home);
                    drop(state);
                    self.over = true;
                    return;
                }
                // The next acquires reuse the memory of the last call but one.
                std::mem::swap(&mut group.waiting, &mut waiting);
            }
            // The runtime of such an acquire ended. Its release may have been sent, and must not be overtaken.
            waiting.retain(|(_, reply)| !reply.is_closed());
            let mut calls = Vec::with_capacity(waiting.len().div_ceil(MAX_BATCH));
            let mut unsent = waiting.drain(..);
            while unsent.len() > 0 {
                calls.push(self.send(unsent.by_ref().take(MAX_BATCH).unzip()));
            }
            drop(unsent);
            // A burst must not keep its memory.
            waiting.shrink_to(MAX_BATCH);
            join_all(calls).await;
        }
    }

    async fn send(&self, (acquires, replies): (Vec<AcquireRequest>, Vec<ReplySender>)) {
        let AcquireBatch { calls, route, .. } = &*self.batch;
        let alone = || join_all(acquires.iter().map(|it| self.batch.acquire_alone(it)));
        let outcomes = if are_different(&acquires) {
            match self.batch.acquire_all(&acquires).await {
                // The counter is a key of every call. A shared one has its queue as well.
                Err(error)
                    if error.excludes_queue() || acquires.len() > 1 && error.may_spare_keys() =>
                {
                    alone().await
                }
                outcomes => spread(outcomes, acquires.len()),
            }
        } else {
            alone().await
        };
        let mut abandoned = Vec::new();
        for ((reply, outcome), acquire) in replies.into_iter().zip(outcomes).zip(&acquires) {
            // A dropped receiver ended with its runtime.
            if let Err(outcome) = reply.send(outcome)
                && may_hold(&outcome)
            {
                abandoned.push(Release::new(acquire.key.clone(), acquire.lease));
            }
        }
        // A resent acquire may have been overtaken by its release. If this one fails, the lease expires.
        let releases = abandoned.iter().map(|it| async move {
            drop(calls.release_all(route, &[it]).await);
        });
        join_all(releases).await;
    }
}

/// Returns `true` if no two acquires have the same key. Two managers may share a backend.
fn are_different(acquires: &[AcquireRequest]) -> bool {
    let mut hashes: Vec<_> = acquires.iter().map(|it| it.key.hash_code()).collect();
    hashes.sort_unstable();
    hashes.is_sorted_by(|one, next| one < next)
}

fn may_hold(outcome: &Outcome) -> bool {
    match outcome {
        Ok(acquired) => matches!(acquired, Acquired::Granted { .. }),
        Err(error) => error.may_have_taken_effect(),
    }
}

/// The task may end with its runtime.
impl Drop for Sender {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = self.batch.state.lock();
        let group = state.group(self.home);
        // Another sender of the group sends them. Without one, each caller that is still there attempts again.
        let unsent = match group.senders {
            1 => std::mem::take(&mut group.waiting),
            _ => Vec::new(),
        };
        state.end_sender(self.home);
        // Wakes the callers, so the mutex is free again.
        drop(state);
        drop(unsent);
    }
}
