//! The future of an acquire: its deadline, the order of its keys, and the report of its end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{Acquire, Wait};
use crate::backend::BoxFuture;
use crate::lock::claim::{Claim, Deadline, QueuePosition, Terms};
use crate::lock::clock::{Moment, Span};
use crate::lock::engine::Engine;
use crate::lock::entry::{Step, enter};
use crate::lock::guard::LockGuard;
use crate::lock::options::{valid_lease, valid_wait};
use crate::lock::pending::PendingAcquire;
use crate::observe::{Name, Outcome, RequestSpan, WaitSpan};
use crate::{ConfigError, Error, ErrorKind, LockKey, LockKeys};

/// Lets the backend's own timeout, which has a more precise error, end an attempt first.
const SLACK: Duration = Duration::from_millis(5);

impl Acquire {
    /// Begins the span of a wait for these keys.
    fn wait_span(&self, keys: &[LockKey]) -> WaitSpan {
        let engine = &self.engine;
        let written = || {
            #[cfg(feature = "tracing")]
            return engine.options.trace_keys.as_ref().map(|it| it.write(keys));
            #[cfg(not(feature = "tracing"))]
            {
                let _unused_without_features = keys;
                None
            }
        };
        WaitSpan::begin(|| engine.tally.text(self.name), written)
    }

    fn terms(&self) -> Result<Terms, ConfigError> {
        if let Wait::For(wait) = self.wait {
            valid_wait("wait", wait)?;
        }
        if let Some(lease) = self.lease {
            valid_lease("lease", lease)?;
        }
        if let Some(max_hold) = self.max_hold {
            valid_lease("max_hold", max_hold)?;
        }
        Ok(Terms {
            ttl: self.engine.lease_span(self.lease),
            renewed: self.lease.is_none(),
            max_hold: self.max_hold.map_or(Span::FOREVER, Span::new),
        })
    }

    /// Proceeds as far as possible without waiting. The wait counts from `now`.
    fn start(&mut self, now: Moment) -> Started {
        let terms = match self.keys.validate() {
            Err(invalid) => return Started::refused(ErrorKind::InvalidKey, invalid),
            Ok(()) => match self.terms() {
                Err(invalid) => return Started::refused(ErrorKind::InvalidOption, invalid),
                Ok(terms) => terms,
            },
        };
        let home = match self.engine.current_home() {
            Ok(home) => home,
            Err(error) => return Started::Done(Err(error)),
        };
        let ticket = self.engine.next_number();
        let claim = Claim {
            ticket,
            hold: ticket,
            owner: self.owner.unwrap_or_else(|| self.engine.new_owner()),
            is_owner_fresh: self.owner.is_none(),
            terms,
            deadline: match self.wait {
                Wait::Never => Deadline::OneAttempt(now + self.engine.response_timeout + SLACK),
                Wait::For(wait) => Deadline::At(now + wait),
                Wait::Forever => Deadline::Endless,
            },
            grouped: self.keys.as_slice().len() > 1,
            home,
            since: now,
            name: self.name,
            span: RequestSpan::current(),
        };
        if let [key] = self.keys.as_slice() {
            match enter(&self.engine, key, &claim, now) {
                Step::Done(outcome) => Started::Done(outcome.map(LockGuard::one)),
                Step::Slow(stage) => {
                    let key = key.clone();
                    let engine = Arc::clone(&self.engine);
                    let span = self.wait_span(std::slice::from_ref(&key));
                    let pending = PendingAcquire::new(engine, key, claim, stage, now);
                    Started::Slow(Slow::One(pending), span)
                }
            }
        } else {
            let span = self.wait_span(self.keys.as_slice());
            let (engine, keys) = (Arc::clone(&self.engine), self.keys.take());
            let all = async move {
                let mut position = None;
                let outcome = acquire_all(engine, keys, claim, now, &mut position).await;
                (outcome, position)
            };
            Started::Slow(
                Slow::Many {
                    engine: Arc::clone(&self.engine),
                    name: self.name,
                    all: Box::pin(all),
                },
                span,
            )
        }
    }
}

impl IntoFuture for Acquire {
    type Output = Result<LockGuard, Error>;
    type IntoFuture = AcquireFuture;

