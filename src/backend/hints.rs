//! Hints that a key may be free: the only message that a backend sends to a waiter.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// The longest time that hints of too few stores are withheld from the waiter.
const GATHER: Duration = Duration::from_millis(50);

/// Hints that a key may be free now, for one waiter.
///
/// A hint is not a guarantee. A missing hint costs the waiter at most its poll interval. Hints that arrive
/// before the waiter received the previous one are merged into it.
#[derive(Debug)]
pub struct Hints {
    source: Source,
}

#[derive(Debug)]
enum Source {
    One(mpsc::Receiver<()>),
    Several(Several),
}

/// The hints of several stores, of which the waiter needs `enough`.
///
/// The first hint of a release arrives when one store is free, which is too early for an attempt. The hint
/// is withheld until enough stores have sent one, which saves an attempt that must fail. If some of those
/// hints are lost, the delay is at most [`GATHER`].
#[derive(Debug)]
struct Several {
    stores: Vec<(mpsc::Receiver<()>, bool)>,
    enough: usize,
    /// The time of the first hint that was not forwarded yet.
    since: Option<Instant>,
}

impl Several {
    /// Completes with `true` when enough stores have sent a hint, and with `false` when `since` was set.
    fn poll_gather(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        for (receiver, hinted) in &mut self.stores {
            // A store that dropped its sender sends no more hints.
            while let Poll::Ready(Some(())) = receiver.poll_recv(context) {
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
    async fn next(&mut self) {
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

/// The sending side of [`Hints`], which the backend keeps until [`is_closed`](Self::is_closed).
#[derive(Debug, Clone)]
pub struct HintSender {
    sender: mpsc::Sender<()>,
}

impl Hints {
    /// Creates a connected pair.
    #[must_use]
    pub fn channel() -> (HintSender, Self) {
        let (sender, receiver) = mpsc::channel(1);
        let source = Source::One(receiver);
        (HintSender { sender }, Self { source })
    }

    /// Merges the hints of several stores into one when `enough` stores have sent theirs, or 50 ms after
    /// the first.
    pub(crate) fn gathered(stores: impl IntoIterator<Item = Self>, enough: usize) -> Self {
        let receivers = stores.into_iter().flat_map(|hints| match hints.source {
            Source::One(receiver) => vec![(receiver, false)],
            Source::Several(several) => several.stores,
        });
        Self {
            source: Source::Several(Several {
                stores: receivers.collect(),
                enough,
                since: None,
            }),
        }
    }

    /// Completes when the next hint arrives. It stays pending after the backend dropped its sender.
    ///
    /// # Cancel safety
    ///
    /// If dropped, no hint is lost.
    pub async fn next(&mut self) {
        match &mut self.source {
            Source::One(receiver) => {
                if receiver.recv().await.is_none() {
                    std::future::pending::<()>().await;
                }
            }
            Source::Several(several) => several.next().await,
        }
    }
}

impl HintSender {
    /// Notifies the waiter, without blocking.
    pub fn hint(&self) {
        // A full channel already holds a hint that was not received. A closed one has no waiter.
        match self.sender.try_send(()) {
            Ok(()) | Err(_) => {}
        }
    }

    /// Returns `true` if the waiter dropped its [`Hints`], so that its subscription can end.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}
