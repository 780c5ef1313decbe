//! Releases and renewals of many keys go in as few calls as there can be.

use futures_util::future::join_all;

use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::backend::Inner;
use crate::backend::redis::command::{Answers, CommandError, MAX_BATCH};
use crate::backend::redis::topology::{Route, Topology};

impl Inner {
    /// Sorts items by connection and slot, calls for up to [`MAX_BATCH`] at once, all calls side by
    /// side, and puts the answers into the order asked.
    pub(crate) async fn in_batches<'a, T, O, F>(
        &'a self,
        items: &'a [T],
        key: fn(&T) -> &LockKey,
        call: impl Fn(Route, Vec<&'a T>) -> F,
    ) -> Vec<Result<O, BackendError>>
    where
        F: Future<Output = Answers<O>>,
    {
        // The usual case, with one connection or a single item.
        if let Some(route) = self.at_once(items, key) {
            let answers = match route {
                Ok(route) => call(route, items.iter().collect()).await,
                Err(error) => Err(CommandError::Refused(error)),
            };
            return spread(answers, items.len());
        }
        let mut answers = Vec::with_capacity(items.len());
        let mut placed = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            match self.route(key(item)) {
                Ok(route) => placed.push((index, route)),
                Err(error) => answers.push((index, Err(error))),
            }
        }
        placed.sort_by_key(|(_, route)| route.group());
        let call = &call;
        let calls: Vec<_> = placed
            .chunk_by(|(_, one), (_, other)| one.group() == other.group())
            .flat_map(|of_place| of_place.chunks(MAX_BATCH))
            .map(|batch| async move {
                let of_batch = batch.iter().map(|&(index, _)| &items[index]).collect();
                match call(batch[0].1.clone(), of_batch).await {
                    Ok(answers) => answers,
                    // Some keys of the slot have moved to another node already.
                    Err(CommandError::Scattered(_)) if batch.len() > 1 => {
                        let alone = |(index, route): &(usize, Route)| {
                            let one = call(route.clone(), vec![&items[*index]]);
                            async move { spread(one.await, 1) }
                        };
                        let answers = join_all(batch.iter().map(alone)).await;
                        answers.into_iter().flatten().collect()
                    }
                    failed => spread(failed, batch.len()),
                }
            })
            .collect();
        // Of a known number: where it is not known to be small, they are polled by a set of its own,
        // which wakes its task once more when it has polled all of them.
        let called = join_all(calls).await.into_iter().flatten();
        answers.extend(placed.iter().map(|(index, _)| *index).zip(called));
        answers.sort_unstable_by_key(|&(index, _)| index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Where all of them go, in one call, if that can be told without sorting them.
    fn at_once<T>(
        &self,
        items: &[T],
        key: fn(&T) -> &LockKey,
    ) -> Option<Result<Route, BackendError>> {
        let (first, more) = items.split_first()?;
        let together = more.is_empty()
            || match &self.topology {
                Topology::Single(node) => {
                    let connection = node.connection(key(first)).id();
                    let shares_it = |item| node.connection(key(item)).id() == connection;
                    items.len() <= MAX_BATCH && more.iter().all(shares_it)
                }
                Topology::Cluster(_) => false,
            };
        together.then(|| self.route(key(first)))
    }
}

/// A failure of the whole call is the failure of each of its keys.
pub(crate) fn spread<O>(answers: Answers<O>, items: usize) -> Vec<Result<O, BackendError>> {
    answers.unwrap_or_else(|fault| {
        let error = BackendError::from(fault);
        (0..items).map(|_| Err(error.clone())).collect()
    })
}
