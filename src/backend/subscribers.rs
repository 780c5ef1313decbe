//! The subscribers of one key.

use uuid::Uuid;

use super::{Hint, HintSender, LeaseId};

/// The capacity that an unused list may keep.
const MIN_CAPACITY: usize = 4;

/// The subscribers of one key, in memory bounded by the live ones.
///
/// A closed subscriber is found only by a walk over all of them. Each walk makes room for as many additions
/// as it leaves subscribers, so an addition takes amortized constant time.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    senders: Vec<Subscriber>,
}

#[derive(Debug)]
struct Subscriber {
    /// `None` for a subscription without transfers.
    manager: Option<Uuid>,
    sender: HintSender,
}

impl Subscribers {
    /// Adds a subscriber, of a manager if it receives transfers. If the list is full, drops the closed ones
    /// first.
    pub(crate) fn push(&mut self, manager: Option<Uuid>, sender: HintSender) {
        if self.senders.len() == self.senders.capacity() {
            self.prune();
            let room = MIN_CAPACITY.max(self.senders.len());
            self.senders.reserve_exact(room);
        }
        self.senders.push(Subscriber { manager, sender });
    }

    /// Drops the closed subscribers and the memory beyond twice the live ones. Returns how many are live.
    pub(crate) fn prune(&mut self) -> usize {
        self.senders.retain(|it| !it.sender.is_closed());
        let live = self.senders.len();
        self.senders.shrink_to(MIN_CAPACITY.max(2 * live));
        live
    }

    /// Notifies all subscribers.
    pub(crate) fn hint(&self) {
        self.senders.iter().for_each(|it| it.sender.hint());
    }

    /// Notifies the manager of a lease of its transfer. Returns `false` if it has no subscriber.
    pub(crate) fn transfer(&self, lease: LeaseId) -> bool {
        let is_of_manager = |it: &&Subscriber| it.manager == Some(lease.manager());
        let mut reached = false;
        for subscriber in self.senders.iter().filter(is_of_manager) {
            reached |= !subscriber.sender.is_closed();
            subscriber.sender.send(Hint::transferred(lease));
        }
        reached
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.senders.len()
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.senders.capacity()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::Hints;
    use super::*;

    #[test]
    fn closed_subscriber_stays_while_list_has_room() {
        let mut subscribers = Subscribers::default();
        for count in 1..=MIN_CAPACITY {
            subscribers.push(None, Hints::channel().0);
            assert_eq!(subscribers.len(), count);
        }
        subscribers.push(None, Hints::channel().0);
        assert_eq!(subscribers.len(), 1);
    }

    #[test]
    fn transfer_reaches_subscribers_of_its_manager() {
        let [one, other] = [1, 2].map(Uuid::from_u128);
        let lease = LeaseId::new(one, 1);
        let mut subscribers = Subscribers::default();
        let [
            (closed, hints),
            (own, mut own_hints),
            (foreign, mut foreign_hints),
        ] = [(); 3].map(|()| Hints::channel());
        drop(hints);
        subscribers.push(Some(other), foreign);
        assert!(!subscribers.transfer(lease));
        subscribers.push(Some(one), own);
        assert!(subscribers.transfer(lease));
        subscribers.push(Some(one), closed);
        assert!(subscribers.transfer(lease));
        let transferred = Some(Hint::transferred(lease));
        assert_eq!(own_hints.next().now_or_never(), transferred);
        assert_eq!(foreign_hints.next().now_or_never(), None);
        drop(own_hints);
        assert!(!subscribers.transfer(lease));
    }

    #[test]
    fn pruned_list_keeps_room_for_as_many_subscribers() {
        let mut subscribers = Subscribers::default();
        let mut live = Vec::new();
        for _ in 0..5 * MIN_CAPACITY {
            let (sender, hints) = Hints::channel();
            subscribers.push(None, sender);
            live.push(hints);
        }
        live.truncate(6);
        assert_eq!(subscribers.prune(), 6);
        assert_eq!((subscribers.len(), subscribers.capacity()), (6, 12));
    }
}
