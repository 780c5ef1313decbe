//! "May be free now": the one message a backend sends to a waiter.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// How long hints of too few stores are kept from the waiter.
const GATHER: Duration = Duration::from_millis(50);

/// Hints that a key may be free now, for one waiter.
///
/// A hint promises nothing, and a missing hint costs the waiter no more than its poll interval.
/// Hints that arrive faster than they are taken become one.
#[derive(Debug)]
pub struct Hints {
    source: Source,
}

#[derive(Debug)]
enum Source {
    One(mpsc::Receiver<()>),
    Several(Several),
}

/// The hints of several stores of which the waiter needs so many.
///
/// The first hint of a release comes when one store is free, which is too early to try. Held back
/// until enough stores have hinted, it saves a try that must fail; and where some of those hints
/// are lost, it costs no more than [`GATHER`].
#[derive(Debug)]
struct Several {
    stores: Vec<(mpsc::Receiver<()>, bool)>,
    enough: usize,
    /// When the first of the hints came that were not passed on yet.
    since: Option<Instant>,
}

impl Several {
    /// Ready with whether enough have hinted, as soon as that or `since` has changed.
    fn poll_gather(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        for (receiver, hinted) in &mut self.stores {
            // A store that dropped its sender hints no more.
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

    /// All of its state is in `self`: dropped at any await, nothing is lost.
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

/// The sending side of [`Hints`], kept by the backend for as long as somebody listens.
#[derive(Debug, Clone)]
pub struct HintSender {
    sender: mpsc::Sender<()>,
}

impl Hints {
    /// A connected pair.
    #[must_use]
    pub fn channel() -> (HintSender, Self) {
        let (sender, receiver) = mpsc::channel(1);
        let source = Source::One(receiver);
        (HintSender { sender }, Self { source })
    }

    /// A hint when `enough` of several stores have hinted, or a moment after the first one.
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

    /// Waits for the next hint. When the backend dropped its sender there is none any more and
    /// this waits for ever.
    ///
    /// # Cancel safety
    ///
    /// No hint is lost when the future is dropped.
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
    /// Tells the waiter to try. Never blocks.
    pub fn hint(&self) {
        // A full channel already holds a hint that was not taken; a closed one has no waiter.
        match self.sender.try_send(()) {
            Ok(()) | Err(_) => {}
        }
    }

    /// Whether the waiter is gone, so that its subscription can end.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}
