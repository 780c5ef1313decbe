//! What the tests of the table share.

mod emptied;
mod index;
mod rounds;
mod shards;

use std::pin::pin;
use std::sync::Arc;

use tokio::time::timeout;

use super::*;
use crate::lock::attempt::InlineAttempt;
use crate::lock::claim::Claim;
use crate::lock::effect::Work;
use crate::lock::few::Few;
use crate::lock::grant::Grant;
use crate::lock::lane::{Look, Seen};
use crate::lock::lease::Lease;
use crate::lock::tests::{
    FIXED, MS, RENEWED, RESPONSE_TIMEOUT, SECOND, TOKENS, claim, elsewhere, from_elsewhere, here,
    number, waiter,
};
use crate::lock::yielded::Yielded;

const TTL: Duration = RENEWED.ttl.get();

fn lanes() -> Lanes {
    Lanes::new(RESPONSE_TIMEOUT)
}

fn key(nth: usize) -> LockKey {
    LockKey::new(format!("key {nth}"))
}

/// Applies an event. Returns the deadlines of which watchdogs have to be notified.
fn event<R>(
    lanes: &Lanes,
    key: &LockKey,
    event: impl FnOnce(&mut Lane, &mut Effects) -> R,
) -> (R, Vec<(RuntimeId, Moment)>) {
    let mut effects = Effects::default();
    let result = lanes.with(key, &mut effects, event);
    (result, effects.deadlines.to_vec())
}

/// Acquires a free key, as with a backend that replies at once.
fn acquire(
    lanes: &Lanes,
    key: &LockKey,
    claim: Claim,
    now: Moment,
) -> (Arc<Grant>, Vec<(RuntimeId, Moment)>) {
    event(lanes, key, |lane, effects| {
        lane.contend_inline(&Arc::<InlineAttempt>::default(), &claim, now);
        let lease = Lease::new(number(1), 100, TOKENS, claim.terms, now);
        lane.granted_inline(key, &claim, lease, now, effects)
    })
}

/// Releases a key without waiters.
fn release(lanes: &Lanes, key: &LockKey, grant: &Arc<Grant>, now: Moment) {
    event(lanes, key, |lane, effects| {
        return_to(Yielded::ToNobody, lane, key, grant, now, effects);
    });
}

/// Releases a lane without waiters for the processes in `yielded`.
fn return_to(
    yielded: Yielded,
    lane: &mut Lane,
    key: &LockKey,
    grant: &Arc<Grant>,
    now: Moment,
    effects: &mut Effects,
) {
    let release = crate::lock::tests::release(1, None, None, now);
    lane.release(key, grant, release, effects);
    let due = now + RESPONSE_TIMEOUT;
    assert!(lane.take_return(here(), now, due).is_some());
    // The return is done here.
    effects.work = Few::Empty;
    lane.returned(number(1), Ok(()), yielded, here(), now, effects);
}

fn look(lanes: &Lanes, home: RuntimeId, now: Moment) -> Round {
    lanes.look(Look {
        home,
        now,
        response_timeout: RESPONSE_TIMEOUT,
    })
}

/// Returns the number of entries in the index of this runtime.
fn entries(lanes: &Lanes, home: RuntimeId) -> usize {
    let lens = lanes
        .shards
        .iter()
        .map(|shard| lock(shard).deadlines.len(home));
    lens.sum()
}

fn keys(round: &Round) -> Vec<&LockKey> {
    round
        .renewals
        .iter()
        .flatten()
        .map(|due| &due.key)
        .collect()
}
