//! The place of this process in the queue of a backend.

use std::num::NonZeroU16;
use std::time::Duration;

use super::clock::Span;
use super::lease::LeaseNumber;
use crate::backend::Mode;

/// The longest time for which a place in the queue of a backend lasts without a refresh, together with a lease
/// that was transferred to it.
pub(super) const PLACE: Span = Span::new(Duration::from_secs(5));

/// The place of this process in the queue of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueuePlace {
    pub(super) lease: LeaseNumber,
    /// How the lease will hold the key. A place keeps its mode and its limit.
    pub(super) mode: Mode,
    pub(super) limit: Option<NonZeroU16>,
}
