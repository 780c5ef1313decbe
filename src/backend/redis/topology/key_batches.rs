//! Sends releases and renewals of many keys in as few calls as possible.

use futures_util::future::join_all;

use super::kind::Topology;
use super::route::Route;
use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::command::{CommandError, MAX_BATCH, Outcomes, spread};

/// Groups items by connection and slot, sends calls for up to [`MAX_BATCH`] items concurrently, and returns
/// one outcome per item, in order.
pub(crate) async fn in_batches<'a, T, O, F>(
    topology: &dyn Topology,
    items: &'a [T],
    key: fn(&T) -> &LockKey,
    call: impl Fn(Route, Vec<&'a T>) -> F,
) -> Vec<Result<O, BackendError>>
where
    F: Future<Output = Outcomes<O>>,
{
    // The usual case: one item, or one connection.
    if let Some((first, more)) = items.split_first()
        && items.len() <= MAX_BATCH
        && more
            .iter()
            .all(|item| topology.share_call(key(first), key(item)))
    {
        let outcomes = match topology.route(key(first)) {
            Ok(route) => call(route, items.iter().collect()).await,
            Err(error) => Err(CommandError::Refused(error)),
        };
        return spread(outcomes, items.len());
    }
    let mut outcomes = Vec::with_capacity(items.len());
    let mut routed = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        match topology.route(key(item)) {
            Ok(route) => routed.push((index, route)),
            Err(error) => outcomes.push((index, Err(error))),
        }
    }
    routed.sort_by_key(|(_, route)| route.group());
    let call = &call;
    let calls: Vec<_> = routed
        .chunk_by(|(_, one), (_, other)| one.group() == other.group())
        .flat_map(|group| group.chunks(MAX_BATCH))
        .map(|batch| async move {
            let of_batch = batch.iter().map(|&(index, _)| &items[index]).collect();
            match call(batch[0].1.clone(), of_batch).await {
                Ok(outcomes) => outcomes,
                // Some keys of the slot have already moved to another node.
                Err(CommandError::Scattered(_)) if batch.len() > 1 => {
                    let alone = |(index, route): &(usize, Route)| {
                        let one = call(route.clone(), vec![&items[*index]]);
                        async move { spread(one.await, 1) }
                    };
                    let outcomes = join_all(batch.iter().map(alone)).await;
                    outcomes.into_iter().flatten().collect()
                }
                failed => spread(failed, batch.len()),
            }
        })
        .collect();
    // `join_all` polls a small, known number of futures itself. Otherwise it uses a set that wakes its
    // task once more after the last one.
    let called = join_all(calls).await.into_iter().flatten();
    outcomes.extend(routed.iter().map(|(index, _)| *index).zip(called));
    outcomes.sort_unstable_by_key(|&(index, _)| index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}
