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
///
/// The channel of a key with a hash tag can end like the channel of a manager, since `%25` begins a UUID as well.
pub(super) fn base_of(name: &str) -> &str {
    let Some((base, suffix)) = name.rsplit_once('%') else {
        return name;
    };
    match suffix == &OURS[1..] || Uuid::try_parse(suffix).is_ok() {
        true => base,
        false => name,
    }
}

/// Returns the hint of a message from the rest of its channel behind the channel of the releases, and its text.
pub(super) fn hint_of(suffix: &str, text: &[u8]) -> Option<Hint> {
    if suffix.is_empty() {
        return Some(Hint::Released);
    }
    let text = std::str::from_utf8(text).ok()?;
    // A version before this one adds the counter of a grant.
    let lease = text.split_once(' ').map_or(text, |(lease, _counter)| lease);
    let (manager, number) = lease.split_once(':')?;
    let manager = Uuid::try_parse(manager).ok()?;
    Some(Hint::transferred(LeaseId::new(
        manager,
        number.parse().ok()?,
    )))
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
            assert_eq!(base_of(name), CHANNEL);
            hint_of(&name[CHANNEL.len()..], text.as_bytes())
        };
        assert_eq!(hint(CHANNEL, "0"), Some(Hint::Released));
        assert_eq!(
            hint(&own, &lease.to_string()),
            Some(Hint::transferred(lease))
        );
        assert_eq!(
            hint(&own, &format!("{lease} 1795560000000001")),
            Some(Hint::transferred(lease))
        );
        for foreign in ["0", "", "a:b"] {
            assert_eq!(hint(&own, foreign), None);
        }
        assert_eq!(hint(&format!("{CHANNEL}%w"), "0"), None);
    }
}
