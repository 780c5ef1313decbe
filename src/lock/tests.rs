//! Helpers of the engine's unit tests.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;

use super::clock::{Clock, Moment, Span};
use crate::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, Capabilities, Contended,
    ForceReleased, HintSender, Hints, Holder, KeepRequest, LeaseId, Memory, Mode, Release,
    Released, ReleasedOrKept, Renewal, Renewed,
};
use crate::lock::lane::{Effects, Seats, Waiter, Wakeup, Work};
use crate::lock::lease::{Claim, Deadline, Grant, LeaseNumber, Terms, Ticket};
use crate::observe::{Name, RequestSpan};
use crate::{LockKey, Owner};

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
pub(super) const TOKENS: u32 = 256;

pub(super) const RENEWED: Terms = Terms {
    ttl: Span::new(Duration::from_secs(30)),
    renewed: true,
    mode: Mode::Exclusive,
    limit: None,
    max_hold: Span::FOREVER,
    keep: None,
};
/// Terms whose renewal is due before the hand-off budget ends.
pub(super) const SHORT: Terms = Terms {
    ttl: Span::new(Duration::from_millis(120)),
    ..RENEWED
};
pub(super) const FIXED: Terms = fixed(20);

pub(super) const fn fixed(seconds: u64) -> Terms {
    Terms {
        ttl: Span::new(Duration::from_secs(seconds)),
        renewed: false,
        mode: Mode::Exclusive,
        limit: None,
        max_hold: Span::FOREVER,
        keep: None,
    }
}

pub(super) fn key() -> LockKey {
    LockKey::new("k")
}

pub(super) fn id(lease: u64) -> LeaseId {
    LeaseId::new(Uuid::from_u128(1), lease)
}

pub(super) fn number(lease: u64) -> LeaseNumber {
    LeaseNumber::of(id(lease))
}

pub(super) fn renewal(lease: u64, ttl: Duration) -> Renewal {
    Renewal::new(key(), id(lease), ttl)
}

/// Returns a claim without a deadline. Each ticket has its own owner.
pub(super) fn claim(ticket: Ticket, terms: Terms) -> Claim {
    Claim {
        ticket,
        hold: ticket,
        owner: Owner::new(
            Uuid::from_u128(2),
            NonZeroU64::new(ticket).expect("a ticket"),
        ),
        is_owner_fresh: false,
        terms,
        deadline: Deadline::Endless,
        of_several: false,
        served_at_shutdown: false,
        clock: Clock::Runtime,
        since: Moment::FIRST,
        name: Name::NONE,
        span: RequestSpan::NONE,
    }
}

/// Returns a waiter for the lane, and for its acquire.
pub(super) fn waiter(claim: Claim) -> (Arc<Waiter>, Arc<Waiter>) {
    let waiter = Waiter::new(claim, Seats::new(1).take().expect("a seat"));
    (Arc::clone(&waiter), waiter)
}

/// Returns the grant that must be the only effect.
#[track_caller]
pub(super) fn granted(effects: Effects) -> Arc<Grant> {
    let Effects {
        mut grants,
        rejections,
        losses,
        reports: _,
        deadlines: _,
        work,
        outlive_lane: _,
        left_attempt: _,
        now: _,
    } = effects;
    assert!(rejections.is_empty() && losses.is_empty() && work.is_empty());
    assert_eq!(grants.len(), 1);
    grants.remove(0).1.grant
}

/// Returns the only work.
#[track_caller]
pub(super) fn work(effects: &mut Effects) -> Work {
    assert_eq!(effects.work.len(), 1, "{effects:?}");
    effects.work.remove(0)
}

/// Asserts that the only work is an acquire loop.
#[track_caller]
pub(super) fn contends(effects: &mut Effects) -> Wakeup {
    match work(effects) {
        Work::Contend(wakeup, _) => wakeup,
        other => panic!("{other:?}"),
    }
}

/// Asserts that the only work is a return.
#[track_caller]
pub(super) fn returns(effects: &mut Effects) {
    match work(effects) {
        Work::Return => {}
        other => panic!("{other:?}"),
    }
}

