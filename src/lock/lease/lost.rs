//! The grants of one guard, and the future that completes at their loss.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use smallvec::SmallVec;

use super::grant::Grant;
use crate::lock::clock::Moment;
use crate::observe::LostReason;
use crate::task::Timer;

/// The grants of one guard, one per key, in the order of the keys.
#[derive(Debug, Clone)]
pub(crate) enum Grants {
    One(Arc<Grant>),
    Many(Arc<[Arc<Grant>]>),
}

/// The state of a guard's grants at one moment.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Lost,
    /// The grants are held at least until this moment.
    HeldUntil(Moment),
    Released,
}

impl Deref for Grants {
    type Target = [Arc<Grant>];

    #[inline]
    fn deref(&self) -> &[Arc<Grant>] {
        match self {
            Self::One(grant) => std::slice::from_ref(grant),
            Self::Many(grants) => grants,
        }
    }
}

impl Grants {
    pub(crate) fn first(&self) -> &Arc<Grant> {
        match self {
            Self::One(grant) => grant,
            Self::Many(grants) => &grants[0],
        }
    }

    /// Returns the present moment of their manager.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.first().now()
    }

    #[inline]
    pub(crate) fn are_held(&self, now: Moment) -> bool {
        self.iter().all(|grant| grant.is_held(now))
    }

    /// Returns `true` if a grant is lost. Grants that are released are not.
    pub(crate) fn are_lost(&self, now: Moment) -> bool {
        self.standing(now) == Standing::Lost
    }

    /// Returns why a grant is lost, or `None` if none is.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        let now = self.now();
        self.iter().find_map(|grant| grant.lost_reason(now))
    }

    pub(crate) fn valid_until(&self) -> Moment {
        let ends = self.iter().map(|grant| grant.valid_until());
        ends.min().unwrap_or(Moment::FIRST)
    }

    /// Returns the state at `now`. Separate clock readings for each check could miss a deadline that passes
    /// between them.
    fn standing(&self, now: Moment) -> Standing {
        let mut standing = Standing::Released;
        for grant in &**self {
            if grant.is_marked_lost() {
                return Standing::Lost;
            }
            if grant.holds() == 0 {
                continue;
            }
            let until = grant.valid_until();
            if until <= now {
                return Standing::Lost;
            }
            standing = match standing {
                Standing::HeldUntil(earlier) => Standing::HeldUntil(earlier.min(until)),
                _ => Standing::HeldUntil(until),
            };
        }
        standing
    }
}

pin_project! {
    /// The future of [`Held::lost`](crate::Held::lost).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct Lost {
        grants: Grants,
        // The ids of the registered wakers, one per grant.
        ids: SmallVec<[Option<u64>; 1]>,
        // Besides the watchdog, which code of the program may delay.
        #[pin]
        deadline: Timer,
        // When the timer fired.
        fired: Option<Moment>,
    }

    impl PinnedDrop for Lost {
        fn drop(this: Pin<&mut Self>) {
            for (grant, id) in this.grants.iter().zip(&this.ids) {
                if let Some(id) = id {
                    grant.unlisten(*id);
                }
            }
        }
    }
}

impl Lost {
    pub(crate) fn new(grants: Grants) -> Self {
        let ids = SmallVec::from_elem(None, grants.len());
        // Reading the clock detects a suspend, which the conversion of a moment does not.
        let now = grants.now();
        let deadline = Timer::at(grants.valid_until().max(now).into());
        Self {
            grants,
            ids,
            deadline,
            fired: None,
        }
    }

    /// Returns why the guard was lost, or `None` if it was not.
    pub(crate) fn reason(&self) -> Option<LostReason> {
        self.grants.lost_reason()
    }

    /// Returns `true` if the loss has come, by the clock at this moment.
    pub(crate) fn has_come(&self) -> bool {
        self.grants.are_lost(self.grants.now())
    }
}

impl Future for Lost {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        // Registers before it checks, so a loss in between is detected.
        for (grant, id) in this.grants.iter().zip(this.ids.iter_mut()) {
            grant.listen(id, cx.waker());
        }
        loop {
            match this.grants.standing(this.grants.now()) {
                Standing::Lost => return Poll::Ready(()),
                // A released guard can no longer be lost.
                Standing::Released => return Poll::Pending,
                Standing::HeldUntil(until) => {
                    // The clock of the caller is paused, and that of the manager is not: the watchdog reports the loss.
                    if *this.fired == Some(until) {
                        return Poll::Pending;
                    }
                    this.deadline.as_mut().reset(until.into());
                    ready!(this.deadline.as_mut().poll(cx));
                    *this.fired = Some(until);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
