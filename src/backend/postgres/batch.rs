//! Collects the commands that arrive together.
//!
//! A command is sent at once if none is in flight. Otherwise it waits for the reply, and is then sent with all others
//! that arrived since: a commit to disk costs as much for one as for all of them.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::error::{Cause, is_of_value};
use crate::LockKey;
use crate::backend::BackendError;
use crate::task::Background;

/// The most items of a command. Each takes an entry of the server's lock table.
pub(super) const MAX_BATCH: usize = 64;

/// A command for several items.
pub(super) trait Command: Send + Sync + 'static {
    type Item: Send + Sync + 'static;
    type Outcome: Send + 'static;

    fn key(item: &Self::Item) -> &LockKey;

    /// Sends the command. Returns one outcome per item, in order. A single item waits for other sessions. One of several
    /// has no outcome if another session was in the mutex of its key, or had locked its row.
    fn send(
        &self,
        items: &[&Self::Item],
    ) -> impl Future<Output = Result<Vec<Option<Self::Outcome>>, BackendError>> + Send;

    /// Undoes an outcome whose caller is gone.
    fn undo(&self, item: Self::Item, outcome: Result<Self::Outcome, BackendError>);
}

/// The items of one command that wait for the reply to those before them.
pub(super) struct Batch<C: Command> {
    pub(super) command: C,
    state: Mutex<BatchState<C>>,
}

struct BatchState<C: Command> {
    sends: bool,
    waiting: Vec<Waiting<C>>,
}

struct Waiting<C: Command> {
    item: C::Item,
    reply: oneshot::Sender<Result<C::Outcome, BackendError>>,
}

impl<C: Command> Batch<C> {
    pub(super) fn new(command: C) -> Arc<Self> {
        let state = Mutex::new(BatchState {
            sends: false,
            waiting: Vec::new(),
        });
        Arc::new(Self { command, state })
    }

    fn state(&self) -> MutexGuard<'_, BatchState<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item to the next command, and returns its future result. The command does not depend on the future.
    pub(super) fn call(
        self: &Arc<Self>,
        item: C::Item,
    ) -> impl Future<Output = Result<C::Outcome, BackendError>> + Send + use<C> {
        let (reply, outcome) = oneshot::channel();
        let mut state = self.state();
        state.waiting.push(Waiting { item, reply });
        let starts = !std::mem::replace(&mut state.sends, true);
        drop(state);
        if starts {
            let batch = Arc::clone(self);
            Background.spawn(Sender { batch, over: false }.run());
        }
        async move {
            let outcome = outcome.await;
            outcome.unwrap_or_else(|_| Err(BackendError::unknown(Cause::NoThread)))
        }
    }
}

/// A task that sends items until there are none.
struct Sender<C: Command> {
    batch: Arc<Batch<C>>,
    over: bool,
}

impl<C: Command> Sender<C> {
    async fn run(mut self) {
        while let Some(mut next) = self.next() {
            // Each command locks rows in this order.
            next.sort_unstable_by(|one, other| {
                let [one, other] = [one, other].map(|it| C::key(&it.item).as_str());
                one.cmp(other)
            });
            let command = &self.batch.command;
            let items: Vec<_> = next.iter().map(|it| &it.item).collect();
            let outcomes = send(command, &items).await;
            for (Waiting { item, reply }, outcome) in next.into_iter().zip(outcomes) {
                // The runtime of the caller may have ended.
                if let Err(outcome) = reply.send(outcome) {
                    command.undo(item, outcome);
                }
            }
        }
    }

    /// Returns the items of the next command, or `None` at the end of the task.
    fn next(&mut self) -> Option<Vec<Waiting<C>>> {
        let mut state = self.batch.state();
        if state.waiting.is_empty() {
            // Under the mutex, so that the next item starts another task.
            state.sends = false;
            self.over = true;
            return None;
        }
        let count = state.waiting.len().min(MAX_BATCH);
        Some(state.waiting.drain(..count).collect())
    }
}

/// Without a thread, the task is dropped unstarted. Its items then have no outcome.
impl<C: Command> Drop for Sender<C> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut state = self.batch.state();
        state.sends = false;
        let unsent = std::mem::take(&mut state.waiting);
        drop(state);
        drop(unsent);
    }
}

/// A command for several keys that waited for one of them would delay the others, or wait for itself in another session. Each
/// item without an outcome gets a command of its own.
async fn send<C: Command>(
    command: &C,
    items: &[&C::Item],
) -> Vec<Result<C::Outcome, BackendError>> {
    let outcomes = match command.send(items).await {
        Ok(outcomes) => outcomes,
        Err(error) if items.len() > 1 && is_of_value(&error) => {
            items.iter().map(|_| None).collect()
        }
        Err(error) => return items.iter().map(|_| Err(error.clone())).collect(),
    };
    // Few wait alone, and a future of each would be large.
    let without = items.iter().zip(&outcomes).filter(|(_, it)| it.is_none());
    let alone = without.map(|(item, _)| async move { command.send(&[*item]).await });
    let mut alone = join_all(alone).await.into_iter();
    let mut outcome_alone = || {
        let outcomes = alone.next().expect("BUG: each is sent alone")?;
        let outcome = outcomes.into_iter().next().flatten();
        outcome.ok_or_else(|| BackendError::unknown(Cause::Unexpected))
    };
    let outcomes = outcomes.into_iter();
    outcomes
        .map(|outcome| outcome.map_or_else(&mut outcome_alone, Ok))
        .collect()
}
