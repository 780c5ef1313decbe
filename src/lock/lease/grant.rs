//! One fresh grant of one key: its token, its deadlines and its loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, Ordering};
use std::task::Waker;

use smallvec::SmallVec;

use super::claim::{Claim, HoldId, Keep};
use crate::backend::Mode;
use crate::lock::clock::{AtomicMoment, Clock, Moment, Span};
use crate::mutex::{Mutex, replace_waker};
use crate::observe::{LostReason, Name, RequestSpan, Via};
use crate::{FencingToken, LockKey, Owner};

/// The state that the lane shares with all guards of one owner on one key.
///
/// Only the lane writes, under its mutex. The exceptions are `settle`, by which the acquire picks up the grant, and the
/// wakers of loss futures. `is_held` reads the clock at each call, so it is correct even if no task of this process has
/// run for a while.
#[derive(Debug)]
pub(crate) struct Grant {
    key: LockKey,
    owner: Owner,
    /// The hold of the acquire that the grant was made for.
    pub(crate) first_hold: HoldId,
    token: AtomicI64,
    clock: Clock,
    pub(crate) granted_at: Moment,
    /// How long the acquire of the first hold waited.
    pub(crate) waited: Span,
    via: Via,
    mode: Mode,
    /// For how long the lease is kept after the last hold.
    pub(crate) keep: Option<Keep>,
    /// Whether a downgrade was sent that the backend has not rejected.
    is_downgraded: AtomicBool,
    pub(crate) name: Name,
    /// The span of the acquire of the first hold.
    pub(crate) span: RequestSpan,
    /// The end of the lease, which only a renewal moves.
    lease_until: AtomicMoment,
    /// The end that no renewal moves: that of the longest hold or of a fixed lease.
    limit: AtomicMoment,
    holds: AtomicU32,
    /// Whether the acquire has picked up the grant, or was too late.
    is_settled: AtomicBool,
    /// Whether the lease has a fixed end, and no renewal is due.
    lease_is_fixed: AtomicBool,
    /// Whether the limit is the end of a fixed lease, and not that of the longest hold.
    limit_is_lease: AtomicBool,
    /// Why the grant has ended: the number of the reason, or [`NOT_LOST`].
    loss: AtomicU8,
    /// Boxed because mostly no loss future waits.
    listeners: Mutex<Option<Box<Listeners>>>,
}

/// The wakers of the loss futures, each with its id. Mostly there is one.
#[derive(Debug, Default)]
struct Listeners {
    last_id: u64,
    wakers: SmallVec<[(u64, Option<Waker>); 1]>,
}

const NOT_LOST: u8 = u8::MAX;

impl Grant {
    /// Creates a grant with one hold.
    pub(crate) fn new(
        key: LockKey,
        claim: &Claim,
        via: Via,
        token: FencingToken,
        lease_until: Moment,
        now: Moment,
    ) -> Arc<Self> {
        Arc::new(Self {
            key,
            owner: claim.owner,
            first_hold: claim.hold,
            token: AtomicI64::new(token.get()),
            clock: claim.clock,
            granted_at: now,
            waited: now.span_since(claim.since),
            via,
            mode: claim.terms.mode,
            keep: claim.terms.keep,
            is_downgraded: AtomicBool::new(false),
            name: claim.name,
            span: claim.span,
            lease_until: AtomicMoment::new(lease_until),
            limit: AtomicMoment::new(now + claim.terms.max_hold),
            holds: AtomicU32::new(1),
            is_settled: AtomicBool::new(false),
            lease_is_fixed: AtomicBool::new(!claim.terms.renewed),
            limit_is_lease: AtomicBool::new(false),
            loss: AtomicU8::new(NOT_LOST),
            listeners: Mutex::default(),
        })
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.key
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) fn token(&self) -> FencingToken {
        FencingToken::of(self.token.load(Ordering::Acquire))
    }

    /// Returns the present moment of its manager.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns the weakest mode that the lock may have. During a downgrade, it may be shared already.
    pub(crate) fn mode(&self) -> Mode {
        match self.is_downgraded.load(Ordering::Acquire) {
            true => Mode::Shared,
            false => self.mode,
        }
    }

    /// Records that a downgrade was sent, or that the backend has rejected it. Called under the mutex of the lane, as the
    /// next one.
    pub(crate) fn set_downgraded(&self, is_downgraded: bool) {
        self.is_downgraded.store(is_downgraded, Ordering::Release);
    }

    pub(crate) fn set_token(&self, token: FencingToken) {
        self.token.store(token.get(), Ordering::Release);
    }

    /// Returns how a hold was granted.
    pub(crate) fn via_of(&self, hold: HoldId) -> Via {
        match hold == self.first_hold {
            true => self.via,
            false => Via::Reentrant,
        }
    }

