//! What the tests of the table share.

mod emptied;
mod index;
mod rounds;
mod shards;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::round::Round;
use super::*;
use crate::lock::lane::{Few, LastReply};
use crate::lock::lease::{Claim, Deadline, Grant, Lease, ReleasedTo};
use crate::lock::tests::{
    FIXED, MS, RENEWED, RESPONSE_TIMEOUT, SECOND, TOKENS, claim, number, waiter,
};
use crate::observe::Via;

const TTL: Duration = RENEWED.ttl.get();

fn lanes() -> Lanes {
    Lanes::new()
}

fn key(nth: usize) -> LockKey {
    LockKey::new(format!("key {nth}"))
}

/// Applies an event. Returns the deadlines of which the watchdog has to be notified.
fn event<R>(
    lanes: &Lanes,
    key: &LockKey,
    now: Moment,
    event: impl FnOnce(&mut Lane, &mut Effects) -> R,
) -> (R, Vec<Moment>) {
    let mut effects = Effects::at(now);
    let result = lanes.with(key, &mut effects, event);
    (result, effects.deadlines.to_vec())
}

/// Acquires a free key, as with a backend that replies at once.
fn acquire(lanes: &Lanes, key: &LockKey, claim: Claim, now: Moment) -> (Arc<Grant>, Vec<Moment>) {
    event(lanes, key, now, |lane, _| {
        let lease = Lease::new(number(1), 100, TOKENS, claim.terms, now);
        lane.hold(key, lease, Via::Backend, &claim, now)
    })
}

/// Releases a key without waiters.
fn release(lanes: &Lanes, key: &LockKey, grant: &Arc<Grant>, now: Moment) {
    event(lanes, key, now, |lane, effects| {
        return_to(ReleasedTo::Nobody, lane, grant, effects);
    });
}

/// Releases a lane without waiters for the processes in `released_to`.
fn return_to(released_to: ReleasedTo, lane: &mut Lane, grant: &Arc<Grant>, effects: &mut Effects) {
    lane.release(grant, 1, None, effects);
    let due = effects.now + RESPONSE_TIMEOUT;
    assert!(lane.take_return(effects.now, due).is_some());
    // The return is done here.
    effects.work = Few::Empty;
    lane.returned(number(1), Ok(()), released_to, effects);
}

/// Makes all lanes idle.
fn empty(lanes: &Lanes) {
    for key in lanes.keys() {
        event(lanes, &key, Moment::now(), |lane, _| {
            *lane = Lane::default();
        });
    }
}

fn check(lanes: &Lanes, now: Moment) -> Round {
    lanes.check(now)
}

/// Returns the number of entries in the index.
fn entries(lanes: &Lanes) -> usize {
    let lens = lanes
        .shards
        .iter()
        .map(|shard| shard.lock().deadlines.len());
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
