//! Hints that a key may be free or was transferred: the only messages that a backend sends to a waiter.

mod pending;
mod several;

use std::future::poll_fn;
use std::sync::Arc;

use self::pending::{OnUnread, Pending, Receiver, Receives};
use self::several::Several;
use super::LeaseId;

/// A message to a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// The key may be free.
    Released,
    /// The store has transferred the key to a lease of this manager.
    ///
    /// It is a grant if its counter is larger than that of the [`TransferTerms`](super::TransferTerms) in the last
    /// reply to a [`contend`](super::Backend::contend) under this lease. The transfer then came after that
    /// `contend`, and the lease lasts for the TTL of these terms, counted from before the `contend` was sent.
    /// Otherwise the transfer may have expired, and a `contend` confirms it. So a hint that is late or arrives
    /// twice grants nothing.
    #[non_exhaustive]
    Transferred {
        /// The lease. A manager that does not wait under it calls [`leave`](super::Backend::leave).
        lease: LeaseId,
        /// The base of the fencing tokens of the grant, as in
        /// [`Contended::Granted`](super::Contended::Granted). `None` if only a `contend` grants the lease.
        counter: Option<u64>,
    },
}

impl Hint {
    /// Creates the hint that the key was transferred to `lease`.
    #[must_use]
    pub fn transferred(lease: LeaseId) -> Self {
        let counter = None;
        Self::Transferred { lease, counter }
    }

    /// Creates the hint that the key was transferred to `lease` under a fresh `counter`, in the same step.
    #[must_use]
    pub fn transferred_under(lease: LeaseId, counter: u64) -> Self {
        let counter = Some(counter);
        Self::Transferred { lease, counter }
    }
}

/// Hints for one waiter.
///
/// A hint is not a guarantee. A missing hint costs the waiter at most its poll interval. Hints of one kind that
/// arrive before the waiter received the previous one are merged into it: of several transfers, the last one
/// counts. A transfer is received before a release.
#[derive(Debug)]
pub struct Hints {
    source: HintSource,
}

#[derive(Debug)]
enum HintSource {
    One(Receiver),
    Several(Several),
}

/// The sending side of [`Hints`]. The backend keeps it until [`is_closed`](Self::is_closed), or as long as the
/// subscription lasts.
#[derive(Debug, Clone)]
pub struct HintSender {
    pending: Arc<Pending>,
}

impl Hints {
    /// Creates a connected pair.
    #[must_use]
    pub fn channel() -> (HintSender, Self) {
        let receiver = Receiver::default();
        let sender = HintSender {
            pending: Arc::clone(&receiver.0),
        };
        let source = HintSource::One(receiver);
        (sender, Self { source })
    }

    /// Merges the hints of several stores into one when `enough` stores have sent theirs, or 50 ms after
    /// the first. Transfers become releases: no store transfers for all.
    pub(crate) fn gathered(stores: impl IntoIterator<Item = Self>, enough: usize) -> Self {
        let stores = stores.into_iter().flat_map(|hints| match hints.source {
            HintSource::One(pending) => vec![(pending, false)],
            HintSource::Several(several) => several.stores,
        });
        Self {
            source: HintSource::Several(Several {
                stores: stores.collect(),
                enough,
                since: None,
            }),
        }
    }

    /// Receives the transfers of this lease only from now on.
    pub(crate) fn receive_only(&mut self, lease: LeaseId) {
        self.receive(Receives::Only(lease));
    }

    /// Receives the transfers of these leases only.
    #[must_use]
    pub(crate) fn receiving(mut self, of: fn(LeaseId) -> bool) -> Self {
        self.receive(Receives::If(of));
        self
    }

    /// Calls `on_unread` for each transfer that the waiter does not receive, also after its drop.
    #[must_use]
    pub(crate) fn reporting_unread(self, on_unread: OnUnread) -> Self {
        if let HintSource::One(pending) = &self.source {
            pending.state().on_unread = Some(on_unread);
        }
        self
    }

