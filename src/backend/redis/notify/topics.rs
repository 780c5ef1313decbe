//! The watched channels. A topic is *confirmed* while the server has confirmed its subscription.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use tokio::time::Instant;

use super::subscription::{Subscription, Watcher, base_of, hint_of};
use super::topic::Topic;
use crate::backend::{Hint, HintSender};

/// How long a subscription outlives its last waiter. The next waiter of a busy key reuses it.
const LINGER: Duration = Duration::from_secs(1);
/// The number of managers without a watcher that a busy channel may keep.
const MAX_IDLE_MANAGERS: usize = 16;
/// The number of channels per round of subscriptions.
pub(super) const MAX_BATCH: usize = 500;

#[derive(Default)]
pub(super) struct Topics {
    topics: HashMap<String, Topic>,
    /// The channels to subscribe to: all unconfirmed ones, and perhaps some without waiters. A separate list
    /// saves a walk over all topics for each new watch.
    pub(super) wanted: Vec<String>,
    /// Subscriptions to end.
    pub(super) left: Vec<Subscription>,
    /// A task serves the topics.
    pub(super) running: bool,
    /// The notifier was dropped.
    pub(super) closed: bool,
}

impl Topics {
    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Returns `true` if the server counts a subscription of this process that has no waiter.
    pub(super) fn lingers(&self, channel: &str) -> bool {
        self.topics
            .get(channel)
            .is_some_and(|topic| topic.confirmed && topic.waiters.iter().all(Watcher::is_closed))
    }

    pub(super) fn is_confirmed(&self, channel: &str) -> bool {
        let topic = self.topics.get(channel);
        topic.is_some_and(|topic| topic.confirmed)
    }

    /// Adds waiters to a channel. A new channel becomes wanted, and so does one with a new manager.
    pub(super) fn watch(&mut self, channel: String, waiters: Vec<Watcher>) {
        let (topic, mut wanted) = match self.topics.entry(channel.clone()) {
            Entry::Occupied(known) => (known.into_mut(), false),
            Entry::Vacant(new) => (new.insert(Topic::default()), true),
        };
        for Watcher { manager, .. } in &waiters {
            if manager.is_some_and(|id| topic.add_manager(id)) {
                topic.confirmed = false;
                wanted = true;
            }
        }
        if topic.confirmed {
            waiters.iter().for_each(|it| topic.catch_up(it));
        }
        topic.waiters.retain(|waiter| !waiter.is_closed());
        topic.waiters.extend(waiters);
        topic.abandoned = None;
        if wanted {
            self.wanted.push(channel);
        }
    }

    /// Removes the channels that do not live here, and returns their waiters. Unconfirmed channels that do
    /// live here become wanted again.
    pub(super) fn detach_foreign(
        &mut self,
        lives_here: impl Fn(&str) -> bool,
    ) -> Vec<(String, Vec<Watcher>)> {
        let mut detached = Vec::new();
        self.wanted.clear();
        self.topics.retain(|channel, topic| {
            let stays = lives_here(channel);
            if !stays {
                detached.push((channel.clone(), std::mem::take(&mut topic.waiters)));
                // The server ends sharded subscriptions, but no plain ones. A channel with both kinds
                // may have one without the other.
                self.left.push(topic.subscription(channel));
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
                if topic.managers.len() > MAX_IDLE_MANAGERS + topic.waiters.len() {
                    self.left.push(topic.subscription(channel));
                    topic.confirmed = false;
                    let watchers = &topic.waiters;
                    let is_live = |id| watchers.iter().any(|it| it.manager == Some(id));
                    topic.managers.retain(|manager| is_live(manager.id));
                }
                return true;
            }
            let keep = now < *topic.abandoned.get_or_insert(now) + LINGER;
            if !keep {
                self.left.push(topic.subscription(channel));
            }
            keep
        });
    }

    /// Removes and returns the next subscriptions to begin.
    pub(super) fn next_wanted(&mut self) -> Vec<Subscription> {
        let rest = self.wanted.len().saturating_sub(MAX_BATCH);
        let batch = self.wanted.split_off(rest).into_iter();
        let wanted = batch.filter_map(|channel| {
            let topic = self.topics.get(&channel)?;
            (!topic.confirmed).then(|| topic.subscription(&channel))
        });
        wanted.collect()
    }

