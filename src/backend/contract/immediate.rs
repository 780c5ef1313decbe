//! The commands that a store in this process completes without waiting.

use tokio::time::Instant;

use super::{AcquireRequest, Acquired, BackendError, Release, Released};

/// The commands of a store in this process that complete without waiting and without reading the clock.
///
/// `now` is a time before the call. It may be earlier than the `now` of a previous call.
///
/// The engine calls these methods while it holds a mutex that covers the key. They must be short, and must
/// not call a method of the manager: that would deadlock.
///
/// # Example
///
/// The immediate commands of a store that counts the attempts at another one. Its
/// [`Backend::immediate`](super::Backend::immediate) returns `Some(self)`.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use tokio::time::Instant;
/// use tower_lock::backend::{
///     AcquireRequest, Acquired, BackendError, Immediate, Memory, Release, Released,
/// };
///
/// struct Counting {
///     store: Memory,
///     attempts: AtomicU64,
/// }
///
/// impl Immediate for Counting {
///     fn try_acquire(
///         &self,
///         request: &AcquireRequest,
///         now: Instant,
///     ) -> Result<Acquired, BackendError> {
///         self.attempts.fetch_add(1, Ordering::Relaxed);
///         Immediate::try_acquire(&self.store, request, now)
///     }
///
///     fn release(&self, lease: &Release, now: Instant) -> Result<Released, BackendError> {
///         Immediate::release(&self.store, lease, now)
///     }
/// }
/// # use std::time::Duration;
/// # use tower_lock::LockKey;
/// # use tower_lock::backend::LeaseId;
/// # let counting = Counting { store: Memory::new(), attempts: AtomicU64::new(0) };
/// # let (key, lease) = (LockKey::new("order:42"), LeaseId::new(uuid::Uuid::new_v4(), 1));
/// # let request = AcquireRequest::new(key.clone(), lease, Duration::from_secs(30));
/// # let (now, release) = (Instant::now(), Release::new(key, lease));
/// # assert!(matches!(counting.try_acquire(&request, now), Ok(Acquired::Granted { .. })));
/// # assert!(matches!(counting.release(&release, now), Ok(Released::Released)));
/// # assert_eq!(counting.attempts.into_inner(), 1);
/// ```
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
