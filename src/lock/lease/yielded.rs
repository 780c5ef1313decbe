//! The other processes to which a released lease went.

use super::place::QueuePlace;
use crate::backend::{Mode, Released};

/// The other processes for which a lease was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Yielded {
    ToNobody,
    /// Other processes may wait, and the backend has no queue.
    WithoutQueue,
    /// The first process in the queue of the backend has the next turn. If waiters are left, this process may
    /// have entered that queue already, in the same command.
    ToQueue {
        place: Option<QueuePlace>,
        /// The number of other processes there, if a message reports the transfer to the place for certain.
        notified_behind: Option<u32>,
    },
}

impl Yielded {
    /// A queue in which this process has no place.
    pub(in crate::lock) const TO_QUEUE: Self = Self::ToQueue {
        place: None,
        notified_behind: None,
    };

    /// Returns for whom a backend released a lease without a count of other processes.
    pub(in crate::lock) fn by(released: Released) -> Self {
        match released {
            Released::Transferred | Released::LeftToOthers => Self::TO_QUEUE,
            Released::Released | Released::NotHeld => Self::ToNobody,
        }
    }

    pub(in crate::lock) fn place(self) -> Option<QueuePlace> {
        match self {
            Self::ToQueue { place, .. } => place,
            Self::ToNobody | Self::WithoutQueue => None,
        }
    }

    /// Requires an attempt at a place of another mode than that of the first waiter. It changes the mode of the place.
    pub(in crate::lock) fn for_mode(mut self, mode: Mode) -> Self {
        if let Self::ToQueue {
            place,
            notified_behind,
        } = &mut self
            && place.is_none_or(|place| place.mode != mode)
        {
            *notified_behind = None;
        }
        self
    }

    pub(in crate::lock) fn notified_behind(self) -> Option<u32> {
        match self {
            Self::ToQueue {
                notified_behind, ..
            } => notified_behind,
            Self::ToNobody | Self::WithoutQueue => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tests::number;

    #[test]
    fn place_of_other_mode_needs_attempt() {
        let place = QueuePlace {
            lease: number(7),
            mode: Mode::Exclusive,
            limit: None,
        };
        let yielded = Yielded::ToQueue {
            place: Some(place),
            notified_behind: Some(3),
        };
        assert_eq!(yielded.for_mode(Mode::Exclusive), yielded);
        let shared = yielded.for_mode(Mode::Shared);
        assert_eq!(shared.place(), Some(place));
        assert_eq!(shared.notified_behind(), None);
    }
}
