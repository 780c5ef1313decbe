//! The subscription to one lock, and its watchers.

use uuid::Uuid;

use crate::backend::redis::command::OURS;
use crate::backend::{Hint, HintSender, LeaseId};

/// A waiter for messages about one lock.
#[derive(Debug, Clone)]
pub(crate) struct Watcher {
    /// The manager whose leases can be in the queue of the lock. `None` if this backend uses no queue.
    pub(crate) manager: Option<Uuid>,
    pub(crate) sender: HintSender,
}

impl Watcher {
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// The channels of one lock.
///
/// Releases are published on the channel that Redisson uses as well. Processes of this crate also subscribe to
/// a channel without messages, so the scripts can tell how many other clients there are, and to one channel
/// per manager, for its transferred leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subscription {
    pub(super) channel: String,
    pub(super) managers: Vec<Uuid>,
}

/// A message, as its channel and its text show.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    /// The channel of the releases.
    pub(super) channel: &'a str,
    pub(super) hint: Option<Hint>,
}

impl Subscription {
    /// Returns the names to subscribe to, in this order. A process that has only a part of them must not count
    /// as another client, so the releases come last.
    pub(super) fn names(&self) -> Vec<String> {
        let ours = match self.managers[..] {
            [] => None,
            _ => Some(format!("{}{OURS}", self.channel)),
        };
        let managers = self.managers.iter();
        let managers = managers.map(|manager| format!("{}%{manager}", self.channel));
        let names = ours.into_iter().chain(managers);
        names.chain([self.channel.clone()]).collect()
    }
}

/// Returns the channel of the releases that one of the names of a subscription belongs to.
pub(super) fn base_of(name: &str) -> &str {
    suffix_of(name).map_or(name, |suffix| &name[..name.len() - suffix.len() - 1])
}

/// No encoded key contains a bare `%` before one of these suffixes.
fn suffix_of(name: &str) -> Option<&str> {
    let (_, suffix) = name.rsplit_once('%')?;
    (suffix == &OURS[1..] || Uuid::try_parse(suffix).is_ok()).then_some(suffix)
}

impl<'a> Message<'a> {
    pub(super) fn new(name: &'a str, text: &[u8]) -> Self {
        let channel = base_of(name);
        let hint = match suffix_of(name) {
            None => Some(Hint::Released),
            Some(_) => lease_of(text).map(Hint::transferred),
        };
        Self { channel, hint }
    }
}

fn lease_of(text: &[u8]) -> Option<LeaseId> {
    let (manager, number) = std::str::from_utf8(text).ok()?.split_once(':')?;
    let manager = Uuid::try_parse(manager).ok()?;
    Some(LeaseId::new(manager, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL: &str = "redisson_lock__channel:{lock:50%25%w}";

    #[test]
    fn names_end_with_channel_of_releases() {
        let mut subscription = Subscription {
            channel: CHANNEL.to_owned(),
            managers: vec![Uuid::nil()],
        };
        let own = format!("{CHANNEL}%{}", Uuid::nil());
        let names = subscription.names();
        assert_eq!(names, [&format!("{CHANNEL}%w"), &own, CHANNEL]);
        assert!(names.iter().all(|name| base_of(name) == CHANNEL));
        subscription.managers.clear();
        assert_eq!(subscription.names(), [CHANNEL]);
    }

    #[test]
    fn message_is_release_or_transfer() {
        let lease = LeaseId::new(Uuid::from_u128(7), 3);
        let own = format!("{CHANNEL}%{}", lease.manager());
        let hint = |name: &str, text: &str| {
            let message = Message::new(name, text.as_bytes());
            assert_eq!(message.channel, CHANNEL);
            message.hint
        };
        assert_eq!(hint(CHANNEL, "0"), Some(Hint::Released));
        assert_eq!(
            hint(&own, &lease.to_string()),
            Some(Hint::transferred(lease))
        );
        for foreign in ["0", "", "a:b"] {
            assert_eq!(hint(&own, foreign), None);
        }
        assert_eq!(hint(&format!("{CHANNEL}%w"), "0"), None);
    }
}
