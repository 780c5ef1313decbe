//! The object-safe twin of [`Backend`], so that the manager needs no type parameter.
//!
//! It gives backends the key of the lock, also for a permit, whose lane has a key of its own.
//!
//! It also contains the faults of a backend's code. Any command whose result is missing, or that panics,
//! returns an error with an [unknown](BackendError::unknown) result.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::time::Instant;
use uuid::Uuid;

use super::memory::Memory;
use super::{
    AcquireRequest, Acquired, Backend, BackendError, Capabilities, Contended, Downgraded,
    ForceReleased, Hints, Holder, KeepRequest, Release, Released, ReleasedOrKept, Renewal, Renewed,
};
use crate::LockKey;
use crate::observe::{Command, CommandOutcome, Tally};

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Outcome<T> = BoxFuture<Result<T, BackendError>>;
type Outcomes<T> = BoxFuture<Vec<Result<T, BackendError>>>;

/// A [`Backend`] whose futures own it, so a background task can finish what its caller dropped.
pub(crate) trait ErasedBackend: Send + Sync {
    fn try_acquire(self: Arc<Self>, request: AcquireRequest) -> Outcome<Acquired>;
    fn contend(self: Arc<Self>, request: AcquireRequest) -> Outcome<Contended>;
    fn leave(self: Arc<Self>, leases: Vec<Release>) -> Outcomes<Released>;
    fn renew(self: Arc<Self>, renewals: Vec<Renewal>) -> Outcomes<Renewed>;
    fn release(self: Arc<Self>, leases: Vec<Release>) -> Outcomes<Released>;
    fn release_or_keep(self: Arc<Self>, leases: Vec<KeepRequest>) -> Outcomes<ReleasedOrKept>;
    fn downgrade(self: Arc<Self>, lease: Renewal) -> Outcome<Downgraded>;
    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints;
    fn recoveries(&self) -> Hints;
    fn capabilities(&self) -> Capabilities;
    fn group(&self, key: &LockKey) -> u64;
    fn inspect(self: Arc<Self>, key: LockKey) -> Outcome<Option<Holder>>;
    fn force_release(
        self: Arc<Self>,
        key: LockKey,
        holder: Option<String>,
    ) -> Outcome<ForceReleased>;
    fn immediate(&self) -> Option<Immediate<'_>>;
}

/// A backend whose type is not named, and the counts of its commands.
pub(crate) struct Erased<B> {
    pub(in crate::backend) backend: B,
    /// `None` if the commands are not timed.
    tally: Option<Arc<Tally>>,
}

impl<B: Backend> Erased<B> {
    pub(crate) fn new(backend: B) -> Arc<Self> {
        let tally = None;
        Arc::new(Self { backend, tally })
    }

    /// Counts the time of each command, unless the backend replies without waiting. A batch is one command.
    pub(crate) fn counted_by(backend: B, tally: &Arc<Tally>) -> Arc<Self> {
        let is_timed = cfg!(feature = "metrics") && memory(&backend).is_none();
        if is_timed {
            tally.set_sends_commands();
        }
        let tally = is_timed.then(|| Arc::clone(tally));
        Arc::new(Self { backend, tally })
    }

    /// Boxes a command whose panics are errors with an unknown result.
    pub(in crate::backend) fn one<T: 'static, F>(
        self: Arc<Self>,
        command: impl Into<Option<Command>>,
        call: impl FnOnce(Arc<Self>) -> F,
    ) -> Outcome<T>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        let timer = command.into().and_then(|command| self.timer(command));
        Box::pin(Caught {
            command: call(self),
            finish: move |polled: Result<Result<T, _>, _>| {
                let outcome = polled.and_then(|outcome| outcome);
                timer.iter().for_each(|timer| timer.ended([&outcome]));
                outcome
            },
        })
    }

    /// Boxes a command on `count` items. Each missing result, and after a panic each result, is an error with
    /// an unknown result. Surplus results are dropped.
    fn batch<T: Clone + 'static, F>(
        self: Arc<Self>,
        command: Command,
        count: usize,
        call: impl FnOnce(Arc<Self>) -> F,
    ) -> Outcomes<T>
    where
        F: Future<Output = Vec<Result<T, BackendError>>> + Send + 'static,
    {
        let timer = self.timer(command);
        Box::pin(Caught {
            command: call(self),
            finish: move |polled: Result<Vec<_>, _>| {
                let mut outcomes = polled.unwrap_or_else(|panicked| vec![Err(panicked); count]);
                outcomes.resize_with(count, || Err(BackendError::no_outcome()));
                timer.iter().for_each(|timer| timer.ended(&outcomes));
                outcomes
            },
        })
    }

    fn timer(&self, command: Command) -> Option<Timer> {
        Some(Timer {
            tally: Arc::clone(self.tally.as_ref()?),
            command,
            since: Instant::now(),
        })
    }
}

