//! The one conversation that a lane has with the backend while nobody here holds the key.
//!
//! It starts inside the acquire that found the lane idle, so that an uncontended lock costs one
//! round trip and no task. It goes on as a task when that acquire has to wait, or is dropped with
//! its try on the wire: the try is then finished, and what it got goes to the next in the queue or
//! back to the backend. So a lane never has two commands in flight, and none is forgotten.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::sleep_until;

use super::engine::{Engine, refuse};
use super::lane::Lane;
use super::lease::{Lease, LeaseNumber, Terms};
use super::moment::Moment;
use super::order::{Bell, Next, Seen, Waiter};
use crate::backend::{Acquired, BackendError, BackendErrorKind, BoxFuture, Hints, LeaseId};
use crate::jitter::jittered;
use crate::{Error, ErrorKind, LockKey};

/// How long a lost notification can delay a waiter.
const BACKSTOP: Duration = Duration::from_secs(1);

/// The pause after a failed try, doubled each time up to [`BACKSTOP`].
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// The last try before the first in the queue gives up is made this much ahead of its deadline,
/// so that the answer is there in time.
const LAST_TRY: Duration = Duration::from_millis(20);

/// How long other processes have to take a key that this one gave up for them, however far away they
/// are.
const POLITE: Duration = Duration::from_millis(5);

/// How long they have when it was given up by another one that still is not the last of them.
const POLITE_AGAIN: Duration = Duration::from_millis(2);

pub(super) struct Contention {
    engine: Arc<Engine>,
    key: LockKey,
    on_the_wire: Option<Try>,
    hints: Option<Hints>,
    /// So many hints are for others.
    behind: u32,
    backoff: Duration,
}

/// One command under way. Never dropped before it is answered, unless the runtime goes down.
struct Try {
    lease: LeaseId,
    terms: Terms,
    sent_at: Moment,
    answer: BoxFuture<Result<Acquired, BackendError>>,
}

/// The outcome of a try.
pub(super) enum Tried {
    Granted(Lease),
    /// Somebody else has it, or the backend has a passing trouble: worth another try.
    NotYet(Seen),
    /// No try will ever succeed.
    Never(Error),
}

impl Contention {
    pub(super) fn new(engine: Arc<Engine>, key: LockKey) -> Self {
        Self {
            engine,
            key,
            on_the_wire: None,
            hints: None,
            behind: 0,
            backoff: FIRST_BACKOFF,
        }
    }

    /// One try without waiting, where the backend can answer so. Otherwise it is on the wire.
    ///
    /// `sent_at` is a moment before this call; the lease is counted from it.
    pub(super) fn try_now(&mut self, terms: Terms, sent_at: Moment) -> Option<Tried> {
        let lease = self.engine.new_lease_id();
        let backend = &self.engine.backend;
        if let Some(immediate) = backend.immediate() {
            let answer = immediate.try_acquire(&self.key, lease, terms.ttl.get(), sent_at.into());
            return Some(self.tried(lease, terms, sent_at, sent_at, answer));
        }
        let answer = Arc::clone(backend).try_acquire(self.key.clone(), lease, terms.ttl.get());
        self.on_the_wire = Some(Try {
            lease,
            terms,
            sent_at,
            answer,
        });
        None
    }

    /// The outcome of the try on the wire.
    ///
    /// # Cancel safety
    ///
    /// The try stays with the contention and can be awaited again.
    async fn outcome(&mut self) -> Tried {
        poll_fn(|cx| self.poll_outcome(cx)).await.0
    }

    /// The outcome, and when it came.
    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<(Tried, Moment)> {
        let Some(on_the_wire) = &mut self.on_the_wire else {
            return Poll::Pending;
        };
        let answer = ready!(on_the_wire.answer.as_mut().poll(cx));
        let (lease, terms, sent_at) = (on_the_wire.lease, on_the_wire.terms, on_the_wire.sent_at);
        self.on_the_wire = None;
        let now = Moment::now();
        Poll::Ready((self.tried(lease, terms, sent_at, now, answer), now))
    }