    fn receive(&mut self, receives: Receives) {
        if let HintSource::One(pending) = &self.source {
            pending.state().receives = receives;
        }
    }

    /// Drops and reports a transfer that has arrived, unless it is to the lease `place`. Hints of several stores have
    /// no transfers.
    pub(crate) fn drop_transfer_unless(&mut self, place: Option<LeaseId>) {
        if let HintSource::One(pending) = &self.source {
            let is_other = |it: &mut Hint| !matches!(it, Hint::Transferred { lease, .. } if Some(*lease) == place);
            let other = pending.state().transferred.take_if(is_other);
            if let Some(unread) = other {
                pending.report(unread);
            }
        }
    }

    /// Receives the hint of a release that has arrived. Returns `false` if none has, or if these are hints of several
    /// stores.
    pub(crate) fn take_release(&mut self) -> bool {
        match &self.source {
            HintSource::One(pending) => std::mem::take(&mut pending.state().released),
            HintSource::Several(_) => false,
        }
    }

    /// Completes with the next hint. It stays pending after the backend dropped its sender.
    ///
    /// # Cancel safety
    ///
    /// If dropped, no hint is lost.
    pub async fn next(&mut self) -> Hint {
        match &mut self.source {
            HintSource::One(pending) => poll_fn(|context| pending.poll_next(context)).await,
            HintSource::Several(several) => {
                several.next().await;
                Hint::Released
            }
        }
    }
}

impl HintSender {
    /// Notifies the waiter that the key may be free, without blocking.
    pub fn hint(&self) {
        self.send(Hint::Released);
    }

    /// Sends a hint to the waiter, without blocking.
    ///
    /// If the waiter does not receive a transfer, because it has left or waits under another lease, its manager leaves
    /// the lease in the background, unless another waiter has it.
    pub fn send(&self, hint: Hint) {
        if let Some(unread) = self.offer(hint) {
            self.report_unread(unread);
        }
    }

    /// Sends a hint. Returns the transfer that the waiter does not receive: this one, or an earlier one that it
    /// displaced. The caller reports it, unless another waiter receives it.
    #[must_use]
    pub(crate) fn offer(&self, hint: Hint) -> Option<Hint> {
        self.pending.add(hint)
    }

    /// Reports a transfer that no waiter of the manager receives.
    pub(crate) fn report_unread(&self, unread: Hint) {
        self.pending.report(unread);
    }

    /// Returns `true` if the waiter dropped its [`Hints`], so that its subscription can end.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.pending.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::FutureExt as _;
    use uuid::Uuid;

    use super::*;

    fn lease(number: u64) -> LeaseId {
        LeaseId::new(Uuid::nil(), number)
    }

    async fn is_pending(hints: &mut Hints) -> bool {
        tokio::select! {
            biased;
            _ = hints.next() => false,
            () = std::future::ready(()) => true,
        }
    }

    #[tokio::test]
    async fn transfer_behind_release_is_received_first() {
        let (sender, mut hints) = Hints::channel();
        sender.hint();
        sender.send(Hint::transferred(lease(1)));
        sender.hint();
        assert_eq!(hints.next().await, Hint::transferred(lease(1)));
        assert_eq!(hints.next().await, Hint::Released);
        assert!(is_pending(&mut hints).await);
    }

    #[tokio::test]
    async fn last_of_several_transfers_counts() {
        let (sender, mut hints) = Hints::channel();
        sender.send(Hint::transferred(lease(1)));
        sender.send(Hint::transferred(lease(2)));
        assert_eq!(hints.next().await, Hint::transferred(lease(2)));
        assert!(is_pending(&mut hints).await);
    }

