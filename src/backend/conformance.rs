//! The contract of [`Backend`] in code: one public test function per promise.
//!
//! Run [`all`] against a backend of your own, with two handles on one store: clones where clones
//! share the leases, as two processes over one server would.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use tower_lock::backend::{Memory, conformance};
//!
//! let memory = Memory::new();
//! let other = memory.clone();
//! conformance::expiry_frees_the_key(&memory).await;
//! conformance::a_release_is_hinted_to_the_other_handle(&memory, &other).await;
//! # }
//! ```
//!
//! Every function works on keys of its own, so they may run side by side and against a store
//! that is in use. Time is Tokio's: a store in this process can be tested in paused time. Where
//! something may take a moment, it is asked for until a deadline has passed; nothing is slept for
//! in hope.

pub mod node;
mod passing;
mod queue;

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::{
    AcquireRequest, Acquired, Backend, BackendError, ForceReleased, Hints, Holder, LeaseId,
    Release, Released, Renewal, Renewed,
};
use crate::LockKey;
pub use passing::{
    a_lease_that_another_handle_watches_is_not_extended,
    a_lease_that_another_handle_watches_is_passed_on,
    a_lease_that_is_not_held_can_be_neither_passed_on_nor_extended,
    a_lease_that_nobody_waits_for_may_be_extended, a_lease_that_nobody_waits_for_may_be_kept,
};
pub use queue::{
    contend_for_free_key_is_granted, every_kind_of_release_transfers,
    leave_after_transfer_passes_key_on, leave_removes_waiter, release_or_keep_enters_next_lease,
    release_transfers_key_to_first_waiter, repeats_change_no_place, silent_waiter_is_passed_over,
    unconfirmed_transfer_expires,
};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
/// A lease that is meant to run out.
const SHORT: Duration = Duration::from_millis(300);
/// How late a lease may end, and how late a hint may come.
const MARGIN: Duration = Duration::from_secs(3);

/// Runs every function of this module, one after the other.
///
/// `one` and `other` are two handles on one store.
///
/// # Panics
///
/// If the backend breaks a promise; the message says which.
pub async fn all<B: Backend>(one: &B, other: &B) {
    a_free_key_is_granted_and_a_held_one_is_busy(one, other).await;
    trying_again_under_one_lease_is_granted_again(one).await;
    a_release_frees_the_key_and_may_be_repeated(one).await;
    a_stranger_can_neither_release_nor_renew(one, other).await;
    a_renewal_never_creates_a_lease(one).await;
    a_renewal_lengthens_and_never_shortens(one).await;
    a_batch_is_answered_item_by_item(one, other).await;
    no_items_have_no_answers(one).await;
    counters_increase_over_grants(one, other).await;
    counters_increase_over_expiry_and_force(one, other).await;
    expiry_frees_the_key(one).await;
    one_of_many_contenders_is_granted(one, other).await;
    a_lease_that_nobody_waits_for_may_be_kept(one).await;
    a_lease_that_another_handle_watches_is_passed_on(one, other).await;
    a_lease_that_nobody_waits_for_may_be_extended(one).await;
    a_lease_that_another_handle_watches_is_not_extended(one, other).await;
    a_lease_that_is_not_held_can_be_neither_passed_on_nor_extended(one).await;
    a_watch_is_hinted_once_it_is_in_force(one).await;
    a_release_is_hinted_to_the_other_handle(one, other).await;
    a_forced_release_is_hinted_to_the_other_handle(one, other).await;
    every_watcher_of_a_key_is_hinted(one).await;
    inspect_tells_holder_and_time_left(one).await;
    a_forced_release_frees_whoever_holds(one, other).await;
    contend_for_free_key_is_granted(one, other).await;
    release_transfers_key_to_first_waiter(one, other).await;
    repeats_change_no_place(one, other).await;
    leave_removes_waiter(one, other).await;
    leave_after_transfer_passes_key_on(one, other).await;
    silent_waiter_is_passed_over(one, other).await;
    unconfirmed_transfer_expires(one, other).await;
    release_or_keep_enters_next_lease(one, other).await;
    every_kind_of_release_transfers(one, other).await;
}

/// A free key is granted; a held one answers how long its holder has left.
///
/// # Panics
///
/// If it is not so.
pub async fn a_free_key_is_granted_and_a_held_one_is_busy<B: Backend>(one: &B, other: &B) {
    let (key, holder, stranger) = fixture("grant");
    grant(one, &key, holder, LONG).await;
    for handle in [one, other] {
        let left = busy(handle, &key, stranger).await;
        assert!(
            left <= LONG && left > LONG / 2,
            "a holder of {LONG:?} has {left:?} left"
        );
    }
    release(one, &key, holder).await;
}

