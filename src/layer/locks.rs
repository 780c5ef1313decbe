//! The locks of one request, while its handler runs and while its body streams.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;

use super::rejection::{LockRejection, RequestInfo};
use super::scope::Watch;
use crate::{LockGuard, Lost};

/// The locks of one request: those of its scope, and the layer's own.
///
/// The order of the fields is the order of their drops.
pub(super) struct Locks {
    watch: Watch,
    /// Created for a handler that does not respond at its first poll, and for a body that streams. `None` to continue
    /// under a lost lock.
    loss: Option<Pin<Box<Lost>>>,
    /// `None` if the request passes unlocked.
    guard: Option<LockGuard>,
}

impl Locks {
    pub(super) fn new(watch: Watch, guard: Option<LockGuard>) -> Self {
        let loss = None;
        Self { watch, loss, guard }
    }

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
    pub(super) fn drop_unless_lost(mut self) -> Result<(), Self> {
        let is_alone = self.watch.aborts && self.watch.is_unused();
        if let Some(guard) = self.guard.take_if(|_| is_alone) {
            let lost = guard.drop_unless_lost().map_err(Some);
            return lost.map_err(|guard| Self { guard, ..self });
        }
        match self.are_lost() {
            true => Err(self),
            false => Ok(()),
        }
    }

    /// Returns `true` if a lock is lost by the clock: a poll may take longer than a lease.
    pub(super) fn are_lost(&self) -> bool {
        let own = self.guard.as_ref().filter(|_| self.watch.aborts);
        own.is_some_and(|guard| guard.is_lost()) || self.watch.is_lost()
    }

    /// Returns `true` if a lock is lost. Called before each poll of the handler or the body, which must not
    /// take another step under a lost lock. The first look at a body belongs to the step that ends the handler.
    pub(super) fn lost_before(&mut self, cx: &mut Context<'_>) -> bool {
        let own = self.loss.as_mut();
        own.is_some_and(|loss| loss.as_mut().poll(cx).is_ready()) || self.watch.lost_before(cx)
    }

    /// Returns `true` if a lock is lost. Called after each poll that returned pending.
    pub(super) fn lost_after(&mut self, cx: &mut Context<'_>) -> bool {
        self.await_loss()
            .is_some_and(|loss| loss.poll(cx).is_ready())
            || self.watch.lost_after(cx)
    }

    /// Makes the next [`lost_before`](Self::lost_before) look, also before a first poll: a body may be polled at any later
    /// time.
    pub(super) fn look_first(&mut self) {
        self.watch.look_first();
        let _unpolled = self.await_loss();
    }

    /// Creates the future of the loss of the own lock, if there is none yet.
    fn await_loss(&mut self) -> Option<Pin<&mut Lost>> {
        let own = self.guard.as_ref();
        let new = own.filter(|_| self.watch.aborts && self.loss.is_none())?;
        Some(self.loss.insert(Box::pin(new.loss())).as_mut())
    }
}
