//! Acquires that are wanted at the same moment go in one call.
//!
//! A script call costs the server more than the commands in it. An acquire that finds none under way
//! goes straight out, by itself. One that comes meanwhile goes with all others that are asked for in
//! the same turn of the runtime. It never waits for company that is still to come; for an answer it
//! waits only where [`SENDERS`] tasks wait for theirs, or where it would be a call for a few.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::backend::redis::backend::Inner;
use crate::backend::redis::command::{Cause, MAX_BATCH};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::topology::{Route, spread};
use crate::backend::{AcquireRequest, Acquired, BackendError};

/// How many tasks send, on one connection.
const SENDERS: usize = 2;

/// A second one is worth it only for so many.
const WORTH_A_CALL: usize = 16;

/// The acquires of one connection.
#[derive(Default)]
pub(crate) struct AcquireBatch {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// One is under way by itself.
    alone: bool,
    senders: usize,
    waiting: Vec<Wanted>,
}

struct Wanted {
    request: AcquireRequest,
    answer: Answer,
}

type Answer = oneshot::Sender<Sent>;

enum Sent {
    Answered(Result<Acquired, BackendError>),
    /// And the task that was to do it is gone.
    Never,
}

enum Turn {
    Alone,
    /// `send`: by a task that is to be started.
    Together {
        answer: oneshot::Receiver<Sent>,
        send: bool,
    },
}

impl AcquireBatch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, request: &AcquireRequest) -> Turn {
        let mut state = self.state();
        if !state.alone && state.senders == 0 {
            state.alone = true;
            return Turn::Alone;
        }
        let (sender, answer) = oneshot::channel();
        state.waiting.push(Wanted {
            request: request.clone(),
            answer: sender,
        });
        let many = state.waiting.len() >= WORTH_A_CALL && state.senders < SENDERS;
        let send = state.senders == 0 || many;
        state.senders += usize::from(send);
        Turn::Together { answer, send }
    }
}

/// # Cancel safety
///
/// As [`Backend::try_acquire`](crate::backend::Backend::try_acquire), it must not be dropped.
pub(crate) async fn acquire(
    inner: &Arc<Inner>,
    connection: &Arc<Connection>,
    request: &AcquireRequest,
) -> Result<Acquired, BackendError> {
    let by_itself = async || {
        let route = Route::alone(connection);
        let at = inner.at(&route, &request.key);
        inner.scripts.acquire(at, request.lease, request.ttl).await
    };
    let (answer, send) = match connection.acquire_batch.enter(request) {
        Turn::Alone => {
            let _alone = Alone(&connection.acquire_batch);
            return by_itself().await;
        }
        Turn::Together { answer, send } => (answer, send),
    };
    if send {
        let sender = Sender {
            inner: Arc::clone(inner),
            connection: Arc::clone(connection),
            over: false,
        };
        inner.network.spawner.spawn(sender.run());
    }
    match answer.await {
        Ok(Sent::Answered(outcome)) => outcome,
        Ok(Sent::Never) => by_itself().await,
        // The task went down with its runtime while it was under way.
        Err(_) => Err(BackendError::unknown(Cause::NoRuntime)),
    }
}

/// Also dropped with its runtime: the next one goes by itself again.
struct Alone<'a>(&'a AcquireBatch);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state().alone = false;
    }
}

/// A task that sends what waits until nothing does.
struct Sender {
    inner: Arc<Inner>,
    connection: Arc<Connection>,
    over: bool,
}

impl Sender {
    async fn run(mut self) {
        let mut waiting = Vec::new();
        loop {
            // Behind all tasks that can run now, and that may ask for something.
            yield_now().await;
            {
                let mut state = self.connection.acquire_batch.state();
                if state.waiting.is_empty() {
                    // Under the same mutex as the look: whoever comes now starts another.
                    state.senders -= 1;
                    drop(state);
                    self.over = true;
                    return;
                }
                // Those who come now find the room of who went in the last call but one.
                std::mem::swap(&mut state.waiting, &mut waiting);
            }
            let mut calls = Vec::with_capacity(waiting.len().div_ceil(MAX_BATCH));
            while !waiting.is_empty() {
                let batch = waiting.drain(..waiting.len().min(MAX_BATCH));
                calls.push(self.send(batch.map(|it| (it.request, it.answer)).unzip()));
            }
            // Not that of a crowd.
            waiting.shrink_to(MAX_BATCH);
            join_all(calls).await;
        }
    }

    async fn send(&self, (acquires, answers): (Vec<AcquireRequest>, Vec<Answer>)) {
        let route = Route::alone(&self.connection);
        let Inner { scripts, names, .. } = &*self.inner;
        let outcomes = scripts.acquire_all(&route, names, &acquires).await;
        for (answer, outcome) in answers.into_iter().zip(spread(outcomes, acquires.len())) {
            // Who does not listen any more is gone with its runtime.
            drop(answer.send(Sent::Answered(outcome)));
        }
    }
}

/// Went down with its runtime.
impl Drop for Sender {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = self.connection.acquire_batch.state();
        state.senders -= 1;
        // The other sender takes them along. Or each goes by itself, if its runtime is another.
        let forsaken = match state.senders {
            0 => std::mem::take(&mut state.waiting),
            _ => Vec::new(),
        };
        drop(state);
        for wanted in forsaken {
            drop(wanted.answer.send(Sent::Never));
        }
    }
}