/// A backend whose replies take time, so the engine serves it by tasks.
#[derive(Clone, Default)]
pub(super) struct Slow {
    pub(super) memory: Memory,
    /// The number of attempts so far.
    pub(super) attempts: Arc<AtomicUsize>,
    pub(super) attempt_takes: Duration,
    pub(super) release_takes: Duration,
    /// Whether each attempt fails.
    pub(super) is_down: bool,
    /// Whether waiters enter the queue of the store.
    pub(super) has_queue: bool,
    /// Whether no subscription takes effect.
    pub(super) is_silent: bool,
    /// Whether the place that a release enters listens.
    pub(super) listens: bool,
    /// Whether the store reaches no waiter, also if it listens.
    pub(super) reaches_none: bool,
    /// Whether leases are kept, without fresh counters.
    pub(super) keeps: bool,
    /// Whether the replies to the commands of waiters are lost.
    pub(super) loses_waiters: bool,
    /// Whether the reply to each `release_or_keep` is lost.
    pub(super) loses_keep: bool,
    /// The number of a lease whose release fails.
    pub(super) refuses_release_of: Option<u64>,
    /// The senders of the recoveries, one per manager.
    pub(super) recoveries: Arc<Mutex<Vec<HintSender>>>,
}

fn down() -> BackendError {
    BackendError::refused(BackendErrorKind::Unavailable, "down")
}

fn lost() -> BackendError {
    BackendError::unknown("reply lost")
}

impl Backend for Slow {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        sleep(self.attempt_takes).await;
        if self.is_down {
            return Err(down());
        }
        self.memory.try_acquire(request).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Contended, BackendError> {
        if self.loses_waiters {
            return Err(lost());
        }
        if self.has_queue {
            self.attempts.fetch_add(1, Ordering::SeqCst);
            return Ok(match self.memory.contend(request).await? {
                Contended::Waiting {
                    ttl,
                    queued: Some(queued),
                    ..
                } if self.reaches_none => Contended::polling(ttl, queued, 100 * MS),
                contended => contended,
            });
        }
        let request = AcquireRequest::new(request.key.clone(), request.lease, request.ttl);
        Ok(Contended::of(self.try_acquire(&request).await?))
    }

    async fn leave(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        if self.loses_waiters {
            return leases.iter().map(|_| Err(lost())).collect();
        }
        match self.has_queue {
            true => self.memory.leave(leases).await,
            false => self.release(leases).await,
        }
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        self.memory.renew(renewals).await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        sleep(self.release_takes).await;
        let mut outcomes = self.memory.release(leases).await;
        for (release, outcome) in leases.iter().zip(&mut outcomes) {
            if self.refuses_release_of == Some(release.lease.number()) {
                *outcome = Err(down());
            }
        }
        outcomes
    }

    async fn release_or_keep(
        &self,
        leases: &[KeepRequest],
    ) -> Vec<Result<ReleasedOrKept, BackendError>> {
        if !self.release_takes.is_zero() {
            sleep(self.release_takes).await;
        }
        if self.keeps {
            return leases
                .iter()
                .map(|_| Ok(ReleasedOrKept::kept(None)))
                .collect();
        }
        let outcomes: Vec<_> = if self.has_queue {
            let outcomes = self.memory.release_or_keep(leases).await.into_iter();
            let listening = outcomes.map(|it| it.map(|it| it.with_listening(self.listens)));
            listening.collect()
        } else {
            let releases = leases
                .iter()
                .map(|it| Release::new(it.key.clone(), it.lease));
            let releases: Vec<_> = releases.collect();
            let outcomes = self.memory.release(&releases).await.into_iter();
            let passed =
                outcomes.map(|it| it.map(|released| ReleasedOrKept::passed(released, 0, false)));
            passed.collect()
        };
        match self.loses_keep {
            true => leases.iter().map(|_| Err(lost())).collect(),
            false => outcomes,
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        if !self.is_silent {
            return self.memory.watch(key, manager);
        }
        let (_, hints) = Hints::channel();
        hints
    }

    fn recoveries(&self) -> Hints {
        let (sender, recoveries) = Hints::channel();
        self.recoveries.lock().expect("no panic").push(sender);
        recoveries
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.memory.inspect(key).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        self.memory.force_release(key, holder).await
    }
}
