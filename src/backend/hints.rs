//! "May be free now": the one message a backend sends to a waiter.

use tokio::sync::mpsc;

/// Hints that a key may be free now, for one waiter.
///
/// A hint promises nothing, and a missing hint costs the waiter no more than its poll interval.
/// Hints that arrive faster than they are taken become one.
#[derive(Debug)]
pub struct Hints {
    receiver: mpsc::Receiver<()>,
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
        (HintSender { sender }, Self { receiver })
    }

    /// Waits for the next hint. When the backend dropped its sender there is none any more and
    /// this waits for ever.
    ///
    /// # Cancel safety
    ///
    /// No hint is lost when the future is dropped.
    pub async fn next(&mut self) {
        if self.receiver.recv().await.is_none() {
            std::future::pending::<()>().await;
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