/// `try_acquire` is idempotent for one lease: granted again, freed by one release.
///
/// # Panics
///
/// If it is not so.
pub async fn trying_again_under_one_lease_is_granted_again<B: Backend>(backend: &B) {
    let (key, holder, stranger) = fixture("idempotent");
    let first = grant(backend, &key, holder, LONG).await;
    let second = grant(backend, &key, holder, LONG).await;
    assert!(second >= first, "the counter went from {first} to {second}");
    release(backend, &key, holder).await;
    grant(backend, &key, stranger, LONG).await;
    release(backend, &key, stranger).await;
}

/// A release frees the key. A second one changes nothing, also under a new holder.
///
/// # Panics
///
/// If it is not so.
pub async fn a_release_frees_the_key_and_may_be_repeated<B: Backend>(backend: &B) {
    let (key, holder, next) = fixture("release");
    grant(backend, &key, holder, LONG).await;
    release(backend, &key, holder).await;
    assert_eq!(released(backend, &key, holder).await, Released::NotHeld);
    grant(backend, &key, next, LONG).await;
    assert_eq!(
        released(backend, &key, holder).await,
        Released::NotHeld,
        "a late release must not free the next holder"
    );
    busy(backend, &key, holder).await;
    release(backend, &key, next).await;
}

/// A lease that does not hold the key does not affect its holder.
///
/// # Panics
///
/// If it is not so.
pub async fn a_stranger_can_neither_release_nor_renew<B: Backend>(one: &B, other: &B) {
    let (key, holder, stranger) = fixture("stranger");
    grant(one, &key, holder, LONG).await;
    assert_eq!(released(other, &key, stranger).await, Released::NotHeld);
    assert_eq!(
        renewed(other, &key, stranger, LONG * 10).await,
        Renewed::NotHeld
    );
    let left = busy(other, &key, stranger).await;
    assert!(left <= LONG, "a stranger's renewal made it {left:?}");
    release(one, &key, holder).await;
}

/// Renewing what was never held, or was released, answers "not held" and leaves the key free.
///
/// # Panics
///
/// If it is not so.
pub async fn a_renewal_never_creates_a_lease<B: Backend>(backend: &B) {
    let (key, holder, next) = fixture("renew-free");
    assert_eq!(renewed(backend, &key, holder, LONG).await, Renewed::NotHeld);
    grant(backend, &key, holder, LONG).await;
    release(backend, &key, holder).await;
    assert_eq!(renewed(backend, &key, holder, LONG).await, Renewed::NotHeld);
    grant(backend, &key, next, LONG).await;
    release(backend, &key, next).await;
}

/// A renewal makes a lease last at least as long as asked, and never less than before.
///
/// # Panics
///
/// If it is not so.
pub async fn a_renewal_lengthens_and_never_shortens<B: Backend>(backend: &B) {
    let (key, holder, stranger) = fixture("renew");
    grant(backend, &key, holder, LONG).await;
    assert_eq!(
        renewed(backend, &key, holder, 3 * LONG).await,
        Renewed::Renewed
    );
    let left = busy(backend, &key, stranger).await;
    assert!(left > 2 * LONG, "renewed for {:?}, {left:?} left", 3 * LONG);
    assert_eq!(
        renewed(backend, &key, holder, SHORT).await,
        Renewed::Renewed
    );
    let left = busy(backend, &key, stranger).await;
    assert!(left > 2 * LONG, "a short renewal cut it to {left:?}");
    release(backend, &key, holder).await;
}

