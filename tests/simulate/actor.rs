//! One actor: a caller of the engine that goes through the steps of its plan.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep, sleep_until};
use tower_lock::manager::AcquireFuture;
use tower_lock::{Error, LockGuard, LockKeys, LockManager, Owner};

use crate::environment::Environment;
use crate::executor::Origin;
use crate::plan::{self, Acquire, Fate, Release, Step, Wait};
use crate::time::{MS, Time, duration};
use crate::wire::key;

pub struct Actor {
    pub environment: Arc<Environment>,
    pub locks: LockManager,
    /// The owners that actors of this manager share.
    pub owners: Vec<Owner>,
    pub manager: usize,
    pub runtime: usize,
}

fn ms(time: plan::Ms) -> Time {
    MS * i64::try_from(time).unwrap()
}

impl Actor {
    pub async fn run(self, steps: Vec<Step>) {
        let mut guards: Vec<Kept> = Vec::new();
        for step in steps {
            match step {
                Step::Pause(pause) => sleep(duration(ms(pause))).await,
                Step::Acquire(acquire) => {
                    let owner = self.owner(&acquire, guards.last());
                    guards.extend(self.acquire(&acquire, owner).await);
                }
                Step::Release(how) => {
                    if let Some(guard) = guards.pop() {
                        guard.release(how).await;
                    }
                }
                Step::Downgrade(polls) => {
                    if let Some(guard) = guards.last_mut() {
                        guard.downgrade(polls).await;
                    }
                }
                Step::Block(pause) => self.block(ms(pause)).await,
                Step::Inspect(n) => {
                    let holder = self.locks.inspect(key(n)).await;
                    self.environment.trace(|| {
                        let waiters = holder.map(|info| info.map(|info| info.waiters));
                        format!("m{} inspects k{n}: {waiters:?} waiters", self.manager)
                    });
                }
                Step::Force(n) => {
                    let start = self.environment.now();
                    let forced = self.locks.force_release(key(n)).await;
                    let end = self.environment.now();
                    self.environment.seen.lock().unwrap().forced.insert(n, end);
                    if matches!(forced, Ok(true)) {
                        self.environment.check_forced(self.manager, n, start);
                    }
                    (self.environment)
                        .trace(|| format!("m{} forces k{n}: {forced:?}", self.manager));
                }
                Step::Shutdown(grace) => {
                    self.environment.seen.lock().unwrap().closing[self.manager] = true;
                    self.environment
                        .trace(|| format!("m{} shuts down", self.manager));
                    let left = self.locks.shutdown(duration(ms(grace))).await;
                    (self.environment)
                        .trace(|| format!("m{} is shut down: {left:?}", self.manager));
                }
            }
        }
        // In the order in which a caller's variables are dropped.
        while guards.pop().is_some() {}
    }

    fn owner(&self, acquire: &Acquire, latest: Option<&Kept>) -> Option<Owner> {
        match acquire.owner {
            plan::Owner::Fresh => None,
            plan::Owner::Shared(n) => Some(self.owners[n % self.owners.len()]),
            plan::Owner::Nested => latest.and_then(Kept::owner),
        }
    }

