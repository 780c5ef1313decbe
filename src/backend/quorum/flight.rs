//! Commands under way on several nodes at once.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use tokio::time::{Instant, sleep_until};

use crate::backend::BoxFuture;

/// The caller that awaits the replies polls the commands, so an operation whose nodes all reply needs no task.
/// A task must poll the commands that are still in flight after the outcome.
pub(super) struct Flight<T> {
    under_way: Vec<(usize, BoxFuture<T>)>,
    answers: VecDeque<(usize, T)>,
}

impl<T> Flight<T> {
    pub(super) fn new() -> Self {
        Self {
            under_way: Vec::new(),
            answers: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.answers.is_empty()
    }

    /// Adds the command of a node. It goes out with the next look at the answers.
    pub(super) fn push(&mut self, node: usize, command: BoxFuture<T>) {
        self.under_way.push((node, command));
    }

    /// The next answer; `None` when all have answered.
    ///
    /// # Cancel safety
    ///
    /// Commands and answers stay here.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|context| {
            // All of them before any answer is looked at: a node that answers at once does not keep the
            // commands of the others from going out.
            let mut at = 0;
            while let Some((node, command)) = self.under_way.get_mut(at) {
                match command.as_mut().poll(context) {
                    Poll::Ready(answer) => {
                        self.answers.push_back((*node, answer));
                        drop(self.under_way.remove(at));
                    }
                    Poll::Pending => at += 1,
                }
            }
            match self.answers.pop_front() {
                None if !self.under_way.is_empty() => Poll::Pending,
                answer => Poll::Ready(answer),
            }
        })
        .await
    }

    /// An answer that came along with the last one.
    pub(super) fn another(&mut self) -> Option<(usize, T)> {
        self.answers.pop_front()
    }

    /// As [`next`](Self::next), and `None` at the deadline.
    pub(super) async fn next_until(&mut self, deadline: Instant) -> Option<(usize, T)> {
        tokio::select! {
            // An answer that is there counts, however late it is looked at.
            biased;
            answer = self.next() => answer,
            () = sleep_until(deadline) => None,
        }
    }
}