/// Counts the time of one command.
struct Timer {
    tally: Arc<Tally>,
    command: Command,
    since: Instant,
}

impl Timer {
    fn ended<'a, T: 'a>(&self, replies: impl IntoIterator<Item = &'a Result<T, BackendError>>) {
        let outcomes = replies.into_iter().map(|reply| match reply {
            Ok(_) => CommandOutcome::Done,
            Err(error) if error.may_have_taken_effect() => CommandOutcome::Unknown,
            Err(_) => CommandOutcome::Refused,
        });
        let worst = outcomes.max().unwrap_or(CommandOutcome::Done);
        (self.tally).command(self.command, worst, self.since.elapsed());
    }
}

impl<B: Backend> ErasedBackend for Erased<B> {
    fn try_acquire(self: Arc<Self>, mut request: AcquireRequest) -> Outcome<Acquired> {
        request.key.make_stored();
        self.one(Command::Acquire, |it| async move {
            it.backend.try_acquire(&request).await
        })
    }

    fn contend(self: Arc<Self>, mut request: AcquireRequest) -> Outcome<Contended> {
        request.key.make_stored();
        self.one(Command::Contend, |it| async move {
            it.backend.contend(&request).await
        })
    }

    fn leave(self: Arc<Self>, mut leases: Vec<Release>) -> Outcomes<Released> {
        leases.iter_mut().for_each(|it| it.key.make_stored());
        let count = leases.len();
        self.batch(Command::Leave, count, |it| async move {
            it.backend.leave(&leases).await
        })
    }

    fn renew(self: Arc<Self>, mut renewals: Vec<Renewal>) -> Outcomes<Renewed> {
        renewals.iter_mut().for_each(|it| it.key.make_stored());
        let count = renewals.len();
        self.batch(Command::Renew, count, |it| async move {
            it.backend.renew(&renewals).await
        })
    }

    fn release(self: Arc<Self>, mut leases: Vec<Release>) -> Outcomes<Released> {
        leases.iter_mut().for_each(|it| it.key.make_stored());
        let count = leases.len();
        self.batch(Command::Release, count, |it| async move {
            it.backend.release(&leases).await
        })
    }

    fn release_or_keep(self: Arc<Self>, leases: Vec<KeepRequest>) -> Outcomes<ReleasedOrKept> {
        let count = leases.len();
        self.batch(Command::ReleaseOrKeep, count, |it| async move {
            it.backend.release_or_keep(&leases).await
        })
    }

    fn downgrade(self: Arc<Self>, lease: Renewal) -> Outcome<Downgraded> {
        self.one(Command::Downgrade, |it| async move {
            it.backend.downgrade(&lease).await
        })
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        self.backend.watch(key.stored(), manager)
    }

    fn recoveries(&self) -> Hints {
        self.backend.recoveries()
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn group(&self, key: &LockKey) -> u64 {
        self.backend.group(key.stored())
    }

    fn inspect(self: Arc<Self>, key: LockKey) -> Outcome<Option<Holder>> {
        self.one(Command::Inspect, |it| async move {
            it.backend.inspect(&key).await
        })
    }

    fn force_release(
        self: Arc<Self>,
        key: LockKey,
        holder: Option<String>,
    ) -> Outcome<ForceReleased> {
        self.one(Command::ForceRelease, |it| async move {
            it.backend.force_release(&key, holder.as_deref()).await
        })
    }

    fn immediate(&self) -> Option<Immediate<'_>> {
        memory(&self.backend).map(Immediate)
    }
}

/// Returns the backend itself, if it is [`Memory`].
fn memory<B: Backend>(backend: &B) -> Option<&Memory> {
    (backend as &dyn Any).downcast_ref()
}

/// The commands that complete without waiting and without reading the clock, which saves tasks and boxed futures.
///
/// `now` is a time before the call. It may be earlier than the `now` of a previous call. The engine calls them while it
/// holds a mutex that covers the key. `Memory` does not panic, so nothing is caught.
pub(crate) struct Immediate<'a>(&'a Memory);

impl Immediate<'_> {
    pub(crate) fn try_acquire(&self, mut request: AcquireRequest, now: Instant) -> Acquired {
        request.key.make_stored();
        self.0.acquired(&request, now)
    }

    pub(crate) fn release(&self, mut lease: Release, now: Instant) -> Released {
        lease.key.make_stored();
        self.0.released(&lease, now)
    }
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
