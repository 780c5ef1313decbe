//! The other processes to which a released lease went.

use super::place::QueuePlace;
use crate::backend::{Mode, Released};

/// The other processes for which a lease was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleasedTo {
    Nobody,
    /// Other processes may wait, and the backend has no queue.
    WithoutQueue,
    /// The first process in the queue of the backend has the next turn. If waiters are left, this process may
    /// have entered that queue already, in the same command.
    Queue {
        place: Option<QueuePlace>,
        /// The number of other processes there, if a message reports the transfer to the place for certain.
        notified_behind: Option<u32>,
    },
}

impl ReleasedTo {
    /// A queue in which this process has no place.
    pub(crate) const QUEUE: Self = Self::Queue {
        place: None,
        notified_behind: None,
    };

    /// Returns for whom a backend released a lease without a count of other processes.
    pub(crate) fn by(released: Released) -> Self {
        match released {
            Released::Transferred | Released::LeftToOthers => Self::QUEUE,
            Released::Released | Released::NotHeld => Self::Nobody,
        }
    }

    pub(crate) fn place(self) -> Option<QueuePlace> {
        match self {
            Self::Queue { place, .. } => place,
            Self::Nobody | Self::WithoutQueue => None,
        }
    }

    /// Requires an attempt at a place of another mode than that of the first waiter. It changes the mode of the place.
    pub(crate) fn for_mode(mut self, mode: Mode) -> Self {
        if let Self::Queue {
            place,
            notified_behind,
        } = &mut self
            && place.is_none_or(|place| place.mode != mode)
        {
            *notified_behind = None;
        }
        self
    }

    pub(crate) fn notified_behind(self) -> Option<u32> {
        match self {
            Self::Queue {
                notified_behind, ..
            } => notified_behind,
            Self::Nobody | Self::WithoutQueue => None,
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
        let released_to = ReleasedTo::Queue {
            place: Some(place),
            notified_behind: Some(3),
        };
        assert_eq!(released_to.for_mode(Mode::Exclusive), released_to);
        let shared = released_to.for_mode(Mode::Shared);
        assert_eq!(shared.place(), Some(place));
        assert_eq!(shared.notified_behind(), None);
    }
}
