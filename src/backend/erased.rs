//! The object-safe twin of [`Backend`], so that the manager needs no type parameter.
//!
//! It gives backends the key of the lock, also for a permit, whose lane has a key of its own.
//!
//! It also contains the faults of a backend's code. Any command whose result is missing, or that panics,
//! returns an error with an [unknown](BackendError::unknown) result.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    AcquireRequest, Acquired, Backend, BackendError, ContendRequest, Contended, Downgraded,
    ForceReleased, Hints, Holder, Immediate, KeepRequest, Modes, Release, Released, ReleasedOrKept,
    Renewal, Renewed,
};
use crate::LockKey;
use crate::observe::Tally;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Outcome<T> = BoxFuture<Result<T, BackendError>>;
type Outcomes<T> = BoxFuture<Vec<Result<T, BackendError>>>;

/// A [`Backend`] whose futures own it, so a background task can finish what its caller dropped.
pub(crate) trait ErasedBackend: Send + Sync {
    fn try_acquire(self: Arc<Self>, request: AcquireRequest) -> Outcome<Acquired>;
    fn contend(self: Arc<Self>, request: ContendRequest) -> Outcome<Contended>;
    fn leave(self: Arc<Self>, leases: Vec<Release>) -> Outcomes<Released>;
    fn renew(self: Arc<Self>, renewals: Vec<Renewal>) -> Outcomes<Renewed>;
    fn release(self: Arc<Self>, leases: Vec<Release>) -> Outcomes<Released>;
    fn release_or_keep(self: Arc<Self>, request: KeepRequest) -> Outcome<ReleasedOrKept>;
    fn downgrade(self: Arc<Self>, lease: Renewal) -> Outcome<Downgraded>;
    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints;
    fn recoveries(&self) -> Hints;
    fn modes(&self) -> Modes;
    fn group(&self, key: &LockKey) -> u64;
    fn tokens_per_counter(&self) -> u32;
    fn response_timeout(&self) -> Duration;
    fn inspect(self: Arc<Self>, key: LockKey) -> Outcome<Option<Holder>>;
    fn force_release(self: Arc<Self>, key: LockKey) -> Outcome<ForceReleased>;
    fn force_release_held_by(
        self: Arc<Self>,
        key: LockKey,
        holder: String,
    ) -> Outcome<ForceReleased>;
    fn immediate(&self) -> Option<CaughtImmediate<'_>>;
}

/// Returns the backend without its type. The tally counts the time of its commands, unless it replies without waiting.
pub(crate) fn erased(backend: impl Backend, tally: &Arc<Tally>) -> Arc<dyn ErasedBackend> {
    #[cfg(feature = "metrics")]
    if Backend::immediate(&backend).is_none() {
        return Arc::new(super::metered::Metered::new(backend, Arc::clone(tally)));
    }
    let _unused_without_metrics = tally;
    Arc::new(backend)
}

impl<B: Backend> ErasedBackend for B {
    fn try_acquire(self: Arc<Self>, mut request: AcquireRequest) -> Outcome<Acquired> {
        request.key.make_stored();
        outcome(async move { Backend::try_acquire(&*self, &request).await })
    }

    fn contend(self: Arc<Self>, mut request: ContendRequest) -> Outcome<Contended> {
        request.key.make_stored();
        outcome(async move { Backend::contend(&*self, &request).await })
    }

    fn leave(self: Arc<Self>, mut leases: Vec<Release>) -> Outcomes<Released> {
        leases.iter_mut().for_each(|it| it.key.make_stored());
        let count = leases.len();
        outcomes(count, async move { Backend::leave(&*self, &leases).await })
    }

    fn renew(self: Arc<Self>, mut renewals: Vec<Renewal>) -> Outcomes<Renewed> {
        renewals.iter_mut().for_each(|it| it.key.make_stored());
        let count = renewals.len();
        outcomes(
            count,
            async move { Backend::renew(&*self, &renewals).await },
        )
    }

    fn release(self: Arc<Self>, mut leases: Vec<Release>) -> Outcomes<Released> {
        leases.iter_mut().for_each(|it| it.key.make_stored());
        let count = leases.len();
        outcomes(
            count,
            async move { Backend::release(&*self, &leases).await },
        )
    }

    fn release_or_keep(self: Arc<Self>, request: KeepRequest) -> Outcome<ReleasedOrKept> {
        outcome(async move { Backend::release_or_keep(&*self, &request).await })
    }