/// `renew` and `release` answer each item of a batch, in the order asked, also of a batch larger
/// than a backend sends at once.
///
/// # Panics
///
/// If it is not so.
pub async fn a_batch_is_answered_item_by_item<B: Backend>(one: &B, other: &B) {
    let manager = Uuid::new_v4();
    let items: Vec<_> = (0..257_u64)
        .map(|number| Release::new(fresh_key("batch"), LeaseId::new(manager, number)))
        .collect();
    // Every third is free, every third is a stranger's, and the rest are held.
    let is_held = |index: usize| index.is_multiple_of(3);
    for (index, Release { key, lease }) in items.iter().enumerate() {
        match index % 3 {
            0 => drop(grant(one, key, *lease, LONG).await),
            1 => drop(grant(other, key, LeaseId::new(Uuid::new_v4(), 0), LONG).await),
            _ => {}
        }
    }
    let renewals: Vec<_> = items
        .iter()
        .map(|item| Renewal::new(item.key.clone(), item.lease, LONG))
        .collect();
    let answers = one.renew(&renewals).await;
    assert_eq!(answers.len(), items.len(), "one answer per renewal");
    for (index, answer) in answers.into_iter().enumerate() {
        let expected = match is_held(index) {
            true => Renewed::Renewed,
            false => Renewed::NotHeld,
        };
        assert_eq!(definite(answer, "renew"), expected, "renewal {index}");
    }
    let answers = one.release(&items).await;
    assert_eq!(answers.len(), items.len(), "one answer per release");
    for (index, answer) in answers.into_iter().enumerate() {
        let expected = match is_held(index) {
            true => Released::Released,
            false => Released::NotHeld,
        };
        assert_eq!(definite(answer, "release"), expected, "release {index}");
    }
    for item in &items {
        definite(one.force_release(&item.key).await, "force_release");
    }
}

/// Nothing asked, nothing answered.
///
/// # Panics
///
/// If it is not so.
pub async fn no_items_have_no_answers<B: Backend>(backend: &B) {
    assert!(backend.renew(&[]).await.is_empty(), "renewals of nothing");
    assert!(backend.release(&[]).await.is_empty(), "releases of nothing");
}

/// Each fresh grant of a key has a larger counter than the one before, whichever handle it went
/// to, and all stay below 2^53.
///
/// # Panics
///
/// If it is not so.
pub async fn counters_increase_over_grants<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("counter");
    let manager = Uuid::new_v4();
    let mut last = 0;
    for number in 0..100 {
        let handle = if number % 2 == 0 { one } else { other };
        let lease = LeaseId::new(manager, number);
        let counter = grant(handle, &key, lease, LONG).await;
        assert!(counter > last, "grant {number}: {counter} after {last}");
        assert!(counter < 1 << 53, "{counter} does not fit a double");
        last = counter;
        release(handle, &key, lease).await;
    }
}

/// Counters also increase where the grant before was not released, but ran out or was forced open.
///
/// # Panics
///
/// If it is not so.
pub async fn counters_increase_over_expiry_and_force<B: Backend>(one: &B, other: &B) {
    let (key, first, second) = fixture("counter-expiry");
    let expired = grant_briefly(one, &key, first).await;
    let forced = grant_within(other, &key, second, LONG, SHORT + MARGIN).await;
    assert!(forced > expired, "{forced} after {expired}, which expired");
    definite(one.force_release(&key).await, "force_release");
    let (_, third, _) = fixture("unused");
    let last = grant(one, &key, third, LONG).await;
    assert!(
        last > forced,
        "{last} after {forced}, which was forced open"
    );
    release(one, &key, third).await;
}

/// A lease is over when its time to live has passed, not before and not much later; its holder can
/// neither renew nor release it then.
///
/// # Panics
///
/// If it is not so.
pub async fn expiry_frees_the_key<B: Backend>(backend: &B) {
    let (key, holder, next) = fixture("expiry");
    grant_briefly(backend, &key, holder).await;
    let granted = Instant::now();
    grant_within(backend, &key, next, LONG, SHORT + MARGIN).await;
    // The store counts from a moment between the call and its return, hence the margin of a half.
    let lasted = granted.elapsed();
    assert!(lasted >= SHORT / 2, "{SHORT:?} were over after {lasted:?}");
    assert_eq!(renewed(backend, &key, holder, LONG).await, Renewed::NotHeld);
    assert_eq!(released(backend, &key, holder).await, Released::NotHeld);
    release(backend, &key, next).await;
}

/// Exactly one of many concurrent attempts is granted.
///
/// # Panics
///
/// If it is not so.
pub async fn one_of_many_contenders_is_granted<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("contended");
    let manager = Uuid::new_v4();
    let lease = |number| LeaseId::new(manager, number);
    let tries = (0..16).map(|number| {
        let handle = if number % 2 == 0 { one } else { other };
        let request = AcquireRequest::new(key.clone(), lease(number), LONG);
        Box::pin(async move { handle.try_acquire(&request).await })
    });
    let answers = side_by_side(tries.collect()).await;
    let granted: Vec<_> = answers
        .into_iter()
        .zip(0..)
        .filter_map(|(answer, number)| match definite(answer, "try_acquire") {
            Acquired::Granted { .. } => Some(number),
            Acquired::Busy { .. } => None,
        })
        .collect();
    assert_eq!(granted.len(), 1, "granted to {granted:?}");
    release(one, &key, lease(granted[0])).await;
}

