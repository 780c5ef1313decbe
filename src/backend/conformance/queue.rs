//! The order of waiters. A store without a queue passes, because its waiters compete.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

use super::acquire::side_by_side;
use super::support::{
    LONG, MARGIN, busy, definite, fresh_key, grant, hinted, inspected, only, release, released,
};
use crate::LockKey;
use crate::backend::{
    Backend, ContendRequest, Contended, Hint, Hints, KeepRequest, LeaseId, Release, Released,
    ReleasedOrKept, Renewal, Renewed, TransferTerms,
};

/// The time within which a waiter must refresh its place.
const ALIVE: Duration = Duration::from_secs(3);

/// A waiter.
struct Waiter<'a, B> {
    backend: &'a B,
    key: LockKey,
    lease: LeaseId,
    listens: bool,
    hints: Hints,
}

impl<'a, B: Backend> Waiter<'a, B> {
    /// Creates a waiter with a subscription.
    async fn new(backend: &'a B, key: &LockKey) -> Self {
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        let mut hints = backend.watch(key, lease.manager());
        hinted(&mut hints, "the subscription takes effect").await;
        Self {
            listens: true,
            hints,
            ..Self::polling(backend, key, lease)
        }
    }

    /// Creates a waiter without a subscription.
    fn polling(backend: &'a B, key: &LockKey, lease: LeaseId) -> Self {
        let (_, hints) = Hints::channel();
        Self {
            backend,
            key: key.clone(),
            lease,
            listens: false,
            hints,
        }
    }

    async fn contend(&self) -> Contended {
        self.contend_for(LONG).await
    }

    async fn contend_for(&self, ttl: Duration) -> Contended {
        let request = ContendRequest::new(self.key.clone(), self.lease, ttl, self.listens);
        definite(self.backend.contend(&request).await, "contend")
    }

    /// Returns the length of the queue, or `None` if the store has none.
    #[track_caller]
    fn queued(&self, contended: Contended) -> Option<u32> {
        match contended {
            Contended::Waiting { queued, .. } => queued,
            Contended::Granted { .. } => panic!("{:?} is held and was granted", self.key),
        }
    }

    async fn wait(&self) -> Option<u32> {
        self.queued(self.contend().await)
    }

