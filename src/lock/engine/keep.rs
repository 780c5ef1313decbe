//! Which leases a manager keeps after their last holds, and what becomes of them when the manager ends.

use std::sync::Arc;

use tokio::time::sleep;

use super::Engine;
use super::unconfirmed::{BATCH, LAST_BACKOFF};
use crate::backend::Release;
use crate::lock::clock::{Moment, Span};
use crate::lock::lease::Grant;

impl Engine {
    /// Returns the length of the turn in which the lease of a grant that ends now is kept, if its key comes back. Called
    /// under the mutex of its shard, so a shutdown that begins concurrently, and the end of a watchdog, surrender the
    /// lease.
    #[inline(never)]
    pub(crate) fn keeps(&self, grant: &Grant, now: Moment) -> Option<Span> {
        let length = grant.keep?.span();
        let (hash, began) = (grant.key().hash_code(), grant.granted_at - grant.waited);
        let comes_back = self.recent.comes_back(hash, began, length, now);
        let has_end = !self.is_closing() && self.home.watchdog.is_running();
        (comes_back && has_end && self.capabilities.may_be_kept).then_some(length)
    }

    /// Releases the leases that are kept when the last handle and the last guard are dropped.
    pub(super) fn return_kept(&self) {
        if !self.recent.is_of_this_process() {
            return;
        }
        let mut kept = Vec::new();
        self.lanes.inspect_all(|key, lane| {
            let lease = lane.kept_lease().map(|lease| self.lease_id(lease));
            kept.extend(lease.map(|lease| Release::new(key.clone(), lease)));
        });
        if kept.is_empty() {
            return;
        }
        let batches = self.in_batches(kept, BATCH, |release| &release.key);
        let (backend, home) = (Arc::clone(&self.backend), Arc::clone(&self.home));
        let until = self.now() + self.options.watchdog_timeout;
        // The thread of the manager ends with its home.
        self.home.spawn(async move {
            for batch in batches {
                let mut left = batch;
                while !left.is_empty() && home.clock.now() < until {
                    let outcomes = Arc::clone(&backend).release(left.clone()).await;
                    let mut outcomes = outcomes.into_iter();
                    left.retain(|_| outcomes.next().is_some_and(|outcome| outcome.is_err()));
                    if !left.is_empty() {
                        sleep(LAST_BACKOFF).await;
                    }
                }
            }
        });
    }
}
