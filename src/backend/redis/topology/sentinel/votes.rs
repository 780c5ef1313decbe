//! Counts the replies of the sentinels.

use crate::backend::{BackendError, BackendErrorKind};

/// The primary that a sentinel names, or `None` if it does not know the service.
pub(super) type SentinelReply = Result<Option<Named>, BackendError>;

/// The primary that a sentinel names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) host: String,
    pub(super) port: u16,
    /// The number of the failover that made it the primary, or a lower one. `None` if the sentinel does
    /// not permit the question.
    pub(super) epoch: Option<u64>,
}

/// The replies of one round.
pub(super) struct Votes {
    sentinels: usize,
    /// Each server that was named, with its latest epoch, and how often.
    named: Vec<(Named, usize)>,
    /// A sentinel does not know the service.
    pub(super) unknown: bool,
    pub(super) failure: Option<BackendError>,
}

impl Votes {
    pub(super) fn of(sentinels: usize) -> Self {
        Self {
            sentinels,
            named: Vec::new(),
            unknown: false,
            failure: None,
        }
    }

    pub(super) fn count(&mut self, reply: SentinelReply) {
        match reply {
            Ok(Some(name)) => {
                let same = |it: &&mut (Named, usize)| {
                    let (host, port) = (&it.0.host, it.0.port);
                    (host, port) == (&name.host, name.port)
                };
                match self.named.iter_mut().find(same) {
                    Some((known, votes)) => {
                        known.epoch = known.epoch.max(name.epoch);
                        *votes += 1;
                    }
                    None => self.named.push((name, 1)),
                }
            }
            Ok(None) => self.unknown = true,
            Err(error) => {
                // A rejection is more useful than a timeout.
                let rejects = |it: &BackendError| it.kind() == BackendErrorKind::Misconfigured;
                if !self.failure.as_ref().is_some_and(rejects) {
                    self.failure = Some(error);
                }
            }
        }
    }

    /// Returns `true` if more than half of the sentinels have named a server, the same or not.
    pub(super) fn are_most_in(&self) -> bool {
        let votes: usize = self.named.iter().map(|(_, votes)| votes).sum();
        2 * votes > self.sentinels
    }

    /// Returns the server that more than half of the sentinels name.
    pub(super) fn majority(&self) -> Option<&Named> {
        let mut named = self.named.iter();
        let (name, _) = named.find(|(_, votes)| 2 * votes > self.sentinels)?;
        Some(name)
    }

    /// Returns the server of the latest failover that a reply knows, or else the one that most replies
    /// name.
    pub(super) fn latest(&self) -> Option<&Named> {
        let named = self.named.iter();
        let (name, _) = named.max_by_key(|(name, votes)| (name.epoch, *votes))?;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(named: [Option<(&str, u64)>; 3]) -> Votes {
        let mut votes = Votes::of(3);
        for (host, epoch) in named.into_iter().flatten() {
            let named = (!host.is_empty()).then(|| Named {
                host: host.to_owned(),
                port: 1,
                epoch: Some(epoch),
            });
            votes.count(Ok(named));
        }
        votes
    }

    #[test]
    fn two_of_three_votes_are_majority() {
        let (new, old) = (Some(("new", 2)), Some(("old", 1)));
        let unknown = Some(("", 0));
        for (named, majority, latest) in [
            ([old, new, new], Some("new"), Some("new")),
            ([old, old, new], Some("old"), Some("new")),
            ([new, new, None], Some("new"), Some("new")),
            ([old, new, None], None, Some("new")),
            ([new, old, None], None, Some("new")),
            ([old, None, None], None, Some("old")),
            ([unknown, None, new], None, Some("new")),
            ([unknown, unknown, None], None, None),
            ([None; 3], None, None),
        ] {
            let votes = votes(named);
            let host = |name: Option<&Named>| name.map(|it| it.host.clone());
            assert_eq!(host(votes.majority()).as_deref(), majority, "{named:?}");
            assert_eq!(host(votes.latest()).as_deref(), latest, "{named:?}");
            assert_eq!(votes.unknown, named.contains(&unknown));
        }
    }

    #[test]
    fn without_epochs_most_replies_decide() {
        let mut votes = Votes::of(5);
        for host in ["one", "other", "other"] {
            let (host, port, epoch) = (host.to_owned(), 1, None);
            let named = Some(Named { host, port, epoch });
            votes.count(Ok(named));
        }
        assert_eq!(votes.majority(), None);
        assert_eq!(votes.latest().unwrap().host, "other");
    }
}