    /// Contends until the key is granted, because clients outside the queue may have a turn first.
    async fn granted(&self) -> u64 {
        let deadline = Instant::now() + MARGIN;
        loop {
            match self.contend().await {
                Contended::Granted { counter } => return counter,
                waiting @ Contended::Waiting { .. } => {
                    assert!(Instant::now() < deadline, "it is next and has {waiting:?}");
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn release(&self) -> Released {
        released(self.backend, &self.key, self.lease).await
    }

    async fn leave(&self) -> Released {
        let leaver = [Release::new(self.key.clone(), self.lease)];
        only(self.backend.leave(&leaver).await, "leave")
    }
}

/// Asserts that the next waiter receives the key, at the latest after a turn of clients outside the queue.
/// A store that cannot count these clients grants them turns at intervals.
#[track_caller]
fn passed_on(outcome: Released) {
    let passed_on = matches!(outcome, Released::Transferred | Released::LeftToOthers);
    assert!(passed_on, "a process waits: {outcome:?}");
}

/// Asserts that the key is free, possibly in a turn of clients outside the queue.
#[track_caller]
fn freed(outcome: Released) {
    let freed = matches!(outcome, Released::Released | Released::LeftToOthers);
    assert!(freed, "no process waits: {outcome:?}");
}

/// Returns a holder, and two waiters on different handles, or `None` if the store has no queue.
async fn queue<'a, B: Backend>(
    subject: &str,
    one: &'a B,
    other: &'a B,
) -> Option<(Waiter<'a, B>, Waiter<'a, B>, Waiter<'a, B>)> {
    let key = fresh_key(subject);
    let holder = Waiter::new(one, &key).await;
    let first = Waiter::new(other, &key).await;
    let second = Waiter::new(one, &key).await;
    holder.granted().await;
    if first.wait().await.is_none() {
        assert_eq!(first.leave().await, Released::NotHeld);
        let outcome = holder.release().await;
        assert_ne!(outcome, Released::NotHeld, "it held the key");
        return None;
    }
    assert_eq!(second.wait().await, Some(2), "two waiters");
    Some((holder, first, second))
}

/// Checks that `contend` for a free key is granted, also when repeated, and that one release frees the key.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn contend_for_free_key_is_granted<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("queue-free");
    let waiter = Waiter::new(one, &key).await;
    let counter = waiter.granted().await;
    assert!(waiter.granted().await >= counter);
    assert_ne!(waiter.release().await, Released::NotHeld);
    let next = LeaseId::new(Uuid::new_v4(), 1);
    assert!(grant(other, &key, next, LONG).await > counter);
    release(other, &key, next).await;
}

/// Checks that a release transfers the key to the first waiter, which confirms it for its full TTL.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn release_transfers_key_to_first_waiter<B: Backend>(one: &B, other: &B) {
    let Some((holder, mut first, second)) = queue("queue-order", one, other).await else {
        return;
    };
    let newcomer = Waiter::new(other, &holder.key).await;
    while let Ok(Hint::Released) = hint_now(&mut first.hints).await {}
    assert_eq!(holder.release().await, Released::Transferred);
    let counter = first.granted().await;
    // A store without notifications sends hints at intervals, too late for a confirmation.
    hinted(&mut first.hints, "the transfer").await;
    assert_eq!(newcomer.wait().await, Some(2));
    let left = inspected(one, &first.key).await.ttl;
    assert!(
        left > LONG / 2,
        "confirmed for {LONG:?}, and has {left:?} left"
    );
    passed_on(first.release().await);
    assert!(second.granted().await > counter);
    passed_on(second.release().await);
    newcomer.granted().await;
    freed(newcomer.release().await);
}

/// Checks that a transferred key can be acquired under the lease of the waiter only, that no other lease releases it,
/// and that no other waiter is notified of the transfer.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn transferred_key_is_reserved_for_its_waiter<B: Backend>(one: &B, other: &B) {
    let Some((holder, mut first, mut second)) = queue("queue-reserved", one, other).await else {
        return;
    };
    let outcome = holder.release().await;
    passed_on(outcome);
    if outcome == Released::Transferred {
        busy(one, &holder.key, LeaseId::new(Uuid::new_v4(), 1)).await;
        busy(one, &holder.key, LeaseId::new(first.lease.manager(), 2)).await;
        assert_eq!(second.wait().await, Some(1));
        assert_eq!(second.release().await, Released::NotHeld);
    }
    first.granted().await;
    hinted(&mut first.hints, "the transfer").await;
    while let Ok(hint) = hint_now(&mut second.hints).await {
        assert_eq!(hint, Hint::Released, "the hint of another waiter");
    }
    passed_on(first.release().await);
    second.granted().await;
    freed(second.release().await);
}

/// Checks that after the expiry of the holder's lease, the first waiter comes first, whichever waiter attempts first.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn expiry_serves_first_waiter<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-expiry", one, other).await else {
        return;
    };
    let newcomer = Waiter::new(other, &holder.key).await;
    // A grant sets the TTL of its request, also a repeated one.
    let brief = Duration::from_secs(1);
    let repeat = holder.contend_for(brief).await;
    assert!(matches!(repeat, Contended::Granted { .. }), "{repeat:?}");
    let deadline = Instant::now() + brief + MARGIN;
    loop {
        // They must not overtake the first waiter.
        newcomer.wait().await;
        second.wait().await;
        if let Contended::Granted { .. } = first.contend().await {
            break;
        }
        assert!(Instant::now() < deadline, "the lease of {brief:?} goes on");
        sleep(Duration::from_millis(50)).await;
    }
    for (holder, next) in [(&first, &second), (&second, &newcomer)] {
        passed_on(holder.release().await);
        next.granted().await;
    }
    freed(newcomer.release().await);
}

/// Checks that a waiter that polls keeps its place, and is served by the first release after its attempt.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn polling_waiter_is_served_in_order<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-poll", one, other).await else {
        return;
    };
    let third = LeaseId::new(Uuid::new_v4(), 1);
    let third = Waiter::polling(other, &holder.key, third);
    assert_eq!(third.wait().await, Some(3));
    let last = Waiter::new(one, &holder.key).await;
    assert_eq!(last.wait().await, Some(4));
    passed_on(holder.release().await);
    for waiter in [&first, &second] {
        waiter.granted().await;
        // A waiter that polls can be passed over only until its next attempt.
        third.wait().await;
        passed_on(waiter.release().await);
    }
    // It must not overtake.
    last.wait().await;
    third.granted().await;
    passed_on(third.release().await);
    last.granted().await;
    freed(last.release().await);
}