    /// Wants all unconfirmed channels again.
    pub(super) fn want_unconfirmed(&mut self) {
        let unconfirmed = self.topics.iter().filter(|(_, topic)| !topic.confirmed);
        self.wanted = unconfirmed.map(|(channel, _)| channel.clone()).collect();
    }

    /// Records that subscriptions are in force. One that lacks a new manager is still wanted.
    pub(super) fn confirm(&mut self, subscriptions: &[Subscription]) {
        for Subscription { channel, managers } in subscriptions {
            if let Some(topic) = self.topics.get_mut(channel)
                && topic.managers.iter().all(|it| managers.contains(&it.id))
            {
                topic.confirmed = true;
                topic.hint(Hint::Released);
            }
        }
    }

    /// Records the end of subscriptions. A channel that was watched again in the meantime becomes wanted.
    pub(super) fn unsubscribed(&mut self, subscriptions: &[Subscription]) {
        for Subscription { channel, .. } in subscriptions {
            if let Some(topic) = self.topics.get_mut(channel) {
                topic.confirmed = false;
                self.wanted.push(channel.clone());
            }
        }
    }

    /// Records that the server ended a subscription. Returns `true` if the topic was confirmed.
    pub(super) fn dropped(&mut self, name: &str) -> bool {
        let channel = self.channel_of(name).to_owned();
        let topic = self.topics.get_mut(&channel);
        topic.is_some_and(|topic| std::mem::replace(&mut topic.confirmed, false))
    }

    pub(super) fn disconnected(&mut self) {
        self.wanted = self.topics.keys().cloned().collect();
        self.left.clear();
        let topics = self.topics.values_mut();
        topics.for_each(|topic| topic.confirmed = false);
    }

