//! The place of this process in the queue of a backend.

use std::num::NonZeroU16;
use std::time::Duration;

use super::number::LeaseNumber;
use crate::backend::Mode;
use crate::lock::clock::Span;

/// The longest time for which a place in the queue of a backend lasts without a refresh, together with a lease
/// that was transferred to it.
pub(crate) const PLACE: Span = Span::new(Duration::from_secs(5));

/// The place of this process in the queue of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueuePlace {
    pub(crate) lease: LeaseNumber,
    /// How the lease will hold the key. A place keeps its mode and its limit.
    pub(crate) mode: Mode,
    pub(crate) limit: Option<NonZeroU16>,
}