/// Checks that the hint of a transfer can be a grant.
///
/// Its counter is larger than that of the waiter's last attempt and smaller than that of the next grant. The lease
/// lasts until it is renewed. A store that promises no such hint passes.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn transfer_under_larger_counter_is_grant<B: Backend>(one: &B, other: &B) {
    let Some((holder, mut first, second)) = queue("queue-grant", one, other).await else {
        return;
    };
    while let Ok(Hint::Released) = hint_now(&mut first.hints).await {}
    let waiting = first.contend().await;
    passed_on(holder.release().await);
    if let Contended::Waiting {
        transfers: Some(TransferTerms { counter, ttl }),
        ..
    } = waiting
        && let Some(granted) = transfer(&mut first).await
    {
        assert!(granted > counter, "{granted} after {counter}");
        let left = inspected(other, &first.key).await.ttl;
        assert!(left <= ttl, "{left:?} left of {ttl:?}");
        let renewal = [Renewal::new(first.key.clone(), first.lease, LONG)];
        let renewed = only(other.renew(&renewal).await, "renew");
        assert_eq!(renewed, Renewed::Renewed);
        let left = inspected(other, &first.key).await.ttl;
        assert!(left > LONG / 2, "renewed for {LONG:?}, has {left:?} left");
        if let Contended::Waiting {
            transfers: Some(terms),
            ..
        } = second.contend().await
        {
            assert!(terms.counter >= granted, "an earlier transfer");
        }
        passed_on(first.release().await);
        assert!(second.granted().await > granted);
        freed(second.release().await);
        return;
    }
    first.granted().await;
    passed_on(first.release().await);
    second.granted().await;
    freed(second.release().await);
}

/// Returns the counter of a transfer to this waiter, or `None` if no hint with a counter arrives in time.
async fn transfer<B: Backend>(waiter: &mut Waiter<'_, B>) -> Option<u64> {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        match timeout_at(deadline, waiter.hints.next()).await.ok()? {
            Hint::Transferred { lease, counter } if lease == waiter.lease => return counter,
            _ => {}
        }
    }
}

/// Checks that a repeated `contend` keeps its place, and that a repeated `release` does not end a
/// transferred lease.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn repeats_change_no_place<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-repeat", one, other).await else {
        return;
    };
    for waiter in [&second, &first, &second] {
        assert_eq!(waiter.wait().await, Some(2));
    }
    assert_eq!(inspected(other, &holder.key).await.queued, 2);
    passed_on(holder.release().await);
    assert_eq!(holder.release().await, Released::NotHeld);
    first.granted().await;
    passed_on(first.release().await);
    assert_eq!(first.release().await, Released::NotHeld);
    second.granted().await;
    freed(second.release().await);
}

/// Checks that a waiter that has left is not served, and that it can leave again.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn leave_removes_waiter<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-leave", one, other).await else {
        return;
    };
    for _ in 0..2 {
        assert_eq!(first.leave().await, Released::NotHeld);
    }
    passed_on(holder.release().await);
    second.granted().await;
    freed(second.release().await);
}

/// Checks that a waiter that leaves after the transfer releases the key to the next waiter.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn leave_after_transfer_passes_key_on<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-left", one, other).await else {
        return;
    };
    passed_on(holder.release().await);
    let outcome = first.leave().await;
    passed_on(outcome);
    assert_eq!(first.leave().await, Released::NotHeld);
    let left = second.leave().await;
    match outcome {
        // It was next after the turn.
        Released::LeftToOthers => assert_eq!(left, Released::NotHeld),
        _ => freed(left),
    }
    let next = Waiter::new(other, &holder.key).await;
    next.granted().await;
    freed(next.release().await);
}

/// Checks that `leave` returns one result per lease, in order. The batch is larger than one command of a backend.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn leave_returns_one_result_per_lease<B: Backend>(one: &B, other: &B) {
    assert!(one.leave(&[]).await.is_empty(), "leaves of nothing");
    let managers = [Uuid::new_v4(), Uuid::new_v4()];
    let pairs: Vec<_> = (0..257)
        .map(|number| {
            let key = fresh_key("queue-leaves");
            let [ours, theirs] = managers.map(|manager| LeaseId::new(manager, number));
            let ours = Waiter::polling(one, &key, ours);
            (ours, Waiter::polling(other, &key, theirs))
        })
        .collect();
    // The leases cycle through four states: alone, before a waiter, in the queue, and unknown.
    for (index, (ours, theirs)) in pairs.iter().enumerate() {
        match index % 4 {
            0 | 1 => drop(ours.granted().await),
            2 => drop(theirs.granted().await),
            _ => {}
        }
    }
    // At once, because a place is valid for a short time only.
    let waits = pairs.iter().zip(0..).map(|((ours, theirs), index)| {
        Box::pin(async move {
            match index % 4 {
                1 => theirs.wait().await.is_some(),
                2 => {
                    ours.wait().await;
                    false
                }
                _ => false,
            }
        })
    });
    let has_queue = side_by_side(waits.collect()).await.contains(&true);
    let leavers: Vec<_> = pairs
        .iter()
        .map(|(ours, _)| Release::new(ours.key.clone(), ours.lease))
        .collect();
    let answers = one.leave(&leavers).await;
    assert_eq!(answers.len(), leavers.len(), "one result per lease");
    for (index, answer) in answers.into_iter().enumerate() {
        let outcome = definite(answer, "leave");
        match index % 4 {
            1 if has_queue => passed_on(outcome),
            0 | 1 => freed(outcome),
            _ => assert_eq!(outcome, Released::NotHeld, "lease {index}"),
        }
    }
    for (_, theirs) in pairs.iter().skip(2).step_by(4) {
        freed(theirs.release().await);
    }
}

