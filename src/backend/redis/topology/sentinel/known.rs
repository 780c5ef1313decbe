//! The server that is known to be the primary, and what replaces it.

use std::time::Duration;

use tokio::time::Instant;

use super::votes::{Named, Votes};

/// How long no majority names a primary before a later failover counts without one. A slow majority must
/// not be mistaken for one that is lost.
const LOSS: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Known {
    primary: Option<Named>,
    /// The address of the primary, as connections use it.
    pub(super) address: Option<String>,
    /// The first round since the last majority.
    without_majority: Option<Instant>,
}

impl Known {
    /// Returns the server to connect to after a round of replies, and whether it is known to be the
    /// primary. Returns `None` if no sentinel named one.
    pub(super) fn decide<'a>(
        &'a mut self,
        votes: &'a Votes,
        now: Instant,
    ) -> Option<(&'a Named, bool)> {
        if let Some(named) = votes.majority() {
            self.without_majority = None;
            return Some((self.primary.insert(named.clone()), true));
        }
        let since = *self.without_majority.get_or_insert(now);
        let latest = votes.latest()?;
        let is_lost = now.duration_since(since) >= LOSS;
        let replaces = match &self.primary {
            Some(known) => is_lost && known.epoch.is_some() && latest.epoch > known.epoch,
            None => latest.epoch.is_some(),
        };
        if replaces {
            self.primary = Some(latest.clone());
        }
        match &self.primary {
            Some(known) => Some((known, true)),
            None => Some((votes.latest()?, false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENTINELS: usize = 3;

    fn round(replies: &[(&str, Option<u64>)]) -> Votes {
        let mut votes = Votes::of(SENTINELS);
        for (host, epoch) in replies {
            let (host, epoch) = ((*host).to_owned(), *epoch);
            votes.count(Ok(Some(Named {
                host,
                port: 1,
                epoch,
            })));
        }
        votes
    }

    fn known_by(replies: &[(&str, Option<u64>)], start: Instant) -> Known {
        let mut known = Known::default();
        assert!(known.decide(&round(replies), start).is_some());
        known
    }

    /// The host of a decision, and whether it is known.
    fn decided(known: &mut Known, replies: &[(&str, Option<u64>)], now: Instant) -> (String, bool) {
        let votes = round(replies);
        let (named, is_known) = known.decide(&votes, now).unwrap();
        (named.host.clone(), is_known)
    }

    const OLD: (&str, Option<u64>) = ("old", Some(1));
    const NEW: (&str, Option<u64>) = ("new", Some(2));

    #[test]
    fn majority_replaces_known_primary() {
        let start = Instant::now();
        let mut known = known_by(&[NEW, NEW], start);
        let decision = decided(&mut known, &[OLD, OLD, NEW], start);
        assert_eq!(decision, ("old".to_owned(), true));
    }

    #[test]
    fn stale_minority_replaces_nothing() {
        let start = Instant::now();
        let mut known = known_by(&[NEW, NEW], start);
        for seconds in [0, 1, 2, 3, 3_600] {
            let now = start + Duration::from_secs(seconds);
            let decision = decided(&mut known, &[OLD], now);
            assert_eq!(decision, ("new".to_owned(), true), "{seconds}");
        }
    }

    #[test]
    fn later_failover_counts_after_loss_of_majority() {
        let start = Instant::now();
        let mut known = known_by(&[OLD, OLD], start);
        for (after, primary) in [
            (Duration::ZERO, "old"),
            (LOSS / 2, "old"),
            (LOSS, "new"),
            (2 * LOSS, "new"),
        ] {
            let decision = decided(&mut known, &[NEW], start + after);
            assert_eq!(decision, (primary.to_owned(), true), "{after:?}");
        }
    }

    #[test]
    fn majority_in_between_restarts_loss() {
        let start = Instant::now();
        let mut known = known_by(&[OLD, OLD], start);
        for (after, replies, primary) in [
            (Duration::ZERO, &[NEW][..], "old"),
            (LOSS / 2, &[OLD, OLD], "old"),
            (LOSS, &[NEW], "old"),
            (2 * LOSS, &[NEW], "new"),
        ] {
            let decision = decided(&mut known, replies, start + after);
            assert_eq!(decision, (primary.to_owned(), true), "{after:?}");
        }
    }

    #[test]
    fn first_round_without_majority_takes_latest() {
        let start = Instant::now();
        let mut known = Known::default();
        let decision = decided(&mut known, &[NEW, OLD], start);
        assert_eq!(decision, ("new".to_owned(), true));
        let mut without_epochs = Known::default();
        let decision = decided(&mut without_epochs, &[("one", None)], start);
        assert_eq!(decision, ("one".to_owned(), false));
        let decision = decided(&mut without_epochs, &[("other", None)], start);
        assert_eq!(decision, ("other".to_owned(), false));
        assert!(known.decide(&round(&[]), start).is_none());
    }
}