/// The first hint says that the watch is in force, also for a second watcher.
///
/// # Panics
///
/// If it is not so.
pub async fn a_watch_is_hinted_once_it_is_in_force<B: Backend>(backend: &B) {
    let key = fresh_key("watch");
    let mut first = backend.watch(&key, Uuid::new_v4());
    hinted(&mut first, "the first watch is in force").await;
    let mut second = backend.watch(&key, Uuid::new_v4());
    hinted(&mut second, "the second watch is in force").await;
}

/// A subscriber is notified of each release.
///
/// # Panics
///
/// If it is not so.
pub async fn a_release_is_hinted_to_the_other_handle<B: Backend>(one: &B, other: &B) {
    let (key, holder, _) = fixture("hint");
    let mut hints = other.watch(&key, Uuid::new_v4());
    hinted(&mut hints, "the watch is in force").await;
    for round in 0..3 {
        grant(one, &key, holder, LONG).await;
        release(one, &key, holder).await;
        hinted(&mut hints, &format!("release {round}")).await;
    }
}

/// A subscriber is notified of a forced release.
///
/// # Panics
///
/// If it is not so.
pub async fn a_forced_release_is_hinted_to_the_other_handle<B: Backend>(one: &B, other: &B) {
    let (key, holder, _) = fixture("hint-force");
    let mut hints = other.watch(&key, Uuid::new_v4());
    hinted(&mut hints, "the watch is in force").await;
    grant(one, &key, holder, LONG).await;
    definite(one.force_release(&key).await, "force_release");
    hinted(&mut hints, "the forced release").await;
}

/// Two watchers of one key are both told; one that left does not keep the other from it.
///
/// # Panics
///
/// If it is not so.
pub async fn every_watcher_of_a_key_is_hinted<B: Backend>(backend: &B) {
    let (key, holder, _) = fixture("hint-all");
    let mut watchers = [
        backend.watch(&key, Uuid::new_v4()),
        backend.watch(&key, Uuid::new_v4()),
    ];
    drop(backend.watch(&key, Uuid::new_v4()));
    for hints in &mut watchers {
        hinted(hints, "the watch is in force").await;
    }
    grant(backend, &key, holder, LONG).await;
    release(backend, &key, holder).await;
    for hints in &mut watchers {
        hinted(hints, "the release").await;
    }
}

/// `inspect` tells nothing of a free key; of a held one the time left, and the holder.
///
/// A store that keeps the holder's name from this client (by its permissions) leaves it empty.
///
/// # Panics
///
/// If it is not so.
pub async fn inspect_tells_holder_and_time_left<B: Backend>(backend: &B) {
    let (key, holder, _) = fixture("inspect");
    assert_eq!(definite(backend.inspect(&key).await, "inspect"), None);
    grant(backend, &key, holder, LONG).await;
    let found = definite(backend.inspect(&key).await, "inspect");
    let found = found.expect("a held key has a holder");
    assert!(
        found.id == holder.to_string() || found.id.is_empty(),
        "{found:?} is not {holder}"
    );
    assert!(
        found.ttl <= LONG && found.ttl > LONG / 2,
        "a holder of {LONG:?} has {:?} left",
        found.ttl
    );
    assert_eq!(found.hold_count, 1, "leases are not counted in the store");
    release(backend, &key, holder).await;
    assert_eq!(definite(backend.inspect(&key).await, "inspect"), None);
}

/// `force_release` frees a key held under any lease, says so, and leaves a free key alone.
///
/// # Panics
///
/// If it is not so.
pub async fn a_forced_release_frees_whoever_holds<B: Backend>(one: &B, other: &B) {
    let (key, holder, next) = fixture("force");
    let force = || other.force_release(&key);
    assert_eq!(definite(force().await, "force"), ForceReleased::NotHeld);
    grant(one, &key, holder, LONG).await;
    assert_eq!(definite(force().await, "force"), ForceReleased::Released);
    assert_eq!(renewed(one, &key, holder, LONG).await, Renewed::NotHeld);
    grant(one, &key, next, LONG).await;
    assert_eq!(released(one, &key, holder).await, Released::NotHeld);
    release(one, &key, next).await;
    // A slow node of a quorum may still hold an earlier lease.
    let deadline = Instant::now() + MARGIN;
    while definite(force().await, "force") == ForceReleased::Released {
        assert!(Instant::now() < deadline, "{key:?} is held by nobody");
    }
}