/// Checks that a waiter that does not refresh its place is passed over.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn silent_waiter_is_passed_over<B: Backend>(one: &B, other: &B) {
    let Some((holder, _silent, second)) = queue("queue-silent", one, other).await else {
        return;
    };
    let deadline = Instant::now() + ALIVE + MARGIN;
    while second.wait().await != Some(1) {
        assert!(Instant::now() < deadline, "it has a place after {ALIVE:?}");
        sleep(Duration::from_millis(100)).await;
    }
    passed_on(holder.release().await);
    second.granted().await;
    freed(second.release().await);
}

/// Checks that a transferred lease expires unless it is confirmed, and that the next waiter is served.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn unconfirmed_transfer_expires<B: Backend>(one: &B, other: &B) {
    let Some((holder, _silent, second)) = queue("queue-unconfirmed", one, other).await else {
        return;
    };
    passed_on(holder.release().await);
    let deadline = Instant::now() + ALIVE + MARGIN;
    while let Contended::Waiting { .. } = second.contend().await {
        assert!(Instant::now() < deadline, "the transferred lease goes on");
        sleep(Duration::from_millis(50)).await;
    }
    freed(second.release().await);
}

/// Checks that `release_or_keep` transfers the key and puts the next lease of the process last in the queue.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn release_or_keep_enters_next_lease<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-keep", one, other).await else {
        return;
    };
    let next = Waiter::new(one, &holder.key).await;
    let keep = KeepRequest::new(holder.key.clone(), holder.lease, LONG);
    let keep = keep.with_next(next.lease, true);
    let outcome = definite(one.release_or_keep(&keep).await, "release_or_keep");
    match outcome {
        ReleasedOrKept::Released {
            released, queued, ..
        } => {
            passed_on(released);
            assert!(queued, "the next lease is in the queue");
        }
        other => panic!("two processes wait: {other:?}"),
    }
    for waiter in [&first, &second] {
        waiter.granted().await;
        passed_on(waiter.release().await);
    }
    next.granted().await;
    freed(next.release().await);
}

/// Checks that a forced release and an immediate one transfer the key, and that a release of several keys transfers
/// each key.
///
/// # Panics
///
/// Panics if the backend breaks this promise.
pub async fn every_kind_of_release_transfers<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-force", one, other).await else {
        return;
    };
    definite(other.force_release(&holder.key).await, "force_release");
    first.granted().await;
    let Some((holder, third, _left)) = queue("queue-batch", one, other).await else {
        panic!("the other key has a queue");
    };
    let releases = [&first, &holder].map(|it| Release::new(it.key.clone(), it.lease));
    for outcome in one.release(&releases).await {
        passed_on(definite(outcome, "release"));
    }
    second.granted().await;
    third.granted().await;
    freed(second.leave().await);
    passed_on(third.leave().await);
    if one.immediate().is_none() {
        return;
    }
    let Some((holder, first, _left)) = queue("queue-immediate", one, other).await else {
        panic!("the other key has a queue");
    };
    let release = Release::new(holder.key.clone(), holder.lease);
    let outcome = (one.immediate()).map(|it| it.release(&release, Instant::now()));
    let outcome = outcome.expect("a store keeps its commands");
    passed_on(definite(outcome, "immediate release"));
    first.granted().await;
}

/// Returns a hint that has arrived.
async fn hint_now(hints: &mut Hints) -> Result<Hint, ()> {
    tokio::select! {
        biased;
        hint = hints.next() => Ok(hint),
        () = std::future::ready(()) => Err(()),
    }
}
