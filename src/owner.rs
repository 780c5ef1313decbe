//! The owner of a lock, and the fencing token that proves a grant to a storage.

use std::fmt;
use std::num::NonZeroU64;

use uuid::Uuid;

/// The identity under which a lock is held. The same owner re-enters, and any other owner waits.
///
/// Only the [`LockManager`](crate::LockManager) that created it and its clones recognize an owner. Build
/// one manager per backend and clone it.
///
/// An owner is the UUID v4 of its manager and a number that is unique per request. It is not a thread or a
/// task id, because a Tokio task migrates between threads and one thread runs many requests. It travels
/// explicitly: in the extensions of the request, or through [`Acquire::owner`](crate::manager::Acquire::owner). Two
/// requests on one thread are two owners.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_lock::Error> {
/// use tower_lock::LockManager;
///
/// let locks = LockManager::in_memory();
/// let outer = locks.acquire("order:42").await?;
/// let inner = locks.acquire("order:42").owner(outer.owner()).await?;
/// assert_eq!((inner.owner(), inner.hold_count()), (outer.owner(), 2));
/// assert!(locks.acquire("order:42").no_wait().await.unwrap_err().is_busy());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    manager: Uuid,
    /// Never 0, so that an `Option<Owner>` takes no more space.
    number: NonZeroU64,
}

impl Owner {
    pub(crate) fn new(manager: Uuid, number: NonZeroU64) -> Self {
        Self { manager, number }
    }

    /// Returns the number of the owner within its manager.
    pub(crate) fn number(self) -> u64 {
        self.number.get()
    }

    /// Returns the manager that created this owner.
    pub(crate) fn manager(self) -> Uuid {
        self.manager
    }
}

/// Formats the owner as `<uuid>:<number>`, which is how Redisson names its owners.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.manager, self.number)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

/// A number that increases with each fresh grant of an exclusive lock. The storage behind the lock uses it to reject
/// the write of a stale holder.
///
/// The tokens of exclusive locks strictly increase per key: over hand-offs in the process, over grants to other
/// processes, and over an empty restart of the backend. [Readers](crate::guide::shared#tokens) of one process share a
/// token, and the storage only compares it. Permits are not fenced from each other. Reentrant grants share the token of
/// the outermost one. A nested hold of one key out of several has that key's own token, so write with the outer guard's
/// token throughout. A token fits a signed 64-bit integer (SQL `BIGINT`) and exceeds 2^53, so JSON requires a
/// string. Tokens of different keys are not comparable. Tokens from Redisson's counters
/// (`redisson_fencing_tokens`) are small and restart at 1 if Redis loses its data.
///
/// On Redis, the tokens of a lock increase under two conditions:
///
/// - All processes use the same prefix for the lock. The key `k` under the prefix `lock:` and the key
///   `lock:k` under the prefix `""` are one lock with two counters. Grants from two counters are in order only
///   if they are more than 1 ms apart and the server's clock did not step back.
/// - The server has its counter, or its clock is past the lost tokens. After a loss of data or a failover that
///   lost grants, the counter continues at the clock of the server that has it now. While that clock is behind
///   the clock of the last lost grant, tokens can repeat. If a clock stepped back, the tokens stay ahead of it
///   until it reaches its former value, and a loss in this time can also repeat tokens.
///
/// Source: Kleppmann, *How to do distributed locking* (2016).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_lock::Error> {
/// use tower_lock::LockManager;
///
/// let locks = LockManager::in_memory();
/// let first = locks.acquire("order:42").await?.fencing_token();
/// let second = locks.acquire("order:42").await?.fencing_token();
/// assert!(first < second);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(i64);

impl FencingToken {
    /// Creates the token of the `handoff`-th grant under a backend's counter. The fresh grant has hand-off
    /// 0.
    ///
    /// The next counter is at least one larger, so its tokens exceed all tokens of this one. The tokens of
    /// consecutive counters are consecutive.
    pub(crate) fn new(counter: u64, per_counter: u32, handoff: u32) -> Self {
        let token = counter.saturating_mul(per_counter.into());
        let token = token.saturating_add(handoff.into());
        Self(i64::try_from(token).unwrap_or(i64::MAX))
    }

    /// Returns the token that [`get`](Self::get) has returned as this number.
    pub(crate) fn of(token: i64) -> Self {
        Self(token)
    }

    /// Returns the token as the signed 64-bit integer of a SQL `BIGINT`. It is not negative.
    #[must_use]
    pub fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_counter_exceeds_all_handoffs_of_previous() {
        let last = FencingToken::new(7, 256, 255);
        assert!(FencingToken::new(8, 256, 0) > last);
        assert_eq!(last.get(), 7 * 256 + 255);
        assert_eq!(FencingToken::new(7, 1, 0).get(), 7);
    }

    #[test]
    fn microsecond_clock_fits_for_thousand_years() {
        let year_3000: u64 = 32_503_680_000 * 1_000_000;
        assert!(FencingToken::new(year_3000, 256, 255).get() < i64::MAX);
    }
}
