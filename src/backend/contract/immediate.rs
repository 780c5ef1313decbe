//! The commands that a store in this process completes without waiting.

use tokio::time::Instant;

use super::{AcquireRequest, Acquired, BackendError, Release, Released};

/// The commands of a store in this process that complete without waiting and without reading the clock.
///
/// `now` is a time before the call. It may be earlier than the `now` of a previous call.
///
/// The engine calls these methods while it holds a mutex that covers the key. They must be short, and must
/// not call a method of the manager: that would deadlock.
pub trait Immediate {
    /// Acquires a key like [`Backend::try_acquire`](super::Backend::try_acquire).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Backend::try_acquire`](super::Backend::try_acquire).
    fn try_acquire(&self, request: &AcquireRequest, now: Instant)
    -> Result<Acquired, BackendError>;

    /// Releases one lease like [`Backend::release`](super::Backend::release).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Backend::release`](super::Backend::release).
    fn release(&self, lease: &Release, now: Instant) -> Result<Released, BackendError>;
}
