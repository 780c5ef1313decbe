//! The future of an acquire: its terms, and the report of its end. The lane enforces its deadline.

use std::fmt;
use std::future::Future;
use std::mem;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::Acquire;
use super::entry::pending::PendingAcquire;
use super::entry::{Step, enter};
use super::guard::LockGuard;
use super::several::Several;
use crate::backend::{BoxFuture, Mode};
use crate::lock::clock::{Moment, Span};
use crate::lock::engine::Engine;
use crate::lock::engine::options::{valid_lease, valid_permits, valid_wait};
use crate::lock::engine::read_budget::ReadBudget;
use crate::lock::lease::{Claim, Deadline, Grant, HoldId, QueuePosition, Terms};
use crate::observe::{Name, Outcome, RequestSpan, WaitSpan};
use crate::{ConfigError, Error, ErrorKind, LockKeys};

/// Lets the backend's own timeout, which has a more precise error, end an attempt first.
const SLACK: Duration = Duration::from_millis(5);

impl Acquire {
    /// Begins the span of a wait for these keys.
    fn wait_span(&self, keys: &LockKeys) -> WaitSpan {
        let engine = &self.engine;
        let written = || {
            #[cfg(feature = "tracing")]
            return (engine.options.trace_keys.as_ref()).map(|it| it.write(keys.as_slice()));
            #[cfg(not(feature = "tracing"))]
            {
                let _unused_without_features = keys;
                None
            }
        };
        let mode = || match self.permits {
            Some(_) => Mode::Permit,
            None if keys.all_shared() => Mode::Shared,
            None => Mode::Exclusive,
        };
        WaitSpan::begin(|| engine.tally.text(self.name), mode, written)
    }

    fn terms(&self) -> Result<Terms, Error> {
        self.check_times().map_err(invalid_option)?;
        let (mode, limit) = match self.permits.is_none() && !self.keys.any_shared() {
            true => (Mode::Exclusive, None),
            false => self.other_mode()?,
        };
        Ok(Terms {
            ttl: Span::new(self.lease.unwrap_or(self.engine.options.watchdog_timeout)),
            renewed: self.lease.is_none(),
            mode,
            limit,
            max_hold: self.max_hold.map_or(Span::FOREVER, Span::new),
            keep: self.keep,
        })
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        if let Some(wait) = self.wait {
            valid_wait("wait", wait)?;
        }
        if let Some(lease) = self.lease {
            valid_lease("lease", lease)?;
        }
        if let Some(max_hold) = self.max_hold {
            valid_lease("max_hold", max_hold)?;
        }
        Ok(())
    }

    /// Returns how the first key is asked for, if not all of them are exclusively, and the limit of permits.
    #[inline(never)]
    fn other_mode(&self) -> Result<(Mode, Option<NonZeroU16>), Error> {
        // The first key may be exclusive, and another one shared.
        let (asked, mode, limit) = match self.permits {
            Some(limit) => {
                let limit = valid_permits(limit.into()).map_err(invalid_option)?;
                (Mode::Permit, Mode::Permit, Some(limit))
            }
            None => (Mode::Shared, self.keys.mode(0), None),
        };
        if !self.engine.capabilities.include(asked) {
            return Err(Error::new(ErrorKind::Unsupported));
        }
        if asked == Mode::Permit {
            self.engine.note_permits();
        }
        Ok((mode, limit))
    }

    /// Proceeds as far as possible without waiting. The wait counts from `now`.
    fn start(&mut self, now: Moment) -> Result<Started, Error> {
        self.keys.validate().map_err(Error::of_key)?;
        let terms = self.terms()?;
        self.engine.require_home()?;
        let ticket = self.engine.next_number();
        let owner = self.owner.unwrap_or_else(|| self.engine.owner(ticket));
        if terms.mode == Mode::Permit {
            self.keys.make_permits_of(owner);
        }
        let keys = self.keys.as_slice();
        let claim = Claim {
            ticket,
            hold: ticket,
            owner,
            is_owner_fresh: self.owner.is_none(),
            terms,
            deadline: match self.wait {
                Some(Duration::ZERO) => {
                    Deadline::OneAttempt(now + self.engine.capabilities.response_timeout + SLACK)
                }
                Some(wait) => Deadline::At(now + wait),
                None => Deadline::Endless,
            },
            of_several: keys.len() > 1,
            served_at_shutdown: false,
            clock: self.engine.home.clock,
            since: now,
            name: self.name,
            span: RequestSpan::current(),
        };
        if let [key] = keys {
            Ok(match enter(&self.engine, key, &claim, now) {
                Step::Done(grant) => Started::Granted(grant?, claim.hold),
                Step::Slow(pending) => {
                    Started::Slow(Slow::One(pending), self.wait_span(&self.keys))
                }
            })
        } else {
            let mut several = Several {
                engine: Arc::clone(&self.engine),
                holds: Vec::with_capacity(keys.len()),
                keys: self.keys.take(),
                claim,
            };
            let Some(pending) = several.enter_rest(now)? else {
                return several.into_guard(now).map(Started::Guarded);
            };
            let span = self.wait_span(&several.keys);
            let all = async move {
                let mut position = None;
                let outcome = several.wait(pending, &mut position).await;
                (outcome, position)
            };
            let rest = Slow::Many {
                engine: Arc::clone(&self.engine),
                name: self.name,
                all: Box::pin(all),
            };
            Ok(Started::Slow(rest, span))
        }
    }
}

impl IntoFuture for Acquire {
    type Output = Result<LockGuard, Error>;
    type IntoFuture = AcquireFuture;

