//! The object-safe twin of [`Backend`], so that the manager needs no type parameter.
//!
//! It also contains the faults of a backend's code. Any command whose result is missing, or that panics,
//! returns an error with an [unknown](BackendError::unknown) result.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::{
    AcquireRequest, Acquired, Backend, BackendError, Extended, ForceReleased, Hints, Holder,
    Immediate, KeepRequest, Release, Released, ReleasedOrKept, Renewal, Renewed,
};
use crate::LockKey;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Outcome<T> = BoxFuture<Result<T, BackendError>>;
type Outcomes<T> = BoxFuture<Vec<Result<T, BackendError>>>;

/// A [`Backend`] whose futures own it, so a background task can finish what its caller dropped.
pub(crate) trait ErasedBackend: Send + Sync {
    fn try_acquire(self: Arc<Self>, request: AcquireRequest) -> Outcome<Acquired>;
    fn renew(self: Arc<Self>, renewals: Vec<Renewal>) -> Outcomes<Renewed>;
    fn release(self: Arc<Self>, leases: Vec<Release>) -> Outcomes<Released>;
    fn release_or_keep(self: Arc<Self>, request: KeepRequest) -> Outcome<ReleasedOrKept>;
    fn extend(self: Arc<Self>, request: KeepRequest) -> Outcome<Extended>;
    fn watch(&self, key: &LockKey) -> Hints;
    fn recoveries(&self) -> Hints;
    fn group(&self, key: &LockKey) -> u64;
    fn tokens_per_counter(&self) -> u32;
    fn response_timeout(&self) -> Duration;
    fn inspect(self: Arc<Self>, key: LockKey) -> Outcome<Option<Holder>>;
    fn force_release(self: Arc<Self>, key: LockKey) -> Outcome<ForceReleased>;
    fn immediate(&self) -> Option<CaughtImmediate<'_>>;
}

impl<B: Backend> ErasedBackend for B {
    fn try_acquire(self: Arc<Self>, request: AcquireRequest) -> Outcome<Acquired> {
        outcome(async move { Backend::try_acquire(&*self, &request).await })
    }

    fn renew(self: Arc<Self>, renewals: Vec<Renewal>) -> Outcomes<Renewed> {
        let count = renewals.len();
        outcomes(
            count,
            async move { Backend::renew(&*self, &renewals).await },
        )
    }

    fn release(self: Arc<Self>, leases: Vec<Release>) -> Outcomes<Released> {
        let count = leases.len();
        outcomes(
            count,
            async move { Backend::release(&*self, &leases).await },
        )
    }

    fn release_or_keep(self: Arc<Self>, request: KeepRequest) -> Outcome<ReleasedOrKept> {
        outcome(async move { Backend::release_or_keep(&*self, &request).await })
    }

    fn extend(self: Arc<Self>, request: KeepRequest) -> Outcome<Extended> {
        outcome(async move { Backend::extend(&*self, &request).await })
    }

    fn watch(&self, key: &LockKey) -> Hints {
        Backend::watch(self, key)
    }

    fn recoveries(&self) -> Hints {
        Backend::recoveries(self)
    }

    fn group(&self, key: &LockKey) -> u64 {
        Backend::group(self, key)
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
        caught(|| self.0.try_acquire(request, now))?
    }

    fn release(&self, lease: &Release, now: Instant) -> Result<Released, BackendError> {
        caught(|| self.0.release(lease, now))?
    }
}

/// Boxes a command whose panics are errors with an unknown result.
pub(in crate::backend) fn outcome<T: 'static>(
    command: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> Outcome<T> {
    Box::pin(Caught {
        command,
        unknown: |panicked| Err(panicked),
    })
}

/// Boxes a command on `count` items. Each missing result, and after a panic each result, is an error with
/// an unknown result. Surplus results are dropped.
fn outcomes<T: Clone + 'static>(
    count: usize,
    command: impl Future<Output = Vec<Result<T, BackendError>>> + Send + 'static,
) -> Outcomes<T> {
    let counted = command.map(move |mut outcomes| {
        outcomes.resize_with(count, || Err(BackendError::no_outcome()));
        outcomes
    });
    Box::pin(Caught {
        command: counted,
        unknown: move |panicked| vec![Err(panicked); count],
    })
}

pin_project! {
    /// Completes with the output of the command, or with that of `unknown` if a poll panics.
    ///
    /// A hand-written future: an async function would store the command twice.
    struct Caught<F, U> {
        #[pin]
        command: F,
        unknown: U,
    }
}

impl<F: Future, U: Fn(BackendError) -> F::Output> Future for Caught<F, U> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // A future that panicked is not polled again.
        caught(|| this.command.poll(cx))
            .unwrap_or_else(|panicked| Poll::Ready((this.unknown)(panicked)))
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
