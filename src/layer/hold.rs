//! The locks of one request, while its handler runs and while its body streams.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;

use pin_project_lite::pin_project;

use super::config::{OnLost, Options};
use super::rejection::{LockRejection, RequestInfo};
use super::scope::Watch;
use crate::{LockGuard, Lost};

/// The locks of one request: those of its scope, and the layer's own.
///
/// The order of the fields is the order of their drops.
pub(super) struct Locks {
    pub(super) watch: Watch,
    /// `None` if the request passes unlocked.
    pub(super) guard: Option<LockGuard>,
}

impl Locks {
    /// Returns `true` if nothing is held, and nothing can be.
    pub(super) fn are_unused(&mut self) -> bool {
        self.guard.is_none() && self.watch.is_unused()
    }

    /// Returns the rejection of the request, which has lost a lock.
    pub(super) fn rejection(&self, request_info: RequestInfo) -> LockRejection {
        let own = self.guard.as_ref().and_then(|guard| guard.lost_reason());
        let reason = own.or_else(|| self.watch.lost_reason());
        LockRejection::lost(reason, request_info)
    }

    /// Drops the locks, or returns them if one is lost by the clock, which is mostly read once.
    pub(super) fn drop_unless_lost(mut self, on_lost: OnLost) -> Result<(), Self> {
        let is_alone = on_lost == OnLost::Abort && self.watch.is_unused();
        if let Some(guard) = self.guard.take_if(|_| is_alone) {
            let lost = guard.drop_unless_lost().map_err(Some);
            return lost.map_err(|guard| Self { guard, ..self });
        }
        match self.are_lost(on_lost) {
            true => Err(self),
            false => Ok(()),
        }
    }

    /// Returns `true` if a lock is lost by the clock: a poll may take longer than a lease.
    pub(super) fn are_lost(&self, on_lost: OnLost) -> bool {
        on_lost == OnLost::Abort
            && (self.guard.as_ref().is_some_and(|guard| guard.is_lost()) || self.watch.is_lost())
    }
}

pin_project! {
    /// The locks of one request, and the future of their loss.
    pub(super) struct Hold {
        // Created when the handler does not respond at its first poll. `None` to continue under a lost lock.
        #[pin]
        lost: Option<Lost>,
        // Taken when the handler has responded.
        locks: Option<Locks>,
        on_lost: OnLost,
    }
}

impl Hold {
    pub(super) fn new(locks: Locks, options: &Options) -> Self {
        Self {
            lost: None,
            locks: Some(locks),
            on_lost: options.on_lost(),
        }
    }

    /// A body may be polled at any later time, so its locks are watched from the start.
    pub(super) fn of_body(mut locks: Locks, on_lost: OnLost) -> Self {
        locks.watch.look_first();
        let guard = locks.guard.as_ref();
        Self {
            lost: guard
                .filter(|_| on_lost == OnLost::Abort)
                .map(|guard| guard.loss()),
            locks: Some(locks),
            on_lost,
        }
    }

    /// Returns `true` if a lock is lost. Called before each poll of the handler or the body, which must not
    /// take another step under a lost lock.
    pub(super) fn lost_before(self: Pin<&mut Self>, cx: &mut Context<'_>) -> bool {
        let this = self.project();
        let own = this.lost.as_pin_mut();
        let locks = this.locks.as_mut();
        own.is_some_and(|lost| lost.poll(cx).is_ready())
            || locks.is_some_and(|locks| locks.watch.lost_before(cx))
    }

    /// Returns `true` if a lock is lost. Called after each poll that returned pending.
    pub(super) fn lost_after(self: Pin<&mut Self>, cx: &mut Context<'_>) -> bool {
        let mut this = self.project();
        let Some(locks) = this.locks else {
            return false;
        };
        if let Some(guard) = &locks.guard
            && this.lost.is_none()
            && *this.on_lost == OnLost::Abort
        {
            this.lost.set(Some(guard.loss()));
            let lost = this.lost.as_pin_mut();
            if lost.is_some_and(|lost| lost.poll(cx).is_ready()) {
                return true;
            }
        }
        locks.watch.lost_after(cx)
    }

    pub(super) fn is_lost(&self) -> bool {
        let locks = self.locks.as_ref();
        locks.is_some_and(|locks| locks.are_lost(self.on_lost))
    }

    pub(super) fn take(self: Pin<&mut Self>) -> Locks {
        let mut this = self.project();
        // Mostly there is none, and the assignment moves the space of one.
        if this.lost.is_some() {
            this.lost.set(None);
        }
        this.locks.take().expect("BUG: the handler answers once")
    }
}