    fn into_future(mut self) -> AcquireFuture {
        self.awaited.set();
        AcquireFuture {
            state: State::Unpolled(self),
            waited: Duration::ZERO,
        }
    }
}

/// The future of an [`Acquire`], which allocates only if it has to wait.
///
/// # Panics
///
/// Panics if polled again after it completed.
#[must_use = "futures do nothing unless polled"]
pub struct AcquireFuture {
    state: State,
    /// Set when the wait ends.
    pub(crate) waited: Duration,
}

// The unpolled request is the common case, and boxing it would cost what the fast path saves.
#[allow(clippy::large_enum_variant)]
enum State {
    Unpolled(Acquire),
    Slow {
        since: Moment,
        rest: Slow,
        span: WaitSpan,
    },
    Done,
}

enum Slow {
    One(PendingAcquire),
    Many {
        engine: Arc<Engine>,
        name: Name,
        all: BoxFuture<(Result<LockGuard, Error>, QueuePosition)>,
    },
}

enum Started {
    /// The guard gets the reference of the request to the engine, because other threads write that count too.
    Granted(Arc<Grant>, HoldId),
    Guarded(LockGuard),
    Slow(Slow, WaitSpan),
}

fn invalid_option(why: ConfigError) -> Error {
    Error::new(ErrorKind::InvalidOption).with_source(why)
}

impl Future for AcquireFuture {
    type Output = Result<LockGuard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Unpolled(acquire) = &mut self.state {
            let since = acquire.engine.now();
            let outcome = match acquire.start(since) {
                Ok(Started::Granted(grant, hold)) => {
                    let State::Unpolled(acquire) = mem::replace(&mut self.state, State::Done)
                    else {
                        unreachable!("BUG: the acquire has just started");
                    };
                    let guard = LockGuard::one(acquire.engine, grant, hold);
                    guard.report(acquire.name);
                    return Poll::Ready(Ok(guard));
                }
                Ok(Started::Slow(rest, span)) => {
                    self.state = State::Slow { since, rest, span };
                    return self.poll_slow(cx);
                }
                Ok(Started::Guarded(guard)) => Ok(guard),
                Err(error) => Err(error),
            };
            let ended = outcome.as_ref().map(|_| ());
            (acquire.engine).acquired(acquire.name, ended, Duration::ZERO, None);
            self.state = State::Done;
            return Poll::Ready(outcome);
        }
        self.poll_slow(cx)
    }
}

impl AcquireFuture {
    /// Polls an acquire that waits.
    fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<Result<LockGuard, Error>> {
        let State::Slow { rest, span, .. } = &mut self.state else {
            panic!("`AcquireFuture` polled after completion");
        };
        let (outcome, queue_position, now) = ready!(span.within(|| match rest {
            Slow::One(pending) => {
                let ended = Pin::new(&mut *pending).poll(cx);
                ended.map(|(outcome, now)| (outcome, pending.queue_position(), now))
            }
            Slow::Many { all, engine, .. } => {
                let ended = all.as_mut().poll(cx);
                ended.map(|(outcome, position)| (outcome, position, engine.now()))
            }
        }));
        Poll::Ready(self.end(outcome, queue_position, now))
    }

    /// Returns the memory for what the caller reads while it waits, or `None` if it does not wait.
    pub(crate) fn budget(&self) -> Option<&Arc<ReadBudget>> {
        match &self.state {
            State::Slow { rest, .. } => Some(&rest.reporter().0.budget),
            State::Unpolled(_) | State::Done => None,
        }
    }

    /// Leaves the queue. The outcome is the error of the caller, in place of a cancellation.
    pub(crate) fn fail(&mut self, error: Error) -> Result<LockGuard, Error> {
        let now = match &self.state {
            State::Slow { since, rest, .. } => rest.reporter().0.now().max(*since),
            State::Unpolled(_) | State::Done => Moment::FIRST,
        };
        self.end(Err(error), None, now)
    }

    fn end(
        &mut self,
        mut outcome: Result<LockGuard, Error>,
        queue_position: QueuePosition,
        now: Moment,
    ) -> Result<LockGuard, Error> {
        if let State::Slow { since, rest, span } = mem::replace(&mut self.state, State::Done) {
            let waited = now.since(since);
            self.waited = waited;
            if let Ok(guard) = &mut outcome {
                guard.set_wait(waited);
            }
            let (engine, name) = rest.reporter();
            let via = outcome.as_ref().map(|guard| guard.via()).ok();
            let ended = outcome.as_ref().map(drop);
            span.end(Outcome::of(ended), via, waited, queue_position);
            engine.acquired(name, ended, waited, queue_position);
        }
        outcome
    }
}

impl Drop for AcquireFuture {
    fn drop(&mut self) {
        if let State::Slow { since, rest, span } = &self.state {
            let (engine, name) = rest.reporter();
            let waited = engine.now().since(*since);
            span.end(Outcome::Cancelled, None, waited, rest.queue_position());
            engine.cancelled(name, waited);
        }
    }
}

impl Slow {
    /// Returns the engine that reports the acquire, and its name.
    fn reporter(&self) -> (&Arc<Engine>, Name) {
        match self {
            Self::One(pending) => pending.reporter(),
            Self::Many { engine, name, .. } => (engine, *name),
        }
    }

    /// Returns the position of an acquire that has not completed. Several keys report it at their end.
    fn queue_position(&self) -> QueuePosition {
        match self {
            Self::One(pending) => pending.queue_position(),
            Self::Many { .. } => None,
        }
    }
}

impl fmt::Debug for AcquireFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireFuture").finish_non_exhaustive()
    }
}
