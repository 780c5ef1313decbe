//! The hints of several stores, merged for one waiter.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::pending::Receiver;

/// The longest time that hints of too few stores are withheld from the waiter.
const GATHER: Duration = Duration::from_millis(50);

/// The hints of several stores, of which the waiter needs `enough`.
///
/// The first hint of a release arrives when one store is free, which is too early for an attempt. The hint
/// is withheld until enough stores have sent one, which saves an attempt that must fail. If some of those
/// hints are lost, the delay is at most [`GATHER`].
#[derive(Debug)]
pub(super) struct Several {
    pub(super) stores: Vec<(Receiver, bool)>,
    pub(super) enough: usize,
    /// The time of the first hint that was not forwarded yet.
    pub(super) since: Option<Instant>,
}

impl Several {
    /// Completes with `true` when enough stores have sent a hint, and with `false` when `since` was set.
    fn poll_gather(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        for (pending, hinted) in &mut self.stores {
            // The last poll registers the waker.
            while pending.poll_next(context).is_ready() {
                *hinted = true;
            }
        }
        let hinted = self.stores.iter().filter(|(_, hinted)| *hinted).count();
        if hinted >= self.enough {
            return Poll::Ready(true);
        }
        if hinted > 0 && self.since.is_none() {
            self.since = Some(Instant::now());
            return Poll::Ready(false);
        }
        Poll::Pending
    }

    /// Completes when enough stores have sent a hint, or [`GATHER`] after the first hint.
    ///
    /// # Cancel safety
    ///
    /// If dropped, no hint is lost: all state is in `self`.
    pub(super) async fn next(&mut self) {
        loop {
            let since = self.since;
            let late = async {
                match since {
                    Some(since) => sleep_until(since + GATHER).await,
                    None => std::future::pending().await,
                }
            };
            let enough = tokio::select! {
                biased;
                enough = poll_fn(|context| self.poll_gather(context)) => enough,
                () = late => true,
            };
            if enough {
                self.since = None;
                self.stores
                    .iter_mut()
                    .for_each(|(_, hinted)| *hinted = false);
                return;
            }
        }
    }
}