    fn downgrade(self: Arc<Self>, lease: Renewal) -> Outcome<Downgraded> {
        outcome(async move { Backend::downgrade(&*self, &lease).await })
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        Backend::watch(self, key.stored(), manager)
    }

    fn recoveries(&self) -> Hints {
        Backend::recoveries(self)
    }

    fn modes(&self) -> Modes {
        Backend::modes(self)
    }

    fn group(&self, key: &LockKey) -> u64 {
        Backend::group(self, key.stored())
    }

    fn tokens_per_counter(&self) -> u32 {
        Backend::tokens_per_counter(self)
    }

    fn response_timeout(&self) -> Duration {
        Backend::response_timeout(self)
    }

    fn inspect(self: Arc<Self>, key: LockKey) -> Outcome<Option<Holder>> {
        outcome(async move { Backend::inspect(&*self, &key).await })
    }

    fn force_release(self: Arc<Self>, key: LockKey) -> Outcome<ForceReleased> {
        outcome(async move { Backend::force_release(&*self, &key).await })
    }

    fn force_release_held_by(
        self: Arc<Self>,
        key: LockKey,
        holder: String,
    ) -> Outcome<ForceReleased> {
        outcome(async move { Backend::force_release_held_by(&*self, &key, &holder).await })
    }

    fn immediate(&self) -> Option<CaughtImmediate<'_>> {
        Backend::immediate(self).map(CaughtImmediate)
    }
}

/// An [`Immediate`] whose panics are errors with an unknown result.
pub(crate) struct CaughtImmediate<'a>(&'a dyn Immediate);

impl Immediate for CaughtImmediate<'_> {
    fn try_acquire(
        &self,
        request: &AcquireRequest,
        now: Instant,
    ) -> Result<Acquired, BackendError> {
        if request.key.is_of_permit() {
            let mut request = request.clone();
            request.key.make_stored();
            return caught(|| self.0.try_acquire(&request, now))?;
        }
        caught(|| self.0.try_acquire(request, now))?
    }

    fn release(&self, lease: &Release, now: Instant) -> Result<Released, BackendError> {
        if lease.key.is_of_permit() {
            let lease = Release::new(lease.key.stored().clone(), lease.lease);
            return caught(|| self.0.release(&lease, now))?;
        }
        caught(|| self.0.release(lease, now))?
    }
}

/// Boxes a command whose panics are errors with an unknown result.
pub(in crate::backend) fn outcome<T: 'static>(
    command: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> Outcome<T> {
    Box::pin(Caught {
        command,
        finish: |polled: Result<Result<T, _>, _>| polled.and_then(|outcome| outcome),
    })
}

/// Boxes a command on `count` items. Each missing result, and after a panic each result, is an error with
/// an unknown result. Surplus results are dropped.
fn outcomes<T: Clone + 'static>(
    count: usize,
    command: impl Future<Output = Vec<Result<T, BackendError>>> + Send + 'static,
) -> Outcomes<T> {
    Box::pin(Caught {
        command,
        finish: move |polled: Result<Vec<_>, _>| {
            let mut outcomes = polled.unwrap_or_else(|panicked| vec![Err(panicked); count]);
            outcomes.resize_with(count, || Err(BackendError::no_outcome()));
            outcomes
        },
    })
}

pin_project! {
    /// Polls a command, and completes with what `finish` makes of its output, or of the error if a poll panics.
    ///
    /// A hand-written future: an async function would store the command twice.
    struct Caught<F, M> {
        #[pin]
        command: F,
        finish: M,
    }
}

impl<F: Future, T, M: Fn(Result<F::Output, BackendError>) -> T> Future for Caught<F, M> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.project();
        match caught(|| this.command.poll(cx)) {
            Ok(poll) => poll.map(|output| (this.finish)(Ok(output))),
            // A future that panicked is not polled again.
            Err(panicked) => Poll::Ready((this.finish)(Err(panicked))),
        }
    }
}

/// Returns the output of the call, or an error with an unknown result if it panics.
///
/// Unwind safety is the backend's own matter: other calls reach the same backend after a panic anyway.
fn caught<T>(call: impl FnOnce() -> T) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(call))
        .map_err(|_payload| BackendError::unknown("backend panicked"))
}

#[cfg(test)]
mod tests;
