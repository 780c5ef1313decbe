//! Sends concurrent acquires in one call.
//!
//! A script call costs the server more than the commands in it. An acquire is sent at once if none is in
//! flight. Otherwise it shares a call with all others that arrive in the same turn of the runtime. It never
//! waits for acquires that may arrive later. It waits for a reply only if [`SENDERS`] tasks wait for theirs,
//! or if its call would be small.
//!
//! If the server rejects a call, perhaps for one of its keys, each key is acquired by a call of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::call::Calls;
use super::error::{Cause, CommandError};
use super::reply::spread;
use super::script::MAX_BATCH;
use crate::backend::redis::topology::Route;
use crate::backend::{AcquireRequest, Acquired, BackendError, Release};

/// The most sending tasks per connection.
const SENDERS: usize = 2;

/// The number of waiting acquires that justifies a second sending task.
const WORTH_A_CALL: usize = 16;

/// The acquires of one connection.
pub(crate) struct AcquireBatch {
    calls: Arc<Calls>,
    route: Route,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A single acquire is in flight.
    alone: bool,
    senders: usize,
    waiting: Vec<Wanted>,
}

struct Wanted {
    request: AcquireRequest,
    reply: Reply,
}

type Reply = oneshot::Sender<Sent>;

enum Sent {
    Replied(Result<Acquired, BackendError>),
    /// The sending task ended before it sent the acquire.
    Never,
}

enum Turn {
    Alone,
    /// If `send`, the caller starts a sending task.
    Together {
        reply: oneshot::Receiver<Sent>,
        send: bool,
    },
}

impl AcquireBatch {
    /// Creates the batch of the keys that have this route.
    pub(crate) fn new(calls: Arc<Calls>, route: Route) -> Self {
        Self {
            calls,
            route,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, request: &AcquireRequest) -> Turn {
        let mut state = self.state();
        if !state.alone && state.senders == 0 {
            state.alone = true;
            return Turn::Alone;
        }
        let (sender, reply) = oneshot::channel();
        state.waiting.push(Wanted {
            request: request.clone(),
            reply: sender,
        });
        let many = state.waiting.len() >= WORTH_A_CALL && state.senders < SENDERS;
        let send = state.senders == 0 || many;
        state.senders += usize::from(send);
        Turn::Together { reply, send }
    }

    /// Sends an acquire, alone or with others. The route of its key must be the one of this batch.
    ///
    /// # Cancel safety
    ///
    /// As [`Backend::try_acquire`](crate::backend::Backend::try_acquire), it must not be dropped.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: &AcquireRequest,
    ) -> Result<Acquired, BackendError> {
        let (reply, send) = match self.enter(request) {
            Turn::Alone => {
                let _alone = Alone(self);
                return self.acquire_alone(request).await;
            }
            Turn::Together { reply, send } => (reply, send),
        };
        if send {
            let sender = Sender {
                batch: Arc::clone(self),
                over: false,
            };
            let network = self.route.connection().network();
            network.background.spawn_near(sender.run());
        }
        match reply.await {
            Ok(Sent::Replied(outcome)) => outcome,
            Ok(Sent::Never) => self.acquire_alone(request).await,
            // The runtime of the task ended while the acquire was in flight.
            Err(_) => Err(BackendError::unknown(Cause::NoRuntime)),
        }
    }

    async fn acquire_alone(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        let at = self.calls.at(&self.route, &request.key);
        self.calls.acquire(at, request.lease, request.ttl).await
    }
}

/// Dropped with its runtime as well, so that the next acquire is sent at once again.
struct Alone<'a>(&'a AcquireBatch);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state().alone = false;
    }
}

/// A task that sends waiting acquires until there are none.
struct Sender {
    batch: Arc<AcquireBatch>,
    over: bool,
}

impl Sender {
    async fn run(mut self) {
        let mut waiting = Vec::new();
        loop {
            // All tasks that are ready run first, and may add acquires.
            yield_now().await;
            {
                let mut state = self.batch.state();
                if state.waiting.is_empty() {
                    // Under the lock of the check, so that the next acquire starts another task.
                    state.senders -= 1;
                    drop(state);
                    self.over = true;
                    return;
                }
                // The next acquires reuse the memory of the last call but one.
                std::mem::swap(&mut state.waiting, &mut waiting);
            }
            // The runtime of such an acquire ended. Its release may have been sent, and must not be overtaken.
            waiting.retain(|it| !it.reply.is_closed());
            let mut calls = Vec::with_capacity(waiting.len().div_ceil(MAX_BATCH));
            while !waiting.is_empty() {
                let batch = waiting.drain(..waiting.len().min(MAX_BATCH));
                calls.push(self.send(batch.map(|it| (it.request, it.reply)).unzip()));
            }
            // A burst must not keep its memory.
            waiting.shrink_to(MAX_BATCH);
            join_all(calls).await;
        }
    }

    async fn send(&self, (acquires, replies): (Vec<AcquireRequest>, Vec<Reply>)) {
        let AcquireBatch { calls, route, .. } = &*self.batch;
        let outcomes = match calls.acquire_all(route, &acquires).await {
            // The counter is a key of every call.
            Err(error)
                if matches!(error, CommandError::Scattered(_))
                    || acquires.len() > 1 && error.may_spare_keys() =>
            {
                join_all(acquires.iter().map(|it| self.batch.acquire_alone(it))).await
            }
            outcomes => spread(outcomes, acquires.len()),
        };
        let mut abandoned = Vec::new();
        for ((reply, outcome), acquire) in replies.into_iter().zip(outcomes).zip(&acquires) {
            // A dropped receiver ended with its runtime.
            if let Err(Sent::Replied(outcome)) = reply.send(Sent::Replied(outcome))
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

fn may_hold(outcome: &Result<Acquired, BackendError>) -> bool {
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
        let mut state = self.batch.state();
        state.senders -= 1;
        // Another sender sends them. Without one, each caller in another runtime sends its own.
        let unsent = match state.senders {
            0 => std::mem::take(&mut state.waiting),
            _ => Vec::new(),
        };
        drop(state);
        for wanted in unsent {
            drop(wanted.reply.send(Sent::Never));
        }
    }
}