    fn tried(
        &mut self,
        lease: LeaseId,
        terms: Terms,
        sent_at: Moment,
        now: Moment,
        answer: Result<Acquired, BackendError>,
    ) -> Tried {
        match answer {
            Ok(Acquired::Granted { counter }) => {
                self.backoff = FIRST_BACKOFF;
                let per_counter = self.engine.backend.tokens_per_counter();
                let granted =
                    Lease::new(LeaseNumber::of(lease), counter, per_counter, terms, sent_at);
                if now < granted.valid_until() {
                    return Tried::Granted(granted);
                }
                // The answer took as long as the lease: somebody else may hold the key by now.
                self.give_back(lease, terms);
                Tried::NotYet(Seen::Nothing)
            }
            Ok(Acquired::Busy { ttl }) => {
                self.backoff = FIRST_BACKOFF;
                Tried::NotYet(Seen::Busy(now + ttl))
            }
            Err(error) => {
                if error.may_have_taken_effect() {
                    self.give_back(lease, terms);
                }
                match error.kind() {
                    BackendErrorKind::Unavailable => Tried::NotYet(Seen::Trouble(error)),
                    BackendErrorKind::Misconfigured | BackendErrorKind::Conflict => {
                        Tried::Never(error.into())
                    }
                }
            }
        }
    }

    fn give_back(&self, lease: LeaseId, terms: Terms) {
        let releaser = &self.engine.releaser;
        releaser.give_back(&self.engine, self.key.clone(), lease, terms.ttl.get());
    }

    /// Goes on as the task that the lane asked for. So many other processes, which were just told that
    /// the key is free, have their turn first: the first to hear of a release mostly gets the key, and
    /// it is mostly the same.
    pub(super) fn spawn(mut self, bell: Bell, behind: u32) {
        self.behind = behind;
        let engine = Arc::clone(&self.engine);
        let task = Task {
            contention: self,
            bell,
            over: false,
        };
        engine.spawner.spawn(task.run());
    }

    /// Tries until somebody here has the key, or nobody wants it.
    ///
    /// Try, watch, try again, wait: a release between the first try and the subscription is seen
    /// by the second try, which the first hint of a new subscription brings about.
    async fn run(&mut self, bell: &Bell) {
        let engine = Arc::clone(&self.engine);
        let key = self.key.clone();
        if self.behind > 0 {
            // The first hint tells of the subscription.
            self.behind = self.behind.saturating_add(1);
            let soon = Moment::now() + jittered(POLITE);
            if !self.wait(bell, soon, false).await {
                return;
            }
        }
        loop {
            let tried = if self.on_the_wire.is_some() {
                self.outcome().await
            } else {
                let Some((terms, _)) = engine.lanes.with(&key, Lane::first_in_line) else {
                    return;
                };
                match self.try_now(terms, Moment::now()) {
                    Some(tried) => tried,
                    None => self.outcome().await,
                }
            };
            let (again_at, last_try) = match tried {
                Tried::Granted(lease) => {
                    let now = Moment::now();
                    let next = (engine.lanes).with(&key, |lane| lane.granted(&key, lease, now));
                    return engine.follow(&key, next);
                }
                Tried::Never(error) => {
                    let waiters = engine.lanes.with(&key, |lane| {
                        let waiters = lane.dismiss();
                        // Nobody is left, so this ends the contention.
                        let _nobody = lane.first_in_line();
                        waiters
                    });
                    refuse(waiters.into_iter().map(|waiter| (waiter, error.clone())));
                    return;
                }
                Tried::NotYet(seen) => {
                    let again_at = self.again_at(&seen);
                    // A backend in trouble is tried once a backoff step, whoever gives up when.
                    let last_try = matches!(seen, Seen::Busy(_));
                    let now = Moment::now();
                    let refused = engine.lanes.with(&key, |lane| lane.refused(seen, now));
                    refuse(refused);
                    (again_at, last_try)
                }
            };
            if !self.wait(bell, again_at, last_try).await {
                return;
            }
        }
    }

    /// When to try again if nothing happens: when the holder's lease has ended, or after the
    /// backstop.
    fn again_at(&mut self, seen: &Seen) -> Moment {
        let now = Moment::now();
        match seen {
            Seen::Busy(until) => {
                let expired = *until + Duration::from_millis(1);
                expired.min(now + jittered(BACKSTOP))
            }
            Seen::Nothing | Seen::Trouble(_) => {
                let pause = self.backoff;
                self.backoff = (pause * 2).min(BACKSTOP);
                now + jittered(pause)
            }
        }
    }