    /// Returns when the runtime has been blocked for so long.
    async fn block(&self, pause: Time) {
        let until = self.environment.awake() + pause;
        let runtime = self.environment.runtime(self.manager, self.runtime);
        (self.environment).trace(|| {
            let (manager, runtime) = (self.manager, self.runtime);
            format!("m{manager}r{runtime} is blocked for {} ms", pause / MS)
        });
        runtime.pause(until);
        let mut first = true;
        // The runtime polls nothing before it resumes.
        poll_fn(|context| {
            if std::mem::take(&mut first) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    async fn acquire(&self, acquire: &Acquire, owner: Option<Owner>) -> Option<Kept> {
        let environment = &self.environment;
        let keys = acquire.keys.iter().fold(LockKeys::new(), |keys, n| {
            match acquire.shared.contains(n) {
                true => keys.shared(key(*n)),
                false => keys.exclusive(key(*n)),
            }
        });
        let mut request = self.locks.acquire(keys);
        if let Some(limit) = acquire.permits {
            request = request.permits(limit.into());
        }
        request = match acquire.wait {
            Wait::Never => request.no_wait(),
            Wait::For(wait) => request.wait(duration(ms(wait))),
            Wait::Forever => request.wait_forever(),
        };
        if let Some(lease) = acquire.lease {
            request = request.lease(duration(ms(lease)));
        }
        if let Some(max_hold) = acquire.max_hold {
            request = request.max_hold(duration(ms(max_hold)));
        }
        if let Some(owner) = owner {
            request = request.owner(owner);
        }
        let waiting = Waiting {
            environment: Arc::clone(environment),
            id: environment.acquire_starts(self.manager, self.runtime, acquire, owner),
        };
        let attention = Attention {
            waiting: &waiting,
            request: Box::pin(request.into_future()),
            fate: acquire.fate,
            polls: 0,
            timer: match acquire.fate {
                Fate::DroppedAfter(pause) => Some(Box::pin(sleep(duration(ms(pause))))),
                _ => None,
            },
            stalled: false,
        };
        let outcome = attention.await;
        match outcome {
            Some(Ok(guard)) => {
                let waiter = environment.acquire_ends(waiting.id, || "is served".to_owned())?;
                let id = environment.granted(&waiter, acquire, &guard);
                self.listen(id, &guard);
                Some(Kept {
                    environment: Arc::clone(environment),
                    id,
                    guard: Some(guard),
                })
            }
            Some(Err(error)) => {
                let kind = error.kind();
                let waiter = environment.acquire_ends(waiting.id, || format!("fails: {kind:?}"))?;
                environment.check_refusal(&waiter, kind);
                None
            }
            None => {
                environment.acquire_ends(waiting.id, || "is dropped".to_owned());
                None
            }
        }
    }

    fn listen(&self, id: u64, guard: &LockGuard) {
        let environment = Arc::clone(&self.environment);
        let held = guard.held();
        let runtime = self.environment.runtime(self.manager, self.runtime);
        let listener = async move {
            held.lost().await;
            environment.loss_reported(id);
        };
        runtime.start(Box::pin(listener), Origin::Simulation);
    }
}

/// A pending acquire, as the simulation sees it.
struct Waiting {
    environment: Arc<Environment>,
    id: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.environment
            .acquire_ends(self.id, || "is dropped with its caller".to_owned());
    }
}

/// Polls an acquire as its fate says. `None` if it was dropped.
struct Attention<'a> {
    // Dropped before `waiting`, as all fields are: it is borrowed.
    request: Pin<Box<AcquireFuture>>,
    waiting: &'a Waiting,
    fate: Fate,
    polls: u32,
    timer: Option<Pin<Box<Sleep>>>,
    stalled: bool,
}

impl Future for Attention<'_> {
    type Output = Option<Result<LockGuard, Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.stalled {
            let Some(timer) = &mut this.timer else {
                return Poll::Pending;
            };
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            this.stalled = false;
            this.timer = None;
            this.waiting.environment.acquire_goes_on(this.waiting.id);
        }
        this.polls += 1;
        if let Poll::Ready(outcome) = this.request.as_mut().poll(context) {
            return Poll::Ready(Some(outcome));
        }
        match this.fate {
            Fate::DroppedAfterPolls(polls) if this.polls >= polls => return Poll::Ready(None),
            Fate::DroppedAfter(_) => {
                if let Some(timer) = &mut this.timer
                    && timer.as_mut().poll(context).is_ready()
                {
                    return Poll::Ready(None);
                }
            }
            Fate::Stalled { polls, pause } if this.polls == polls => {
                let environment = &this.waiting.environment;
                let until = environment.instant(environment.awake() + ms(pause));
                let mut timer = Box::pin(sleep_until(until));
                // Registers the waker.
                let _pending = timer.as_mut().poll(context);
                this.timer = Some(timer);
                this.stalled = true;
                environment.acquire_stalls(this.waiting.id);
            }
            Fate::Forgotten { polls } if this.polls == polls => {
                this.stalled = true;
                this.waiting.environment.acquire_stalls(this.waiting.id);
            }
            _ => {}
        }
        Poll::Pending
    }
}

/// A guard whose release the simulation sees.
struct Kept {
    environment: Arc<Environment>,
    id: u64,
    guard: Option<LockGuard>,
}

impl Kept {
    fn owner(&self) -> Option<Owner> {
        self.guard.as_ref().map(|guard| guard.owner())
    }

    async fn downgrade(&mut self, polls: u32) {
        let Some(guard) = &mut self.guard else {
            return;
        };
        self.environment.downgrade_starts(self.id);
        let mut outcome = None;
        {
            let mut dropped = Box::pin(guard.downgrade());
            let mut left = polls;
            poll_fn(|context| {
                left -= 1;
                match dropped.as_mut().poll(context) {
                    Poll::Ready(result) => outcome = Some(result),
                    Poll::Pending if left > 0 => return Poll::Pending,
                    Poll::Pending => {}
                }
                Poll::Ready(())
            })
            .await;
        }
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => guard.downgrade().await,
        };
        let outcome = outcome.map_err(|error| error.kind());
        self.environment.downgrade_ends(self.id, outcome);
    }

    async fn release(mut self, how: Release) {
        let Some(guard) = self.guard.take() else {
            return;
        };
        let (environment, id) = (Arc::clone(&self.environment), self.id);
        let polls = match how {
            Release::Dropped => {
                self.guard = Some(guard);
                return;
            }
            Release::DroppedOutside => {
                environment.released(id, "is dropped outside of a runtime");
                let outside = tower_lock::test_util::leave();
                drop(guard);
                drop(outside);
                return;
            }
            Release::Awaited => u32::MAX,
            Release::AwaitedForPolls(polls) => polls,
        };
        let release = Ending {
            id: environment.release_starts(id),
            environment: Arc::clone(&environment),
        };
        environment.released(id, "is released");
        let mut future = Box::pin(guard.release());
        let mut left = polls;
        let outcome = poll_fn(|context| {
            if let Poll::Ready(outcome) = future.as_mut().poll(context) {
                return Poll::Ready(Some(outcome));
            }
            left -= 1;
            if left == 0 {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await;
        let outcome = outcome.map(|it| it.map_err(|error| error.kind()));
        if let Some(outcome) = &outcome {
            release.environment.release_replied(release.id, outcome);
        }
        let how = format!("ends: {outcome:?}");
        release.environment.release_ends(release.id, &how);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.environment.released(self.id, "is dropped");
            drop(guard);
        }
    }
}

/// A release that is awaited, as the simulation sees it.
struct Ending {
    environment: Arc<Environment>,
    id: u64,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.environment.release_ends(self.id, "is over");
    }
}
