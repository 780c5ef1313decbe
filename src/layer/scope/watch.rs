//! The end of a scope that the request's future and its body own.

use std::cell::Cell;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use super::lock_scope::{LockScope, ScopeState, Shared};
use crate::layer::config::{OnLost, Options};
use crate::mutex::replace_waker;
use crate::{Held, Lost, LostReason};

thread_local! {
    /// The state of a finished request, for the next one: most requests register no guard, and an allocation
    /// for each of them would be a tenth of what the layer costs.
    static SPARE: Cell<Option<Arc<Shared>>> = const { Cell::new(None) };
}

/// Watches the guards of a scope, and closes the scope when dropped.
pub(in crate::layer) struct Watch {
    shared: Arc<Shared>,
    losses: Vec<Pin<Box<Lost>>>,
    pub(in crate::layer) aborts: bool,
    /// Before the first poll, nothing is registered and no waker is set.
    is_polled: bool,
}

impl Watch {
    pub(in crate::layer) fn open(settings: &Arc<Options>) -> Self {
        let mut shared = spare().unwrap_or_default();
        if let Some(shared) = Arc::get_mut(&mut shared) {
            shared.settings = Some(Arc::clone(settings));
        }
        Self {
            shared,
            losses: Vec::new(),
            aborts: settings.on_lost() == OnLost::Abort,
            is_polled: false,
        }
    }

    pub(in crate::layer) fn scope(&self) -> LockScope {
        let shared = Arc::clone(&self.shared);
        LockScope { shared }
    }

    /// Makes the next [`lost_before`](Self::lost_before) look, also before a first poll.
    pub(in crate::layer) fn look_first(&mut self) {
        self.is_polled = true;
    }

    /// Returns `true` if a lock is lost. Called before each poll of the handler or the body.
    pub(in crate::layer) fn lost_before(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_polled {
            return false;
        }
        let (new, waker) = {
            let mut state = self.shared.state.lock();
            (mem::take(&mut state.new), state.waker.take())
        };
        drop(waker);
        self.look(cx, new)
    }

    /// Returns `true` if a lock is lost. Called after each poll that returned pending. A guard that is
    /// registered from now on wakes the request.
    pub(in crate::layer) fn lost_after(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_polled = true;
        let (new, replaced) = {
            let mut state = self.shared.state.lock();
            let replaced = replace_waker(&mut state.waker, cx.waker());
            (mem::take(&mut state.new), replaced)
        };
        drop(replaced);
        self.look(cx, new)
    }

    /// Returns `true` if a lock is lost by the clock, whatever the loss futures have noticed so far.
    pub(in crate::layer) fn is_lost(&self) -> bool {
        self.aborts
            && (self.losses.iter().any(|lost| lost.has_come())
                || self.shared.state.lock().new.iter().any(Held::is_lost))
    }

    /// Returns why a lock was lost.
    pub(in crate::layer) fn lost_reason(&self) -> Option<LostReason> {
        let known = self.losses.iter().find_map(|lost| lost.reason());
        let state = &self.shared.state;
        known.or_else(|| state.lock().new.iter().find_map(Held::lost_reason))
    }

    /// Returns `true` if the scope has no guard and cannot get one any more.
    pub(in crate::layer) fn is_unused(&mut self) -> bool {
        self.losses.is_empty()
            && Arc::get_mut(&mut self.shared).is_some_and(|shared| {
                let state = shared.state.get_mut();
                state.kept.is_empty() && state.new.is_empty()
            })
    }

    fn look(&mut self, cx: &mut Context<'_>, new: Vec<Held>) -> bool {
        if !self.aborts {
            return false;
        }
        let new = new.into_iter().map(|held| Box::pin(held.loss()));
        self.losses.extend(new);
        let mut losses = self.losses.iter_mut();
        losses.any(|lost| lost.as_mut().poll(cx).is_ready())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // `None` while a lent guard, the handler's `LockScope` or a copy of the request is left.
        let unshared = Arc::get_mut(&mut self.shared);
        let is_unshared = unshared.is_some();
        let kept = match unshared {
            Some(shared) => {
                shared.settings = None;
                mem::take(shared.state.get_mut()).kept
            }
            None => {
                let closed = ScopeState {
                    is_closed: true,
                    ..ScopeState::default()
                };
                let mut state = self.shared.state.lock();
                let last = mem::replace(&mut *state, closed);
                drop(state);
                last.kept
            }
        };
        drop(kept);
        if is_unshared {
            let spare = Some(Arc::clone(&self.shared));
            // A thread that ends has no place for it.
            SPARE.try_with(|place| place.set(spare)).ok();
        }
    }
}

fn spare() -> Option<Arc<Shared>> {
    SPARE.try_with(Cell::take).ok().flatten()
}

#[cfg(test)]
mod tests {
    use std::task::{Wake, Waker};

    use futures_util::FutureExt as _;

    use super::*;
    use crate::mutex::Mutex;
    use crate::mutex::tests::ends;
    use crate::{LockGuard, LockManager};

    /// A task that leaves a lock to the scope of its request when it is dropped.
    struct Leaves(LockScope, Mutex<Option<LockGuard>>);

    impl Wake for Leaves {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Leaves {
        fn drop(&mut self) {
            self.0.keep(self.1.get_mut().take().expect("dropped once"));
        }
    }

    #[test]
    fn dropped_task_of_request_may_leave_lock() {
        for drops in [
            |watch: Watch| drop(watch),
            |mut watch: Watch| _ = watch.lost_before(&mut Context::from_waker(Waker::noop())),
            |mut watch: Watch| _ = watch.lost_after(&mut Context::from_waker(Waker::noop())),
        ] {
            assert!(ends(move || {
                let acquired = LockManager::in_memory().acquire("k").into_future();
                let guard = acquired.now_or_never().expect("at once").expect("free");
                let mut watch = Watch::open(&Arc::default());
                let leaves = Leaves(watch.scope(), Mutex::new(Some(guard)));
                let task = Waker::from(Arc::new(leaves));
                assert!(!watch.lost_after(&mut Context::from_waker(&task)));
                drop(task);
                drops(watch);
            }));
        }
    }
}
