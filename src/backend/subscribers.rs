//! The subscribers of one key.

use super::HintSender;

/// The capacity that an unused list may keep.
const MIN_CAPACITY: usize = 4;

/// The subscribers of one key, in memory bounded by the live ones.
///
/// A closed subscriber is found only by a walk over all of them. Each walk makes room for as many additions
/// as it leaves subscribers, so an addition takes amortized constant time.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    senders: Vec<HintSender>,
}

impl Subscribers {
    /// Adds a subscriber. If the list is full, drops the closed ones first.
    pub(crate) fn push(&mut self, sender: HintSender) {
        if self.senders.len() == self.senders.capacity() {
            self.prune();
            let room = MIN_CAPACITY.max(self.senders.len());
            self.senders.reserve_exact(room);
        }
        self.senders.push(sender);
    }

    /// Drops the closed subscribers and the memory beyond twice the live ones. Returns how many are live.
    pub(crate) fn prune(&mut self) -> usize {
        self.senders.retain(|sender| !sender.is_closed());
        let live = self.senders.len();
        self.senders.shrink_to(MIN_CAPACITY.max(2 * live));
        live
    }

    /// Notifies all subscribers.
    pub(crate) fn hint(&self) {
        self.senders.iter().for_each(HintSender::hint);
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