    /// Returns the channel of the releases for a name that is subscribed to. The channel of a key such as
    /// `{a}%25…` can look like the channel of a manager, so a topic of this name takes precedence.
    fn channel_of<'a>(&self, name: &'a str) -> &'a str {
        if self.topics.contains_key(name) {
            name
        } else {
            base_of(name)
        }
    }

    /// Returns the hint of a message, and its receivers. A transfer is for the watchers of one manager.
    pub(super) fn receivers(&mut self, name: &str, text: &[u8]) -> Option<(Hint, Vec<HintSender>)> {
        let channel = self.channel_of(name);
        let hint = hint_of(&name[channel.len()..], text)?;
        let topic = self.topics.get_mut(channel)?;
        Some((hint, topic.receivers(hint)))
    }

    pub(super) fn hint_all(&mut self) {
        let topics = self.topics.values();
        topics.for_each(|topic| topic.hint(Hint::Released));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    use uuid::Uuid;

    use crate::backend::{Hints, LeaseId};

    fn dispatch(topics: &mut Topics, name: &str, text: &[u8]) {
        if let Some((hint, receivers)) = topics.receivers(name, text) {
            receivers.iter().for_each(|it| it.send(hint));
        }
    }

    /// The slot of the channel moves away and returns.
    #[test]
    fn channel_watched_again_before_unsubscribe_is_wanted() {
        let mut topics = Topics::default();
        let channel = vec![Subscription {
            channel: "a".to_owned(),
            managers: Vec::new(),
        }];
        topics.watch("a".to_owned(), Vec::new());
        assert_eq!(topics.next_wanted(), channel);
        topics.confirm(&channel);
        assert_eq!(topics.detach_foreign(|_| false).len(), 1);
        topics.watch("a".to_owned(), Vec::new());
        assert_eq!(topics.next_wanted(), channel);
        topics.confirm(&channel);
        let left = std::mem::take(&mut topics.left);
        assert_eq!(left, channel);
        topics.unsubscribed(&left);
        assert!(!topics.lingers("a"), "unconfirmed");
        assert_eq!(topics.next_wanted(), channel);
    }

    #[test]
    fn channel_like_managers_has_own_hints() {
        let mut topics = Topics::default();
        let mut watch = |channel: &str| {
            let (sender, hints) = Hints::channel();
            let manager = Some(Uuid::from_u128(1));
            topics.watch(channel.to_owned(), vec![Watcher { manager, sender }]);
            hints
        };
        let encoded = "{a}%250123456789abcdef0123456789abcd";
        let (mut base, mut other) = (watch("{a}"), watch(encoded));
        dispatch(&mut topics, encoded, b"0");
        assert_eq!(other.next().now_or_never(), Some(Hint::Released));
        assert_eq!(base.next().now_or_never(), None);
        topics.next_wanted();
        topics.dropped(encoded);
        let names = |topics: &mut Topics| {
            topics.want_unconfirmed();
            let wanted = topics.next_wanted().into_iter();
            wanted.map(|it| it.channel).collect::<Vec<_>>()
        };
        topics.confirm(
            &[
                &topics.topics["{a}"].subscription("{a}"),
                &topics.topics[encoded].subscription(encoded),
            ]
            .map(Clone::clone),
        );
        assert!(topics.dropped(encoded));
        assert_eq!(names(&mut topics), [encoded]);
    }

    #[test]
    fn transfer_reaches_watchers_of_its_manager() {
        let mut topics = Topics::default();
        let managers = [1, 2].map(Uuid::from_u128);
        let [mut own, mut other] = managers.map(|manager| {
            let (sender, hints) = Hints::channel();
            let manager = Some(manager);
            topics.watch("a".to_owned(), vec![Watcher { manager, sender }]);
            hints
        });
        let lease = LeaseId::new(managers[0], 1);
        let channel = format!("a%{}", lease.manager());
        // A version before this one also sends a counter.
        for text in [lease.to_string(), format!("{lease} 7")] {
            dispatch(&mut topics, &channel, text.as_bytes());
            assert_eq!(own.next().now_or_never(), Some(Hint::transferred(lease)));
            assert_eq!(other.next().now_or_never(), None);
        }
    }

    /// A release can enter a place in the queue, and the transfer can arrive before the next waiter watches.
    #[test]
    fn transfer_before_watch_is_received_later() {
        let mut topics = Topics::default();
        let lease = LeaseId::new(Uuid::from_u128(1), 1);
        let watch = |topics: &mut Topics, manager| {
            let (sender, hints) = Hints::channel();
            let manager = Some(manager);
            topics.watch("a".to_owned(), vec![Watcher { manager, sender }]);
            hints
        };
        drop(watch(&mut topics, lease.manager()));
        let wanted = topics.next_wanted();
        topics.confirm(&wanted);
        dispatch(
            &mut topics,
            &format!("a%{}", lease.manager()),
            lease.to_string().as_bytes(),
        );
        let mut next = watch(&mut topics, lease.manager());
        assert!(next.take_release());
        assert_eq!(next.next().now_or_never(), Some(Hint::transferred(lease)));
        let mut other = watch(&mut topics, Uuid::from_u128(2));
        topics.want_unconfirmed();
        let wanted = topics.next_wanted();
        topics.confirm(&wanted);
        assert!(other.take_release());
        assert_eq!(other.next().now_or_never(), None);
    }

    /// A second manager begins to watch while the subscription of the first is in flight.
    #[test]
    fn new_manager_is_confirmed_by_own_subscription() {
        let mut topics = Topics::default();
        let watch = |topics: &mut Topics, manager| {
            let (sender, hints) = Hints::channel();
            let manager = Some(Uuid::from_u128(manager));
            topics.watch("a".to_owned(), vec![Watcher { manager, sender }]);
            hints
        };
        let _one = watch(&mut topics, 1);
        let first = topics.next_wanted();
        let _other = watch(&mut topics, 2);
        topics.confirm(&first);
        assert!(!topics.is_confirmed("a"));
        let both = topics.next_wanted();
        assert_eq!(both[0].managers.len(), 2);
        topics.confirm(&both);
        assert!(topics.is_confirmed("a"));
        let _again = watch(&mut topics, 1);
        assert!(topics.is_confirmed("a") && topics.next_wanted().is_empty());
    }

    #[test]
    fn managers_without_watcher_stay_bounded() {
        let mut topics = Topics::default();
        let mut live = Vec::new();
        for manager in 0..1_000 {
            let (sender, hints) = Hints::channel();
            let manager = Some(Uuid::from_u128(manager));
            topics.watch("a".to_owned(), vec![Watcher { manager, sender }]);
            live = vec![hints];
            topics.sweep(Instant::now());
            let managers = topics.topics["a"].managers.len();
            assert!(managers <= MAX_IDLE_MANAGERS + 2, "{managers}");
        }
        assert_eq!(live.len(), 1);
        let left = std::mem::take(&mut topics.left);
        topics.unsubscribed(&left);
        assert!(!topics.next_wanted().is_empty());
    }
}
