//! The channels that are watched. A topic is *confirmed* while the server is known to deliver its
//! messages.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::HintSender;

/// How long a subscription outlives its last watcher: a busy key is watched again and again.
const LINGER: Duration = Duration::from_secs(1);
/// How many channels are subscribed to at a time.
pub(super) const MAX_BATCH: usize = 500;

#[derive(Default)]
pub(super) struct Topics {
    topics: HashMap<String, Topic>,
    /// Channels to subscribe to: all that are not confirmed, and perhaps some that are not watched
    /// any more. Kept apart so that a new watch does not cost a look at every topic.
    wanted: Vec<String>,
    /// Channels to unsubscribe from.
    left: Vec<String>,
    /// There is a task that serves them.
    pub(super) running: bool,
    /// The notifier was dropped.
    pub(super) closed: bool,
}

#[derive(Default)]
struct Topic {
    watchers: Vec<HintSender>,
    confirmed: bool,
    /// When the last watcher was found gone.
    abandoned: Option<Instant>,
}

impl Topics {
    pub(super) fn len(&self) -> usize {
        self.topics.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Whether there is anything to subscribe to, perhaps.
    pub(super) fn are_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Whether the server counts us among its subscribers, though nobody here listens any more.
    pub(super) fn lingers(&self, channel: &str) -> bool {
        self.topics.get(channel).is_some_and(|topic| {
            topic.confirmed && topic.watchers.iter().all(HintSender::is_closed)
        })
    }

    /// Adds watchers to a channel, and wants it if it is new.
    pub(super) fn watch(&mut self, channel: String, watchers: Vec<HintSender>) {
        let topic = match self.topics.entry(channel) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                self.wanted.push(new.key().clone());
                new.insert(Topic::default())
            }
        };
        if topic.confirmed {
            watchers.iter().for_each(HintSender::hint);
        }
        topic.watchers.retain(|watcher| !watcher.is_closed());
        topic.watchers.extend(watchers);
        topic.abandoned = None;
    }

    /// Takes away the watchers of all channels that do not live here, leaves those, and wants those
    /// again that do and are not confirmed.
    pub(super) fn evict(
        &mut self,
        lives_here: impl Fn(&str) -> bool,
    ) -> Vec<(String, Vec<HintSender>)> {
        let mut evicted = Vec::new();
        self.wanted.clear();
        self.topics.retain(|channel, topic| {
            let stays = lives_here(channel);
            if !stays {
                evicted.push((channel.clone(), std::mem::take(&mut topic.watchers)));
                // The server ends sharded subscriptions by itself, plain ones not; of a channel
                // with both kinds it may have one without the other.
                self.left.push(channel.clone());
            } else if !topic.confirmed {
                self.wanted.push(channel.clone());
            }
            stays
        });
        evicted
    }

    /// There is nobody to subscribe for any more.
    pub(super) fn clear(&mut self) {
        self.topics.clear();
        self.want_nothing();
    }

    /// Where there is nothing to subscribe to.
    pub(super) fn want_nothing(&mut self) {
        self.wanted.clear();
        self.left.clear();
    }

    /// Forgets watchers that left, and leaves topics that nobody came back to.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.topics.retain(|channel, topic| {
            topic.watchers.retain(|watcher| !watcher.is_closed());
            if !topic.watchers.is_empty() {
                return true;
            }
            let keep = now < *topic.abandoned.get_or_insert(now) + LINGER;
            if !keep {
                self.left.push(channel.clone());
            }
            keep
        });
    }

    /// Takes the channels to unsubscribe from.
    pub(super) fn take_left(&mut self) -> Vec<String> {
        std::mem::take(&mut self.left)
    }

    /// Takes the next channels to subscribe to.
    pub(super) fn next_wanted(&mut self) -> Vec<String> {
        let rest = self.wanted.len().saturating_sub(MAX_BATCH);
        let mut batch = self.wanted.split_off(rest);
        batch.retain(|channel| {
            let topic = self.topics.get(channel);
            topic.is_some_and(|topic| !topic.confirmed)
        });
        batch
    }

    pub(super) fn confirm(&mut self, channels: &[String]) {
        for channel in channels {
            if let Some(topic) = self.topics.get_mut(channel) {
                topic.confirmed = true;
                topic.watchers.iter().for_each(HintSender::hint);
            }
        }
    }

    /// They were left. Those that came back before that, and were perhaps subscribed to in between, are
    /// wanted again.
    pub(super) fn unsubscribed(&mut self, channels: &[String]) {
        for channel in channels {
            if let Some(topic) = self.topics.get_mut(channel) {
                topic.confirmed = false;
                self.wanted.push(channel.clone());
            }
        }
    }

    /// The server dropped a subscription by itself: true if it was not asked to.
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
            topic.watchers.iter().for_each(HintSender::hint);
        }
    }

    pub(super) fn hint_all(&mut self) {
        let watchers = self.topics.values().flat_map(|topic| &topic.watchers);
        watchers.for_each(HintSender::hint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Watched, left because its slot moved away, watched again when the slot came back.
    #[test]
    fn a_channel_that_came_back_before_it_was_left_is_wanted_again() {
        let mut topics = Topics::default();
        let channel = vec!["a".to_owned()];
        topics.watch("a".to_owned(), Vec::new());
        assert_eq!(topics.next_wanted(), channel);
        topics.confirm(&channel);
        assert_eq!(topics.evict(|_| false).len(), 1);
        topics.watch("a".to_owned(), Vec::new());
        assert_eq!(topics.next_wanted(), channel);
        topics.confirm(&channel);
        let left = topics.take_left();
        assert_eq!(left, channel);
        topics.unsubscribed(&left);
        assert!(!topics.lingers("a"), "not confirmed any more");
        assert_eq!(topics.next_wanted(), channel);
    }
}
