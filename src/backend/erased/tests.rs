use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::backend::LeaseId;

/// What the backend does to each command.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    /// Returns this many outcomes, however many items were requested.
    Outcomes(usize),
    PanicsWhenCalled,
    PanicsWhenPolled,
}

/// A backend that breaks the contract.
struct Flawed {
    flaw: Flaw,
    polls: AtomicUsize,
}

impl Flawed {
    fn new(flaw: Flaw) -> Arc<Erased<Self>> {
        let polls = AtomicUsize::new(0);
        Erased::new(Self { flaw, polls })
    }

    fn call<T: Send>(&self, outcome: T) -> impl Future<Output = T> + Send {
        assert!(self.flaw != Flaw::PanicsWhenCalled, "called");
        let mut outcome = Some(outcome);
        poll_fn(move |context| {
            // The panic comes in the second poll, which shows that each poll is covered.
            if self.polls.fetch_add(1, Ordering::Relaxed) == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            assert!(self.flaw != Flaw::PanicsWhenPolled, "polled");
            outcome.take().map_or(Poll::Pending, Poll::Ready)
        })
    }

    fn each<T: Copy>(&self, outcome: T) -> Vec<Result<T, BackendError>> {
        match self.flaw {
            Flaw::Outcomes(count) => vec![Ok(outcome); count],
            Flaw::PanicsWhenCalled | Flaw::PanicsWhenPolled => Vec::new(),
        }
    }
}

impl Backend for Flawed {
    fn try_acquire(
        &self,
        _: &AcquireRequest,
    ) -> impl Future<Output = Result<Acquired, BackendError>> + Send {
        self.call(Ok(Acquired::granted(1)))
    }

    fn renew(
        &self,
        _: &[Renewal],
    ) -> impl Future<Output = Vec<Result<Renewed, BackendError>>> + Send {
        self.call(self.each(Renewed::Renewed))
    }

    fn release(
        &self,
        _: &[Release],
    ) -> impl Future<Output = Vec<Result<Released, BackendError>>> + Send {
        self.call(self.each(Released::Released))
    }

    fn watch(&self, _: &LockKey, _: Uuid) -> Hints {
        Hints::channel().1
    }

    fn inspect(
        &self,
        _: &LockKey,
    ) -> impl Future<Output = Result<Option<Holder>, BackendError>> + Send {
        self.call(Ok(None))
    }

    fn force_release(
        &self,
        _: &LockKey,
        _: Option<&str>,
    ) -> impl Future<Output = Result<ForceReleased, BackendError>> + Send {
        self.call(Ok(ForceReleased::NotHeld))
    }
}

fn key() -> LockKey {
    LockKey::new("k")
}

fn lease() -> LeaseId {
    LeaseId::new(Uuid::nil(), 1)
}

fn acquire() -> AcquireRequest {
    AcquireRequest::new(key(), lease(), Duration::from_secs(1))
}

fn contend() -> AcquireRequest {
    AcquireRequest::new(key(), lease(), Duration::from_secs(1)).with_listening(true)
}

async fn keep_three(flaw: Flaw) -> Vec<Result<ReleasedOrKept, BackendError>> {
    let leases = vec![KeepRequest::new(key(), lease(), Duration::from_secs(1)); 3];
    ErasedBackend::release_or_keep(Flawed::new(flaw), leases).await
}

async fn renew_three(flaw: Flaw) -> Vec<Result<Renewed, BackendError>> {
    let renewals = vec![Renewal::new(key(), lease(), Duration::from_secs(1)); 3];
    ErasedBackend::renew(Flawed::new(flaw), renewals).await
}

async fn release_three(flaw: Flaw) -> Vec<Result<Released, BackendError>> {
    let leases = vec![Release::new(key(), lease()); 3];
    ErasedBackend::release(Flawed::new(flaw), leases).await
}

async fn leave_three(flaw: Flaw) -> Vec<Result<Released, BackendError>> {
    let leases = vec![Release::new(key(), lease()); 3];
    ErasedBackend::leave(Flawed::new(flaw), leases).await
}

fn is_unknown<T>(outcome: &Result<T, BackendError>) -> bool {
    outcome
        .as_ref()
        .is_err_and(BackendError::may_have_taken_effect)
}

#[tokio::test]
async fn missing_outcomes_are_unknown() {
    for count in 0..3 {
        let renewed = renew_three(Flaw::Outcomes(count)).await;
        let released = release_three(Flaw::Outcomes(count)).await;
        let left = leave_three(Flaw::Outcomes(count)).await;
        assert_eq!((renewed.len(), released.len(), left.len()), (3, 3, 3));
        assert!(left[..count].iter().all(Result::is_ok));
        assert!(left[count..].iter().all(is_unknown), "{left:?}");
        assert!(renewed[..count].iter().all(Result::is_ok));
        assert!(renewed[count..].iter().all(is_unknown), "{renewed:?}");
        assert!(released[..count].iter().all(Result::is_ok));
        assert!(released[count..].iter().all(is_unknown), "{released:?}");
    }
}

#[tokio::test]
async fn surplus_outcomes_are_ignored() {
    let renewed = renew_three(Flaw::Outcomes(5)).await;
    let released = release_three(Flaw::Outcomes(5)).await;
    assert_eq!((renewed.len(), released.len()), (3, 3));
    assert!(renewed.iter().all(Result::is_ok));
    assert!(released.iter().all(Result::is_ok));
}

#[tokio::test]
async fn panicking_commands_are_unknown() {
    for flaw in [Flaw::PanicsWhenCalled, Flaw::PanicsWhenPolled] {
        let new = || Flawed::new(flaw);
        let renewed = renew_three(flaw).await;
        let released = release_three(flaw).await;
        let left = leave_three(flaw).await;
        assert_eq!((renewed.len(), released.len(), left.len()), (3, 3, 3));
        assert!(renewed.iter().all(is_unknown), "{renewed:?}");
        assert!(released.iter().all(is_unknown), "{released:?}");
        assert!(left.iter().all(is_unknown), "{left:?}");
        let acquired = ErasedBackend::try_acquire(new(), acquire()).await;
        assert!(is_unknown(&acquired), "{acquired:?}");
        let contended = ErasedBackend::contend(new(), contend()).await;
        assert!(is_unknown(&contended), "{contended:?}");
        let kept = keep_three(flaw).await;
        assert!(kept.len() == 3 && kept.iter().all(is_unknown), "{kept:?}");
        let holder = ErasedBackend::inspect(new(), key()).await;
        assert!(is_unknown(&holder), "{holder:?}");
        let freed = ErasedBackend::force_release(new(), key(), None).await;
        assert!(is_unknown(&freed), "{freed:?}");
    }
}

#[tokio::test]
async fn release_or_keep_releases_by_default() {
    let [kept, unknown, also_unknown] = &keep_three(Flaw::Outcomes(1)).await[..] else {
        panic!("one outcome for each lease");
    };
    assert!(matches!(
        kept,
        Ok(ReleasedOrKept::Released { watchers: 0, .. })
    ));
    assert!(is_unknown(unknown) && is_unknown(also_unknown));
}