    /// Returns the end of the lease, or the limit if that is earlier.
    #[inline]
    pub(crate) fn valid_until(&self) -> Moment {
        self.lease_until.load().min(self.limit.load())
    }

    /// Moves the end of the lease after a renewal. Called under the mutex of the lane.
    pub(crate) fn extend(&self, lease_until: Moment) {
        self.lease_until.no_earlier_than(lease_until);
    }

    /// Returns the end that no renewal moves.
    pub(crate) fn limit(&self) -> Moment {
        self.limit.load()
    }

    /// Called under the mutex of the lane.
    pub(crate) fn set_limit(&self, limit: Moment) {
        self.limit.store(limit);
    }

    /// The lease is renewed until the limit, which is the end of a fixed lease or that of the longest hold.
    /// Called under the mutex of the lane.
    pub(crate) fn renewed_until(&self, limit: Moment, limit_is_lease: bool) {
        self.lease_is_fixed.store(false, Ordering::Release);
        self.limit_is_lease.store(limit_is_lease, Ordering::Release);
        self.set_limit(limit);
    }

    pub(crate) fn holds(&self) -> u32 {
        self.holds.load(Ordering::Acquire)
    }

    /// Called under the mutex of the lane.
    pub(crate) fn set_holds(&self, holds: u32) {
        self.holds.store(holds, Ordering::Release);
    }

    pub(crate) fn is_offered(&self) -> bool {
        !self.is_settled.load(Ordering::Acquire)
    }

    /// Gives the grant to its acquire, or withdraws it from there. Returns `true` on the first call.
    pub(crate) fn settle(&self) -> bool {
        !self.is_settled.swap(true, Ordering::AcqRel)
    }

    #[inline]
    pub(crate) fn is_held(&self, now: Moment) -> bool {
        !self.is_marked_lost() && now < self.valid_until()
    }

    #[inline]
    pub(crate) fn is_marked_lost(&self) -> bool {
        self.loss.load(Ordering::Acquire) != NOT_LOST
    }

    /// Ends the grant for all of its guards. Returns `true` on the first call.
    ///
    /// Called under the mutex of the lane, so that no other grant of the key can begin earlier. The caller
    /// wakes the loss futures after the mutex is free.
    pub(crate) fn lose(&self, reason: LostReason) -> bool {
        let (held, lost) = (NOT_LOST, reason as u8);
        let loss = (self.loss).compare_exchange(held, lost, Ordering::AcqRel, Ordering::Acquire);
        loss.is_ok()
    }

    /// Returns why the grant is lost at `now`, or `None` if it is not.
    pub(crate) fn lost_reason(&self, now: Moment) -> Option<LostReason> {
        let reason = usize::from(self.loss.load(Ordering::Acquire));
        let has_ended = || self.holds() > 0 && now >= self.valid_until();
        let by_clock = || has_ended().then(|| self.reason_by_clock());
        LostReason::ALL.get(reason).copied().or_else(by_clock)
    }

    /// Returns why the grant is lost at its deadline.
    pub(crate) fn reason_by_clock(&self) -> LostReason {
        let limit_is_first = self.limit.load() <= self.lease_until.load();
        let fixed = match limit_is_first {
            true => &self.limit_is_lease,
            false => &self.lease_is_fixed,
        };
        match (fixed.load(Ordering::Acquire), limit_is_first) {
            (true, _) => LostReason::LeaseEnded,
            (false, true) => LostReason::MaxHold,
            (false, false) => LostReason::Expired,
        }
    }

    /// Wakes the loss futures, which stay registered. Must not be called under a mutex: a waker runs code
    /// of the executor.
    pub(crate) fn wake_listeners(&self) {
        let listeners = self.listeners.lock();
        let wakers = listeners.iter().flat_map(|it| &it.wakers);
        let wakers: Vec<_> = wakers.filter_map(|(_, waker)| waker.clone()).collect();
        drop(listeners);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Registers `waker` under the id in `id`, or under a new one.
    pub(crate) fn listen(&self, id: &mut Option<u64>, waker: &Waker) {
        let mut listeners = self.listeners.lock();
        let Listeners { last_id, wakers } = &mut **listeners.get_or_insert_default();
        let replaced = match wakers.iter_mut().find(|(known, _)| Some(*known) == *id) {
            Some((_, old)) => replace_waker(old, waker),
            None => {
                *last_id += 1;
                wakers.push((*last_id, Some(waker.clone())));
                *id = Some(*last_id);
                None
            }
        };
        drop(listeners);
        drop(replaced);
    }

    pub(crate) fn unlisten(&self, id: u64) {
        let mut listeners = self.listeners.lock();
        let removed = listeners.as_mut().and_then(|it| {
            let at = it.wakers.iter().position(|(known, _)| *known == id)?;
            Some(it.wakers.swap_remove(at))
        });
        drop(listeners);
        drop(removed);
    }
}

#[cfg(test)]
mod tests;
