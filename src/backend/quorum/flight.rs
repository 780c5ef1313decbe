//! Commands in flight at several nodes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use tokio::time::Instant;

use crate::backend::BoxFuture;
use crate::task::Timer;

/// Commands and their replies. The caller that awaits the replies polls the commands, so an operation whose
/// nodes all reply needs no task.
/// A task must poll the commands that are still in flight after the outcome.
pub(super) struct Flight<T> {
    in_flight: Vec<(usize, BoxFuture<T>)>,
    answers: VecDeque<(usize, T)>,
}

impl<T> Flight<T> {
    pub(super) fn new() -> Self {
        Self {
            in_flight: Vec::new(),
            answers: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.answers.is_empty()
    }

    /// Adds the command of a node, which is sent at the next poll.
    pub(super) fn push(&mut self, node: usize, command: BoxFuture<T>) {
        self.in_flight.push((node, command));
    }

    /// Returns the next reply, or `None` when all nodes have replied.
    ///
    /// # Cancel safety
    ///
    /// If dropped, commands and replies remain in `self`.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|context| {
            // All commands are polled before a reply is returned, so an immediate reply does not delay the
            // commands to the other nodes.
            let mut at = 0;
            while let Some((node, command)) = self.in_flight.get_mut(at) {
                match command.as_mut().poll(context) {
                    Poll::Ready(answer) => {
                        self.answers.push_back((*node, answer));
                        drop(self.in_flight.remove(at));
                    }
                    Poll::Pending => at += 1,
                }
            }
            match self.answers.pop_front() {
                None if !self.in_flight.is_empty() => Poll::Pending,
                answer => Poll::Ready(answer),
            }
        })
        .await
    }

    /// Returns a reply that arrived with the previous one.
    pub(super) fn another(&mut self) -> Option<(usize, T)> {
        self.answers.pop_front()
    }

    /// Returns the next reply as [`next`](Self::next) does, or `None` at the deadline.
    pub(super) async fn next_until(&mut self, deadline: Instant) -> Option<(usize, T)> {
        tokio::select! {
            // A reply that has arrived is returned even if the deadline has passed.
            biased;
            answer = self.next() => answer,
            () = Timer::at(deadline) => None,
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
        assert!(
            !flight.is_empty() && flight.another().is_none(),
            "not polled"
        );
        assert_eq!(flight.next().await, Some((1, "one")));
        assert_eq!(flight.another(), Some((2, "two")));
        let deadline = Instant::now() + Duration::from_secs(1);
        assert_eq!(flight.next_until(deadline).await, None);
        assert_eq!(Instant::now(), deadline);
        assert!(!flight.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn flight_ends_with_last_reply() {
        let mut flight = Flight::new();
        flight.push(0, Box::pin(ready(())));
        assert_eq!(flight.next().await, Some((0, ())));
        assert!(flight.is_empty());
        assert_eq!(flight.next().await, None);
    }
}
