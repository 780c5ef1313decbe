//! The outcome of the replies to a vote. It does no I/O, and the caller passes the time.

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

#[derive(Debug)]
pub(super) enum Standing {
    Open,
    /// A majority granted. A previous grant has at most this counter.
    Elected(u64),
    Defeated,
}

impl Election {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            majority: nodes / 2 + 1,
            ballots: (0..nodes).map(|_| Ballot::Open).collect(),
        }
    }

    fn count(&self, is_so: impl Fn(&Ballot) -> bool) -> usize {
        self.ballots.iter().filter(|ballot| is_so(ballot)).count()
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

    /// Returns the standing of the first round.
    ///
    /// A node without a counter may have lost it, so its vote does not bound earlier tokens. A majority of
    /// votes with counters bounds them. Without such a majority, the election waits for all nodes.
    pub(super) fn standing(&self) -> Standing {
        let open = self.count(|ballot| matches!(ballot, Ballot::Open));
        let granted = self.count(|ballot| matches!(ballot, Ballot::Granted(_)));
        let remember = self.count(|ballot| matches!(ballot, Ballot::Granted(1..)));
        if granted >= self.majority && (remember >= self.majority || open == 0) {
            let counters = self.ballots.iter().map(|ballot| match ballot {
                Ballot::Granted(counter) => *counter,
                _ => 0,
            });
            Standing::Elected(counters.max().unwrap_or(0))
        } else if granted + open < self.majority && self.is_explained(open) {
            Standing::Defeated
        } else {
            Standing::Open
        }
    }

    /// Returns `true` if the reason for a missing majority is clear: another lease holds the key, or nodes
    /// failed.
    fn is_explained(&self, open: usize) -> bool {
        let failed = self.count(|ballot| matches!(ballot, Ballot::Failed(_) | Ballot::Silent));
        let alive = self.ballots.len() - failed - open;
        failed >= self.majority || alive >= self.majority
    }

    fn knowing(&self, counter: u64) -> usize {
        self.count(|ballot| matches!(ballot, Ballot::Granted(known) if *known >= counter))
    }

    /// Returns `true` if a majority holds the lease and has `counter`.
    pub(super) fn is_known(&self, counter: u64) -> bool {
        self.knowing(counter) >= self.majority
    }

    /// Returns the standing of the second round, in which the other nodes receive `counter`.
    pub(super) fn agreement(&self, counter: u64) -> Standing {
        let open = self.count(|ballot| matches!(ballot, Ballot::Open));
        if self.is_known(counter) {
            Standing::Elected(counter)
        } else if self.knowing(counter) + open < self.majority {
            Standing::Defeated
        } else {
            Standing::Open
        }
    }

    /// Returns the nodes that hold the lease and have a smaller counter, or none.
    pub(super) fn behind(&self, counter: u64) -> Vec<usize> {
        let ballots = self.ballots.iter().enumerate();
        let behind = ballots
            .filter(|(_, ballot)| matches!(ballot, Ballot::Granted(known) if *known < counter));
        behind.map(|(node, _)| node).collect()
    }

    /// Returns `true` if some nodes granted. Concurrent attempts then have no majority either.
    pub(super) fn is_split(&self) -> bool {
        self.count(|ballot| matches!(ballot, Ballot::Granted(_))) > 0
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

    /// Returns the counter of the elected lease, `Ok(None)` while it is open, or `Err` after a defeat.
    fn elected(standing: &Standing) -> Result<Option<u64>, ()> {
        match standing {
            Standing::Open => Ok(None),
            Standing::Elected(counter) => Ok(Some(*counter)),
            Standing::Defeated => Err(()),
        }
    }

    #[test]
    fn standing_follows_ballots() {
        for (ballots, expected) in [
            ("757..", Ok(Some(7))),
            ("007..", Ok(None)),
            ("007bf", Ok(Some(7))),
            ("77...", Ok(None)),
            ("77.bb", Ok(None)),
            ("77bff", Err(())),
            ("bbb..", Err(())),
            ("fff..", Err(())),
            ("bbf..", Ok(None)),
            ("bbff.", Ok(None)),
            ("bff..", Ok(None)),
        ] {
            let standing = election(ballots, Instant::now()).standing();
            assert_eq!(elected(&standing), expected, "{ballots}");
        }
    }

    #[test]
    fn agreement_follows_counters() {
        for (ballots, expected) in [
            ("777..", Ok(Some(7))),
            ("775..", Ok(None)),
            ("7755.", Ok(None)),
            ("77555", Err(())),
        ] {
            let election = election(ballots, Instant::now());
            assert_eq!(elected(&election.agreement(7)), expected, "{ballots}");
            assert_eq!(election.is_known(7), expected == Ok(Some(7)), "{ballots}");
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
        assert_eq!(elected(&election.standing()), Err(()));
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