fn fresh_key(subject: &str) -> LockKey {
    LockKey::from_parts(["conformance", subject, &Uuid::new_v4().to_string()])
}

/// A key of its own, and two leases of two managers.
fn fixture(subject: &str) -> (LockKey, LeaseId, LeaseId) {
    (
        fresh_key(subject),
        LeaseId::new(Uuid::new_v4(), 1),
        LeaseId::new(Uuid::new_v4(), 1),
    )
}

#[track_caller]
fn definite<T: Debug>(answer: Result<T, BackendError>, command: &str) -> T {
    match answer {
        Ok(outcome) => outcome,
        Err(error) => panic!("{command} has no outcome: {error:?}"),
    }
}

async fn try_acquire<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
) -> Result<Acquired, BackendError> {
    let request = AcquireRequest::new(key.clone(), lease, ttl);
    backend.try_acquire(&request).await
}

async fn grant<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId, ttl: Duration) -> u64 {
    granted(try_acquire(backend, key, lease, ttl).await, key)
}

/// Grants a lease that is meant to run out. It may do so before a store that is slow has answered,
/// which then had no effect for sure: such a try is made again.
async fn grant_briefly<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> u64 {
    let deadline = Instant::now() + MARGIN;
    loop {
        let answer = try_acquire(backend, key, lease, SHORT).await;
        let nothing = answer.as_ref().err();
        let nothing = nothing.is_some_and(|error| !error.may_have_taken_effect());
        if !nothing || Instant::now() >= deadline {
            return granted(answer, key);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[track_caller]
fn granted(answer: Result<Acquired, BackendError>, key: &LockKey) -> u64 {
    match definite(answer, "try_acquire") {
        Acquired::Granted { counter } => counter,
        Acquired::Busy { ttl } => panic!("{key:?} should be free and is busy for {ttl:?}"),
    }
}

/// Tries until the key is granted.
async fn grant_within<B: Backend>(
    backend: &B,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
    patience: Duration,
) -> u64 {
    let deadline = Instant::now() + patience;
    loop {
        match definite(try_acquire(backend, key, lease, ttl).await, "try_acquire") {
            Acquired::Granted { counter } => return counter,
            Acquired::Busy { ttl } => assert!(
                Instant::now() < deadline,
                "{key:?} should be free after {patience:?} and is busy for {ttl:?}"
            ),
        }
        sleep(Duration::from_millis(5)).await;
    }
}

async fn busy<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> Duration {
    match definite(try_acquire(backend, key, lease, LONG).await, "try_acquire") {
        Acquired::Busy { ttl } => ttl,
        Acquired::Granted { .. } => panic!("{key:?} is held and was granted to {lease}"),
    }
}

async fn renewed<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId, ttl: Duration) -> Renewed {
    let renewals = [Renewal::new(key.clone(), lease, ttl)];
    only(backend.renew(&renewals).await, "renew")
}

async fn released<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) -> Released {
    let releases = [Release::new(key.clone(), lease)];
    only(backend.release(&releases).await, "release")
}

async fn release<B: Backend>(backend: &B, key: &LockKey, lease: LeaseId) {
    let outcome = released(backend, key, lease).await;
    assert_eq!(outcome, Released::Released, "{lease} held {key:?}");
}

fn only<T: Debug>(answers: Vec<Result<T, BackendError>>, command: &str) -> T {
    let mut answers = answers.into_iter();
    match (answers.next(), answers.next()) {
        (Some(answer), None) => definite(answer, command),
        _ => panic!("{command} of one item must have one answer"),
    }
}

async fn inspected<B: Backend>(backend: &B, key: &LockKey) -> Holder {
    let holder = definite(backend.inspect(key).await, "inspect");
    holder.expect("a held key has a holder")
}

async fn hinted(hints: &mut Hints, what: &str) {
    if timeout(MARGIN, hints.next()).await.is_err() {
        panic!("no hint within {MARGIN:?}: {what}");
    }
}

/// Polls all futures in one task, until all are done.
async fn side_by_side<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outcomes: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, outcome) in futures.iter_mut().zip(&mut outcomes) {
            if outcome.is_none()
                && let std::task::Poll::Ready(ready) = std::pin::Pin::new(future).poll(context)
            {
                *outcome = Some(ready);
            }
        }
        match outcomes.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    outcomes.into_iter().flatten().collect()
}
