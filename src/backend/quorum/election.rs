//! The outcome of the replies to a vote. It does no I/O, and the caller passes the time.

use std::task::Poll;

use tokio::time::Instant;

use super::fault;
use crate::backend::{Acquired, BackendError};

/// One vote of each node.
#[derive(Debug)]
pub(super) struct Election {
    majority: usize,
    ballots: Vec<Ballot>,
}

#[derive(Debug)]
enum Ballot {
    /// No reply has arrived.
    Open,
    /// The node holds the lease under this counter, or 0 if it has none.
    Granted(u64),
    /// The node holds another lease until this time.
    Busy(Instant),
    Failed(BackendError),
    /// The node did not reply in time.
    Silent,
}

/// Ready with the counter of an elected lease, or with `None` after a defeat.
pub(super) type Standing = Poll<Option<u64>>;

impl Election {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            majority: nodes / 2 + 1,
            ballots: (0..nodes).map(|_| Ballot::Open).collect(),
        }
    }

    fn open(&self) -> usize {
        let ballots = self.ballots.iter();
        ballots.filter(|it| matches!(it, Ballot::Open)).count()
    }

    /// Returns the nodes that hold the lease, and their counters.
    fn grants(&self) -> impl Iterator<Item = (usize, u64)> {
        let ballots = self.ballots.iter().enumerate();
        ballots.filter_map(|(node, ballot)| match ballot {
            Ballot::Granted(counter) => Some((node, *counter)),
            _ => None,
        })
    }

    pub(super) fn cast(
        &mut self,
        node: usize,
        answer: Result<Acquired, BackendError>,
        now: Instant,
    ) {
        self.ballots[node] = match answer {
            Ok(Acquired::Granted { counter }) => Ballot::Granted(counter),
            Ok(Acquired::Busy { ttl }) => Ballot::Busy(now + ttl),
            Err(error) => Ballot::Failed(error),
        };
    }

    /// Opens the ballot of a node for another vote.
    pub(super) fn reopen(&mut self, node: usize) {
        self.ballots[node] = Ballot::Open;
    }

    /// Counts each missing reply as a failure.
    pub(super) fn close(&mut self) {
        for ballot in &mut self.ballots {
            if let Ballot::Open = ballot {
                *ballot = Ballot::Silent;
            }
        }
    }

    /// Returns the standing of the first round, with the largest counter. A previous grant has at most this one.
    ///
    /// A node without a counter may have lost it, so its vote does not bound earlier tokens. A majority of
    /// votes with counters bounds them. Without such a majority, the election waits for all nodes.
    pub(super) fn standing(&self) -> Standing {
        let (open, granted) = (self.open(), self.grants().count());
        if granted >= self.majority && (self.knowing(1) >= self.majority || open == 0) {
            Poll::Ready(self.grants().map(|(_, counter)| counter).max())
        } else if granted + open < self.majority && self.is_explained(open) {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    /// Returns `true` if the reason for a missing majority is clear: another lease holds the key, or nodes
    /// failed.
    fn is_explained(&self, open: usize) -> bool {
        let is_failure = |it: &&Ballot| matches!(it, Ballot::Failed(_) | Ballot::Silent);
        let failed = self.ballots.iter().filter(is_failure).count();
        let alive = self.ballots.len() - failed - open;
        failed >= self.majority || alive >= self.majority
    }

    /// Returns how many nodes hold the lease and have `counter`.
    fn knowing(&self, counter: u64) -> usize {
        self.grants().filter(|(_, known)| *known >= counter).count()
    }

    /// Returns the standing of the second round, in which the other nodes receive `counter`.
    pub(super) fn agreement(&self, counter: u64) -> Standing {
        let knowing = self.knowing(counter);
        if knowing >= self.majority {
            Poll::Ready(Some(counter))
        } else if knowing + self.open() < self.majority {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    /// Returns the nodes that hold the lease and have a smaller counter, or none.
    pub(super) fn behind(&self, counter: u64) -> Vec<usize> {
        let behind = self.grants().filter(|(_, known)| *known < counter);
        behind.map(|(node, _)| node).collect()
    }

    /// Returns `true` if some nodes granted. Concurrent attempts then have no majority either.
    pub(super) fn is_split(&self) -> bool {
        self.grants().next().is_some()
    }

    /// Returns the outcome of a defeat: the time until a majority may be free, or an error if too few nodes
    /// are usable. `unsettled`: a node may still come to hold the lease.
    pub(super) fn defeat(self, now: Instant, unsettled: bool) -> Result<Acquired, BackendError> {
        let nodes = self.ballots.len();
        let mut free_at = Vec::with_capacity(nodes);
        let (mut failures, mut silent) = (Vec::new(), 0);
        let mut busy = false;
        for ballot in self.ballots {
            match ballot {
                // The lease is already released.
                Ballot::Granted(_) => free_at.push(now),
                Ballot::Open => {}
                Ballot::Busy(until) => {
                    busy = true;
                    free_at.push(until);
                }
                Ballot::Failed(error) => failures.push(error),
                Ballot::Silent => silent += 1,
            }
        }
        free_at.sort_unstable();
        // If fewer nodes replied than a majority, the last known expiry is the estimate. Without a majority
        // of usable nodes, an attempt fails even after the holder's release.
        let usable = nodes - failures.len() - silent >= self.majority;
        match free_at.get(self.majority - 1).or(free_at.last()) {
            Some(at) if busy && usable => Ok(Acquired::busy(at.saturating_duration_since(now))),
            _ => Err(fault::no_majority(failures, silent, nodes, unsettled)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::BackendErrorKind;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the election after these replies: `7`, `5` and `0` granted with that counter, `b` busy for a
    /// second per position, `f` failed, `.` open.
    fn election(ballots: &str, now: Instant) -> Election {
        let mut election = Election::new(ballots.len());
        for (node, ballot) in ballots.chars().enumerate() {
            let seconds = u32::try_from(node).unwrap();
            let answer = match ballot {
                '.' => continue,
                'b' => Ok(Acquired::busy(seconds * SECOND)),
                'f' => Err(BackendError::refused(
                    BackendErrorKind::Unavailable,
                    "fails",
                )),
                counter => Ok(Acquired::granted(counter.to_digit(10).unwrap().into())),
            };
            election.cast(node, answer, now);
        }
        election
    }

    #[test]
    fn standing_follows_ballots() {
        for (ballots, expected) in [
            ("757..", Poll::Ready(Some(7))),
            ("007..", Poll::Pending),
            ("007bf", Poll::Ready(Some(7))),
            ("77...", Poll::Pending),
            ("77.bb", Poll::Pending),
            ("77bff", Poll::Ready(None)),
            ("bbb..", Poll::Ready(None)),
            ("fff..", Poll::Ready(None)),
            ("bbf..", Poll::Pending),
            ("bbff.", Poll::Pending),
            ("bff..", Poll::Pending),
        ] {
            let standing = election(ballots, Instant::now()).standing();
            assert_eq!(standing, expected, "{ballots}");
        }
    }

    #[test]
    fn agreement_follows_counters() {
        for (ballots, expected) in [
            ("777..", Poll::Ready(Some(7))),
            ("775..", Poll::Pending),
            ("7755.", Poll::Pending),
            ("77555", Poll::Ready(None)),
        ] {
            let election = election(ballots, Instant::now());
            assert_eq!(election.agreement(7), expected, "{ballots}");
        }
        let election = election("750b.", Instant::now());
        assert_eq!(election.behind(7), [1, 2]);
        assert_eq!(election.behind(1), [2]);
    }

    #[test]
    fn election_is_split_by_single_grant() {
        assert!(election("7bb", Instant::now()).is_split());
        assert!(!election("bb.", Instant::now()).is_split());
    }

    #[test]
    fn closed_election_is_open_no_more() {
        let mut election = election("7..", Instant::now());
        election.close();
        assert_eq!(election.standing(), Poll::Ready(None));
    }

    #[test]
    fn defeat_returns_time_until_majority_is_free() {
        let now = Instant::now();
        for (ballots, seconds) in [("7bbbb", 2), ("77bbb", 2), ("bbbff", 2), ("fbbbb", 3)] {
            let outcome = election(ballots, now).defeat(now, false);
            assert!(
                matches!(outcome, Ok(Acquired::Busy { ttl }) if ttl == seconds * SECOND),
                "{ballots}: {outcome:?}"
            );
        }
        for ballots in ["77fff", "bbfff", "bffff"] {
            let outcome = election(ballots, now).defeat(now, false);
            let error = outcome.expect_err(ballots);
            assert_eq!(error.kind(), BackendErrorKind::Unavailable);
        }
    }
}
