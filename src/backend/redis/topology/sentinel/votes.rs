//! Counts the replies of the sentinels.

use redis::RedisError;

use crate::backend::BackendErrorKind;
use crate::backend::redis::command::kind_of_connecting;

/// The primary that a sentinel names, or `None` if it does not know the service.
pub(crate) type Named = Option<(String, u16)>;

/// The replies of one round.
pub(crate) struct Votes {
    sentinels: usize,
    named: Vec<((String, u16), usize)>,
    /// A sentinel does not know the service.
    pub(crate) unknown: bool,
    pub(crate) failure: Option<RedisError>,
}

impl Votes {
    pub(crate) fn of(sentinels: usize) -> Self {
        Self {
            sentinels,
            named: Vec::new(),
            unknown: false,
            failure: None,
        }
    }

    pub(crate) fn count(&mut self, reply: Result<Named, RedisError>) {
        match reply {
            Ok(Some(name)) => match self.named.iter_mut().find(|it| it.0 == name) {
                Some((_, votes)) => *votes += 1,
                None => self.named.push((name, 1)),
            },
            Ok(None) => self.unknown = true,
            Err(error) => {
                // A rejection is more useful than a timeout.
                let rejects =
                    |it: &RedisError| kind_of_connecting(it) == BackendErrorKind::Misconfigured;
                if !self.failure.as_ref().is_some_and(rejects) {
                    self.failure = Some(error);
                }
            }
        }
    }

    /// Returns `true` if more than half of the sentinels have named a server, the same or not.
    pub(crate) fn are_most_in(&self) -> bool {
        let votes: usize = self.named.iter().map(|(_, votes)| votes).sum();
        2 * votes > self.sentinels
    }

    /// Returns the server that more than half of the sentinels name.
    pub(crate) fn majority(&self) -> Option<(&str, u16)> {
        let mut named = self.named.iter();
        let ((host, port), _) = named.find(|(_, votes)| 2 * votes > self.sentinels)?;
        Some((host, *port))
    }

    /// Returns the server that most of the replies name.
    pub(crate) fn plurality(&self) -> Option<(&str, u16)> {
        let ((host, port), _) = self.named.iter().max_by_key(|(_, votes)| votes)?;
        Some((host, *port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(named: [Option<&str>; 3]) -> Votes {
        let mut votes = Votes::of(3);
        for host in named.into_iter().flatten() {
            let name = (!host.is_empty()).then(|| (host.to_owned(), 1));
            votes.count(Ok(name));
        }
        votes
    }

    #[test]
    fn two_of_three_votes_are_majority() {
        let (new, old) = (Some("new"), Some("old"));
        let unknown = Some("");
        for (named, majority, plurality) in [
            ([old, new, new], new, new),
            ([new, new, None], new, new),
            ([old, None, None], None, old),
            ([unknown, None, new], None, new),
            ([unknown, unknown, None], None, None),
            ([None; 3], None, None),
        ] {
            let votes = votes(named);
            assert_eq!(votes.majority().map(|it| it.0), majority, "{named:?}");
            assert_eq!(votes.plurality().map(|it| it.0), plurality, "{named:?}");
            assert_eq!(votes.unknown, named.contains(&unknown));
        }
    }
}
