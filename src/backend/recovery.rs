//! Notifies holders and waiters when the store is reachable again, or at another server.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Hints;
use crate::backend::subscribers::Subscribers;
use crate::mutex::Mutex;

/// The age up to which an outage concerns a new subscriber, which may have a lease from before.
///
/// A watchdog subscribes after the grant, when its task first runs. If that takes longer than this, a renewal
/// of the default lease is due anyway.
const RECENT: Duration = Duration::from_secs(10);

/// The subscribers of recoveries. While there is one, lost connections are replaced in the
/// background: a waiter between two attempts and a holder between two renewals send no command
/// that would replace them.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    state: Mutex<RecoveryState>,
}

#[derive(Debug, Default)]
struct RecoveryState {
    subscribers: Subscribers,
    /// The last recovery, or the last end of a connection.
    last: Option<Instant>,
}

impl Recovery {
    /// Returns a subscription to every recovery from now on.
    #[cfg(feature = "redis")]
    pub(crate) fn hints(&self) -> Hints {
        let (sender, hints) = Hints::channel();
        self.subscribe(sender);
        hints
    }

    /// Returns a subscription to every recovery from now on, for a subscriber that may hold leases. It begins with a
    /// hint if a connection ended recently: without a subscriber, no task replaces it.
    pub(crate) fn hints_of_holder(&self) -> Hints {
        let (sender, hints) = Hints::channel();
        let mut state = self.state.lock();
        // Under the mutex of the subscription, so that an outage concurrent with it is not missed.
        if state.last.is_some_and(|last| last.elapsed() < RECENT) {
            sender.hint();
        }
        state.subscribers.push(None, sender);
        hints
    }

    #[cfg(feature = "redis")]
    pub(crate) fn subscribe(&self, sender: crate::backend::HintSender) {
        self.state.lock().subscribers.push(None, sender);
    }

    /// Returns `true` if there is a subscriber.
    pub(crate) fn is_awaited(&self) -> bool {
        self.state.lock().subscribers.prune() > 0
    }

    /// Records the end of a connection. Returns `true` if there is a subscriber.
    pub(crate) fn ended(&self) -> bool {
        let mut state = self.state.lock();
        state.last = Some(Instant::now());
        state.subscribers.prune() > 0
    }

    pub(crate) fn report(&self) {
        let mut state = self.state.lock();
        state.last = Some(Instant::now());
        state.subscribers.hint();
    }
}

#[cfg(test)]
#[cfg(feature = "redis")]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::time::advance;

    use super::*;

    fn is_hinted(hints: &mut Hints) -> bool {
        hints.next().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn recent_outage_hints_to_new_holder() {
        let outages: [fn(&Recovery); 2] = [|it| assert!(!it.ended()), Recovery::report];
        for outage in outages {
            let recovery = Recovery::default();
            assert!(!is_hinted(&mut recovery.hints_of_holder()), "no outage");
            outage(&recovery);
            advance(RECENT - Duration::from_millis(1)).await;
            let mut hints = recovery.hints_of_holder();
            assert!(is_hinted(&mut hints));
            assert!(!is_hinted(&mut hints), "one hint per outage");
            assert!(!is_hinted(&mut recovery.hints()), "no holder");
            advance(Duration::from_millis(1)).await;
            assert!(!is_hinted(&mut recovery.hints_of_holder()), "long ago");
        }
    }

    #[tokio::test]
    async fn end_reports_whether_awaited() {
        let recovery = Recovery::default();
        assert!(!recovery.ended());
        let mut hints = recovery.hints();
        assert!(recovery.ended());
        assert!(!is_hinted(&mut hints), "the next link reports the end");
        recovery.report();
        assert!(is_hinted(&mut hints));
        drop(hints);
        assert!(!recovery.ended());
    }
}
