//! The watched channels. A topic is *confirmed* while the server has confirmed its subscription.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::HintSender;

/// How long a subscription outlives its last waiter. The next waiter of a busy key reuses it.
const LINGER: Duration = Duration::from_secs(1);
/// The number of channels per round of subscriptions.
pub(super) const MAX_BATCH: usize = 500;

#[derive(Default)]
pub(super) struct Topics {
    topics: HashMap<String, Topic>,
    /// The channels to subscribe to: all unconfirmed ones, and perhaps some without waiters. A separate list
    /// saves a walk over all topics for each new watch.
    wanted: Vec<String>,
    /// Channels to unsubscribe from.
    left: Vec<String>,
    /// A task serves the topics.
    pub(super) running: bool,
    /// The notifier was dropped.
    pub(super) closed: bool,
}

#[derive(Default)]
struct Topic {
    waiters: Vec<HintSender>,
    confirmed: bool,
    /// The time at which a sweep found no waiter.
    abandoned: Option<Instant>,
}

impl Topics {
    pub(super) fn len(&self) -> usize {
        self.topics.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Returns `true` if there may be a channel to subscribe to.
    pub(super) fn are_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Returns `true` if the server counts a subscription of this process that has no waiter.
    pub(super) fn lingers(&self, channel: &str) -> bool {
        self.topics
            .get(channel)
            .is_some_and(|topic| topic.confirmed && topic.waiters.iter().all(HintSender::is_closed))
    }

    /// Adds waiters to a channel. A new channel becomes wanted.
    pub(super) fn watch(&mut self, channel: String, waiters: Vec<HintSender>) {
        let topic = match self.topics.entry(channel) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                self.wanted.push(new.key().clone());
                new.insert(Topic::default())
            }
        };
        if topic.confirmed {
            waiters.iter().for_each(HintSender::hint);
        }
        topic.waiters.retain(|waiter| !waiter.is_closed());
        topic.waiters.extend(waiters);
        topic.abandoned = None;
    }

    /// Removes the channels that do not live here, and returns their waiters. Unconfirmed channels that do
    /// live here become wanted again.
    pub(super) fn detach_foreign(
        &mut self,
        lives_here: impl Fn(&str) -> bool,
    ) -> Vec<(String, Vec<HintSender>)> {
        let mut detached = Vec::new();
        self.wanted.clear();
        self.topics.retain(|channel, topic| {
            let stays = lives_here(channel);
            if !stays {
                detached.push((channel.clone(), std::mem::take(&mut topic.waiters)));
                // The server ends sharded subscriptions, but no plain ones. A channel with both kinds
                // may have one without the other.
                self.left.push(channel.clone());
            } else if !topic.confirmed {
                self.wanted.push(channel.clone());
            }
            stays
        });
        detached
    }

    /// Removes all topics.
    pub(super) fn clear(&mut self) {
        self.topics.clear();
        self.want_nothing();
    }

    /// Drops all pending commands.
    pub(super) fn want_nothing(&mut self) {
        self.wanted.clear();
        self.left.clear();
    }

    /// Drops waiters that left, and topics without a waiter for a while.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.topics.retain(|channel, topic| {
            topic.waiters.retain(|waiter| !waiter.is_closed());
            if !topic.waiters.is_empty() {
                return true;
            }
            let keep = now < *topic.abandoned.get_or_insert(now) + LINGER;
            if !keep {
                self.left.push(channel.clone());
            }
            keep
        });
    }

    /// Removes and returns the channels to unsubscribe from.
    pub(super) fn take_left(&mut self) -> Vec<String> {
        std::mem::take(&mut self.left)
    }

    /// Removes and returns the next channels to subscribe to.
    pub(super) fn next_wanted(&mut self) -> Vec<String> {
        let rest = self.wanted.len().saturating_sub(MAX_BATCH);
        let mut batch = self.wanted.split_off(rest);
        batch.retain(|channel| {
            let topic = self.topics.get(channel);
            topic.is_some_and(|topic| !topic.confirmed)
        });
        batch
    }

    /// Wants all unconfirmed channels again.
    pub(super) fn want_unconfirmed(&mut self) {
        let unconfirmed = self.topics.iter().filter(|(_, topic)| !topic.confirmed);
        self.wanted = unconfirmed.map(|(channel, _)| channel.clone()).collect();
    }

    pub(super) fn confirm(&mut self, channels: &[String]) {
        for channel in channels {
            if let Some(topic) = self.topics.get_mut(channel) {
                topic.confirmed = true;
                topic.waiters.iter().for_each(HintSender::hint);
            }
        }
    }

    /// Records the end of subscriptions. A channel that was watched again in the meantime becomes wanted.
    pub(super) fn unsubscribed(&mut self, channels: &[String]) {
        for channel in channels {
            if let Some(topic) = self.topics.get_mut(channel) {
                topic.confirmed = false;
                self.wanted.push(channel.clone());
            }
        }
    }

    /// Records that the server ended a subscription. Returns `true` if the topic was confirmed.
    pub(super) fn dropped(&mut self, channel: &str) -> bool {
        let topic = self.topics.get_mut(channel);
        topic.is_some_and(|topic| std::mem::replace(&mut topic.confirmed, false))
    }

    pub(super) fn disconnected(&mut self) {
        self.wanted = self.topics.keys().cloned().collect();
        self.left.clear();
        let topics = self.topics.values_mut();
        topics.for_each(|topic| topic.confirmed = false);
    }

    pub(super) fn hint(&mut self, channel: &str) {
        if let Some(topic) = self.topics.get(channel) {
            topic.waiters.iter().for_each(HintSender::hint);
        }
    }

    pub(super) fn hint_all(&mut self) {
        let waiters = self.topics.values().flat_map(|topic| &topic.waiters);
        waiters.for_each(HintSender::hint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slot of the channel moves away and returns.
    #[test]
    fn channel_watched_again_before_unsubscribe_is_wanted() {
        let mut topics = Topics::default();
        let channel = vec!["a".to_owned()];
        topics.watch("a".to_owned(), Vec::new());
        assert_eq!(topics.next_wanted(), channel);
        topics.confirm(&channel);
        assert_eq!(topics.detach_foreign(|_| false).len(), 1);
        topics.watch("a".to_owned(), Vec::new());
        assert_eq!(topics.next_wanted(), channel);
        topics.confirm(&channel);
        let left = topics.take_left();
        assert_eq!(left, channel);
        topics.unsubscribed(&left);
        assert!(!topics.lingers("a"), "unconfirmed");
        assert_eq!(topics.next_wanted(), channel);
    }
}
