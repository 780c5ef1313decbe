//! One fresh grant of one key: its token, its clock, and the news of its loss.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep_until};

use super::moment::{AtomicMoment, Moment, Span};
use super::observe;
use crate::{FencingToken, LockKey, Owner};

/// Shared by the lane and by all guards of one owner on one key.
///
/// The lane writes, under its mutex; guards only read. `is_held` compares with the clock at each
/// call, so it is right also when no task of this process has run for a while.
#[derive(Debug)]
pub(super) struct Grant {
    key: LockKey,
    owner: Owner,
    token: FencingToken,
    granted_at: Moment,
    /// From when the lease cannot be trusted. Moves only with a renewal.
    valid_until: AtomicMoment,
    /// The end of the longest hold, that no renewal moves.
    hold_until: Moment,
    holds: AtomicU32,
    lost: AtomicBool,
    listeners: Mutex<Listeners>,
}

/// Who is told of the loss. The first one, usually the only one, needs no allocation.
#[derive(Debug, Default)]
struct Listeners {
    first: Option<Waker>,
    more: Option<Box<MoreListeners>>,
}

#[derive(Debug, Default)]
struct MoreListeners {
    last_id: u64,
    wakers: Vec<(u64, Waker)>,
}

/// The number of the first listener.
const FIRST: u64 = 0;

impl Grant {
    /// A grant that is held once.
    pub(super) fn new(
        key: LockKey,
        owner: Owner,
        token: FencingToken,
        now: Moment,
        valid_until: Moment,
        max_hold: Span,
    ) -> Arc<Self> {
        Arc::new(Self {
            key,
            owner,
            token,
            granted_at: now,
            valid_until: AtomicMoment::new(valid_until),
            hold_until: now + max_hold.get(),
            holds: AtomicU32::new(1),
            lost: AtomicBool::new(false),
            listeners: Mutex::default(),
        })
    }

    pub(super) fn key(&self) -> &LockKey {
        &self.key
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner
    }

    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    pub(super) fn granted_at(&self) -> Moment {
        self.granted_at
    }

    /// The end of the lease, or of the longest hold if that comes first.
    pub(super) fn valid_until(&self) -> Moment {
        self.valid_until.load().min(self.hold_until)
    }

    /// Follows a renewal of the lease.
    pub(super) fn extend(&self, valid_until: Moment) {
        self.valid_until.no_earlier_than(valid_until);
    }

    pub(super) fn holds(&self) -> u32 {
        self.holds.load(Ordering::Acquire)
    }

    /// Changed under the mutex of the lane only.
    pub(super) fn set_holds(&self, holds: u32) {
        self.holds.store(holds, Ordering::Release);
    }

    pub(super) fn is_held(&self, now: Moment) -> bool {
        !self.lost.load(Ordering::Acquire) && now < self.valid_until()
    }

    /// Whether it went before it was given back.
    fn is_lost(&self, now: Moment) -> bool {
        self.lost.load(Ordering::Acquire) || self.holds() > 0 && now >= self.valid_until()
    }

    /// Tells everybody who listens. To be called without a mutex held: it wakes tasks.
    pub(super) fn lose(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            observe::lost();
        }
        let listeners = std::mem::take(&mut *self.listeners());
        let more = listeners.more.into_iter().flat_map(|more| more.wakers);
        let more = more.map(|(_, waker)| waker);
        listeners
            .first
            .into_iter()
            .chain(more)
            .for_each(Waker::wake);
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, id: &mut Option<u64>, waker: &Waker) {
        let listeners = &mut *self.listeners();
        if let Some(known) = *id
            && let Some(old) = listeners.waker(known)
        {
            old.clone_from(waker);
        } else if listeners.first.is_none() {
            listeners.first = Some(waker.clone());
            *id = Some(FIRST);
        } else {
            let more = listeners.more.get_or_insert_default();
            more.last_id += 1;
            more.wakers.push((more.last_id, waker.clone()));
            *id = Some(more.last_id);
        }
    }

    fn unlisten(&self, id: u64) {
        let mut listeners = self.listeners();
        if id == FIRST {
            listeners.first = None;
        } else if let Some(more) = &mut listeners.more {
            more.wakers.retain(|(listener, _)| *listener != id);
        }
    }
}

impl Listeners {
    fn waker(&mut self, id: u64) -> Option<&mut Waker> {
        if id == FIRST {
            return self.first.as_mut();
        }
        let more = self.more.as_mut()?;
        let mut wakers = more.wakers.iter_mut();
        wakers.find_map(|(listener, waker)| (*listener == id).then_some(waker))
    }
}

/// The grants of one guard: one, or as many as it has keys, in the order of the keys.
#[derive(Debug, Clone)]
pub(super) enum Grants {
    One(Arc<Grant>),
    Many(Arc<[Arc<Grant>]>),
}

impl Grants {
    pub(super) fn as_slice(&self) -> &[Arc<Grant>] {
        match self {
            Self::One(grant) => std::slice::from_ref(grant),
            Self::Many(grants) => grants,
        }
    }

    pub(super) fn first(&self) -> &Grant {
        match self {
            Self::One(grant) => grant,
            Self::Many(grants) => &grants[0],
        }
    }

    pub(super) fn are_held(&self) -> bool {
        let now = Moment::now();
        self.as_slice().iter().all(|grant| grant.is_held(now))
    }

    fn are_lost(&self) -> bool {
        let now = Moment::now();
        self.as_slice().iter().any(|grant| grant.is_lost(now))
    }

    pub(super) fn valid_until(&self) -> Moment {
        let ends = self.as_slice().iter().map(|grant| grant.valid_until());
        ends.min().unwrap_or_else(Moment::now)
    }
}

pin_project! {
    /// Waits until a guard is lost: its renewal was refused, its lease passed, its longest hold
    /// was reached, or it was forced open.
    ///
    /// Resolves before the lease can expire in the backend, and at once if the guard is lost
    /// already. A guard that was given back in good order is not lost: then this never resolves.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and created anew at any time; no loss is missed.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Lost {
        grants: Grants,
        // One per grant; `more` has those behind the first.
        first: Option<u64>,
        more: Vec<Option<u64>>,
        #[pin]
        deadline: Sleep,
    }

    impl PinnedDrop for Lost {
        fn drop(this: Pin<&mut Self>) {
            let ids = std::iter::once(&this.first).chain(&this.more);
            for (grant, id) in this.grants.as_slice().iter().zip(ids) {
                if let Some(id) = id {
                    grant.unlisten(*id);
                }
            }
        }
    }
}

impl Lost {
    pub(super) fn new(grants: Grants) -> Self {
        let more = vec![None; grants.as_slice().len() - 1];
        let deadline = sleep_until(grants.valid_until().into());
        Self {
            grants,
            first: None,
            more,
            deadline,
        }
    }
}

impl Future for Lost {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        // Listen first, then look: a loss in between is seen either way.
        let ids = std::iter::once(&mut *this.first).chain(this.more.iter_mut());
        for (grant, id) in this.grants.as_slice().iter().zip(ids) {
            grant.listen(id, cx.waker());
        }
        loop {
            if this.grants.are_lost() {
                return Poll::Ready(());
            }
            if this.deadline.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // A renewal moved the end since the timer was set, or the guard was given back.
            let valid_until = this.grants.valid_until();
            if valid_until <= Moment::now() {
                return Poll::Pending;
            }
            this.deadline.as_mut().reset(valid_until.into());
        }
    }
}
