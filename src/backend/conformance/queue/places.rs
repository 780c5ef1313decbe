//! The places of waiters in the queue.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::transfers::notified;
use super::waiter::{ALIVE, Waiter, freed, passed_on, queue};
use crate::backend::conformance::acquire::side_by_side;
use crate::backend::conformance::support::{
    LONG, MARGIN, definite, fresh_key, grant, inspected, lease, only, release,
};
use crate::backend::{Backend, Contended, KeepRequest, LeaseId, Release, Released, ReleasedOrKept};

/// Checks that `contend` for a free key is granted, also when repeated, and that one release frees the key.
pub(crate) async fn contend_for_free_key_is_granted<B: Backend>(one: &B, other: &B) {
    let key = fresh_key("queue-free");
    let waiter = Waiter::new(one, &key).await;
    let counter = waiter.expect_granted().await;
    assert!(waiter.expect_granted().await >= counter);
    assert_ne!(waiter.release().await, Released::NotHeld);
    let next = lease();
    assert!(grant(other, &key, next, LONG).await > counter);
    release(other, &key, next).await;
}

/// Checks that after the expiry of the holder's lease, the first waiter comes first, whichever waiter attempts first.
pub(crate) async fn expiry_serves_first_waiter<B: Backend>(one: &B, other: &B) {
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
        next.expect_granted().await;
    }
    freed(newcomer.release().await);
}

/// Checks that a waiter that polls keeps its place, and is served by the first release after its attempt.
pub(crate) async fn polling_waiter_is_served_in_order<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-poll", one, other).await else {
        return;
    };
    let third = lease();
    let third = Waiter::polling(other, &holder.key, third);
    assert_eq!(third.wait().await, Some(3));
    let last = Waiter::new(one, &holder.key).await;
    assert_eq!(last.wait().await, Some(4));
    passed_on(holder.release().await);
    for waiter in [&first, &second] {
        waiter.expect_granted().await;
        // A waiter that polls can be passed over only until its next attempt.
        third.wait().await;
        passed_on(waiter.release().await);
    }
    // It must not overtake.
    last.wait().await;
    third.expect_granted().await;
    // A slow store can take so long that a place ends.
    last.wait().await;
    passed_on(third.release().await);
    last.expect_granted().await;
    freed(last.release().await);
}

/// Checks that a repeated `contend` keeps its place, and that a repeated `release` does not end a
/// transferred lease.
pub(crate) async fn repeats_change_no_place<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-repeat", one, other).await else {
        return;
    };
    for waiter in [&second, &first, &second] {
        assert_eq!(waiter.wait().await, Some(2));
    }
    assert_eq!(inspected(other, &holder.key).await.queued, 2);
    passed_on(holder.release().await);
    assert_eq!(holder.release().await, Released::NotHeld);
    first.expect_granted().await;
    passed_on(first.release().await);
    assert_eq!(first.release().await, Released::NotHeld);
    second.expect_granted().await;
    freed(second.release().await);
}

/// Checks that a waiter that has left is not served, and that it can leave again.
pub(crate) async fn leave_removes_waiter<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-leave", one, other).await else {
        return;
    };
    for _ in 0..2 {
        assert_eq!(first.leave().await, Released::NotHeld);
    }
    passed_on(holder.release().await);
    second.expect_granted().await;
    freed(second.release().await);
}

/// Checks that `leave` returns one result per lease, in order. The batch is larger than one command of a backend.
pub(crate) async fn leave_returns_one_result_per_lease<B: Backend>(one: &B, other: &B) {
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
            0 | 1 => drop(ours.expect_granted().await),
            2 => drop(theirs.expect_granted().await),
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
pub(crate) async fn silent_waiter_is_passed_over<B: Backend>(one: &B, other: &B) {
    let Some((holder, _silent, second)) = queue("queue-silent", one, other).await else {
        return;
    };
    let deadline = Instant::now() + ALIVE + MARGIN;
    while second.wait().await != Some(1) {
        assert!(Instant::now() < deadline, "it has a place after {ALIVE:?}");
        sleep(Duration::from_millis(100)).await;
    }
    passed_on(holder.release().await);
    second.expect_granted().await;
    freed(second.release().await);
}

/// Checks that `release_or_keep` transfers the key and puts the next lease of the process last in the queue. If that
/// lease listens there, a hint reports its transfer.
pub(crate) async fn release_or_keep_enters_next_lease<B: Backend>(one: &B, other: &B) {
    let Some((holder, first, second)) = queue("queue-keep", one, other).await else {
        return;
    };
    let mut next = Waiter::new(one, &holder.key).await;
    let keep = KeepRequest::new(holder.key.clone(), holder.lease, LONG);
    let keep = keep.with_next(next.lease, true);
    let outcome = only(one.release_or_keep(&[keep]).await, "release_or_keep");
    let is_notified = match outcome {
        ReleasedOrKept::Released {
            released,
            queued,
            listens,
            ..
        } => {
            passed_on(released);
            assert!(queued, "the next lease is in the queue");
            listens
        }
        other => panic!("two processes wait: {other:?}"),
    };
    for waiter in [&first, &second] {
        waiter.expect_granted().await;
        passed_on(waiter.release().await);
    }
    if is_notified {
        notified(&mut next).await;
    }
    next.expect_granted().await;
    freed(next.release().await);
}
