//! The other processes to which a released lease went.

use std::num::NonZeroU32;

use super::place::QueuePlace;
use super::promise::Promise;
use crate::backend::{Mode, Released};

/// The other processes for which a lease was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Yielded {
    ToNobody,
    To(NonZeroU32),
    /// Other processes may wait, but cannot be counted.
    ToUnknown,
    /// The first process in the queue of the backend has the next turn. If waiters are left, this process may
    /// have entered that queue already, in the same command.
    ToQueue {
        place: Option<QueuePlace>,
        /// What makes the message of a transfer to this place a grant.
        promise: Option<Promise>,
    },
}

impl Yielded {
    /// A queue in which this process has no place.
    pub(super) const TO_QUEUE: Self = Self::ToQueue {
        place: None,
        promise: None,
    };

    pub(super) fn to(watchers: u32) -> Self {
        NonZeroU32::new(watchers).map_or(Self::ToUnknown, Self::To)
    }

    /// Returns the queue, if this process has a place there.
    pub(super) fn behind(place: Option<QueuePlace>) -> Self {
        match place {
            Some(_) => Self::ToQueue {
                place,
                promise: None,
            },
            None => Self::ToNobody,
        }
    }

    /// Returns for whom a backend released a lease without a count of other processes.
    pub(super) fn by(released: Released) -> Self {
        match released {
            Released::Transferred | Released::LeftToOthers => Self::TO_QUEUE,
            Released::Released | Released::NotHeld => Self::ToNobody,
        }
    }

    pub(super) fn place(self) -> Option<QueuePlace> {
        match self {
            Self::ToQueue { place, .. } => place,
            Self::ToNobody | Self::To(_) | Self::ToUnknown => None,
        }
    }

    /// Drops a promise for another mode than that of the first waiter. An attempt then changes the mode of the place.
    pub(super) fn for_mode(mut self, mode: Mode) -> Self {
        if let Self::ToQueue { promise, .. } = &mut self {
            *promise = promise.filter(|it| it.is_for(mode));
        }
        self
    }

    pub(super) fn promise(self) -> Option<Promise> {
        match self {
            Self::ToQueue { promise, .. } => promise,
            Self::ToNobody | Self::To(_) | Self::ToUnknown => None,
        }
    }
}
