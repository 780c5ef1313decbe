//! Waiters of a queue, and what their releases return.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::LockKey;
use crate::backend::conformance::support::{
    LONG, MARGIN, definite, fresh_key, hinted, lease, only, released,
};
use crate::backend::{AcquireRequest, Backend, Contended, Hints, LeaseId, Release, Released};

/// The time within which a waiter must refresh its place.
pub(super) const ALIVE: Duration = Duration::from_secs(3);

/// The longest TTL of a transferred lease until it is confirmed. A waiter that ended after the transfer delays the
/// others by this time.
pub(super) const CONFIRM: Duration = Duration::from_millis(1500);

/// A waiter.
pub(super) struct Waiter<'a, B> {
    backend: &'a B,
    pub(super) key: LockKey,
    pub(super) lease: LeaseId,
    listens: bool,
    pub(super) hints: Hints,
}

impl<'a, B: Backend> Waiter<'a, B> {
    /// Creates a waiter with a subscription.
    pub(super) async fn new(backend: &'a B, key: &LockKey) -> Self {
        let lease = lease();
        let mut hints = backend.watch(key, lease.manager());
        hinted(&mut hints, "the subscription takes effect").await;
        Self {
            listens: true,
            hints,
            ..Self::polling(backend, key, lease)
        }
    }

    /// Creates a waiter without a subscription.
    pub(super) fn polling(backend: &'a B, key: &LockKey, lease: LeaseId) -> Self {
        let (_, hints) = Hints::channel();
        Self {
            backend,
            key: key.clone(),
            lease,
            listens: false,
            hints,
        }
    }

    pub(super) async fn contend(&self) -> Contended {
        self.contend_for(LONG).await
    }

    pub(super) async fn contend_for(&self, ttl: Duration) -> Contended {
        let request =
            AcquireRequest::new(self.key.clone(), self.lease, ttl).with_listening(self.listens);
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

    pub(super) async fn wait(&self) -> Option<u32> {
        self.queued(self.contend().await)
    }

    /// Contends until the key is granted, because clients outside the queue may have a turn first.
    pub(super) async fn expect_granted(&self) -> u64 {
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

    pub(super) async fn release(&self) -> Released {
        released(self.backend, &self.key, self.lease).await
    }

    pub(super) async fn leave(&self) -> Released {
        let leaver = [Release::new(self.key.clone(), self.lease)];
        only(self.backend.leave(&leaver).await, "leave")
    }
}

/// Asserts that the next waiter receives the key, at the latest after a turn of clients outside the queue.
/// A store that cannot count these clients grants them turns at intervals.
#[track_caller]
pub(crate) fn passed_on(outcome: Released) {
    let passed_on = matches!(outcome, Released::Transferred | Released::LeftToOthers);
    assert!(passed_on, "a process waits: {outcome:?}");
}

/// Asserts that the key is free, possibly in a turn of clients outside the queue.
#[track_caller]
pub(crate) fn freed(outcome: Released) {
    let freed = matches!(outcome, Released::Released | Released::LeftToOthers);
    assert!(freed, "no process waits: {outcome:?}");
}

/// Returns a holder, and two waiters on different handles, or `None` if the store has no queue.
pub(super) async fn queue<'a, B: Backend>(
    subject: &str,
    one: &'a B,
    other: &'a B,
) -> Option<(Waiter<'a, B>, Waiter<'a, B>, Waiter<'a, B>)> {
    let key = fresh_key(subject);
    let holder = Waiter::new(one, &key).await;
    let first = Waiter::new(other, &key).await;
    let second = Waiter::new(one, &key).await;
    holder.expect_granted().await;
    if first.wait().await.is_none() {
        assert_eq!(first.leave().await, Released::NotHeld);
        let outcome = holder.release().await;
        assert_ne!(outcome, Released::NotHeld, "it held the key");
        return None;
    }
    assert_eq!(second.wait().await, Some(2), "two waiters");
    Some((holder, first, second))
}