    /// Waits for a hint, the time, or the last moment of the first in the queue. False when
    /// nobody is left in it; then the lane is idle.
    async fn wait(&mut self, bell: &Bell, mut again_at: Moment, last_try: bool) -> bool {
        let asleep_since = Moment::now();
        let hints = (self.hints).get_or_insert_with(|| self.engine.backend.watch(&self.key));
        loop {
            let first = self.engine.lanes.with(&self.key, Lane::first_in_line);
            let Some((_, deadline)) = first else {
                return false;
            };
            let last_moment = deadline
                .map(|deadline| deadline.before(LAST_TRY))
                .filter(|at| last_try && *at > asleep_since);
            let wake_at = last_moment.map_or(again_at, |at| at.min(again_at));
            // All three may be dropped at any time: hints and rings are kept for the next round.
            tokio::select! {
                () = hints.next() => {
                    self.behind = self.behind.saturating_sub(1);
                    if self.behind == 0 {
                        return true;
                    }
                    // Unless those it is for are not there any more.
                    again_at = again_at.min(Moment::now() + jittered(POLITE_AGAIN));
                }
                () = sleep_until(wake_at.into()) => return true,
                () = bell.notified() => {}
            }
        }
    }
}

/// A contention as a task. Dropped with its runtime, or unstarted where there is none, it leaves the
/// lane to whoever comes next; what its try may have got runs out by itself.
struct Task {
    contention: Contention,
    bell: Bell,
    over: bool,
}

impl Task {
    async fn run(mut self) {
        self.contention.run(&self.bell).await;
        self.over = true;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let Contention { engine, key, .. } = &self.contention;
        let abandoned = engine.lanes.with(key, |lane| lane.abandon(&self.bell));
        // Those who wait in another runtime: nobody contends for them any more.
        let error = Error::new(ErrorKind::Unavailable).with_source(NoRuntime);
        refuse(abandoned.into_iter().map(|waiter| (waiter, error.clone())));
    }
}

/// The task that contended for the lock went down with its runtime.
#[derive(Debug, thiserror::Error)]
#[error("the runtime that waited for the lock was shut down")]
struct NoRuntime;

/// A contention inside the acquire that drives it. Dropped early, it goes on as a task.
pub(super) struct Driver {
    contention: Option<Contention>,
}

impl Driver {
    pub(super) fn new(contention: Contention) -> Self {
        Self {
            contention: Some(contention),
        }
    }

    /// The outcome of the try on the wire, and when it came.
    pub(super) fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<(Tried, Moment)> {
        match &mut self.contention {
            Some(contention) => contention.poll_outcome(cx),
            None => Poll::Pending,
        }
    }

    /// The caller answers for the lane from here.
    pub(super) fn disarm(mut self) {
        self.contention = None;
    }

    /// Joins the queue in its place at the front; a task goes on contending.
    pub(super) fn queue(mut self, waiter: Waiter, seen: Seen) {
        let Some(contention) = &self.contention else {
            return;
        };
        let engine = Arc::clone(&contention.engine);
        let mut refused = None;
        // Under the mutex, as in `close`: it finds us in the queue, or we see the flag.
        self.hand_over(|lane, on_the_wire| {
            if engine.is_closing() {
                refused = Some(waiter);
                lane.driver_leaves(on_the_wire, seen)
            } else {
                lane.driver_queues(waiter, seen)
            }
        });
        if let Some(waiter) = refused {
            refuse([(waiter, Error::new(ErrorKind::ShuttingDown))]);
        }
    }

    /// Leaves the lane to others, after a try that failed as `seen`.
    pub(super) fn leave(mut self, seen: Seen) {
        self.hand_over(|lane, on_the_wire| lane.driver_leaves(on_the_wire, seen));
    }

    fn hand_over(&mut self, event: impl FnOnce(&mut Lane, bool) -> Next) {
        let Some(contention) = self.contention.take() else {
            return;
        };
        let on_the_wire = contention.on_the_wire.is_some();
        let lanes = &contention.engine.lanes;
        let next = lanes.with(&contention.key, |lane| event(lane, on_the_wire));
        if let Next::Contend { bell, behind } = next {
            contention.spawn(bell, behind);
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.hand_over(|lane, on_the_wire| lane.driver_leaves(on_the_wire, Seen::Nothing));
    }
}
