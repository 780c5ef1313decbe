//! Sends releases and renewals of many keys in as few calls as possible.

use futures_util::future::join_all;

use super::kind::Topology;
use super::route::Route;
use crate::LockKey;
use crate::backend::BackendError;
use crate::backend::redis::command::{CommandError, MAX_BATCH, Outcomes, spread};

/// Groups items by connection, slot and kind, sends calls for up to [`MAX_BATCH`] items concurrently, and returns
/// one outcome per item, in order.
pub(crate) async fn in_batches<'a, T, O, F>(
    topology: &dyn Topology,
    items: &'a [T],
    key: fn(&T) -> &LockKey,
    kind: fn(&T) -> bool,
    call: impl Fn(Route, Vec<&'a T>) -> F,
) -> Vec<Result<O, BackendError>>
where
    F: Future<Output = Outcomes<O>>,
{
    // The usual case: one item, or one connection.
    let shares = |item, other| {
        let index = topology.shared_connection(key(item));
        index.is_some()
            && index == topology.shared_connection(key(other))
            && kind(item) == kind(other)
    };
    if let Some((first, more)) = items.split_first()
        && items.len() <= MAX_BATCH
        && more.iter().all(|item| shares(first, item))
    {
        return match topology.route(key(first)) {
            Ok(route) => send(&route, items.iter().collect(), &call).await,
            Err(error) => spread(Err(CommandError::Refused(error)), items.len()),
        };
    }
    let mut outcomes = Vec::with_capacity(items.len());
    let mut routed = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        match topology.route(key(item)) {
            Ok(route) => routed.push((index, (route.group(), kind(item)), route)),
            Err(error) => outcomes.push((index, Err(error))),
        }
    }
    routed.sort_by_key(|(_, group, _)| *group);
    let calls: Vec<_> = routed
        .chunk_by(|(_, one, _), (_, other, _)| one == other)
        .flat_map(|group| group.chunks(MAX_BATCH))
        .map(|batch| {
            let of_batch = batch.iter().map(|(index, ..)| &items[*index]).collect();
            send(&batch[0].2, of_batch, &call)
        })
        .collect();
    // `join_all` polls a small, known number of futures itself. Otherwise it uses a set that wakes its
    // task once more after the last one.
    let called = join_all(calls).await.into_iter().flatten();
    outcomes.extend(routed.iter().map(|(index, ..)| *index).zip(called));
    outcomes.sort_unstable_by_key(|&(index, _)| index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Sends one call for a batch. If the server rejects it, perhaps for one of the keys, sends one call per key.
async fn send<'a, T, O, F>(
    route: &Route,
    batch: Vec<&'a T>,
    call: &impl Fn(Route, Vec<&'a T>) -> F,
) -> Vec<Result<O, BackendError>>
where
    F: Future<Output = Outcomes<O>>,
{
    let items = batch.len();
    let again = match items {
        1 => Vec::new(),
        _ => batch.clone(),
    };
    match call(route.clone(), batch).await {
        Err(error) if items > 1 && error.may_spare_keys() => {
            let alone = |item| async move { spread(call(route.clone(), vec![item]).await, 1) };
            let outcomes = join_all(again.into_iter().map(alone)).await;
            outcomes.into_iter().flatten().collect()
        }
        outcomes => spread(outcomes, items),
    }
}