    fn into_future(self) -> AcquireFuture {
        AcquireFuture {
            state: State::Unpolled(self),
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
    Done(QueuePosition),
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
    Done(Result<LockGuard, Error>),
    Slow(Slow, WaitSpan),
}

impl Started {
    fn refused(kind: ErrorKind, why: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Done(Err(Error::new(kind).with_source(why)))
    }
}

impl Future for AcquireFuture {
    type Output = Result<LockGuard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Unpolled(acquire) = &mut self.state {
            let since = Moment::now();
            match acquire.start(since) {
                Started::Done(outcome) => {
                    let ended = outcome.as_ref().map(|_| ());
                    acquire
                        .engine
                        .acquired(acquire.name, ended, Duration::ZERO, None);
                    self.state = State::Done(None);
                    return Poll::Ready(outcome);
                }
                Started::Slow(rest, span) => self.state = State::Slow { since, rest, span },
            }
        }
        match &mut self.state {
            State::Slow { since, rest, span } => {
                let (outcome, queue_position, now) = ready!(span.within(|| match rest {
                    Slow::One(pending) => {
                        let ended = Pin::new(&mut *pending).poll(cx);
                        ended.map(|(outcome, now)| {
                            (outcome.map(LockGuard::one), pending.queue_position(), now)
                        })
                    }
                    Slow::Many { all, .. } => {
                        let ended = all.as_mut().poll(cx);
                        ended.map(|(outcome, position)| (outcome, position, Moment::now()))
                    }
                }));
                let waited = now.since(*since);
                let outcome = outcome.map(|mut guard| {
                    guard.set_wait(waited, queue_position);
                    guard
                });
                let (engine, name) = rest.reporter();
                let ended = outcome.as_ref().map(|_| ());
                span.end(
                    Outcome::of(ended),
                    outcome.as_ref().map(|it| it.via()).ok(),
                    waited,
                    queue_position,
                );
                engine.acquired(name, ended, waited, queue_position);
                self.state = State::Done(queue_position);
                Poll::Ready(outcome)
            }
            State::Unpolled(_) | State::Done(_) => {
                panic!("`AcquireFuture` polled after completion")
            }
        }
    }
}

impl AcquireFuture {
    /// Returns the position in the queue, after the completion. Of several keys, the largest one.
    pub(crate) fn queue_position(&self) -> QueuePosition {
        match self.state {
            State::Done(position) => position,
            State::Unpolled(_) | State::Slow { .. } => None,
        }
    }
}

impl Drop for AcquireFuture {
    fn drop(&mut self) {
        if let State::Slow { since, rest, span } = &self.state {
            let (engine, name) = rest.reporter();
            let waited = Moment::now().since(*since);
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

async fn acquire_all(
    engine: Arc<Engine>,
    keys: LockKeys,
    claim: Claim,
    mut now: Moment,
    position: &mut QueuePosition,
) -> Result<LockGuard, Error> {
    // The longest hold counts from the grant of the last key.
    let mut one = claim;
    one.terms.max_hold = Span::FOREVER;
    // Dropped on error or cancellation, which releases the keys acquired so far.
    let mut holds = Vec::with_capacity(keys.as_slice().len());
    for key in keys.as_slice() {
        // A ticket orders by arrival, and the acquire arrives at each key at another time.
        one.ticket = engine.next_number();
        holds.push(match enter(&engine, key, &one, now) {
            Step::Done(outcome) => outcome?,
            Step::Slow(stage) => {
                let engine = Arc::clone(&engine);
                let mut pending = PendingAcquire::new(engine, key.clone(), one, stage, now);
                let (outcome, ended_at) = Pin::new(&mut pending).await;
                *position = pending.queue_position().max(*position);
                now = ended_at;
                outcome?
            }
        });
    }
    // A fixed lease may have expired during the wait for another key.
    if !holds.iter().all(|hold| hold.is_held(now)) {
        return Err(Error::new(ErrorKind::Lost));
    }
    LockGuard::many(&engine, holds, &claim, now).ok_or_else(|| Error::new(ErrorKind::Lost))
}
