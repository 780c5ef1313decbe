//! Commands in flight at several nodes.

use std::future::poll_fn;
use std::task::Poll;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::backend::BoxFuture;
use crate::task::Timer;

/// Commands and their replies. The caller that awaits the replies polls the commands, so an operation whose
/// nodes all reply needs no task.
/// A task must poll the commands that are still in flight after the outcome.
pub(super) struct Flight<T>(Vec<(usize, BoxFuture<T>)>);

/// The replies of nodes that arrived together.
type Answers<T> = SmallVec<[(usize, T); 5]>;

impl<T> Flight<T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the command of a node, which is sent at the next poll.
    pub(super) fn push(&mut self, node: usize, command: BoxFuture<T>) {
        self.0.push((node, command));
    }

    /// Returns the next replies, or none when all nodes have replied.
    ///
    /// # Cancel safety
    ///
    /// If dropped, commands and replies remain in `self`.
    pub(super) async fn next(&mut self) -> Answers<T> {
        poll_fn(|context| {
            let mut answers = Answers::new();
            // All commands are polled, so an immediate reply does not delay the commands to the other nodes.
            self.0.retain_mut(|(node, command)| {
                let answer = command.as_mut().poll(context);
                answer
                    .map(|answer| answers.push((*node, answer)))
                    .is_pending()
            });
            match answers.is_empty() && !self.0.is_empty() {
                true => Poll::Pending,
                false => Poll::Ready(answers),
            }
        })
        .await
    }

    /// Returns the next replies as [`next`](Self::next) does, or none at the deadline.
    pub(super) async fn next_until(&mut self, deadline: Instant) -> Answers<T> {
        tokio::select! {
            // A reply that has arrived is returned even if the deadline has passed.
            biased;
            answers = self.next() => answers,
            () = Timer::at(deadline) => Answers::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn replies_arrive_in_order_until_deadline() {
        let mut flight = Flight::new();
        assert!(flight.is_empty());
        flight.push(0, Box::pin(pending()));
        flight.push(1, Box::pin(ready("one")));
        flight.push(2, Box::pin(ready("two")));
        assert!(!flight.is_empty());
        assert_eq!(flight.next().await[..], [(1, "one"), (2, "two")]);
        let deadline = Instant::now() + Duration::from_secs(1);
        assert!(flight.next_until(deadline).await.is_empty());
        assert_eq!(Instant::now(), deadline);
        assert!(!flight.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn flight_ends_with_last_reply() {
        let mut flight = Flight::new();
        flight.push(0, Box::pin(ready(())));
        assert_eq!(flight.next().await[..], [(0, ())]);
        assert!(flight.is_empty() && flight.next().await.is_empty());
    }
}
