//! How a lock was granted, and why it was lost.

use super::label::label;

label! {
    /// How a lock was granted.
    ///
    /// Returned by [`Held::via`](crate::Held::via). The label `via` of the metrics has the same values.
    #[derive(PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum Via {
        /// The owner already held the lock.
        Reentrant = "reentrant",
        /// This process still had the lease of a lock that it was about to release.
        Reclaimed = "reclaimed",
        /// This process had [kept](crate::LockManagerBuilder::keep_released) the lease, because the key comes back.
        Kept = "kept",
        /// A holder in this process released the lock to this waiter, without a round trip.
        HandOff = "handoff",
        /// The backend granted the lock.
        Backend = "backend",
    }
}

label! {
    /// Why a lock was lost.
    ///
    /// Returned by [`Held::lost_reason`](crate::Held::lost_reason). The label `reason` of the metrics has the same
    /// values.
    #[non_exhaustive]
    pub enum LostReason {
        /// No renewal succeeded before the lease had to be considered expired.
        Expired = "expired",
        /// The backend replied that the lease does not hold the key.
        NotHeld = "not_held",
        /// The hold reached its longest time, [`max_hold`](crate::manager::Acquire::max_hold).
        MaxHold = "max_hold",
        /// The fixed lease ended, [`Acquire::lease`](crate::manager::Acquire::lease).
        LeaseEnded = "lease_ended",
        /// An operator released the lock, [`force_release`](crate::LockManager::force_release).
        Forced = "forced",
        /// The result of a [`downgrade`](crate::LockGuard::downgrade) was unknown, so the lock was released.
        Downgrade = "downgrade",
    }
}
