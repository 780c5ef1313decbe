//! Counts the replies of the nodes for each lease.

use tokio::time::Instant;

use super::fault;
use super::flight::Flight;
use super::inner::Inner;
use crate::backend::BackendError;

impl Inner {
    /// Counts replies until a majority agrees on each lease, for at most one node timeout.
    pub(super) async fn tally<T: Send + 'static>(
        &self,
        mut flight: Flight<T>,
        tallies: &mut [Tally],
        mut count: impl FnMut(&mut [Tally], T),
    ) {
        let deadline = Instant::now() + self.node_timeout;
        loop {
            // Replies are polled before they are counted, so that every command is sent.
            let answers = flight.next_until(deadline).await;
            let is_over = answers.is_empty();
            for (_, answer) in answers {
                count(tallies, answer);
            }
            let has_agreed = |tally: &Tally| tally.agreed(self.nodes.len()).is_some();
            if is_over || tallies.iter().all(has_agreed) {
                break;
            }
        }
        // A slow node executes the command when it arrives.
        self.finish(flight);
    }
}

/// The replies so far.
#[derive(Default)]
pub(super) struct Tally {
    /// The number of nodes that executed the command.
    pub(super) done: usize,
    /// The number of nodes that do not or cannot hold the lease.
    pub(super) not_held: usize,
    pub(super) failures: Vec<BackendError>,
}

/// The reply on which a majority agrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Agreed {
    Done,
    NotHeld,
}

impl Tally {
    /// Counts a reply, which is `not_held` from a node without the lease.
    pub(super) fn count<T: PartialEq>(&mut self, reply: Result<T, BackendError>, not_held: &T) {
        match reply {
            Ok(reply) if reply == *not_held => self.not_held += 1,
            Ok(_) => self.done += 1,
            Err(error) => self.failures.push(error),
        }
    }

    pub(super) fn agreed(&self, nodes: usize) -> Option<Agreed> {
        let majority = nodes / 2 + 1;
        if self.done >= majority {
            Some(Agreed::Done)
        } else if self.not_held >= majority {
            Some(Agreed::NotHeld)
        } else {
            None
        }
    }

    /// Returns the outcome on which a majority agrees.
    pub(super) fn outcome<T>(self, nodes: usize, done: T, not_held: T) -> Result<T, BackendError> {
        match self.agreed(nodes) {
            Some(Agreed::Done) => Ok(done),
            Some(Agreed::NotHeld) => Ok(not_held),
            None => Err(self.no_majority(nodes, true)),
        }
    }

    /// Returns the error of too few replies. `unsettled`: the command may have taken effect.
    pub(super) fn no_majority(self, nodes: usize, unsettled: bool) -> BackendError {
        let silent = nodes - self.done - self.not_held - self.failures.len();
        fault::no_majority(self.failures, silent, nodes, unsettled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_requires_majority() {
        for (nodes, done, not_held, expected) in [
            (3, 2, 1, Some(Agreed::Done)),
            (3, 1, 2, Some(Agreed::NotHeld)),
            (3, 1, 1, None),
            (4, 2, 2, None),
            (5, 2, 2, None),
            (5, 2, 3, Some(Agreed::NotHeld)),
        ] {
            let tally = Tally {
                done,
                not_held,
                ..Tally::default()
            };
            let counts = format!("{done} and {not_held} of {nodes}");
            assert_eq!(tally.agreed(nodes), expected, "{counts}");
        }
    }
}
