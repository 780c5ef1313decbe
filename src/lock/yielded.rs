//! The other processes to which a released lease went, and the place of this process behind them.

use std::num::NonZeroU32;
use std::time::Duration;

use super::clock::Span;
use super::lease::LeaseNumber;
use crate::backend::Released;

/// The longest time for which a place in the queue of a backend lasts without a refresh, together with a lease
/// that was transferred to it.
pub(super) const PLACE: Span = Span::new(Duration::from_secs(5));

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
        place: Option<LeaseNumber>,
    },
}

impl Yielded {
    pub(super) fn to(watchers: u32) -> Self {
        NonZeroU32::new(watchers).map_or(Self::ToUnknown, Self::To)
    }

    /// Returns the queue, if this process has a place there.
    pub(super) fn behind(place: Option<LeaseNumber>) -> Self {
        match place {
            Some(_) => Self::ToQueue { place },
            None => Self::ToNobody,
        }
    }

    /// Returns for whom a backend released a lease without a count of other processes.
    pub(super) fn by(released: Released) -> Self {
        match released {
            Released::Transferred | Released::LeftToOthers => Self::ToQueue { place: None },
            Released::Released | Released::NotHeld => Self::ToNobody,
        }
    }

    pub(super) fn place(self) -> Option<LeaseNumber> {
        match self {
            Self::ToQueue { place } => place,
            Self::ToNobody | Self::To(_) | Self::ToUnknown => None,
        }
    }
}
