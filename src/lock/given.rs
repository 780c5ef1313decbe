//! What the lane gives to a waiter that it grants the key.

use std::sync::Arc;

use super::grant::Grant;

/// A hold for a waiter.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) grant: Arc<Grant>,
    pub(super) pick_up: PickUp,
}

/// How a waiter confirms that it has picked up its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PickUp {
    /// By the flag of the grant, which no other acquire shares.
    Flag,
    /// By a lane event: the grant has other holds, or its home is another runtime until then.
    Event,
}
