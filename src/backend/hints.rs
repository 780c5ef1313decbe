//! Hints that a key may be free or was transferred: the only messages that a backend sends to a waiter.

mod pending;
mod several;

use std::future::poll_fn;
use std::sync::{Arc, Weak};

use self::pending::{Pending, Receiver};
use self::several::Several;
use super::LeaseId;

/// A message to a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// The key may be free.
    Released,
    /// The store has transferred the key to a lease of this manager, which confirms it by a
    /// [`contend`](super::Backend::contend) under that lease. So a hint that is late or arrives twice grants nothing.
    #[non_exhaustive]
    Transferred {
        /// The lease.
        lease: LeaseId,
    },
}

impl Hint {
    /// Creates the hint that the key was transferred to `lease`.
    #[must_use]
    pub fn transferred(lease: LeaseId) -> Self {
        Self::Transferred { lease }
    }
}

/// Hints for one waiter.
///
/// A hint is not a guarantee. A missing hint costs the waiter at most its poll interval. Equal hints that arrive before
/// the waiter received the first one are merged into it. A transfer is received before a release.
#[derive(Debug)]
pub struct Hints {
    source: HintSource,
}

/// A task that waits for hints, and that the sender of a hint may poll.
pub(crate) trait PollEarly: Send + Sync {
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "Redis only"))]
    /// Polls the task on this thread, which must not block and holds no mutex. Returns `false` if that is not possible now.
    fn poll_early(&self) -> bool;
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

    /// Lets the sender poll the task that waits, if these are the hints of one store.
    pub(crate) fn poll_early(&self, task: Weak<dyn PollEarly>) {
        if let HintSource::One(pending) = &self.source {
            pending.poll_early(task);
        }
    }

    /// Receives the hint of a release that has arrived. Returns `false` if none has, or if these are hints of several
    /// stores.
    pub(crate) fn take_release(&mut self) -> bool {
        match &self.source {
            HintSource::One(pending) => pending.take_release(),
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
    pub fn send(&self, hint: Hint) {
        self.pending.add(hint);
    }

    /// Sends a hint as [`send`](Self::send), and polls the task that waits if possible.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "Redis only"))]
    pub(crate) fn send_and_poll(&self, hint: Hint) {
        self.pending.add_and_poll(hint);
    }

    /// Returns `true` if the waiter dropped its [`Hints`], so that its subscription can end.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.pending.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use uuid::Uuid;

    use super::*;
    use crate::mutex::tests::ends;

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

    /// The lanes of permits of one key receive the transfers of all.
    #[tokio::test]
    async fn transfers_are_received_once_in_order() {
        let (sender, mut hints) = Hints::channel();
        for number in [1, 2, 1] {
            sender.send(Hint::transferred(lease(number)));
        }
        for number in [1, 2] {
            assert_eq!(hints.next().await, Hint::transferred(lease(number)));
        }
        assert!(is_pending(&mut hints).await);
    }

    #[tokio::test]
    async fn too_many_transfers_are_release() {
        let (sender, mut hints) = Hints::channel();
        for number in 0..17 {
            sender.send(Hint::transferred(lease(number)));
        }
        assert_eq!(hints.next().await, Hint::Released);
        assert!(is_pending(&mut hints).await);
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

    /// A task that can be polled early, or cannot.
    #[derive(Default)]
    struct Waiter {
        can_be_polled: bool,
        polls: AtomicUsize,
        wakes: AtomicUsize,
    }

    impl PollEarly for Waiter {
        fn poll_early(&self) -> bool {
            self.polls.fetch_add(1, Ordering::SeqCst);
            self.can_be_polled
        }
    }

    impl Wake for Waiter {
        fn wake(self: Arc<Self>) {
            self.wakes.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A task that releases a lock when it is dropped.
    struct Releases(HintSender);

    impl Wake for Releases {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Releases {
        fn drop(&mut self) {
            self.0.hint();
        }
    }

    #[test]
    fn replaced_task_may_cause_hint() {
        assert!(ends(|| {
            let (sender, mut hints) = Hints::channel();
            let first = Waker::from(Arc::new(Releases(sender)));
            let mut next = pin!(hints.next());
            let polled = next.as_mut().poll(&mut Context::from_waker(&first));
            assert!(polled.is_pending());
            drop(first);
            let mut second = Context::from_waker(Waker::noop());
            let _polled = next.as_mut().poll(&mut second);
            assert_eq!(next.poll(&mut second), Poll::Ready(Hint::Released));
        }));
    }

    #[test]
    fn task_that_cannot_be_polled_is_woken() {
        for can_be_polled in [true, false] {
            let (sender, mut hints) = Hints::channel();
            let waiter = Arc::new(Waiter {
                can_be_polled,
                ..Waiter::default()
            });
            hints.poll_early(Arc::downgrade(&waiter) as _);
            let waker = Waker::from(Arc::clone(&waiter));
            let mut next = pin!(hints.next());
            let mut poll = || next.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(poll().is_pending());
            sender.send_and_poll(Hint::Released);
            assert_eq!(waiter.polls.load(Ordering::SeqCst), 1);
            let wakes = usize::from(!can_be_polled);
            assert_eq!(waiter.wakes.load(Ordering::SeqCst), wakes);
            assert_eq!(poll(), Poll::Ready(Hint::Released));
        }
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
