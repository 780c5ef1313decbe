//! Counts the replies of the nodes for one lease.

use super::fault;
use crate::backend::BackendError;

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

    /// Returns the number of nodes that have not replied.
    pub(super) fn silent(&self, nodes: usize) -> usize {
        nodes - self.done - self.not_held - self.failures.len()
    }

    /// Returns the error of too few replies. `unsettled`: the command may have taken effect.
    pub(super) fn no_majority(self, nodes: usize, unsettled: bool) -> BackendError {
        let silent = self.silent(nodes);
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