    #[tokio::test]
    async fn transfer_to_other_lease_displaces_none() {
        let (sender, mut hints) = Hints::channel();
        hints.receive_only(lease(1));
        for number in [1, 2] {
            sender.send(Hint::transferred(lease(number)));
        }
        assert_eq!(hints.next().await, Hint::transferred(lease(1)));
        assert!(is_pending(&mut hints).await);
        let (sender, hints) = Hints::channel();
        let mut hints = hints.receiving(|it| it != lease(2));
        for number in [1, 2] {
            sender.send(Hint::transferred(lease(number)));
        }
        assert_eq!(hints.next().await, Hint::transferred(lease(1)));
    }

    #[tokio::test]
    async fn only_transfer_to_place_is_kept() {
        for (place, kept) in [
            (Some(lease(1)), true),
            (Some(lease(2)), false),
            (None, false),
        ] {
            let (sender, mut hints) = Hints::channel();
            sender.send(Hint::transferred(lease(1)));
            sender.hint();
            hints.drop_transfer_unless(place);
            assert!(hints.take_release() && !hints.take_release());
            assert_eq!(!is_pending(&mut hints).await, kept, "{place:?}");
        }
    }

    /// Returns what is sent to a waiter, and the leases of the transfers that it did not receive.
    fn watched() -> (HintSender, Hints, Arc<Mutex<Vec<LeaseId>>>) {
        let (sender, hints) = Hints::channel();
        let unread = Arc::<Mutex<Vec<_>>>::default();
        let reported = Arc::clone(&unread);
        let report = move |lease| reported.lock().unwrap().push(lease);
        (sender, hints.reporting_unread(Arc::new(report)), unread)
    }

    #[test]
    fn unread_transfer_is_reported() {
        let (sender, hints, unread) = watched();
        let mut hints = hints.receiving(|it| it != lease(3));
        let reported = || std::mem::take(&mut *unread.lock().unwrap());
        for number in [1, 1, 2, 3] {
            sender.send(Hint::transferred(lease(number)));
        }
        assert_eq!(reported(), [lease(1), lease(3)], "displaced, and filtered");
        assert_eq!(
            hints.next().now_or_never(),
            Some(Hint::transferred(lease(2)))
        );
        sender.hint();
        sender.send(Hint::transferred(lease(4)));
        drop(hints);
        assert_eq!(reported(), [lease(4)], "not received before the drop");
        for hint in [Hint::Released, Hint::transferred(lease(5))] {
            sender.send(hint);
        }
        assert_eq!(reported(), [lease(5)], "after the drop");
    }

    #[test]
    fn offered_transfer_is_returned_unread() {
        let (sender, hints, unread) = watched();
        let [first, second] = [1, 2].map(|number| Hint::transferred(lease(number)));
        assert_eq!([first, first].map(|it| sender.offer(it)), [None, None]);
        assert_eq!(sender.offer(second), Some(first));
        drop(hints);
        assert_eq!(std::mem::take(&mut *unread.lock().unwrap()), [lease(2)]);
        assert_eq!(sender.offer(first), Some(first));
        assert_eq!(sender.offer(Hint::Released), None);
        assert!(unread.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn hint_during_wait_wakes_waiter() {
        let (sender, mut hints) = Hints::channel();
        let waiter = tokio::spawn(async move { hints.next().await });
        tokio::task::yield_now().await;
        sender.clone().send(Hint::transferred(lease(7)));
        assert_eq!(waiter.await.unwrap(), Hint::transferred(lease(7)));
        assert!(sender.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn gathered_transfers_are_releases() {
        let (channels, stores): (Vec<_>, Vec<_>) = (0..3).map(|_| Hints::channel()).unzip();
        let mut hints = Hints::gathered(stores, 2);
        channels[0].send(Hint::transferred(lease(1)));
        assert!(is_pending(&mut hints).await);
        channels[2].send(Hint::transferred(lease(1)));
        assert_eq!(hints.next().await, Hint::Released);
        assert!(is_pending(&mut hints).await);
    }
}
