//! A read-only view of a held lock.

use std::fmt;
use std::time::Duration;

use super::lost::{Grants, Lost};
use crate::backend::Mode;
use crate::lock::clock::Span;
use crate::observe::{LostReason, Via};
use crate::{FencingToken, LockKey, Owner};

/// A read-only view of a held lock, which the layer passes to handlers.
///
/// A view does not extend the hold: after the guard is dropped, [`is_held`](Held::is_held) returns
/// `false` and [`hold_count`](Held::hold_count) returns 0. A task that a handler starts can outlive the response, and the
/// lock with it: move a [`LockGuard`](crate::LockGuard) into the task, as
/// [`guide::http`](crate::guide::http#work-after-the-response) shows.
#[derive(Clone)]
pub struct Held {
    pub(crate) grants: Grants,
    pub(crate) waited: Span,
    pub(crate) via: Via,
}

impl Held {
    /// Returns the key, or the first of several keys in their sorted order.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.grants.first().key().stored()
    }

    /// Returns the keys in their sorted order.
    #[must_use]
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &LockKey> {
        self.grants.iter().map(|grant| grant.key().stored())
    }

    /// Returns the owner of the lock. Pass it to [`Acquire::owner`](crate::manager::Acquire::owner) to re-enter.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.grants.first().owner()
    }

    /// Returns the token to send with each write, by which the storage can reject writes of a stale
    /// holder.
    ///
    /// For several keys, this is the largest of their tokens. If one counter serves all keys, it is larger
    /// than every token granted before on any of the keys, and smaller than every later one. One counter
    /// serves all keys in memory, and on one Redis node that has counters of its own. With other backends,
    /// write each record with the token of its own key, [`fencing_token_for`](Self::fencing_token_for).
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        let first = self.grants.first().token();
        (self.grants.iter()).fold(first, |largest, grant| largest.max(grant.token()))
    }

    /// Returns the token of one of the keys, or `None` if the lock does not cover the key.
    #[must_use]
    pub fn fencing_token_for(&self, key: &LockKey) -> Option<FencingToken> {
        let mut grants = self.grants.iter();
        let grant = grants.find(|grant| grant.key().stored() == key);
        grant.map(|grant| grant.token())
    }

    /// Returns the statement with which a transaction in PostgreSQL begins, so that it commits only under this lock, and
    /// its two parameters: the keys, of the type `text[]`, and their fencing tokens, of the type `bigint[]`.
    ///
    /// While the transaction is open, no other owner can acquire the lock. If the lock is lost already, the statement
    /// fails. It is for locks of a `PostgresBackend` in the same database.
    /// [`guide::postgres`](crate::guide::postgres#the-fence) has examples and the errors.
    #[cfg(feature = "postgres")]
    #[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
    #[must_use]
    pub fn fence(&self) -> (&'static str, Vec<String>, Vec<i64>) {
        let grants = self.grants.iter();
        let (keys, tokens) = grants
            .map(|it| (it.key().stored().as_str().to_owned(), it.token().get()))
            .unzip();
        let statement = "SELECT tower_lock.fence($1::text[], $2::bigint[])";
        (statement, keys, tokens)
    }

    /// Returns how this owner holds the lock. With several keys, returns [`Mode::Exclusive`] if one of them is held
    /// exclusively. A key counts as shared from the command of a [`downgrade`](crate::lock::LockGuard::downgrade) on, unless the
    /// backend rejects it: other owners may share the key before the reply.
    #[must_use]
    pub fn mode(&self) -> Mode {
        let mut modes = self.grants.iter().map(|grant| grant.mode());
        let exclusive = modes.find(|mode| *mode == Mode::Exclusive);
        exclusive.unwrap_or_else(|| self.grants.first().mode())
    }

    /// Returns the number of guards by which this owner holds the lock, or 0 after the release. With
    /// several keys, returns the smallest of their counts.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        let counts = self.grants.iter().map(|grant| grant.holds());
        counts.min().unwrap_or(0)
    }

    /// Returns `true` if the lock is held at this moment.
    ///
    /// Reads the clock at each call. Returns `false` from the instant at which the backend may admit another
    /// owner, even after this process was paused or the machine was suspended.
    ///
    /// Suspends count on Linux, Android, Apple systems and Windows. On other systems, they count if the clock of std
    /// counts them. A suspend of a virtual machine whose hypervisor stops all its clocks does not count.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0 && self.grants.are_held(self.grants.now())
    }

    /// Returns the time until the lock is lost if no renewal succeeds, or zero if it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = self.grants.now();
        if self.hold_count() > 0 && self.grants.are_held(now) {
            self.grants.valid_until().since(now)
        } else {
            Duration::ZERO
        }
    }

    /// Returns how long the acquire waited, or zero if it was granted at its first poll.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited.get()
    }

    /// Returns how the lock was granted. For several keys, returns the slowest way.
    #[must_use]
    pub fn via(&self) -> Via {
        self.via
    }

    /// Returns why the lock was lost, or `None` while it is held or after it was released. For several keys, returns the
    /// reason of the first one that was lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_lock::Error> {
    /// use std::time::Duration;
    /// use tower_lock::LockManager;
    /// use tower_lock::manager::LostReason;
    ///
    /// let locks = LockManager::in_memory();
    /// let guard = locks.acquire("order:42").max_hold(Duration::from_millis(500)).await?;
    /// assert_eq!(guard.lost_reason(), None);
    /// guard.lost().await;
    /// assert_eq!(guard.lost_reason(), Some(LostReason::MaxHold));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.grants.lost_reason()
    }

    /// Returns `true` if the lock is lost at this moment, and `false` if it is held or released.
    pub(crate) fn is_lost(&self) -> bool {
        self.grants.are_lost(self.grants.now())
    }

    /// Completes when the lock is lost: its renewal was rejected, its lease expired, its longest hold was reached, or an
    /// operator released it by force.
    ///
    /// Completes before the lease can expire in the backend, and at once if the lock is already lost. Never completes if
    /// the lock is released first. After a suspend of the machine, completes within 100 ms of the resume, on the systems
    /// where [`is_held`](Self::is_held) counts suspends.
    ///
    /// # Cancel safety
    ///
    /// If dropped, a new future can be created later without missing a loss.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_lock::Error> {
    /// use tower_lock::LockManager;
    ///
    /// async fn report() -> Option<&'static str> {
    ///     Some("done")
    /// }
    ///
    /// let locks = LockManager::in_memory();
    /// let guard = locks.acquire("report").await?;
    /// // Outside of a layer, the program stops its work itself.
    /// let outcome = tokio::select! {
    ///     outcome = report() => outcome,
    ///     () = guard.lost() => None,
    /// };
    /// assert_eq!(outcome, Some("done"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> impl Future<Output = ()> + fmt::Debug + Send + Sync + use<> {
        self.loss()
    }

    pub(crate) fn loss(&self) -> Lost {
        Lost::new(self.grants.clone())
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("keys", &self.keys().collect::<Vec<_>>())
            .field("owner", &self.owner())
            .field("fencing_token", &self.fencing_token())
            .field("hold_count", &self.hold_count())
            .field("is_held", &self.is_held())
            .finish()
    }
}
